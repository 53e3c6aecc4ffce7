// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

const (
	// capsDir has the nodes of capabilities: of MIG's configuration, of instances.
	capsDir = sysfs.Dev + "/nvidia-caps"
	// controlMinor is that of nvidiactl.
	controlMinor = 255
	maxText      = 4 << 10
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	minorOfGPU     = regexp.MustCompile(`(?m)^Device Minor:\s*([0-9]{1,6})\s*$`)
	minorOfAccess  = regexp.MustCompile(`(?m)^DeviceFileMinor:\s*([0-9]{1,6})\s*$`)
	accessesOfCaps = []string{"mig/*", "gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access", "fabric-imex-mgmt"}
)

// makeNodes makes the nodes that the kernel's driver has and the dev of a tree lacks, as NVIDIA's library would if it had the right: a
// container has those of the moment when it was started. What fails, the library complains of.
func makeNodes(root string) {
	majors := charMajors(root)
	gpus, caps := majors["nvidia"], majors["nvidia-caps"]
	if gpus == 0 {
		gpus = majors["nvidia-frontend"] // before 560
	}
	if gpus != 0 {
		makeNode(filepath.Join(root, sysfs.Dev, "nvidiactl"), 0o666, unix.Mkdev(gpus, controlMinor))
		for _, minor := range minorsIn(root, minorOfGPU, "proc/driver/nvidia/gpus/*/information") {
			makeNode(filepath.Join(root, sysfs.Dev, "nvidia"+strconv.Itoa(minor)), 0o666, unix.Mkdev(gpus, uint32(minor)))
		}
	}
	if caps == 0 {
		return
	}
	if err := os.Mkdir(CapsDir(root), 0o755); err != nil && !os.IsExist(err) {
		return
	}
	for _, pattern := range accessesOfCaps {
		for _, minor := range minorsIn(root, minorOfAccess, sysfs.ProcNVIDIACapabilities+"/"+pattern) {
			makeNode(filepath.Join(CapsDir(root), "nvidia-cap"+strconv.Itoa(minor)), 0o444, unix.Mkdev(caps, uint32(minor)))
		}
	}
}

// CapsMajor returns the major of the nodes of capabilities by the proc of a host tree, 0 if the driver is not there.
func CapsMajor(host string) uint32 { return charMajors(host)["nvidia-caps"] }

// CapsDir returns their directory in a host tree.
func CapsDir(host string) string { return filepath.Join(host, capsDir) }

func charMajors(root string) map[string]uint32 {
	out := map[string]uint32{}
	text, err := os.ReadFile(filepath.Join(root, sysfs.ProcDevices))
	if err != nil {
		return out // no driver that anybody could know of
	}
	for name, major := range sysfs.ParseCharMajors(string(text)) {
		out[name] = uint32(major)
	}
	return out
}

// minorsIn returns the minors in the files of a pattern.
func minorsIn(root string, line *regexp.Regexp, pattern string) (out []int) {
	names, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are right
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if match := line.FindSubmatch(text[:min(len(text), maxText)]); match != nil {
			if minor, err := strconv.Atoi(string(match[1])); err == nil {
				out = append(out, minor)
			}
		}
	}
	return out
}

// makeNode makes a node, in the place of one with another number, which an earlier driver had. The mode is what the library wants.
func makeNode(name string, mode fs.FileMode, number uint64) {
	var stat unix.Stat_t
	switch err := unix.Lstat(name, &stat); {
	case err == nil && stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == number:
		return
	case err == nil && stat.Mode&unix.S_IFMT != unix.S_IFCHR:
		return // it is not the driver's
	case err == nil:
		if err := os.Remove(name); err != nil {
			return
		}
	}
	if err := unix.Mknod(name, unix.S_IFCHR|uint32(mode), int(number)); err == nil {
		_ = os.Chmod(name, mode) // as the umask left it, it serves root
	}
}
