// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
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
		gpu.KernelCaches = nil
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
