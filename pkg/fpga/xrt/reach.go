// SPDX-License-Identifier: Apache-2.0

package xrt

import (
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Reach returns the files that xbmgmt may reach below a driver root: its own and its libraries, what the kernel shows, the management
// functions of cards, and the copies of images in the state directory. It writes to attributes of PCI devices to reset a card.
func Reach(root, stateDir string) *confine.Paths {
	reach := &confine.Paths{Read: []string{stateDir}}
	for _, name := range []string{
		"opt/xilinx", "usr", "lib", "lib64", "etc/ld.so.cache", "etc/localtime", "etc/OpenCL", "proc", "sys",
		"dev/null", "dev/random", "dev/urandom", "dev/zero",
	} {
		reach.Read = append(reach.Read, filepath.Join(root, name))
	}
	for _, pattern := range []string{"dev/xclmgmt*", "dev/xfpga", sysfs.PCI, sysfs.Devices} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are right
		reach.Write = append(reach.Write, found...)
	}
	return reach
}
