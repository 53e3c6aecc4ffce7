// SPDX-License-Identifier: Apache-2.0

// Package claim turns the allocation of a ResourceClaim and the opaque configurations in it into what each allocated device
// of this driver is to become: one effective configuration a result, every field with the place it came from, and the
// container edits.
//
// It is pure: the same claim gives the same answer on a node, in the controller and in the CLI, and nothing is read or written.
// Prepare does what Resolve says and refuses what Resolve refuses; admission only says so earlier.
package claim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Resolve says what the claim holds of this driver and how each device is to be given to the pod. An error is a *RefusedError
// with every fault of the first stage that has any: the allocation itself, then the configurations, then the namespaces. A
// policy is the stricter one of the class as the allocation recorded it and the class as it is now. A
// claim with no result of this driver gives an Allocation without results and no error, whatever its configurations say. The
// claim is not changed.
func Resolve(in Input) (Allocation, error) {
	allocated := in.Claim.Status.Allocation
	if allocated == nil {
		fault := field.Required(allocationPath(), "the claim is not allocated yet: wait for the scheduler")
		return Allocation{}, refuse(in.Claim, ReasonNotAllocated, field.ErrorList{fault})
	}
	results, faults := ownResults(in, allocated.Devices.Results)
	if len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonDeviceUnknown, faults)
	}
	if faults := repeated(results); len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonDeviceRepeated, faults)
	}
	if faults := unrequested(in, results); len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonNotRequested, faults)
	}
	allocation := Allocation{Namespace: in.Claim.Namespace, Name: in.Claim.Name, UID: in.Claim.UID}
	if len(results) == 0 {
		return allocation, nil
	}
	if faults := goneClasses(in, results); len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonClassNotFound, faults)
	}
	layers, faults := decodeLayers(allocated.Devices.Config, in.Driver)
	for i := range layers {
		faults = append(faults, layers[i].assign(results)...)
	}
	if len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonConfigInvalid, faults)
	}
	for i, result := range results {
		config, wrong := merge(layers, i, result.Kind)
		wrong = append(wrong, applyLivePolicy(&config, in, result.Result)...)
		result.Config, faults = config, append(faults, wrong...)
		allocation.Results = append(allocation.Results, result.Result)
	}
	if len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonConfigInvalid, faults)
	}
	if faults := mountPathFaults(allocation.Results); len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonConfigInvalid, faults)
	}
	if faults := shareFaults(results, allocation.Results); len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonConfigInvalid, faults)
	}
	if faults := namespaceFaults(in.Claim.Namespace, allocation.Results); len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonNamespaceNotAllowed, faults)
	}
	if faults := fpgaFaults(allocation.Results); len(faults) > 0 {
		return Allocation{}, refuse(in.Claim, ReasonForbiddenByPolicy, faults)
	}
	return allocation, nil
}

// ownResult is a Result together with what it was made from.
type ownResult struct {
	Result
	api  resourceapi.DeviceRequestAllocationResult
	path *field.Path
}

// ownResults picks the driver's results and says what kind each is.
func ownResults(in Input, all []resourceapi.DeviceRequestAllocationResult) ([]ownResult, field.ErrorList) {
	var own []ownResult
	var faults field.ErrorList
	for i, r := range all {
		if r.Driver != in.Driver {
			continue
		}
		path := allocationPath().Child("devices", "results").Index(i)
		kind, ok := poolKind(r.Pool, in.Node)
		if !ok {
			faults = append(faults, field.Invalid(path.Child("pool"), r.Pool, poolDetail(in.Node)))
			continue
		}
		own = append(own, ownResult{api: r, path: path, Result: Result{
			Request:     r.Request,
			BaseRequest: resourceclaim.BaseRequestRef(r.Request),
			Pool:        r.Pool,
			Device:      r.Device,
			ShareID:     r.ShareID,
			Consumed:    r.ConsumedCapacity,
			AdminAccess: r.AdminAccess != nil && *r.AdminAccess,
			Kind:        kind,
		}})
	}
	return own, faults
}

// poolKind takes the kind of device from a pool's name, node/kind.
func poolKind(pool, node string) (device.Kind, bool) {
	owner, kind, ok := device.SplitPool(pool)
	if !ok || owner == "" || (node != "" && owner != node) {
		return "", false
	}
	return kind, slices.Contains(device.Kinds(), kind)
}

func poolDetail(node string) string {
	node = cmp.Or(node, "<node>")
	var pools []string
	for _, kind := range device.Kinds() {
		pools = append(pools, node+"/"+string(kind))
	}
	return fmt.Sprintf("must be one of %s: delete the pod, so that the claim is allocated again", strings.Join(pools, ", "))
}

// repeated finds devices that the allocation gives away twice.
func repeated(results []ownResult) field.ErrorList {
	var faults field.ErrorList
	for i, r := range results {
		first := slices.IndexFunc(results[:i], func(earlier ownResult) bool { return exclude(earlier.Result, r.Result) })
		if first < 0 {
			continue
		}
		faults = append(faults, field.Invalid(r.path.Child("device"), r.Device,
			fmt.Sprintf("request %s has it already: delete the pod, so that the claim is allocated again", results[first].Request)))
	}
	return faults
}

// exclude reports whether two results cannot stand together. Looks (adminAccess) take nothing, and different shares may meet.
func exclude(a, b Result) bool {
	if a.AdminAccess || b.AdminAccess || a.Pool != b.Pool || a.Device != b.Device {
		return false
	}
	return a.ShareID == nil || b.ShareID == nil || *a.ShareID == *b.ShareID
}

func allocationPath() *field.Path { return field.NewPath("status", "allocation") }
