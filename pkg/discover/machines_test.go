// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/gpu/seen"
)

// fixedCapacity stands in for statfs, whose answer depends on the disk that the test runs on.
func fixedCapacity(string) (int64, error) { return 1 << 40, nil }

// What the configuration says of the machine zynqmp.
const (
	zynqDevice    = "amd-firmware-zynqmp-firmware-pcap"
	zynqInterface = "5f2c81d0a4b94e0fb7c36d1e8f02a957"
)

// machineOptions are those that every machine is discovered with.
func machineOptions() Options {
	return Options{
		Capacity:    fixedCapacity,
		HostDevices: []HostDevice{{Name: "localssd", Directories: []string{"/mnt/disks/*"}}},
		FPGARegions: []FPGARegion{{Device: zynqDevice, InterfaceID: zynqInterface, Nodes: []string{"/dev/dpu"}}},
	}
}

// machines lists the machine files of the repository.
func machines(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../test/machines/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no machines: %v", err)
	}
	return files
}

func parseMachine(t testing.TB, file string) *sim.Machine {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := sim.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

// expand makes a host tree of a machine and returns its directory.
func expand(t testing.TB, machine *sim.Machine) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := machine.Expand(dir, sim.Options{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func discoverIn(t testing.TB, dir string, opts Options) Inventory {
	t.Helper()
	return discoverWith(t, t.Context(), dir, opts)
}

func discoverWith(t testing.TB, ctx context.Context, dir string, opts Options) Inventory {
	t.Helper()
	tree, err := sysfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	return Discover(ctx, tree, opts)
}

func TestMachines(t *testing.T) {
	for _, file := range machines(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			dir := expand(t, parseMachine(t, file))
			inventory := discoverIn(t, dir, machineOptions())
			golden(t, name, abridged(inventory))
			if diff := cmp.Diff(encode(t, inventory), encode(t, discoverIn(t, dir, machineOptions()))); diff != "" {
				t.Errorf("two looks at one machine differ (-first +second):\n%s", diff)
			}
		})
	}
}

// abridged keeps the first and the last device of a large machine, whose golden file nobody would read.
func abridged(inventory Inventory) Inventory {
	if n := len(inventory.Devices); n > 16 {
		inventory.Devices = []device.Device{inventory.Devices[0], inventory.Devices[n-1]}
		inventory.Physical = []Physical{inventory.Physical[0], inventory.Physical[len(inventory.Physical)-1]}
		inventory.Problems = append(inventory.Problems,
			Problem{Subject: "test", Reason: "Abridged", Message: fmt.Sprintf("%d devices", n)})
	}
	return inventory
}

// TestMachinesWithNVML adds what the library would say on the machine that the report was made for.
func TestMachinesWithNVML(t *testing.T) { golden(t, "8xh100-sxm+nvml", withNVML(t)) }

func withNVML(t *testing.T) Inventory {
	t.Helper()
	f, err := os.Open("testdata/8xh100-sxm.nvml.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	report, err := nvml.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	opts := machineOptions()
	opts.NVML = func(context.Context) (nvml.Report, error) { return report, nil }
	dir := expand(t, parseMachine(t, "../../test/machines/8xh100-sxm.txtar"))
	return discoverIn(t, dir, opts)
}

// TestSeen: a machine with a real card is discovered from its text and its library's report as it was there.
func TestSeen(t *testing.T) {
	for _, card := range []string{"h100", "h200"} {
		t.Run(card, func(t *testing.T) {
			var facts struct {
				Report    nvml.Report
				Inventory Inventory
			}
			seen.Discovery(t, card, &facts)
			opts := Options{NVML: func(context.Context) (nvml.Report, error) { return facts.Report, nil }}
			dir := expand(t, parseMachine(t, "../../test/machines/1x"+card+"-vm.txtar"))
			if diff := cmp.Diff(encode(t, facts.Inventory), encode(t, discoverIn(t, dir, opts))); diff != "" {
				t.Errorf("the machine differs from what was seen (-seen +now):\n%s", diff)
			}
		})
	}
}

func encode(t testing.TB, inventory Inventory) string {
	t.Helper()
	inventory.Physical = slices.Clone(inventory.Physical)
	for i := range inventory.Physical {
		if p := &inventory.Physical[i]; p.Divided == "" { // the device is above
			p.Device = device.Device{Kind: p.Device.Kind, Name: p.Device.Name}
		}
	}
	text, err := json.MarshalIndent(inventory, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

func golden(t *testing.T, name string, inventory Inventory) {
	t.Helper()
	check.Golden(t, filepath.Join("testdata", name+".golden.json"), encode(t, inventory))
}
