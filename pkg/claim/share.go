// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Effect identifies the configuration that all holders of a shared device must agree on, wherever each has it from. It is empty for a
// device that the claim has for itself.
func (r *Result) Effect() string {
	if r.ShareID == nil {
		return ""
	}
	config := r.Config
	config.Sources, config.AllowedNamespaces = nil, nil
	if config.GPU != nil { // what a claim finds in its containers changes nothing for other holders
		gpu := *config.GPU
		gpu.KernelCaches, gpu.AllowPassthrough = nil, false
		config.GPU = &gpu
	}
	if config.FPGA != nil { // nor does an edit of the class between two claims
		fpga := *config.FPGA
		fpga.Policies, fpga.Live = fpga.sides()[0], false
		config.FPGA = &fpga
	}
	data, err := json.Marshal(config)
	if err != nil {
		return "unknown" // plain data always encodes
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// Setting says in words what [Result.Effect] identifies of a GPU. It is empty for other devices and for a device that the claim has for
// itself.
func (r *Result) Setting() string {
	if r.ShareID == nil || r.Config.GPU == nil {
		return ""
	}
	text := "strategy " + string(r.Config.GPU.Strategy)
	if r.Config.GPU.Interval != "" {
		text += ", interval " + string(r.Config.GPU.Interval)
	}
	return text
}

// Memory is how many bytes of the device's memory the share was granted, 0 if memory is not counted or the claim has the whole device.
func (r *Result) Memory() int64 {
	if r.ShareID == nil || r.AdminAccess {
		return 0
	}
	granted := r.Consumed[device.CapacityMemory]
	return granted.Value()
}

// memoryVariable begins the name of the variable that tells a container how many bytes of a device's memory its claim was granted. The
// device's name follows.
const memoryVariable = "FETTLE_MEMORY_"

// memoryEnv returns the variable of a share, none if memory is not counted.
func (r *Result) memoryEnv() []string {
	if r.Memory() <= 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s%s=%d", memoryVariable, variableName(r.Device), r.Memory())}
}

// variableName returns a device's name as the end of a variable's name.
func variableName(device string) string { return strings.ToUpper(strings.ReplaceAll(device, "-", "_")) }

// shareFaults refuses shares that would spoil each other: two of one device with different configurations, and a share of a directory
// that is emptied on release, since the first release would take what the other holders have in it.
func shareFaults(results []ownResult, resolved []Result) field.ErrorList {
	var faults field.ErrorList
	for i := range resolved {
		r := &resolved[i]
		if r.ShareID == nil || r.AdminAccess {
			continue
		}
		path := results[i].path.Child("device")
		if host := r.Config.Host; host != nil && host.OnRelease == v1alpha1.OnReleaseEmpty {
			faults = append(faults, field.Invalid(path, r.Device, fmt.Sprintf("request %s has a share of it and it is emptied on release: "+
				"use a class whose policy.onRelease is %s, or ask for the whole directory", r.Request, v1alpha1.OnReleaseKeep)))
		}
		if gpu := r.Config.GPU; gpu != nil && gpu.Strategy == v1alpha1.SharingMPS {
			faults = append(faults, field.Invalid(path, r.Device, fmt.Sprintf("request %s has a share of it, and MPS is for the containers and "+
				"pods of one claim that has the GPU for itself: ask for a GPU that is not shared, or choose another strategy", r.Request)))
		}
		other := slices.IndexFunc(resolved[:i], func(earlier Result) bool {
			return earlier.ShareID != nil && !earlier.AdminAccess && earlier.Pool == r.Pool && earlier.Device == r.Device &&
				earlier.Effect() != r.Effect()
		})
		if other >= 0 {
			faults = append(faults, field.Invalid(path, r.Device, fmt.Sprintf("request %s has another share of it with another configuration: "+
				"give both requests the same", resolved[other].Request)))
		}
	}
	return faults
}
