// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/test/check"
)

// oneZynq is the least that makes a chip that can be programmed.
var oneZynq = `bytes sys/firmware/devicetree/base/compatible ` + hex.EncodeToString([]byte("xlnx,zynqmp-zcu104\x00xlnx,zynqmp\x00")) + `
char dev/dpu 10:121
-- sys/class/fpga_manager/* --
fpga0/device -> ../../../devices/platform/firmware:zynqmp-firmware:pcap
fpga0/state operating
fpga0/flags 0
fpga0/firmware
-- sys/devices/platform/firmware:zynqmp-firmware:pcap/* --
driver -> ../../../bus/platform/drivers/zynqmp_fpga_manager
-- sys/class/misc/fpga0/dev --
10:123
-- proc/sys/kernel/osrelease --
6.6.40-xilinx
`

const (
	zynqManager  = "/sys/class/fpga_manager/fpga0"
	zynqPlatform = "firmware:zynqmp-firmware:pcap"
)

func compatible(text string) string { return hex.EncodeToString([]byte(text)) }

func TestFPGAManager(t *testing.T) {
	const chip = "xlnx,zynqmp-zcu104\x00xlnx,zynqmp\x00"
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	nodes := []string{"/dev/dpu"}
	configured := []FPGARegion{{Device: zynqDevice, InterfaceID: shellA, Nodes: nodes}}
	withheld := func(reason string) []string { return []string{zynqManager + " " + reason} }
	for title, tc := range map[string]struct {
		change  []string
		regions []FPGARegion
		want    []string
	}{
		"healthy":            {regions: configured, want: []string{zynqDevice}},
		"nothing configured": {want: withheld(ReasonInterfaceUnknown)},
		"no nodes": {
			regions: []FPGARegion{{Device: zynqDevice, InterfaceID: shellA}}, want: withheld(ReasonNodesMissing),
		},
		"another device is configured": {regions: []FPGARegion{{Device: "x", InterfaceID: shellA}}, want: withheld(ReasonInterfaceUnknown)},
		"configured id is all f": {
			regions: []FPGARegion{{Device: zynqDevice, InterfaceID: strings.Repeat("f", 32)}},
			want:    withheld(ReasonInterfaceUnknown),
		},
		"configured id is empty": {regions: []FPGARegion{{Device: zynqDevice}}, want: withheld(ReasonInterfaceUnknown)},
		"configured id is a path": {
			regions: []FPGARegion{{Device: zynqDevice, InterfaceID: "../../etc/passwd"}},
			want:    withheld(ReasonInterfaceUnknown),
		},
		"upstream kernel": {
			change: []string{"fpga0/firmware", "fpga0/name"}, regions: configured, want: withheld(ReasonNotProgrammable),
		},
		"no flags": {
			change: []string{"fpga0/flags", "fpga0/key"}, regions: configured, want: withheld(ReasonNotProgrammable),
		},
		"no device tree": {
			change: []string{"base/compatible", "base/other"}, regions: configured, want: withheld(ReasonDriverNotSupported),
		},
		"another chip": {
			change: []string{compatible(chip), compatible("altr,socfpga\x00")}, regions: configured,
			want: withheld(ReasonDriverNotSupported),
		},
		"a chip of a longer name": {
			change: []string{compatible(chip), compatible("xlnx,zynqmpx\x00")}, regions: configured,
			want: withheld(ReasonDriverNotSupported),
		},
		"Zynq": {
			change: []string{compatible(chip), compatible("xlnx,zynq-7000\x00")}, regions: configured,
			want: []string{zynqDevice},
		},
		"Versal": {
			change: []string{compatible(chip), compatible("xlnx,versal\x00")}, regions: configured, want: []string{zynqDevice},
		},
		"device tree without an end": {
			change: []string{compatible(chip), compatible("xlnx,zynqmp")}, regions: configured,
			want: withheld(ReasonIdentityUnreadable),
		},
		"device tree is no text": {
			change: []string{compatible(chip), "ff00"}, regions: configured, want: withheld(ReasonIdentityUnreadable),
		},
		"the last programming failed": {
			change: []string{"operating", "write error"}, regions: configured,
			want: []string{zynqDevice, zynqManager + " " + ReasonAcceleratorDead},
		},
		"of a DFL card": {
			change: []string{"platform/firmware:zynqmp-firmware:pcap\n", "platform/dfl-fme-mgr.0\n"}, regions: configured,
			want: []string{},
		},
		"no platform device": {
			change: []string{"fpga0/device", "fpga0/devices"}, regions: configured, want: withheld(ReasonIdentityUnreadable),
		},
		"node is the manager's own": {
			regions: []FPGARegion{{Device: zynqDevice, InterfaceID: shellA, Nodes: []string{"/dev/fpga0"}}},
			want:    withheld(ReasonInterfaceUnknown),
		},
		"node is the machine's memory": {
			regions: []FPGARegion{{Device: zynqDevice, InterfaceID: shellA, Nodes: []string{"/dev/mem"}}},
			want:    withheld(ReasonInterfaceUnknown),
		},
		"node of all registers": {
			regions: []FPGARegion{{Device: zynqDevice, InterfaceID: shellA, Nodes: []string{"/dev/uio0"}}},
			want:    withheld(ReasonInterfaceUnknown),
		},
		"node is not there": {
			regions: []FPGARegion{{Device: zynqDevice, InterfaceID: shellA, Nodes: []string{"/dev/dpu1"}}},
			want:    withheld(ReasonHostPathUnusable),
		},
		"name with other characters": {
			change:  []string{"firmware:zynqmp-firmware:pcap", "F8007000.DevCfg"},
			regions: []FPGARegion{{Device: "amd-f8007000-devcfg", InterfaceID: shellA, Nodes: nodes}}, want: []string{"amd-f8007000-devcfg"},
		},
		"number may change":            {change: []string{"fpga0", "fpga7"}, regions: configured, want: []string{zynqDevice}},
		"directory that is no manager": {change: []string{"fpga_manager/*", "fpga_manager/x/*"}, regions: configured, want: []string{}},
		"two that would have one name": {
			change: []string{
				"fpga0/state",
				"fpga1/device -> ../../../devices/platform/firmware.zynqmp-firmware.pcap\nfpga1/flags 0\nfpga1/firmware\nfpga0/state",
			},
			regions: configured, want: []string{"/dev/dpu " + ReasonDuplicateName},
		},
	} {
		t.Run(title, func(t *testing.T) {
			got := discoverIn(t, inMachine(t, oneZynq, tc.change...), Options{FPGARegions: tc.regions})
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
		})
	}
}

