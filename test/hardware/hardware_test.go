// SPDX-License-Identifier: Apache-2.0

package hardware_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/hardware"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// elsewhere are machines that the table lacks, since their devices are more than a name and an address, and zynqmp, which a configuration
// makes a device of.
var elsewhere = []string{"2xd5005-no-iommu", "2xmi300x-divided", "broken-fpga", "zynqmp"}

// TestDiscovery: what discovery finds on each machine is what the table says.
func TestDiscovery(t *testing.T) {
	files, err := filepath.Glob("../machines/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no machines: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if slices.Contains(elsewhere, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			want, err := hardware.Of(name)
			if err != nil {
				t.Fatal(err)
			}
			root := nodefixture.Expand(t, name)
			got := find(t, root)
			if diff := cmp.Diff(lines(want), lines(got)); diff != "" {
				t.Errorf("devices and problems (-written down +found):\n%s", diff)
			}
			compareNodes(t, root, want)
		})
	}
}

// TestOf refuses a machine that nobody wrote down.
func TestOf(t *testing.T) {
	if _, err := hardware.Of("8xmi300x", "9xmi300x"); err == nil || !strings.Contains(err.Error(), "9xmi300x") {
		t.Errorf("error %v, want one that names the machine", err)
	}
}

// inventory is what discovery finds.
func inventory(t *testing.T, root string) discover.Inventory {
	t.Helper()
	tree, err := sysfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	return discover.Discover(t.Context(), tree, discover.Options{})
}

// find is what discovery finds in the words of the table.
func find(t *testing.T, root string) hardware.Machine {
	t.Helper()
	var m hardware.Machine
	text := func(d *device.Device, name string) string {
		for key, value := range d.Attributes {
			if string(key) == name && value.StringValue != nil {
				return *value.StringValue
			}
		}
		return ""
	}
	found := inventory(t, root)
	for i := range found.Devices {
		d := &found.Devices[i]
		m.Devices = append(m.Devices, hardware.Device{
			Kind: string(d.Kind), Name: d.Name, Vendor: text(d, "vendor"), Address: text(d, "pciAddress"),
			Root: text(d, "resource.kubernetes.io/pcieRoot"),
		})
	}
	for _, p := range found.Problems {
		m.Problems = append(m.Problems, hardware.Problem{Subject: p.Subject, Reason: p.Reason})
	}
	return m
}

// lines are a machine as text, sorted.
func lines(m hardware.Machine) []string {
	out := []string{}
	for _, d := range m.Devices {
		out = append(out, strings.Join([]string{"device", d.Kind, d.Name, d.Vendor, d.Address, d.Root}, " "))
	}
	for _, p := range m.Problems {
		out = append(out, "problem "+p.Subject+" "+p.Reason)
	}
	slices.Sort(out)
	return out
}

// compareNodes compares the device nodes that a container gets. Device nodes are made by root only.
func compareNodes(t *testing.T, root string, m hardware.Machine) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	found := inventory(t, root)
	for _, d := range m.Devices {
		i := slices.IndexFunc(found.Devices, func(other device.Device) bool { return other.Name == d.Name })
		if i < 0 {
			continue // told by the comparison of names
		}
		var got []string
		for _, n := range found.Devices[i].Edits.Nodes {
			got = append(got, hardware.Node{Path: n.Path, Major: uint32(n.Major), Minor: uint32(n.Minor)}.String())
		}
		nodes, err := d.Nodes(root)
		if err != nil {
			t.Error(err)
			continue
		}
		var want []string
		for _, n := range nodes {
			want = append(want, n.String())
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("nodes of %s (-written down +found):\n%s", d.Name, diff)
		}
	}
}
