// SPDX-License-Identifier: Apache-2.0

package vendors

import (
	"regexp"
	"slices"
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
)

// TestRowsAgree: no two rows are of one vendor, what a row says is complete, and presets are for vendors that the table has.
func TestRowsAgree(t *testing.T) {
	types := []string{device.TypeMIG, device.TypePartition, device.TypeVF, device.TypeVFIO}
	for _, kind := range device.Kinds() {
		types = append(types, string(kind))
	}
	owner := map[uint16]string{}
	for _, v := range All() {
		if found, ok := Find(v.Name); !ok || found.Name != v.Name || !regexp.MustCompile(`^[a-z][a-z0-9]*$`).MatchString(v.Name) {
			t.Errorf("vendor %q: want one row, and a name that names of devices can begin with", v.Name)
		}
		for _, id := range v.IDs {
			if owner[id] != "" || NameOf(id) != v.Name {
				t.Errorf("identifier %04x is of %s and of %s", id, v.Name, owner[id])
			}
			owner[id] = v.Name
		}
		makesGPUs := slices.Contains(v.Types, string(device.KindGPU))
		if v.GPUs != nil && (!slices.Contains(v.IDs, v.GPUs.ID) || len(v.GPUs.Drivers) == 0 || !makesGPUs) {
			t.Errorf("vendor %s has GPUs %+v, and identifiers %x and types %v", v.Name, *v.GPUs, v.IDs, v.Types)
		}
		if v.XRT != 0 && !slices.Contains(v.IDs, v.XRT) {
			t.Errorf("vendor %s lacks its identifier for XRT, %04x", v.Name, v.XRT)
		}
		for _, name := range v.Types {
			if !slices.Contains(types, name) {
				t.Errorf("vendor %s has devices of type %q, want one of %v", v.Name, name, types)
			}
		}
	}
	for _, p := range Presets() {
		if v, ok := Find(p.Vendor); p.Backend == "" && (!ok || slices.ContainsFunc(p.Types, func(name string) bool {
			return !slices.Contains(v.Types, name)
		})) {
			t.Errorf("preset %s is for %v of %q, which makes %v", p.Name, p.Types, p.Vendor, v.Types)
		}
	}
}

// TestNameOfUnknown: a vendor without a row is called by its identifier.
func TestNameOfUnknown(t *testing.T) {
	if got := NameOf(0x1de5); got != "pci1de5" {
		t.Errorf("got %q, want pci1de5", got)
	}
	if name, ok := MakesXRT(0x8086); ok {
		t.Errorf("%s has no cards for XRT", name)
	}
}