// TestZynqNodes: what the configuration names is handed out, unless it is what programs under another name.
func TestZynqNodes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	dir := expand(t, parseMachine(t, "../../test/machines/zynqmp.txtar"))
	check.Must(t, unix.Mknod(filepath.Join(dir, "dev/ram"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1)))) // /dev/mem
	for alias, node := range map[string]string{"accelerator": "fpga0", "video": "dri/renderD128"} {
		check.Must(t, os.Link(filepath.Join(dir, "dev", node), filepath.Join(dir, "dev", alias)))
	}
	for node, want := range map[string]string{
		"/dev/dpu": "", "/dev/accelerator": ReasonProgrammingNode, "/dev/video": ReasonProgrammingNode,
		"/dev/dri/renderD128": ReasonProgrammingNode, "/dev/ram": ReasonHostPathUnusable, "/dev/none": ReasonHostPathUnusable,
	} {
		opts := Options{
			FPGARegions: []FPGARegion{{Device: zynqDevice, InterfaceID: zynqInterface, Nodes: []string{node}}},
		}
		got := discoverIn(t, dir, opts)
		var reasons []string
		for _, p := range got.Problems {
			reasons = append(reasons, p.Reason)
		}
		for _, d := range got.Devices {
			if region := (&fpga.Region{
				Backend: "fpga_manager", Card: zynqPlatform, InterfaceID: zynqInterface, Manager: &fpga.ManagerRegion{Platform: zynqPlatform},
			}); !cmp.Equal(region, d.Region) {
				t.Errorf("region %+v", d.Region)
			}
		}
		if reason := strings.Join(reasons, ","); reason != want || (want == "") != (len(got.Devices) == 1) {
			t.Errorf("%s: %d devices, problems %v, want %q", node, len(got.Devices), got.Problems, want)
		}
		opts = Options{HostDevices: []HostDevice{{Name: "host", CharDevices: []string{node}}}}
		if len(discoverIn(t, dir, opts).Devices) > 0 && want == ReasonProgrammingNode {
			t.Errorf("%s is a host device", node)
		}
	}
}

