// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// Interface ids of two shells, and two accelerators.
const (
	shellA = "69528db6eb31577a8c3668f9faa081f6"
	shellB = "38d782e3b6125343b9342433e348ac4c"
	nlb0   = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3   = "f7df405cbd7acf7222f144b0b93acd18"
)

func TestMain(m *testing.M) {
	fpgasim.Main()
	os.Exit(m.Run())
}

// oneFPGA is the least that makes a card with two ports. Region numbers are not those of ports, as on a machine with other
// platform devices.
const oneFPGA = `
-- sys/bus/pci/devices/0000:3b:00.0/* --
vendor 0x8086
device 0x09c4
class 0x120000
driver -> ../../drivers/dfl-pci
-- sys/class/fpga_region/* --
region0/device -> ../../../bus/pci/devices/0000:3b:00.0
region0/dfl-fme.0/dev 244:0
region0/dfl-fme.0/ports_num 2
region0/dfl-fme.0/dfl-fme-mgr.0/fpga_manager/fpga0/name DFL FME FPGA Manager
region0/dfl-fme.0/dfl-fme-mgr.0/fpga_manager/fpga0/state unknown
region0/dfl-fme.0/dfl-fme-region.3/fpga_region/region1/compat_id ` + shellA + `
region0/dfl-fme.0/dfl-fme-region.4/fpga_region/region2/compat_id ` + shellA + `
region0/dfl-port.0/dev 245:0
region0/dfl-port.0/id 0
region0/dfl-port.0/afu_id ` + nlb0 + `
region0/dfl-port.1/dev 245:1
region0/dfl-port.1/id 1
region0/dfl-port.1/afu_id ` + nlb3 + "\n"

// TestDFLModules: what waits for kernel modules names them, and no shell.
func TestDFLModules(t *testing.T) {
	const bound = "region0/dfl-fme.0/dfl-fme-region.3/driver -> dfl-fme-region\nregion0/dfl-fme.0/dfl-fme-region.4/driver -> dfl-fme-region\n"
	waiting := []string{
		"dfl-fme-region.3/fpga_region/region1/compat_id " + shellA, "dfl-fme-region.3/uevent ",
		"dfl-fme-region.4/fpga_region/region2/compat_id " + shellA, "dfl-fme-region.4/uevent ",
		"dfl-fme-mgr.0/fpga_manager/fpga0/name DFL FME FPGA Manager", "dfl-fme-mgr.0/uevent ",
		"dfl-fme-mgr.0/fpga_manager/fpga0/state unknown", "dfl-fme-br.0/uevent ",
	}
	for name, tc := range map[string]struct {
		more, want string
	}{
		"all": {
			"", "no driver has dfl-fme-br.0, dfl-fme-mgr.0, dfl-fme-region.3, dfl-fme-region.4: " +
				"load the kernel modules dfl_fme_br, dfl_fme_mgr, dfl_fme_region",
		},
		"one": {
			bound + "-- sys/module/* --\ndfl_fme_mgr/initstate live\n",
			"no driver has dfl-fme-br.0, dfl-fme-mgr.0: load the kernel modules dfl_fme_br",
		},
		"none": {
			"-- sys/module/* --\ndfl_fme_mgr/initstate live\ndfl_fme_br/initstate live\ndfl_fme_region/initstate live\n",
			"although the modules are loaded: see the kernel's log",
		},
	} {
		got := discoverIn(t, inMachine(t, oneFPGA+tc.more, waiting...), Options{})
		found := 0
		for _, p := range got.Problems {
			if p.Reason == ReasonInterfaceUnknown && strings.HasSuffix(p.Message, tc.want) {
				found++
			}
		}
		if len(got.Devices) > 0 || found != 2 {
			t.Errorf("%s: %d devices, problems %v, want two that end with %q", name, len(got.Devices), got.Problems, tc.want)
		}
	}
}

