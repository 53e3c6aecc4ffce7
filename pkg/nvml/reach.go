// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Simulated lists directories, with colons between them, that a simulated library keeps its state in. Only builds for tests set it.
//
//nolint:gochecknoglobals // the linker sets it
var Simulated string

// memory is what a child may write to.
const memory = 2 << 30

// Reach returns the files that a program of NVIDIA's driver reaches: those of the driver below a root, what the kernel shows, and the nodes
// of GPUs, in the proc, sys and dev of a host tree. It writes to the nodes only. More directories are for its state.
func Reach(driverRoot, host string, state ...string) *confine.Paths {
	reach := &confine.Paths{Own: append(splitList(Simulated), state...), Write: nodes(host)}
	// What the loader needs where the driver's root has no system.
	for _, name := range []string{
		sysfs.Proc, "sys", "lib", "lib64", "usr/lib", "usr/lib64", "usr/share/zoneinfo", "etc/ld.so.cache", "etc/localtime",
		"dev/random", "dev/urandom", "dev/zero",
	} {
		reach.Read = append(reach.Read, filepath.Join(host, name))
	}
	roots := []string{driverRoot}
	if driverRoot == "" {
		roots = DriverRoots()
	}
	// A root is that of a distribution or of an operator's container, or a directory of nothing but the driver.
	for _, root := range roots {
		for _, name := range []string{
			"usr", "lib", "lib32", "lib64", "bin", "sbin", "vulkan", "firmware", "nix/store", "run/opengl-driver",
			"opt/bin", "opt/lib", "opt/lib64", "opt/nvidia",
			"etc/OpenCL", "etc/X11", "etc/alternatives", "etc/egl", "etc/glvnd", "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d",
			"etc/nvidia", "etc/vulkan", "etc/vulkansc",
		} {
			reach.Read = append(reach.Read, filepath.Join(root, name))
		}
	}
	return reach
}

// DriverRoots returns where the driver is installed if the command does not say: by the distribution, by the GPU operator's container, by
// the driver installer of Google's images.
func DriverRoots() []string {
	return []string{"/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"}
}

func splitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ':' })
}

// confined returns what the child may do. One that sets a mode which the driver lets only an administrator set keeps CAP_SYS_ADMIN. One
// that makes an instance of MIG keeps CAP_MKNOD: its library makes the instance's node before it opens it. Other nodes are made here.
func (c Command) confined(setting, makes bool) confine.Child {
	makeNodes("/")
	child := confine.Child{Memory: memory, Paths: Reach(c.DriverRoot, "/", c.State...)}
	child.Paths.Read = append(child.Paths.Read, c.Path)
	if c.LibraryPath != "" {
		child.Paths.Read = append(child.Paths.Read, filepath.Dir(c.LibraryPath))
	}
	if setting {
		child.Keep |= confine.Setting()
	}
	if major := CapsMajor("/"); makes && major != 0 {
		child.Keep |= confine.MakesNodes()
		child.Majors = []uint32{major}
		child.Paths.Nodes = []string{CapsDir("/")}
	}
	return child
}

// nodes lists the nodes of NVIDIA's driver in the dev of a tree.
func nodes(root string) []string {
	var out []string
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dxg"} {
		found, _ := filepath.Glob(filepath.Join(root, sysfs.Dev, pattern)) // the patterns are right
		for _, name := range found {
			if info, err := os.Lstat(name); err == nil && info.Mode().Type() == os.ModeDevice|os.ModeCharDevice {
				out = append(out, name)
			}
		}
	}
	return out
}