func TestFPGARegionValidate(t *testing.T) {
	good := FPGARegion{Device: "amd-0000-c3-00-1", InterfaceID: shellA, Nodes: []string{"/dev/dpu", "/dev/dri/renderD1"}}
	if err := ValidateFPGARegions([]FPGARegion{good}); err != nil {
		t.Error(err)
	}
	if err := ValidateFPGARegions([]FPGARegion{good, good}); err == nil {
		t.Error("a device may be named twice")
	}
	for _, device := range []string{"", "../x", "a b", "-x", "A"} {
		if (FPGARegion{Device: device, InterfaceID: shellA}).Validate() == nil {
			t.Errorf("device %q", device)
		}
	}
	for _, node := range []string{
		"", "dpu", "/dev", "/dev/", "/dev/../etc/passwd", "/etc/passwd", "/dev/*", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/uio0",
		"/dev/fpga0", "/dev/xclmgmt15105", "/dev/dfl-fme.0", "/dev/dpu/",
	} {
		if (FPGARegion{Device: "x", InterfaceID: shellA, Nodes: []string{node}}).Validate() == nil {
			t.Errorf("node %q", node)
		}
	}
	if (FPGARegion{Device: "x", InterfaceID: shellA, Nodes: []string{"/dev/dpu", "/dev/dpu"}}).Validate() == nil {
		t.Error("a node may be named twice")
	}
}

// FuzzFPGAManager fills what names and describes a chip: whatever it is, a device is valid.
func FuzzFPGAManager(f *testing.F) {
	f.Add("xlnx,zynqmp\x00", "operating\n", "", "firmware:zynqmp-firmware:pcap")
	f.Add("xlnx,zynq-7000\x00xlnx,zynqmp\x00", "write error", "reconfig CRC error\n", strings.Repeat("x.", 60))
	f.Add("\x00", "\xff", "\x00", "..")
	f.Fuzz(func(t *testing.T, tree, state, status, platform string) {
		if name := platformName("amd", platform); (device.Device{Kind: device.KindFPGA, Name: name}).Validate() != nil {
			t.Errorf("%q is named %q", platform, name)
		}
		dir := inMachine(t, oneZynq)
		for name, text := range map[string]string{
			"firmware/devicetree/base/compatible": tree, "class/fpga_manager/fpga0/state": state, "class/fpga_manager/fpga0/status": status,
		} {
			check.Must(t, os.WriteFile(filepath.Join(dir, "sys", name), []byte(text), 0o600))
		}
		got := discoverIn(t, dir, Options{
			FPGARegions: []FPGARegion{{Device: zynqDevice, InterfaceID: shellA, Nodes: []string{"/dev/dpu"}}},
		})
		for _, d := range got.Devices {
			if err := d.Validate(); err != nil || d.Region == nil || d.Region.InterfaceID != shellA {
				t.Errorf("device %+v, %v", d, err)
			}
		}
		if len(got.Devices) == 0 && len(got.Problems) == 0 {
			t.Error("the chip is missing without a problem")
		}
	})
}
