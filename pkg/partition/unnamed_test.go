// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// TestInstanceOfUnnamedProfile: an instance of a profile that has no name may be a claim's, and is not destroyed.
func TestInstanceOfUnnamedProfile(t *testing.T) {
	for name, want := range map[string]partition.Settings{
		"dynamic": dynamic(), "layout": static(), "off": {MIG: &partition.MIG{Mode: partition.MIGDisabled}},
	} {
		m := h100().mig(true)
		m.Profiles = nil
		m.Instances = []nvml.MIGInstance{{ID: 7, ProfileID: 19, Placement: nvml.MIGPlacement{Start: 0, Size: 1}}}
		d := partition.Divide(partition.Physical{Device: h100().whole(t, 0), MIG: m}, want, gateOn())
		if len(d.Destroy) > 0 {
			t.Errorf("%s: destroyed: %+v", name, d.Destroy)
		}
	}
}
