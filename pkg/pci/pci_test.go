// SPDX-License-Identifier: Apache-2.0

package pci_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		text    string
		want    pci.Address
		wantErr bool
	}{
		{text: "0000:1b:00.0", want: pci.Address{Bus: 0x1b}},
		{text: "ffff:ff:1f.7", want: pci.Address{Domain: 0xffff, Bus: 0xff, Device: 0x1f, Function: 7}},
		{text: "10000:e1:00.0", want: pci.Address{Domain: 0x10000, Bus: 0xe1}},
		{text: "0000:1B:00.0", wantErr: true},
		{text: "00000000:1b:00.0", wantErr: true},
		{text: "0000:1b:20.0", wantErr: true},
		{text: "0000:1b:00.8", wantErr: true},
		{text: "1b:00.0", wantErr: true},
		{text: "0000:1b:00", wantErr: true},
		{text: "0000:1b:00.0 ", wantErr: true},
		{text: "+000:1b:00.0", wantErr: true},
		{text: "", wantErr: true},
	} {
		got, err := pci.Parse(tc.text)
		if (err != nil) != tc.wantErr || got != tc.want {
			t.Errorf("Parse(%q) = %v, %v; want %v, error %v", tc.text, got, err, tc.want, tc.wantErr)
		}
	}
}

func TestParseBusID(t *testing.T) {
	got, err := pci.ParseBusID("00000000:1B:00.0")
	if err != nil || got.String() != "0000:1b:00.0" || got.Label() != "0000-1b-00-0" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := pci.ParseBusID("000000000:1B:00.0"); err == nil {
		t.Error("a domain of nine digits was read")
	}
	if id := (pci.Address{Bus: 0x05, Device: 2, Function: 1}).LocationID(); id != 0x511 {
		t.Errorf("location id %#x, want 0x511", id)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"0000:1b:00.0", "00000000:1B:00.0", "10000:e1:00.0", "::.", "0000:1b:00.0\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if address, err := pci.Parse(text); err == nil && address.String() != text {
			t.Errorf("%q is read and written as %q", text, address)
		}
		address, err := pci.ParseBusID(text)
		if err != nil {
			return
		}
		again, err := pci.Parse(address.String())
		if err != nil || again != address {
			t.Errorf("%q is written as %q, which is read as %v, %v", text, address, again, err)
		}
	})
}

// machine is one GPU with two virtual functions, one of which is broken, and a function that is gone.
var machine = map[string]string{
	"sys/bus/pci/devices/0000:3b:00.0": "-> ../../../devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0",
	"sys/bus/pci/devices/0000:3b:00.1": "-> ../../../devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.1",
	"sys/bus/pci/devices/0000:3b:00.2": "-> ../../../devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.2",
	"sys/bus/pci/devices/0000:83:00.0": "-> ../../../devices/pci0000:80/0000:83:00.0",
	"sys/bus/pci/devices/oddity/class": "0x030000",

	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/vendor":         "0x10de\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/device":         "0x2330\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/class":          "0x030200\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/revision":       "0xa1\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/numa_node":      "1\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/sriov_totalvfs": "16\n",
	// The kernel holds this one back while a driver has the function locked, so nobody looks at it.
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/sriov_numvfs": "-> sriov_numvfs",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.0/driver":       "-> ../../../../../../bus/pci/drivers/nvidia",

	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.1/vendor":           "0x10de\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.1/device":           "0x2330\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.1/class":            "0x030200\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.1/numa_node":        "-1\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.1/subsystem_vendor": "garbage\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.1/physfn":           "-> ../0000:3b:00.0",

	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.2/vendor": "0x10de\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.2/device": "0x2330\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.2/class":  "0x030200\n",
	"sys/devices/platform/soc/pci0000:3a/0000:3a:01.0/0000:3b:00.2/physfn": "-> ../what",
}

func TestList(t *testing.T) {
	numa, physical := 1, pci.Address{Bus: 0x3b}
	want := []pci.Function{
		{
			Address: pci.Address{Bus: 0x3b}, Vendor: 0x10de, Device: 0x2330, Class: 0x030200, Revision: 0xa1, Driver: "nvidia",
			NUMANode: &numa, Root: "pci0000:3a", VFs: 16,
		},
		{
			Address: pci.Address{Bus: 0x3b, Function: 1}, Vendor: 0x10de, Device: 0x2330, Class: 0x030200,
			Root: "pci0000:3a", PhysicalFunction: &physical,
		},
	}
	got, err := pci.List(newTree(t, machine))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
	wantErrs := []string{
		`PCI function 0000:3b:00.1: read /sys/bus/pci/devices/0000:3b:00.1/subsystem_vendor: ` +
			`malformed: "garbage", want 4 hexadecimal digits`,
		`PCI function 0000:3b:00.2: link physfn: PCI address "what": want DDDD:BB:DD.F in lower-case hexadecimal, such as 0000:1b:00.0`,
		`PCI function 0000:83:00.0: link /sys/bus/pci/devices/0000:83:00.0 leads nowhere: file does not exist`,
		`PCI function oddity: PCI address "oddity": want DDDD:BB:DD.F in lower-case hexadecimal, such as 0000:1b:00.0`,
	}
	if diff := cmp.Diff(wantErrs, strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	if base := got[0].BaseClass(); base != 0x0302 {
		t.Errorf("base class %#x, want 0x302", base)
	}
}

// TestCutShort: a file that lost digits does not name another vendor, device, class, board or revision.
func TestCutShort(t *testing.T) {
	const dir = "sys/devices/pci0000:00/0000:01:00.0/"
	whole := map[string]string{
		"vendor": "0x1da3", "device": "0x1020", "class": "0x120000", "revision": "0x01",
		"subsystem_vendor": "0x1da3", "subsystem_device": "0x0001",
	}
	for cut, essential := range map[string]bool{
		"vendor": true, "device": true, "class": true, "subsystem_vendor": false, "subsystem_device": false, "revision": false,
	} {
		files := map[string]string{"sys/bus/pci/devices/0000:01:00.0": "-> ../../../devices/pci0000:00/0000:01:00.0"}
		for name, content := range whole {
			files[dir+name] = content
		}
		files[dir+cut] = whole[cut][:3]
		got, err := pci.List(newTree(t, files))
		if !errors.Is(err, sysfs.ErrMalformed) || !strings.Contains(err.Error(), "/"+cut+":") {
			t.Errorf("%s: %v, want that it is malformed", cut, err)
		}
		if lost := len(got) == 0; lost != essential {
			t.Errorf("%s: found %+v", cut, got)
		}
	}
}

func TestListWithoutPCI(t *testing.T) {
	if got, err := pci.List(newTree(t, map[string]string{"proc/devices": ""})); len(got) != 0 || err != nil {
		t.Errorf("got %v, %v; want nothing", got, err)
	}
}

// newTree makes a host tree: content by name, and a link for content that begins with an arrow.
func newTree(t *testing.T, files map[string]string) *sysfs.Tree {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(target, name)
		} else {
			err = os.WriteFile(name, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tree, err := sysfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree
}