func TestDFL(t *testing.T) {
	const address, port0, port1 = "0000:3b:00.0", "intel-0000-3b-00-0-port0", "intel-0000-3b-00-0-port1"
	const region3, region4 = "dfl-fme-region.3/fpga_region/region1/compat_id " + shellA, "dfl-fme-region.4/fpga_region/region2/compat_id "
	withheld := func(reason string) []string { return []string{address + " " + reason, address + " " + reason} }
	one := func(reason string) []string { return []string{port1, address + " " + reason} }
	for title, tc := range map[string]struct {
		change []string
		want   []string
	}{
		"healthy":                {want: []string{port0, port1}},
		"ids in upper case":      {change: []string{shellA, strings.ToUpper(shellA)}, want: []string{port0, port1}},
		"interface of all f":     {change: []string{shellA, strings.Repeat("f", 32)}, want: withheld(ReasonInterfaceUnknown)},
		"interface of all 0":     {change: []string{shellA, strings.Repeat("0", 32)}, want: withheld(ReasonInterfaceUnknown)},
		"interface is short":     {change: []string{shellA, "69528db6"}, want: withheld(ReasonInterfaceUnknown)},
		"interface is a path":    {change: []string{shellA, "../../../etc/passwd"}, want: withheld(ReasonInterfaceUnknown)},
		"interfaces differ":      {change: []string{region4 + shellA, region4 + shellB}, want: withheld(ReasonRegionAmbiguous)},
		"one interface is empty": {change: []string{region4 + shellA, region4 + "0"}, want: withheld(ReasonRegionAmbiguous)},
		"one region too few":     {change: []string{"region0/dfl-fme.0/" + region3 + "\n", ""}, want: withheld(ReasonRegionAmbiguous)},
		"no regions": {
			change: []string{"dfl-fme-region.3", "dfl-fme-other.3", "dfl-fme-region.4", "dfl-fme-other.4"},
			want:   withheld(ReasonInterfaceUnknown),
		},
		"two regions in one": {
			change: []string{"dfl-fme-region.4/", "dfl-fme-region.3/"}, want: withheld(ReasonRegionAmbiguous),
		},
		"interfaces differ, numbers agree with the order": {
			change: []string{"dfl-fme-region.3", "dfl-fme-region.0", region4 + shellA, "dfl-fme-region.1/fpga_region/region2/compat_id " + shellB},
			want:   []string{port0, port1},
		},
		"interfaces differ, numbers against the order": {
			change: []string{
				"dfl-fme-region.3", "dfl-fme-region.1", region4 + shellA, "dfl-fme-region.0/fpga_region/region2/compat_id " + shellB,
				"port.0/id 0", "port.0/id 1", "port.1/id 1", "port.1/id 0",
			},
			want: withheld(ReasonRegionAmbiguous),
		},
		"port released": {
			change: []string{
				"region0/dfl-port.0/dev 245:0\n", "", "region0/dfl-port.0/id 0\n", "", "region0/dfl-port.0/afu_id " + nlb0 + "\n", "",
			},
			want: one(ReasonPortReleased),
		},
		"no engine":             {change: []string{"dfl-fme.0/", "dfl-xme.0/"}, want: withheld(ReasonManagerMissing)},
		"no port id":            {change: []string{"port.0/id 0", "port.0/di 0"}, want: one(ReasonIdentityUnreadable)},
		"port id of nine":       {change: []string{"port.0/id 0", "port.0/id 8"}, want: one(ReasonIdentityUnreadable)},
		"port id is negative":   {change: []string{"port.0/id 0", "port.0/id -1"}, want: one(ReasonIdentityUnreadable)},
		"port id twice":         {change: []string{"port.0/id 0", "port.0/id 1"}, want: withheld(ReasonRegionAmbiguous)},
		"no numbers":            {change: []string{"port.0/dev 245:0", "port.0/dve 245:0"}, want: one(ReasonDeviceNumbersUnknown)},
		"numbers of the engine": {change: []string{"245:0", "244:0"}, want: one(ReasonProgrammingNode)},
		"numbers of the other":  {change: []string{"245:0", "245:1"}, want: withheld(ReasonDuplicateNumbers)},
		"dead accelerator": {
			change: []string{nlb0, strings.Repeat("f", 32)}, want: []string{port0, port1, address + " " + ReasonAcceleratorDead},
		},
		"garbage accelerator": {
			change: []string{nlb0, "garbage"}, want: []string{port0, port1, address + " " + ReasonAttributeUnreadable},
		},
		"region without function": {
			change: []string{"devices/0000:3b:00.0\n", "devices/0000:3c:00.0\n"},
			want:   []string{"/sys/class/fpga_region/region0 " + ReasonIdentityUnreadable, address + " " + ReasonDriverNotLoaded},
		},
		"another maker": {
			change: []string{"0x8086", "0x1234"}, want: []string{"pci1234-0000-3b-00-0-port0", "pci1234-0000-3b-00-0-port1"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			got := discoverIn(t, inMachine(t, oneFPGA, tc.change...), Options{})
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
			checkNodes(t, got)
		})
	}
}

