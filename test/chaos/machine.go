// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sim"
)

const (
	gpuCount = 40
	dirCount = 24
	// slowCount of the directories are file systems of their own, which can be made to hang.
	slowCount = 4
	// dirParent holds the directories that are lent.
	dirParent = "/mnt/disks"
	// bootIDFile is where the kernel tells its boot id.
	bootIDFile = "proc/sys/kernel/random/boot_id"

	nvidiaMajor = 195
)

// hardware is one device as the machine itself knows it: by what does not change while it is plugged in, and by what its driver
// gave it at this boot.
type hardware struct {
	// key is the PCI address, or the name that the administrator gave a directory.
	key string
	// node is the device's own node in /dev, with its numbers. Empty for a directory.
	node         string
	major, minor int64
	// dir is the directory. Empty for a GPU.
	dir string
}

// numbering is what drivers decide at each boot.
type numbering struct {
	// minors are the GPUs' in the order of their PCI addresses.
	minors []int
	// uvm is the major that the kernel found for nvidia-uvm.
	uvm int
}

// firstNumbering is that of the first and of the last boot.
func firstNumbering() numbering {
	n := numbering{uvm: 511}
	for i := range gpuCount {
		n.minors = append(n.minors, i)
	}
	return n
}

// otherNumbering is that of a boot at which the drivers found the devices in another order.
func otherNumbering(random *rand.Rand) numbering {
	const dynamicMajors, lowest = 20, 490
	return numbering{minors: random.Perm(gpuCount), uvm: lowest + random.IntN(dynamicMajors)}
}

// hardware lists all devices of the machine.
func (n numbering) hardware() []hardware {
	var all []hardware
	for i, minor := range n.minors {
		all = append(all, hardware{
			key: fmt.Sprintf("%04x:0%d:00.0", i/8, i%8+1), node: fmt.Sprintf("/dev/nvidia%d", minor), major: nvidiaMajor, minor: int64(minor),
		})
	}
	for i := range dirCount {
		all = append(all, hardware{key: dirName(i), dir: filepath.Join(dirParent, dirName(i))})
	}
	return all
}

// dirName is the name of a directory and of the host device that the configuration makes of it. The slow ones come first.
func dirName(i int) string {
	if i < slowCount {
		return fmt.Sprintf("slow%d", i)
	}
	return fmt.Sprintf("disk%d", i)
}

// machineText writes the machine in the form of package sim.
func machineText(n numbering, bootID string) string {
	var rows, disks strings.Builder
	for i, minor := range n.minors {
		fmt.Fprintf(&rows, "row %04x %d %d\n", i/8, i%8+1, minor)
	}
	for i := range dirCount {
		fmt.Fprintf(&disks, "dir %s\n", filepath.Join(dirParent, dirName(i))[1:])
	}
	return fmt.Sprintf(machineTemplate, rows.String(), disks.String(), n.uvm, bootID)
}

// machineTemplate takes the rows, the directories, the major of nvidia-uvm and the boot id.
const machineTemplate = `table gpu domain slot minor
%[1]s
%[2]s
char dev/nvidia${gpu.minor} 195:${gpu.minor}
char dev/nvidiactl 195:255
char dev/nvidia-uvm %[3]d:0
char dev/nvidia-uvm-tools %[3]d:1
-- proc/devices --
Character devices:
  1 mem
  5 /dev/tty
195 nvidia
195 nvidiactl
%[3]d nvidia-uvm

Block devices:
259 blkext
-- ` + bootIDFile + ` --
%[4]s
-- proc/sys/kernel/osrelease --
6.8.0-60-generic
-- proc/driver/nvidia/version --
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)
-- proc/driver/nvidia/gpus/${gpu.domain}:0${gpu.slot}:00.0/information --
Model: 		 NVIDIA L4
IRQ:   		 142
GPU UUID: 	 GPU-7d3c0a51-4e2b-4f60-9c1d-${gpu.domain}0000000${gpu.slot}
Video BIOS: 	 95.04.29.00.06
Bus Type: 	 PCIe
DMA Size: 	 47 bits
DMA Mask: 	 0x7fffffffffff
Bus Location: 	 ${gpu.domain}:0${gpu.slot}:00.0
Device Minor: 	 ${gpu.minor}
GPU Firmware: 	 580.95.05
GPU Excluded:	 No
-- sys/module/* --
nvidia/version 580.95.05
nvidia/initstate live
-- sys/bus/pci/drivers/* --
nvidia/module -> ../../../../module/nvidia
nvidia/${gpu.domain}:0${gpu.slot}:00.0 -> ../../../../devices/pci${gpu.domain}:00/${gpu.domain}:0${gpu.slot}:00.0
-- sys/bus/pci/devices/* --
${gpu.domain}:0${gpu.slot}:00.0 -> ../../../devices/pci${gpu.domain}:00/${gpu.domain}:0${gpu.slot}:00.0
-- sys/devices/pci${gpu.domain}:00/${gpu.domain}:0${gpu.slot}:00.0/* --
vendor 0x10de
device 0x27b8
subsystem_vendor 0x10de
subsystem_device 0x16ca
class 0x030200
revision 0xa1
numa_node 0
driver -> ../../../bus/pci/drivers/nvidia
subsystem -> ../../../bus/pci
`

// boot writes the machine below root as its kernel shows it after booting. Directories are on disk: what is in them stays.
func boot(root string, n numbering, bootID string) error {
	for _, name := range []string{"dev", "proc", "sys"} {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	m, err := sim.Parse([]byte(machineText(n, bootID)))
	if err != nil {
		return fmt.Errorf("the machine: %w", err)
	}
	notes, err := m.Expand(root, sim.Options{})
	if err != nil {
		return err
	}
	if len(notes) > 0 {
		return fmt.Errorf("the machine lacks nodes: %s", notes[0])
	}
	return nil
}

// configuration is the plugin's file: every directory is a host device of its own name.
func configuration() string {
	var b strings.Builder
	b.WriteString("apiVersion: config.fettle.dev/v1alpha1\nkind: KubeletPluginConfiguration\n")
	b.WriteString("discoveryInterval: 2s\nreconcileInterval: 2s\nhostDevices:\n")
	for i := range dirCount {
		fmt.Fprintf(&b, "- {name: %[1]s, directories: [%[2]s/%[1]s], containerPath: %[3]s}\n", dirName(i), dirParent, containerParent)
	}
	return b.String()
}

// containerParent is where directories appear in containers that do not ask for another place.
const containerParent = "/mnt/lent"
