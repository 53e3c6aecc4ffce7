// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/publication"
)

// Resources returns the slices of a snapshot, as package publication cuts them. Kubelet's helper deletes the slices of a pool that is not
// among them. A retired node publishes nothing.
func Resources(node string, v *inventory.Snapshot) resourceslice.DriverResources {
	content := publication.Content{Cards: v.Cards, Counters: v.Counters, BindLate: v.BindLate}
	for _, kind := range device.Kinds() {
		content.Devices = append(content.Devices, v.Published(kind)...)
	}
	pools := make(map[string]resourceslice.Pool)
	for _, pool := range content.Pools(node) {
		slices := make([]resourceslice.Slice, len(pool.Slices))
		for i, s := range pool.Slices {
			taint(s.Devices, v)
			slices[i] = resourceslice.Slice{SharedCounters: s.SharedCounters, Devices: s.Devices}
		}
		pools[pool.Name] = resourceslice.Pool{Slices: slices}
	}
	return resourceslice.DriverResources{Pools: pools}
}

// taintTenant is the key of the taint on the free regions of a chip that a claim holds. Its value is the namespace whose claims may join,
// or the UID of a claim that shares with no other.
const taintTenant = v1alpha1.GroupName + "/tenant"

// taint adds taints to devices that are not healthy, to free regions of held chips, to devices that deleted claims hold, and to all while
// a driver is upgraded. An API server that drops taints gets none of the latter: the devices are withheld while pods are to go, and while
// the driver is quiesced.
// The API server sets the time, and the helper keeps it while the taint stays.
func taint(devices []resourceapi.Device, v *inventory.Snapshot) {
	for i := range devices {
		if s, bad := v.Health.Statuses[devices[i].Name]; bad {
			devices[i].Taints = []resourceapi.DeviceTaint{inventory.Taint(s, v.Health.NoEviction)}
		}
		if tenant := v.Tenants[devices[i].Name]; tenant != "" {
			devices[i].Taints = append(devices[i].Taints, resourceapi.DeviceTaint{
				Key: taintTenant, Value: tenant, Effect: resourceapi.DeviceTaintEffectNoSchedule,
			})
		}
		// Without eviction: the pod of the deleted claim would stay, and claims that share the device would lose theirs.
		if v.HeldByDeleted[devices[i].Name] {
			devices[i].Taints = append(devices[i].Taints, resourceapi.DeviceTaint{
				Key: inventory.TaintHeld, Value: inventory.ReasonClaimDeleted, Effect: resourceapi.DeviceTaintEffectNoSchedule,
			})
		}
		if v.Upgrade != "" && v.Health.TaintsKept {
			devices[i].Taints = append(devices[i].Taints, resourceapi.DeviceTaint{Key: v1alpha1.UpgradeAnnotation, Effect: v.Upgrade})
		}
	}
}

// deviceSpecs returns the CDI specs of all devices of a snapshot: of their edits, and of the names under which kubelet shows them.
func deviceSpecs(names *cdi.Names, v *inventory.Snapshot) ([]cdi.Spec, error) {
	var (
		specs []cdi.Spec
		errs  []error
	)
	for i := range v.Devices {
		shown, err := cdi.Shown(string(v.Devices[i].Kind), v.Devices[i].Name)
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", v.Devices[i].Name, err))
			continue
		}
		specs = append(specs, shown)
		if edits := &v.Devices[i].Edits; len(edits.Made) > 0 || edits.Empty() {
			// Each claim has a file of its own, or the machine does not show the device while a claim has it, or a part of it: a GPU of a virtual
			// machine. Nobody else can get it meanwhile.
			continue
		}
		spec, err := names.Common(v.Devices[i].Edits)
		if _, held := v.Withheld[v.Devices[i].Name]; err != nil && held {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", v.Devices[i].Name, err))
			continue
		}
		specs = append(specs, spec)
	}
	return specs, errors.Join(errs...)
}

// UpToDate reports whether the API server's slices contain exactly the devices that a snapshot publishes, as the scheduler sees them. It
// ignores a further pool without devices: a former version published it, and the helper deletes it half a minute after a start.
func UpToDate(node string, v *inventory.Snapshot, published []resourceapi.ResourceSlice) bool {
	have := map[string]*resourceapi.Device{}
	pools := map[string]bool{}
	for i := range published {
		spec := &published[i].Spec
		pools[spec.Pool.Name] = true
		for j := range spec.Devices {
			have[spec.Pool.Name+"/"+spec.Devices[j].Name] = &spec.Devices[j]
		}
	}
	want := 0
	wanted := Resources(node, v).Pools
	for pool := range wanted {
		if !pools[pool] {
			return false
		}
		for _, slice := range wanted[pool].Slices {
			want += len(slice.Devices)
			differs := func(d resourceapi.Device) bool { return !sameDevice(have[pool+"/"+d.Name], &d) }
			if slices.ContainsFunc(slice.Devices, differs) {
				return false
			}
		}
	}
	return want == len(have)
}

// sameDevice compares what the scheduler sees of a device. The API server sets the time of a taint, so it is ignored.
func sameDevice(there, want *resourceapi.Device) bool {
	if there == nil || len(there.Taints) != len(want.Taints) {
		return false
	}
	for i, taint := range there.Taints {
		taint.TimeAdded = want.Taints[i].TimeAdded
		if taint != want.Taints[i] {
			return false
		}
	}
	return equality.Semantic.DeepEqual(there.AllowMultipleAllocations, want.AllowMultipleAllocations) &&
		equality.Semantic.DeepEqual(there.Attributes, want.Attributes) && equality.Semantic.DeepEqual(there.Capacity, want.Capacity) &&
		equality.Semantic.DeepEqual(there.ConsumesCounters, want.ConsumesCounters)
}
