// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Node is a device node.
type Node struct {
	Path         string
	Major, Minor uint32
}

// String is the node as "ls" has it: /dev/dri/renderD128 226:128.
func (n Node) String() string { return fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor) }

// minor is the line of /proc/driver/nvidia/gpus/ADDRESS/information that says which /dev/nvidiaN is the GPU's.
var minor = regexp.MustCompile(`(?m)^Device Minor:\s*(\d+)$`)

// Nodes returns the device nodes that a container needs for the device, sorted by path. Names and numbers are those of the machine's tree
// at root, because a machine that is put together with others, or made openable, has other ones than its text.
func (d Device) Nodes(root string) ([]Node, error) {
	paths, err := d.paths(root)
	if err != nil {
		return nil, fmt.Errorf("device nodes of %s: %w", d.Name, err)
	}
	var out []Node
	for _, path := range paths {
		var stat unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, path), &stat); err != nil {
			return nil, fmt.Errorf("device nodes of %s: %s: %w", d.Name, path, err)
		}
		out = append(out, Node{path, unix.Major(stat.Rdev), unix.Minor(stat.Rdev)})
	}
	return out, nil
}

// paths are those of the nodes, sorted.
func (d Device) paths(root string) ([]string, error) {
	switch {
	case d.Kind == "host":
		return nil, nil
	case d.node != "":
		return []string{d.node}, nil
	case d.Vendor == "nvidia":
		return d.ofNVIDIA(root)
	case d.Vendor == "amd":
		paths, err := d.ofDRM(root, "renderD*") // a program that computes opens no card node
		return slices.Concat(paths, []string{"/dev/kfd"}), err
	default:
		cards, err := d.ofDRM(root, "card*")
		if err != nil {
			return nil, err
		}
		renderers, err := d.ofDRM(root, "renderD*")
		return slices.Concat(cards, renderers), err
	}
}

// ofNVIDIA are the GPU's own node and those of the driver that all GPUs share.
func (d Device) ofNVIDIA(root string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia/gpus", d.Address, "information"))
	if err != nil {
		return nil, err
	}
	match := minor.FindSubmatch(text)
	if match == nil {
		return nil, fmt.Errorf("the driver's information on %s has no minor", d.Address)
	}
	var paths []string
	for _, name := range []string{"nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia" + string(match[1]), "nvidiactl"} {
		path := "/dev/" + name
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// ofDRM are the nodes of one sort that the kernel made for the PCI function.
func (d Device) ofDRM(root, pattern string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(root, "sys/bus/pci/devices", d.Address, "drm", pattern))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("function %s has nodes %s, want one of %s", d.Address, strings.Join(found, ", "), pattern)
	}
	if err != nil {
		return nil, err
	}
	return []string{"/dev/dri/" + filepath.Base(found[0])}, nil
}
