// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vendors"
	"github.com/fettle-dev/fettle/test/check"
)

// TestLooksAgree: each vendor with GPUs of the table has a file that describes them, and no file is for a vendor that the table lacks.
func TestLooksAgree(t *testing.T) {
	files := looks()
	for _, v := range vendors.WithGPUs() {
		if files[v.Name].open == nil {
			t.Errorf("vendor %s has GPUs and no row in looks: see docs/design/adding.md", v.Name)
		}
		delete(files, v.Name)
	}
	if len(files) > 0 {
		t.Errorf("looks has rows for %v, which have no GPUs in the table of vendors", files)
	}
}

// TestVendorOfOnesOwn follows the recipe of docs/design/adding.md: a row in a copy of the table, and a look. The machine has Intel's GPUs
// made by another vendor.
func TestVendorOfOnesOwn(t *testing.T) {
	const acme = 0x1fff
	machine := parseMachine(t, "../../test/machines/2xintel-gpu.txtar")
	for i := range machine.Entries {
		if e := &machine.Entries[i]; string(e.Data) == "0x8086\n" || string(e.Data) == "0x8086" {
			e.Data = fmt.Appendf(nil, "0x%04x\n", acme)
		}
	}
	tree, err := sysfs.Open(expand(t, machine))
	check.Must(t, err)
	defer tree.Close()
	functions, listing := pci.List(tree)
	check.Must(t, listing)

	row := vendors.Vendor{
		Name: "acme", IDs: []uint16{acme}, Types: []string{string(device.KindGPU)},
		GPUs: &vendors.GPUs{ID: acme, Classes: []uint16{vendors.ClassVGA, vendors.ClassDisplay}, Drivers: []string{"i915"}},
	}
	all := append(knownGPUs(), vendor{row, look{open: func(context.Context, *sysfs.Tree, Options, []pci.Function) (probe, []Problem) {
		return func(d *draft, f pci.Function) {
			d.renderNode(f)
			d.driverVersion(f.Driver)
		}, nil
	}}})
	found := all.gpus(t.Context(), tree, Options{}, functions, nil)
	if len(found.Devices) != 1 || found.Devices[0].Name != "acme-0000-4d-00-0" {
		t.Errorf("got %+v, want the GPU that i915 holds", found.Devices)
	}
	if !slices.ContainsFunc(found.Problems, func(p Problem) bool {
		return p.Subject == "0000:b9:00.0" && p.Reason == ReasonDriverNotSupported
	}) {
		t.Errorf("got %+v, want a problem of the GPU that xe holds", found.Problems)
	}
}
