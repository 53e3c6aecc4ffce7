// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// What was recorded from an expanded machine is discovered as the machine itself, and is a subset of it.
func TestRecordRoundTrip(t *testing.T) {
	for _, file := range machineFiles(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := parseMachine(t, name)
			dir := expand(t, first)
			recorded := record(t, dir, sim.RecordOptions{KeepIDs: true})
			again, err := sim.Parse(recorded.Format())
			if err != nil {
				t.Fatalf("the recorded machine does not parse: %v", err)
			}
			if diff := cmp.Diff(inventory(t, dir), inventory(t, expand(t, again))); diff != "" {
				t.Errorf("discovered (-machine +recorded):\n%s", diff)
			}
		})
	}
}

func TestRecordRedacts(t *testing.T) {
	tests := map[string][]string{
		"8xh100-sxm": {"3f6c5a10-77b2", "5b9f6c09"},
		"8xmi300x":   {"7c1f9a52d03e8b46", "692321002107", "8944037065452849990", "4183650911733415962", "2314885530818453572"},
	}
	for name, ids := range tests {
		t.Run(name, func(t *testing.T) {
			dir := expand(t, parseMachine(t, name))
			kept := string(record(t, dir, sim.RecordOptions{KeepIDs: true}).Format())
			redacted := string(record(t, dir, sim.RecordOptions{}).Format())
			for _, id := range ids {
				if !strings.Contains(kept, id) {
					t.Errorf("the recording with ids lacks %s", id)
				}
				if strings.Contains(redacted, id) {
					t.Errorf("the recording without ids has %s", id)
				}
			}
			if len(inventory(t, dir).Devices) != 8 {
				t.Errorf("%d devices, want 8", len(inventory(t, dir).Devices))
			}
		})
	}
}

// The same GPU has the same substitute in the driver's and in the KFD's files, and the shape of an id stays.
func TestRecordRedactsConsistently(t *testing.T) {
	dir := expand(t, parseMachine(t, "8xmi300x"))
	m := record(t, dir, sim.RecordOptions{})
	files := map[string]string{}
	for _, e := range m.Entries {
		files[e.Path] = string(e.Data)
	}
	id := files["sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0/unique_id"]
	if id != "0000000000000002\n" {
		t.Errorf("unique_id %q, want the second id in the order of paths", id)
	}
	properties := files["sys/devices/virtual/kfd/kfd/topology/nodes/2/properties"]
	if !strings.Contains(properties, "\nunique_id 2\n") {
		t.Errorf("properties of the same GPU lack unique_id 2:\n%s", properties)
	}
}

func TestRecordWantsAHostTree(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := sim.Record(root, sim.RecordOptions{}); err == nil || !strings.Contains(err.Error(), "want a host tree") {
		t.Errorf("error %v, want one that says what is expected", err)
	}
}

func expand(t *testing.T, m *sim.Machine) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := m.Expand(dir, sim.Options{}); err != nil {
		t.Fatal(err)
	}
	// A machine without device nodes has no dev, a host always has.
	for _, name := range []string{"sys", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func record(t *testing.T, dir string, opts sim.RecordOptions) *sim.Machine {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	m, err := sim.Record(root, opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func inventory(t *testing.T, dir string) discover.Inventory {
	t.Helper()
	tree, err := sysfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	return discover.Discover(t.Context(), tree, discover.Options{FPGARegions: []discover.FPGARegion{{
		Device: "amd-firmware-zynqmp-firmware-pcap", InterfaceID: "5f2c81d0a4b94e0fb7c36d1e8f02a957", Nodes: []string{"/dev/dpu"},
	}}})
}
