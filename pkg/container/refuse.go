// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Device numbers of Linux (Documentation/admin-guide/devices.txt).
const (
	memMajor  = 1
	miscMajor = 10
	sgMajor   = 21  // /dev/sg*: SCSI commands to any disk
	rawMajor  = 162 // /dev/raw/*: a block device as a character device
	msrMajor  = 202 // /dev/cpu/*/msr
)

// memMinors are /dev/mem, kmem, port, kmsg and oldmem.
func memMinors() []int64 { return []int64{1, 2, 4, 11, 12} }

// miscMinors are /dev/snapshot, which reads and writes memory, and /dev/mapper/control, which makes devices of any disk.
func miscMinors() []int64 { return []int64{231, 236} }

// diskNodes are the character devices of disks whose numbers the kernel chooses: NVMe controllers and namespaces (drivers/nvme/host), and
// SCSI commands (block/bsg.c). They reach the node's own disk as well as any other.
var diskNodes = regexp.MustCompile(`^/dev/(nvme[0-9]+|ng[0-9]+n[0-9]+|bsg/.*)$`)

// managementNodes begin the names of nodes by which a card is programmed or managed: DFL's FMEs (drivers/fpga/dfl.c, and Intel's driver
// before it), and XRT's management function.
func managementNodes() []string { return []string{"dfl-fme.", "intel-fpga-fme.", "xclmgmt"} }

// CheckNumbers refuses character devices that give control over the node, whoever names them: memory, I/O ports, the kernel's log,
// registers of processors, and commands to disks. The numbers count where the kernel fixes them, since a node may have any name. Block
// devices are no character devices, and are refused before.
func CheckNumbers(name string, major, minor int64) error {
	fixed := major == memMajor && slices.Contains(memMinors(), minor) || major == miscMajor && slices.Contains(miscMinors(), minor) ||
		major == sgMajor || major == rawMajor || major == msrMajor
	if fixed || diskNodes.MatchString(name) {
		return fmt.Errorf("device node %s (%d:%d) gives control over the whole node: no container may have it", name, major, minor)
	}
	return nil
}

// CheckNode is CheckNumbers, and refuses nodes that program FPGAs by their names, where nothing else is known of them.
func CheckNode(name string, major, minor int64) error {
	if slices.ContainsFunc(managementNodes(), func(prefix string) bool { return strings.HasPrefix(path.Base(name), prefix) }) {
		return fmt.Errorf("device node %s programs or manages a whole card: no container may have it; claim a region instead", name)
	}
	return CheckNumbers(name, major, minor)
}
