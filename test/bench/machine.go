// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sim"
)

// machine is a simulated machine with as many devices as it takes to keep the largest burst apart.
type machine struct {
	name string
	gpus int
	// directories are host devices.
	directories int
}

// The number of devices of the larger of the two claims.
const wide = 8

// widths are the numbers of devices a claim.
func widths() []int { return []int{1, wide} }

// The names of the machines that claims are held on.
const (
	gpuMachine  = "gpus"
	diskMachine = "disks"
)

// gpuMachine has a GPU for each device of a burst of wide claims, beside those that held claims share.
func (f form) gpuMachine() machine {
	return machine{name: gpuMachine, gpus: f.shared() + wide*f.width()}
}

// diskMachine has a directory for each call of a burst. It is no larger, since a runtime reads the spec of each of a machine's
// devices whenever any claim writes one.
func (f form) diskMachine() machine {
	return machine{name: diskMachine, gpus: f.shared(), directories: max(wide, f.width())}
}

// shared is the number of GPUs that held claims share: so many that each has a hundred shares at most.
func (f form) shared() int { return f.width() }

// devices is how many the machine publishes.
func (m machine) devices() int { return m.gpus + m.directories }

// text is the machine in the form of pkg/sim: Intel GPUs, since the other vendors' drivers cannot number so many, eight in each
// PCI domain.
func (m machine) text() string {
	var rows strings.Builder
	for i := range m.gpus {
		fmt.Fprintf(&rows, "row %04x %d %d %d\n", i/8, i%8+1, i, firstRender+i)
	}
	var gpus string
	if m.gpus > 0 {
		gpus = strings.ReplaceAll(gpuMembers, "ROWS\n", rows.String())
	}
	var disks strings.Builder
	for i := range m.directories {
		fmt.Fprintf(&disks, "dir mnt/disks/d%03d\n", i)
	}
	return disks.String() + gpus
}

// firstRender is above the numbers of all cards.
const firstRender = 1 << 12

const gpuMembers = `table gpu domain slot card render
ROWS
-- proc/sys/kernel/osrelease --
6.8.0-60-generic
-- proc/devices --
Character devices:
226 drm

Block devices:
259 blkext
-- sys/module/* --
xe/initstate live
-- sys/bus/pci/drivers/* --
xe/module -> ../../../../module/xe
xe/${gpu.domain}:0${gpu.slot}:00.0 -> ../../../../devices/pci${gpu.domain}:00/${gpu.domain}:0${gpu.slot}:00.0
-- sys/bus/pci/devices/* --
${gpu.domain}:0${gpu.slot}:00.0 -> ../../../devices/pci${gpu.domain}:00/${gpu.domain}:0${gpu.slot}:00.0
-- sys/devices/pci${gpu.domain}:00/${gpu.domain}:0${gpu.slot}:00.0/* --
vendor 0x8086
device 0x56c0
subsystem_vendor 0x8086
subsystem_device 0x4905
class 0x038000
revision 0x08
numa_node 0
driver -> ../../../bus/pci/drivers/xe
subsystem -> ../../../bus/pci
tile0/physical_vram_size_bytes 17179869184
drm/card${gpu.card}/dev 226:${gpu.card}
drm/renderD${gpu.render}/dev 226:${gpu.render}
`

// configuration publishes the directories, and looks at the machine at the start only: looking at so many devices is not what
// is measured here.
const configuration = `apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
discoveryInterval: 1h
hostDevices:
  - name: disk
    directories: ["/mnt/disks/*"]
`

// expand writes the machine's host tree.
func (m machine) expand(dir string) error {
	return expandText([]byte(m.text()), dir)
}

func expandText(text []byte, dir string) error {
	parsed, err := sim.Parse(text)
	if err != nil {
		return fmt.Errorf("make a simulated machine: %w", err)
	}
	// What could not be made without root is device nodes, which discovery does not need where sysfs tells their numbers.
	_, err = parsed.Expand(dir, sim.Options{})
	return err
}

// expandFile writes the host tree of a machine of test/machines.
func expandFile(root, name, dir string) error {
	text, err := os.ReadFile(filepath.Join(root, "test", "machines", name+".txtar"))
	if err != nil {
		return fmt.Errorf("read a machine: %w", err)
	}
	return expandText(text, dir)
}

// fill puts what a workload might leave into a directory.
func fill(dir string) error {
	const files = 3
	var errs []error
	for i := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, fmt.Sprintf("left-%d", i)), []byte("scratch\n"), 0o600))
	}
	return errors.Join(errs...)
}

// empty says whether nothing is in a directory.
func empty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return len(entries) == 0, err
}
