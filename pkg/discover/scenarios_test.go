// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// dflFunction is the PCI function of the simulated card.
const dflFunction = "sys/bus/pci/devices/0000:3b:00.0"

// reactingCard is a card whose ports have these interfaces, as discovery finds it.
func reactingCard(interfaces ...string) fpgasim.Machine {
	var c fpgasim.Card
	for _, id := range interfaces {
		c.Ports = append(c.Ports, fpgasim.Port{Interface: id, AFU: nlb0})
	}
	return fpgasim.Machine{Cards: []fpgasim.Card{c}, Files: map[string]string{
		dflFunction + "/vendor": "0x8086\n", dflFunction + "/device": "0x0b2b\n", dflFunction + "/class": "0x120000\n",
		dflFunction + "/driver": "-> ../../drivers/dfl-pci", "sys/class/fpga_region/region0/device": "-> ../../../bus/pci/devices/0000:3b:00.0",
	}}
}

// TestFPGAScenarios are what cards do that plain files cannot, and what is missing where the kernel has no driver for them. Nothing is
// opened, asked or written for any of it.
func TestFPGAScenarios(t *testing.T) {
	const address, port0, port1 = "0000:3b:00.0", "intel-0000-3b-00-0-port0", "intel-0000-3b-00-0-port1"
	for _, tc := range []struct {
		name       string
		interfaces []string
		change     func(*fpgasim.Sim)
		want       []string
		// ids are the interface ids by device, says what a problem says.
		ids  map[string]string
		says string
	}{
		{
			name: "each port has the interface of its own region", interfaces: []string{shellA, shellB},
			want: []string{port0, port1}, ids: map[string]string{port0: shellA, port1: shellB},
		},
		{
			name: "no region has an interface", interfaces: []string{"", ""},
			want: []string{address + " " + ReasonInterfaceUnknown, address + " " + ReasonInterfaceUnknown}, ids: map[string]string{},
			says: "no interface id",
		},
		{
			name: "one of two regions has none: nobody guesses", interfaces: []string{shellA, ""},
			want: []string{port0, address + " " + ReasonInterfaceUnknown}, ids: map[string]string{port0: shellA}, says: "dfl-port.1",
		},
		{
			name: "crashed firmware: there, and said to be dead", interfaces: []string{shellA},
			change: func(s *fpgasim.Sim) { s.Set(fpgasim.Set{AFU: new(strings.Repeat("f", 32))}) },
			want:   []string{port0, address + " " + ReasonAcceleratorDead}, ids: map[string]string{port0: shellA}, says: "program it anew",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sim := fpgasim.Start(t, reactingCard(tc.interfaces...))
			if tc.change != nil {
				tc.change(sim)
			}
			got := discoverIn(t, sim.Root, Options{})
			ids := map[string]string{}
			for _, d := range got.Devices {
				ids[d.Name] = *d.Attributes[device.AttributeInterfaceID].StringValue
			}
			found := slices.DeleteFunc(summary(got), func(line string) bool {
				return strings.HasSuffix(line, " "+ReasonNodeMismatch) // The simulator's nodes are plain files.
			})
			if diff := cmp.Diff(tc.want, found) + cmp.Diff(tc.ids, ids); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
			checkSays(t, got, tc.says)
			for _, e := range sim.Trace() {
				if e.Op != "read" {
					t.Errorf("discovery did more than read: %s", e)
				}
			}
		})
	}
}

func checkSays(t *testing.T, got Inventory, words string) {
	t.Helper()
	var all strings.Builder
	for _, p := range got.Problems {
		all.WriteString(p.Message)
	}
	if !strings.Contains(all.String(), words) {
		t.Errorf("problems %v, want %q in one", got.Problems, words)
	}
}

// TestNoFPGADriver: a card is named whose driver is not there, or has not made anything of it.
func TestNoFPGADriver(t *testing.T) {
	const address = "0000:3b:00.0"
	card, _, _ := strings.Cut(oneFPGA, "-- sys/class/")
	for name, tc := range map[string]struct{ driver, reason, says string }{
		"none":                       {"", ReasonDriverNotLoaded, "load dfl-pci"},
		"without regions":            {"driver -> ../../drivers/dfl-pci\n", ReasonDriverNotLoaded, "made no FPGA region"},
		"of virtual machines":        {"driver -> ../../drivers/vfio-pci\n", ReasonBoundToVFIO, "bind it to dfl-pci"},
		"of the vendor's own kernel": {"driver -> ../../drivers/intel-fpga-pci\n", ReasonDriverNotSupported, "bound to intel-fpga-pci"},
	} {
		t.Run(name, func(t *testing.T) {
			got := discoverIn(t, inMachine(t, card, "driver -> ../../drivers/dfl-pci\n", tc.driver), Options{})
			if diff := cmp.Diff([]string{address + " " + tc.reason}, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
			checkSays(t, got, tc.says)
		})
	}
}
