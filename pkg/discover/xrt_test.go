// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/test/check"
)

// oneAlveo is the least that makes a card.
const oneAlveo = `
-- sys/bus/pci/devices/0000:3b:00.0/* --
vendor 0x10ee
device 0x505c
class 0x120000
driver -> ../../drivers/xclmgmt
mgmt_pf
config_mailbox_channel_disable 0x120
xrt_mgmt/xclmgmt15104/dev 240:0
-- sys/bus/pci/devices/0000:3b:00.1/* --
vendor 0x10ee
device 0x505d
class 0x120000
driver -> ../../drivers/xocl
user_pf
ready 0x1
xclbinuuid 7e1b8f6d-3f0a-4c55-9d2e-51a0c4b7e963
interface_uuids ` + shellA + `
drm/renderD128/dev 226:128
drm/card0/dev 226:0
`

func TestXRT(t *testing.T) {
	const card, management, user, other = "amd-0000-3b-00-1", "0000:3b:00.0", "0000:3b:00.1", "0000:3b:00.2"
	withheld := func(reason string) []string { return []string{user + " " + reason} }
	uuids := func(text string) []string { return []string{"interface_uuids " + shellA, "interface_uuids" + text} }
	lock := func(text string) []string { return []string{"disable 0x120", "disable " + text} }
	for title, tc := range map[string]struct {
		change  []string
		regions []FPGARegion
		want    []string
	}{
		"healthy": {want: []string{card}},
		"marks alone": {
			change: []string{"drivers/xclmgmt", "drivers/mgmt", "drivers/xocl", "drivers/user"}, want: []string{card},
		},
		"drivers alone":              {change: []string{"mgmt_pf\n", "", "user_pf\n", ""}, want: []string{card}},
		"more is locked":             {change: lock("0xffff"), want: []string{card}},
		"locked for xclbins alone":   {change: lock("0x100"), want: withheld(ReasonProgrammingUnlocked)},
		"locked for resets alone":    {change: lock("0x20"), want: withheld(ReasonProgrammingUnlocked)},
		"all but the two are locked": {change: lock("0xfffffffffffffedf"), want: withheld(ReasonProgrammingUnlocked)},
		"not locked":                 {change: lock("0x0"), want: withheld(ReasonProgrammingUnlocked)},
		"lock is garbage":            {change: lock("yes"), want: withheld(ReasonProgrammingUnlocked)},
		"lock is unknown": {
			change: []string{"config_mailbox_channel_disable", "config_x"}, want: withheld(ReasonProgrammingUnlocked),
		},
		"the user function says so": {
			change: []string{"0x120\n", "0x0\n", "user_pf\n", "user_pf\nconfig_mailbox_channel_disable 0x120\n"},
			want:   withheld(ReasonProgrammingUnlocked),
		},
		"no interface":          {change: uuids(""), want: withheld(ReasonInterfaceUnknown)},
		"interface of all 0":    {change: uuids(" " + strings.Repeat("0", 32)), want: withheld(ReasonInterfaceUnknown)},
		"interface of all f":    {change: uuids(" " + strings.Repeat("f", 32)), want: withheld(ReasonInterfaceUnknown)},
		"interface is short":    {change: uuids(" 69528db6"), want: withheld(ReasonInterfaceUnknown)},
		"no file of interfaces": {change: []string{"interface_uuids", "interface_ids"}, want: withheld(ReasonInterfaceUnknown)},
		"interface with dashes": {change: uuids(" 69528DB6-EB31-577A-8C36-68F9FAA081F6"), want: []string{card}},
		"no render node":        {change: []string{"renderD128", "controlD64"}, want: withheld(ReasonDeviceNumbersUnknown)},
		"not ready":             {change: []string{"ready 0x1", "ready 0x0"}, want: withheld(ReasonNotResponding)},
		"no management function": {
			change: []string{"mgmt_pf", "other", "drivers/xclmgmt", "drivers/vfio-pci"},
			want:   []string{management + " " + ReasonBoundToVFIO, user + " " + ReasonManagerMissing},
		},
		"no user function": {
			change: []string{"user_pf", "other", "driver -> ../../drivers/xocl\n", ""},
			want:   []string{management + " " + ReasonDriverNotLoaded, user + " " + ReasonDriverNotLoaded},
		},
		"management of another card": {
			change: []string{management, "0000:3c:00.0"},
			want:   []string{user + " " + ReasonManagerMissing, "0000:3c:00.0 " + ReasonDriverNotLoaded},
		},
		"bound to something else": {
			change: []string{"drivers/xclmgmt", "drivers/x", "mgmt_pf\n", "", "drivers/xocl", "drivers/x", "user_pf\n", ""},
			want:   []string{management + " " + ReasonDriverNotSupported, user + " " + ReasonDriverNotSupported},
		},
		"node of the management": {change: []string{"226:128", "240:0"}, want: withheld(ReasonProgrammingNode)},
		"node of the primary":    {change: []string{"226:128", "226:0"}, want: withheld(ReasonProgrammingNode)},
		"image is garbage": {
			change: []string{"xclbinuuid 7e1b8f6d", "xclbinuuid ../../.."},
			want:   []string{card, user + " " + ReasonAttributeUnreadable},
		},
		"another maker":        {change: []string{"0x10ee", "0x3475"}, want: []string{"arista-0000-3b-00-1"}},
		"a maker that is none": {change: []string{"0x10ee", "0x1234"}, want: []string{}},
		"Amazon's own": {
			change: []string{"0x10ee", "0x1d0f", "drivers/xclmgmt", "drivers/x", "mgmt_pf\n", "", "drivers/xocl", "drivers/x", "user_pf\n", ""},
			want:   []string{},
		},
		"configured as it is":   {regions: []FPGARegion{{Device: card, InterfaceID: shellA}}, want: []string{card}},
		"configured as another": {regions: []FPGARegion{{Device: card, InterfaceID: shellB}}, want: withheld(ReasonInterfaceUnknown)},
		"configured with nodes": {
			regions: []FPGARegion{{Device: card, InterfaceID: shellA, Nodes: []string{"/dev/null"}}},
			want:    []string{card, user + " " + ReasonInvalid},
		},
		"configured as partial": {
			regions: []FPGARegion{{Device: card, InterfaceID: shellA, Partial: true}},
			want:    []string{card, user + " " + ReasonInvalid},
		},
		"configured and not locked": {
			change: lock("0x0"), regions: []FPGARegion{{Device: card, InterfaceID: shellA}},
			want: withheld(ReasonProgrammingUnlocked),
		},
		"configured without interface": {
			change: uuids(""), regions: []FPGARegion{{Device: card, InterfaceID: shellA}},
			want: withheld(ReasonInterfaceUnknown),
		},
		"two user functions": {
			change: []string{
				"-- sys/bus/pci/devices/" + user, "-- sys/bus/pci/devices/" + other +
					"/* --\nvendor 0x10ee\ndevice 0x505d\nclass 0x120000\ndriver -> ../../drivers/xocl\n-- sys/bus/pci/devices/" + user,
			},
			want: []string{management + " " + ReasonRegionAmbiguous},
		},
	} {
		t.Run(title, func(t *testing.T) {
			got := discoverIn(t, inMachine(t, oneAlveo, tc.change...), Options{FPGARegions: tc.regions})
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
			for _, d := range got.Devices {
				checkXRT(t, d)
			}
		})
	}
}

