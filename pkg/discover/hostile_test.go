// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// spoilers are what may become of a file.
var spoilers = map[string]func([]byte) []byte{
	"empty":     func([]byte) []byte { return nil },
	"truncated": func(b []byte) []byte { return b[:len(b)/2] },
	"garbage":   func([]byte) []byte { return []byte{0xff, 0x00, 0xc3, 0x28, '\n'} },
	"negative":  func([]byte) []byte { return []byte("-1\n") },
	"huge":      func([]byte) []byte { return bytes.Repeat([]byte("9 "), 100<<10) },
	"too large": func([]byte) []byte { return []byte("18446744073709551616:99999999999 0xffffffffffffffffff\n") },
}

// TestOneBadFile spoils each file of each machine in turn and looks again: nothing panics, every device that is found is valid, and
// no more devices are touched than the file speaks of.
func TestOneBadFile(t *testing.T) {
	for _, file := range machines(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := parseMachine(t, file)
			dir := expand(t, machine)
			baseline := byName(discoverIn(t, dir, machineOptions()))
			for i, entry := range machine.Entries {
				if entry.Kind != sim.File || len(baseline) > 16 && i%97 != 0 {
					continue
				}
				for spoiler, spoil := range spoilers {
					withFile(t, filepath.Join(dir, entry.Path), spoil(entry.Data), func() {
						got := discoverIn(t, dir, machineOptions())
						checkHarm(t, entry.Path+" "+spoiler, entry.Path, baseline, got)
					})
				}
			}
		})
	}
}

// TestOneMissingFile does the same with files that are gone, or have become directories or links to themselves.
func TestOneMissingFile(t *testing.T) {
	replace := map[string]func(name string) error{
		"gone":      func(string) error { return nil },
		"directory": func(name string) error { return os.Mkdir(name, 0o755) },
		"loop":      func(name string) error { return os.Symlink(filepath.Base(name), name) },
	}
	for _, file := range machines(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			machine := parseMachine(t, file)
			dir := expand(t, machine)
			baseline := byName(discoverIn(t, dir, machineOptions()))
			for i, entry := range machine.Entries {
				if len(baseline) > 16 && i%97 != 0 {
					continue
				}
				for how, put := range replace {
					name := filepath.Join(dir, entry.Path)
					aside := filepath.Join(t.TempDir(), "aside")
					must(t, os.Rename(name, aside), put(name))
					checkHarm(t, entry.Path+" "+how, entry.Path, baseline, discoverIn(t, dir, machineOptions()))
					must(t, os.RemoveAll(name), os.Rename(aside, name))
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
	if len(harmed) > 1 && !speaksOfAll(name) {
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

// withFile runs f while a file has other content.
func withFile(t *testing.T, name string, content []byte, f func()) {
	t.Helper()
	before, err := os.ReadFile(name)
	must(t, err, os.WriteFile(name, content, 0o644))
	f()
	must(t, os.WriteFile(name, before, 0o644))
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
