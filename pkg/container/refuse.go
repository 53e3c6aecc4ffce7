// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Device numbers of Linux (Documentation/admin-guide/devices.txt).
const (
	memMajor = 1
	msrMajor = 202 // /dev/cpu/*/msr
)

// memMinors are /dev/mem, kmem, port, kmsg and oldmem.
func memMinors() []int64 { return []int64{1, 2, 4, 11, 12} }

// managementNodes begin the names of nodes by which a card is programmed or managed: DFL's FMEs (drivers/fpga/dfl.c, and Intel's driver
// before it), and XRT's management function.
func managementNodes() []string { return []string{"dfl-fme.", "intel-fpga-fme.", "xclmgmt"} }

// CheckNumbers refuses character devices that give control over the node, whoever names them: memory, I/O ports, the kernel's log, and
// registers of processors. The numbers count, since a node may have any name.
func CheckNumbers(name string, major, minor int64) error {
	if major == memMajor && slices.Contains(memMinors(), minor) || major == msrMajor {
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
