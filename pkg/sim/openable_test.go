// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/sim"
)

func TestOpenable(t *testing.T) {
	m, err := sim.Parse([]byte(`char dev/nvidia0 195:0
char dev/nvidia1 195:1
char dev/nvidiactl 195:255
char dev/nvidia-caps/nvidia-cap1 235:1
char dev/nvidia-uvm 511:0
char dev/dri/renderD128 226:128
symlink sys/dev/char/226:128 ../../class/drm/renderD128
symlink sys/devices/nvme0n1/subsystem ../../class/block
-- proc/devices --
Character devices:
  5 /dev/tty
195 nvidia
195 nvidiactl
235 nvidia-caps
226 drm
511 nvidia-uvm

Block devices:
226 other
-- proc/driver/nvidia/gpus/0000:17:00.0/information --
IRQ:   		 290
Device Minor: 	 0
GPU Excluded:	 No
-- proc/driver/nvidia/gpus/0000:18:00.0/information --
Device Minor: 	 1
-- proc/driver/nvidia/capabilities/mig/config --
DeviceFileMinor: 1
-- sys/devices/* --
card/drm/renderD128/dev 226:128
nvme0n1/dev 259:0
other/dev garbage
-- sys/class/drm/* --
renderD128 -> ../../devices/card/drm/renderD128
-- sys/class/block/* --
nvme0n1 -> ../../devices/nvme0n1
`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Openable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := sim.Parse([]byte(`char dev/nvidia1 4:1
char dev/nvidia2 4:2
char dev/nvidiactl 4:3
char dev/nvidia-caps/nvidia-cap5 4:5
char dev/nvidia-uvm 4:6
char dev/dri/renderD128 4:4
symlink sys/dev/char/4:4 ../../class/drm/renderD128
symlink sys/devices/nvme0n1/subsystem ../../class/block
-- proc/devices --
Character devices:
  5 /dev/tty
  4 nvidia
  4 nvidiactl
  4 nvidia-caps
  4 drm
  4 nvidia-uvm

Block devices:
226 other
-- proc/driver/nvidia/gpus/0000:17:00.0/information --
IRQ:   		 290
Device Minor: 	 1
GPU Excluded:	 No
-- proc/driver/nvidia/gpus/0000:18:00.0/information --
Device Minor: 	 2
-- proc/driver/nvidia/capabilities/mig/config --
DeviceFileMinor: 5
-- sys/devices/* --
card/drm/renderD128/dev 4:4
nvme0n1/dev 259:0
other/dev garbage
-- sys/class/drm/* --
renderD128 -> ../../devices/card/drm/renderD128
-- sys/class/block/* --
nvme0n1 -> ../../devices/nvme0n1
`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want.Format()), string(got.Format())); diff != "" {
		t.Errorf("renumbered (-want +got):\n%s", diff)
	}
}

// Every machine but the largest can be opened, and then its character devices are all terminals.
func TestOpenableMachines(t *testing.T) {
	for _, file := range machineFiles(t) {
		name := strings.TrimSuffix(path.Base(file), ".txtar")
		m, err := parseMachine(t, name).Openable()
		if name == "200-devices" {
			if err == nil || !strings.Contains(err.Error(), "203 character device numbers: at most 63") {
				t.Errorf("%s: error %v, want one that names both numbers", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, e := range m.Entries {
			if e.Kind == sim.Char && (e.Number.Major != 4 || e.Number.Minor < 1 || e.Number.Minor > 63) {
				t.Errorf("%s: %s is %s, want 4:1 to 4:63", name, e.Path, e.Number)
			}
		}
	}
}