// checkNodes wants one port's node for each DFL FPGA, and no engine's for anything.
func checkNodes(t *testing.T, inventory Inventory) {
	t.Helper()
	for _, d := range inventory.Devices {
		for _, n := range d.Edits.Nodes {
			if strings.HasPrefix(path.Base(n.Path), "dfl-fme") || n.Major == 244 {
				t.Errorf("%s gives out an engine: %v", d.Name, n)
			}
		}
		if n := d.Edits.Nodes; d.Region != nil && d.Region.DFL != nil &&
			(len(n) != 1 || !isNumbered(path.Base(n[0].Path), dflPort) || n[0].Permissions != "rw") {
			t.Errorf("%s has nodes %v, want its port's, rw", d.Name, n)
		}
	}
}

// TestInterfaceOfEachPort: where ids differ and can be told apart, each port has that of its own region.
func TestInterfaceOfEachPort(t *testing.T) {
	got := discoverIn(t, inMachine(t, oneFPGA, "dfl-fme-region.3", "dfl-fme-region.0",
		"dfl-fme-region.4/fpga_region/region2/compat_id "+shellA, "dfl-fme-region.1/fpga_region/region2/compat_id "+shellB), Options{})
	ids := []string{}
	for _, d := range got.Devices {
		ids = append(ids, *d.Attributes[device.AttributeInterfaceID].StringValue)
	}
	if diff := cmp.Diff([]string{shellA, shellB}, ids); diff != "" {
		t.Errorf("interface ids by port, -want +got:\n%s", diff)
	}
}