// checkXRT wants a locked card with its render node alone.
func checkXRT(t *testing.T, d device.Device) {
	t.Helper()
	locked := d.Attributes[device.AttributeProgrammingLocked].BoolValue
	if len(d.Edits.Nodes) != 1 || d.Edits.Nodes[0].Path != "/dev/dri/renderD128" || locked == nil || !*locked ||
		d.Region == nil || d.Region.InterfaceID == "" || d.Region.Card != "0000:3b:00.0" ||
		*d.Region.XRT != (fpga.XRTRegion{Management: "0000:3b:00.0", User: "0000:3b:00.1"}) {
		t.Errorf("%s: nodes %v, locked %v, region %+v", d.Name, d.Edits.Nodes, locked, d.Region)
	}
}

// TestXRTInterfaces: of several ids none is taken before the admin says which.
func TestXRTInterfaces(t *testing.T) {
	const card, user = "amd-0000-3b-00-1", "0000:3b:00.1"
	dir := inMachine(t, oneAlveo)
	name := filepath.Join(dir, "sys/bus/pci/devices", user, "interface_uuids")
	check.Must(t, os.WriteFile(name, []byte(shellB+"\n"+shellA+"\n"+shellB+"\n"), 0o644))
	got := discoverIn(t, dir, Options{})
	if diff := cmp.Diff([]string{user + " " + ReasonRegionAmbiguous}, summary(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	got = discoverIn(t, dir, Options{FPGARegions: []FPGARegion{{Device: card, InterfaceID: shellB}}})
	if len(got.Devices) != 1 || *got.Devices[0].Attributes[device.AttributeInterfaceID].StringValue != shellB {
		t.Errorf("got %+v", got)
	}
	check.Must(t, os.WriteFile(name, []byte(shellB+"\n"+shellB+"\n"), 0o644))
	if got := discoverIn(t, dir, Options{}); len(got.Devices) != 1 {
		t.Errorf("one id twice: %v", got.Problems)
	}
}

// TestXRTLockNext: the message says what an admin has to do, for this card.
func TestXRTLockNext(t *testing.T) {
	got := discoverIn(t, inMachine(t, oneAlveo, "disable 0x120", "disable 0x0"), Options{})
	for _, p := range got.Problems {
		if p.Reason == ReasonProgrammingUnlocked {
			for _, part := range []string{"mailbox_channel_disable=0x120", "xbmgmt configure --device 0000:3b:00.0 --input"} {
				if !strings.Contains(p.Message, part) {
					t.Errorf("%q lacks %q", p.Message, part)
				}
			}
			return
		}
	}
	t.Error("no problem")
}

// FuzzXRT fills the attributes of a card: whatever they hold, a device is valid and locked.
func FuzzXRT(f *testing.F) {
	f.Add("0x120\n", shellA+"\n", "7e1b8f6d-3f0a-4c55-9d2e-51a0c4b7e963\n", "0x1\n")
	f.Add("0x20", "", strings.Repeat("0", 32), "0x0")
	f.Add("-1", "\xff", "\x00", strings.Repeat("f", 17))
	f.Fuzz(func(t *testing.T, lock, interfaces, image, ready string) {
		dir := inMachine(t, oneAlveo)
		for name, text := range map[string]string{
			"0000:3b:00.0/config_mailbox_channel_disable": lock, "0000:3b:00.1/interface_uuids": interfaces,
			"0000:3b:00.1/xclbinuuid": image, "0000:3b:00.1/ready": ready,
		} {
			check.Must(t, os.WriteFile(filepath.Join(dir, "sys/bus/pci/devices", name), []byte(text), 0o600))
		}
		got := discoverIn(t, dir, Options{})
		for _, d := range got.Devices {
			checkXRT(t, d)
			if err := d.Validate(); err != nil {
				t.Error(err)
			}
		}
		if len(got.Devices) == 0 && len(got.Problems) == 0 {
			t.Error("the card is missing without a problem")
		}
	})
}
