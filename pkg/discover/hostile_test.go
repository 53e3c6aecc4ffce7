// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"flag"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

var exhaustive = flag.Bool("exhaustive", false, "harm every file of every machine in every way, which takes minutes")

// harm is one way in which a file may be wrong.
type harm struct {
	name string
	do   func(file string, content []byte) error
}

func harms() []harm {
	write := func(content []byte) func(string, []byte) error {
		return func(file string, _ []byte) error { return os.WriteFile(file, content, 0o644) }
	}
	return []harm{
		{"is empty", write(nil)},
		{"is truncated", func(file string, content []byte) error { return os.WriteFile(file, content[:len(content)/2], 0o644) }},
		{"is garbage", write([]byte{0xff, 0x00, 0xc3, 0x28, '\n'})},
		{"is negative", write([]byte("-1\n"))},
		{"is huge", write(bytes.Repeat([]byte("9 "), 100<<10))},
		{"is too large a number", write([]byte("18446744073709551616:99999999999 0xffffffffffffffffff\n"))},
		{"is gone", func(string, []byte) error { return nil }},
		{"is a directory", func(file string, _ []byte) error { return os.Mkdir(file, 0o755) }},
		{"is a loop", func(file string, _ []byte) error { return os.Symlink(filepath.Base(file), file) }},
	}
}

// TestOneBadFile harms the files, links and nodes of each machine one at a time and looks again: nothing panics, every device
// that is found is valid, and no more devices are touched than the file speaks of. Without -exhaustive it takes samples.
func TestOneBadFile(t *testing.T) {
	const samples = 36
	for _, file := range machines(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			machine := parseMachine(t, file)
			dir, aside := expand(t, machine), filepath.Join(t.TempDir(), "aside")
			baseline := byName(discoverIn(t, dir, machineOptions()))
			if len(baseline) > 16 && !*exhaustive {
				t.Skip("a large machine has no files that the others lack")
			}
			stride := max(1, len(machine.Entries)/samples)
			for i, entry := range machine.Entries {
				for j, h := range harms() {
					if !*exhaustive && (i%stride != 0 || i/stride%len(harms()) != j) {
						continue
					}
					name := filepath.Join(dir, entry.Path)
					check.Must(t, os.Rename(name, aside), h.do(name, entry.Data))
					checkHarm(t, entry.Path+" "+h.name, entry.Path, baseline, discoverIn(t, dir, machineOptions()))
					check.Must(t, os.RemoveAll(name), os.Rename(aside, name))
				}
			}
		})
	}
}

// speaksOfAll are the places that every device of a vendor depends on.
func speaksOfAll(name string) bool {
	for _, shared := range []string{
		sysfs.ProcDevices, sysfs.ProcOSRelease, path.Join(sysfs.ProcDriverNVIDIA, "version"), sysfs.Modules + "/",
		"sys/devices/virtual/kfd/kfd/dev", "sys/class/kfd", "dev/nvidia-modeset",
	} {
		if strings.HasPrefix(name, shared) {
			return true
		}
	}
	return false
}

// oneCard reports whether devices share a card, whose functions and engine speak of all of its ports.
func oneCard(devices map[string]device.Device, names []string) bool {
	cards := map[string]bool{}
	for _, name := range names {
		card := devices[name].Attributes[device.AttributeCard].StringValue
		if card == nil {
			return false
		}
		cards[*card] = true
	}
	return len(cards) == 1
}

func checkHarm(t *testing.T, what, name string, baseline map[string]device.Device, got Inventory) {
	t.Helper()
	after := byName(got)
	var harmed []string
	for deviceName, d := range baseline {
		if now, ok := after[deviceName]; !ok || encode(t, Inventory{Devices: []device.Device{d}}) !=
			encode(t, Inventory{Devices: []device.Device{now}}) {
			harmed = append(harmed, deviceName)
		}
	}
	if len(harmed) > 1 && !speaksOfAll(name) && !oneCard(baseline, harmed) {
		t.Errorf("%s harms %v", what, harmed)
	}
	for _, d := range got.Devices {
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, known := baseline[d.Name]; !known {
			t.Errorf("%s makes a device of %s", what, d.Name)
		}
	}
	for _, d := range baseline {
		if _, ok := after[d.Name]; !ok && len(got.Problems) == 0 && !identifies(name) {
			t.Errorf("%s loses %s without a problem", what, d.Name)
		}
	}
}

// identifies reports whether a file or link says what a function is, so that with another content it is just no GPU.
func identifies(name string) bool {
	switch path.Base(name) {
	case "vendor", "class":
		return true
	}
	return strings.HasPrefix(name, sysfs.PCIDevices+"/") || strings.HasPrefix(name, "mnt/")
}

func byName(inventory Inventory) map[string]device.Device {
	out := map[string]device.Device{}
	for _, d := range inventory.Devices {
		out[d.Name] = d
	}
	return out
}