// TestNumbersMayChange: another order of loading gives other minors and region numbers, and the same devices.
func TestNumbersMayChange(t *testing.T) {
	names := func(change ...string) []string {
		return summary(discoverIn(t, inMachine(t, oneFPGA, change...), Options{}))
	}
	renumbered := names("region0", "region7", "dfl-fme.0", "dfl-fme.5", "dfl-port.0", "dfl-port.9", "dfl-port.1", "dfl-port.8",
		"245:0", "245:9", "245:1", "245:8", "244:0", "244:5", "dfl-fme-region.3", "dfl-fme-region.40", "dfl-fme-region.4", "dfl-fme-region.5")
	if diff := cmp.Diff(names(), renumbered); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// TestEngineOfTheCard: engines on two functions of a card could both be the port's.
func TestEngineOfTheCard(t *testing.T) {
	const text = `
-- sys/bus/pci/devices/* --
0000:60:00.0/vendor 0x8086
0000:60:00.0/device 0xbcce
0000:60:00.0/class 0x120000
0000:60:00.0/driver -> ../../drivers/dfl-pci
0000:60:00.1/vendor 0x8086
0000:60:00.1/device 0xbcce
0000:60:00.1/class 0x120000
0000:60:00.1/driver -> ../../drivers/dfl-pci
0000:60:00.2/vendor 0x8086
0000:60:00.2/device 0xbcce
0000:60:00.2/class 0x120000
0000:60:00.2/driver -> ../../drivers/dfl-pci
-- sys/class/fpga_region/* --
region0/device -> ../../../bus/pci/devices/0000:60:00.0
region0/dfl-fme.0/dev 244:0
region0/dfl-fme.0/ports_num 1
region0/dfl-fme.0/dfl-fme-mgr.0/fpga_manager/fpga0/name DFL FME FPGA Manager
region0/dfl-fme.0/dfl-fme-mgr.0/fpga_manager/fpga0/state unknown
region0/dfl-fme.0/dfl-fme-region.0/fpga_region/region3/compat_id ` + shellA + `
region1/device -> ../../../bus/pci/devices/0000:60:00.1
region1/dfl-port.0/dev 245:0
region1/dfl-port.0/id 0
region1/dfl-port.0/afu_id ` + nlb0 + `
region2/device -> ../../../bus/pci/devices/0000:60:00.2
`
	const engine = "region2/dfl-fme.1/dev 244:1\nregion2/dfl-fme.1/dfl-fme-mgr.1/fpga_manager/fpga1/state unknown\n" +
		"region2/dfl-fme.1/dfl-fme-region.1/fpga_region/region4/compat_id " + shellB + "\n"
	for title, tc := range map[string]struct {
		change []string
		want   []string
	}{
		"one engine": {want: []string{"intel-0000-60-00-1-port0"}},
		"two engines": {
			change: []string{"devices/0000:60:00.2\n", "devices/0000:60:00.2\n" + engine},
			want: []string{
				"0000:60:00.0 " + ReasonPortReleased, "0000:60:00.1 " + ReasonManagerMissing, "0000:60:00.2 " + ReasonPortReleased,
			},
		},
		"engine on another card": {
			change: []string{"0000:60:00.0", "0000:61:00.0"},
			want:   []string{"0000:60:00.1 " + ReasonManagerMissing, "0000:61:00.0 " + ReasonPortReleased},
		},
		"of another bus's function": {
			change: []string{"0000:60:00.1", "0000:60:01.1"},
			want:   []string{"0000:60:00.0 " + ReasonPortReleased, "0000:60:01.1 " + ReasonManagerMissing},
		},
	} {
		t.Run(title, func(t *testing.T) {
			got := discoverIn(t, inMachine(t, text, tc.change...), Options{})
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
		})
	}
}

// TestNoEngineIsHandedOut: neither discovery nor the admin's configuration gives a pod what can program.
func TestNoEngineIsHandedOut(t *testing.T) {
	for _, file := range machines(t) {
		opts := machineOptions()
		opts.HostDevices = append(opts.HostDevices, HostDevice{Name: "engine", CharDevices: []string{"/dev/dfl-fme.*"}},
			HostDevice{Name: "alias", CharDevices: []string{"/dev/fpga-*"}})
		dir := expand(t, parseMachine(t, file))
		before, err := filepath.Glob(filepath.Join(dir, "dev/dfl-fme.*"))
		check.Must(t, err)
		if len(before) > 0 { // Another name of the same node, as a udev rule may make it.
			check.Must(t, os.Link(before[0], filepath.Join(dir, "dev/fpga-0")))
		}
		got := discoverIn(t, dir, opts)
		checkNodes(t, got)
		refused := 0
		for _, p := range got.Problems {
			if p.Reason == ReasonProgrammingNode {
				refused++
			}
		}
		if want := len(before) + min(1, len(before)); refused != want {
			t.Errorf("%s: %d engines refused, want %d", file, refused, want)
		}
	}
}

// TestDFLSimulated reads attributes that answer as the kernel's do, which plain files cannot.
func TestDFLSimulated(t *testing.T) {
	const function = "sys/bus/pci/devices/0000:3b:00.0"
	machine := fpgasim.Machine{
		Cards: []fpgasim.Card{{Ports: []fpgasim.Port{{Interface: shellA, AFU: nlb0}, {Interface: shellA, AFU: nlb3}}}},
		Files: map[string]string{
			function + "/vendor": "0x8086\n", function + "/device": "0x0b2b\n", function + "/class": "0x120000\n",
			function + "/driver":                   "-> ../../drivers/dfl-pci",
			"sys/class/fpga_region/region0/device": "-> ../../../bus/pci/devices/0000:3b:00.0",
		},
	}
	sim := fpgasim.Start(t, machine)
	accelerators := func() map[string]string {
		out := map[string]string{}
		for _, d := range discoverIn(t, sim.Root, Options{}).Devices {
			out[d.Name] = ""
			if id := d.Attributes[device.AttributeAFUID].StringValue; id != nil {
				out[d.Name] = *id
			}
		}
		return out
	}
	const port0, port1 = "intel-0000-3b-00-0-port0", "intel-0000-3b-00-0-port1"
	if diff := cmp.Diff(map[string]string{port0: nlb0, port1: nlb3}, accelerators()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	sim.Fault(fpgasim.Fault{On: fpgasim.OnAFU, Errno: "EBUSY"})
	if diff := cmp.Diff(map[string]string{port0: "", port1: nlb3}, accelerators()); diff != "" {
		t.Errorf("port 0 disabled: -want +got:\n%s", diff)
	}
	none := ""
	sim.Set(fpgasim.Set{Interface: &none})
	sim.Set(fpgasim.Set{Port: 1, Interface: &none})
	if got := accelerators(); len(got) > 0 {
		t.Errorf("published without an interface id: %v", got)
	}
	for _, event := range sim.Trace() {
		if event.Op == "open" || event.Op == "ioctl" || event.Op == "write" {
			t.Errorf("discovery did more than read: %s", event)
		}
	}
}

func TestCanonicalID(t *testing.T) {
	for text, want := range map[string]string{
		nlb0: nlb0, strings.ToUpper(nlb0): nlb0, "d8424dc4-a4a3-c413-f89e-433683f9040b": nlb0,
		"": "", "-": "", nlb0 + "00": "", nlb0[2:]: "", "0x" + nlb0[2:]: "", strings.Repeat("0", 32): "", strings.Repeat("F", 32): "",
		"../" + nlb0[3:]: "", nlb0[:31]: "", strings.Repeat("ſ", 16): "",
	} {
		if got, err := canonicalID(text); got != want || (err == nil) != (want != "") {
			t.Errorf("canonicalID(%q) = %q, %v", text, got, err)
		}
	}
	if _, err := canonicalID(strings.Repeat("f", 32)); !errors.Is(err, errAllF) || !errors.Is(err, errNoID) {
		t.Errorf("all f is %v", err)
	}
}

func FuzzCanonicalID(f *testing.F) {
	f.Add(nlb0)
	f.Add("D8424DC4-A4A3-C413-F89E-433683F9040B")
	f.Add(strings.Repeat("f", 32))
	f.Fuzz(func(t *testing.T, text string) {
		id, err := canonicalID(text)
		if err != nil {
			return
		}
		if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
			t.Errorf("%q became %q", text, id)
		}
		if again, err := canonicalID(id); again != id || err != nil {
			t.Errorf("%q became %q, which became %q, %v", text, id, again, err)
		}
	})
}

// FuzzDFL fills the attributes of a card: whatever they hold, devices are valid, on the card, and never an engine.
func FuzzDFL(f *testing.F) {
	f.Add("2\n", "0\n", "245:0\n", shellA+"\n", nlb0+"\n", "0x1\n")
	f.Add("-1", "7", "244:0", "", strings.Repeat("f", 32), "0xffffffffffffffff")
	f.Add("\x00", "9e9", "4095:1048575", strings.Repeat("a", 33), "\xff", "-0x1")
	f.Fuzz(func(t *testing.T, ports, id, dev, compat, afu, shell string) {
		dir := inMachine(t, oneFPGA)
		base := filepath.Join(dir, "sys/class/fpga_region/region0")
		for name, text := range map[string]string{
			"dfl-fme.0/ports_num": ports, "dfl-port.0/id": id, "dfl-port.0/dev": dev, "dfl-port.0/afu_id": afu,
			"dfl-fme.0/dfl-fme-region.3/fpga_region/region1/compat_id": compat, "dfl-fme.0/bitstream_id": shell,
		} {
			check.Must(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o600))
		}
		got := discoverIn(t, dir, Options{})
		checkNodes(t, got)
		for _, d := range got.Devices {
			if err := d.Validate(); err != nil {
				t.Error(err)
			}
			if !strings.HasPrefix(d.Name, "intel-0000-3b-00-0-port") || d.Attributes[device.AttributeInterfaceID].StringValue == nil {
				t.Errorf("device %+v", d)
			}
		}
		if len(got.Devices) < 2 && len(got.Problems) == 0 {
			t.Error("a port is missing without a problem")
		}
	})
}

func TestDFLCard(t *testing.T) {
	for f, want := range map[pci.Function]string{
		{Vendor: 0x8086, Device: 0x0b2b}:                          "Intel FPGA PAC D5005",
		{Vendor: 0x8086, Device: 0xbcce, SubsystemDevice: 0x1770}: "Intel FPGA SmartNIC N6000-PL",
		{Vendor: 0x8086, Device: 0xbcce, SubsystemDevice: 0x9999}: "Intel FPGA with a device feature list",
		{Vendor: 0x8086, Device: 0x0b40}:                          "",
		{Vendor: 0x10de, Device: 0x0b2b}:                          "",
	} {
		if got := dflCard(f); got != want {
			t.Errorf("%04x:%04x is %q, want %q", f.Vendor, f.Device, got, want)
		}
	}
}
