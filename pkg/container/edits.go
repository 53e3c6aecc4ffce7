// SPDX-License-Identifier: Apache-2.0

// Package container describes what a container gets together with a device: device nodes, mounts, variables and hooks, in the terms of the
// Container Device Interface. It imports nothing of Kubernetes, so that packages that change the host may use it.
package container

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Edits are the changes that give a device to a container, in the terms of the Container Device Interface.
type Edits struct {
	Nodes  []Node  `json:"nodes,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`
	// Env has entries NAME=VALUE. They replace the values of the image and the pod.
	Env []string `json:"env,omitempty"`
	// Hooks run in this order, before the container's program.
	Hooks []Hook `json:"hooks,omitempty"`
	// Made names parts of devices that a step of the claim makes. What a container needs of them is known only after that step.
	Made []string `json:"made,omitempty"`
}

// Empty reports whether there is nothing to edit.
func (e *Edits) Empty() bool {
	return len(e.Nodes)+len(e.Mounts)+len(e.Env)+len(e.Hooks)+len(e.Made) == 0
}

// Hook is a program of the host that the runtime runs in the container's namespaces, with the container's root already in place and the
// host's still in reach (createContainer of the OCI runtime specification).
type Hook struct {
	// Path is the path of the program on the host. Args are its arguments, beginning with its name.
	Path string   `json:"path"`
	Args []string `json:"args"`
}

// Node is a character device node that is made inside the container. Its numbers come from the host tree's dev attribute (or
// /proc/devices), so the node need not exist in the host's /dev.
type Node struct {
	// Path is absolute, in the container: /dev/dri/renderD128.
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
	// Permissions are those of the device cgroup: "rw" for workloads, "r" for admin access.
	Permissions string `json:"permissions"`
}

// Common reports whether a node is one that all devices of a driver have in common. The driver may make it when a program first needs it.
func (n Node) Common() bool {
	return slices.Contains([]string{"kfd", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"}, path.Base(n.Path))
}

// Mount is a bind mount of a directory or file of the host.
type Mount struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
	// NonRecursive leaves out what is mounted below the directory on the host.
	NonRecursive bool `json:"alone,omitempty"`
	// HostToContainer shows the container what is mounted below the directory on the host later.
	HostToContainer bool `json:"follows,omitempty"`
}

// With returns the edits followed by more. It changes neither.
func (e Edits) With(more Edits) Edits {
	return Edits{
		Nodes: slices.Concat(e.Nodes, more.Nodes), Mounts: slices.Concat(e.Mounts, more.Mounts),
		Env: slices.Concat(e.Env, more.Env), Hooks: slices.Concat(e.Hooks, more.Hooks), Made: slices.Concat(e.Made, more.Made),
	}
}

// The device cgroup's limits (include/linux/kdev_t.h): 12 bits of major, 20 of minor.
const (
	maxMajor = 1<<12 - 1
	maxMinor = 1<<20 - 1
)

// Validate lists everything that a container runtime cannot do.
func (e Edits) Validate() []error {
	var faults []error
	seen := map[string]bool{}
	at := func(what, containerPath string) {
		if !path.IsAbs(containerPath) || path.Clean(containerPath) != containerPath || containerPath == "/" {
			faults = append(faults, fmt.Errorf("%s %q: want a clean absolute path", what, containerPath))
		}
		if seen[containerPath] {
			faults = append(faults, fmt.Errorf("%s %q appears twice", what, containerPath))
		}
		seen[containerPath] = true
	}
	for _, node := range e.Nodes {
		at("node", node.Path)
		if node.Major < 1 || node.Major > maxMajor || node.Minor < 0 || node.Minor > maxMinor {
			faults = append(faults, fmt.Errorf("node %q: numbers %d:%d, want 1-%d:0-%d",
				node.Path, node.Major, node.Minor, maxMajor, maxMinor))
		}
		if node.Permissions == "" || strings.Trim(node.Permissions, "rwm") != "" {
			faults = append(faults, fmt.Errorf("node %q: permissions %q, want letters of rwm", node.Path, node.Permissions))
		}
	}
	for _, mount := range e.Mounts {
		at("mount", mount.ContainerPath)
		if !path.IsAbs(mount.HostPath) || path.Clean(mount.HostPath) != mount.HostPath {
			faults = append(faults, fmt.Errorf("mount of %q: want a clean absolute path", mount.HostPath))
		}
	}
	return faults
}

// CheckVariable refuses a variable, NAME=VALUE, that no CDI spec can hold. The runtime reads the spec's JSON as YAML, which has no control
// characters, and encoding/json replaces bytes that are not UTF-8.
func CheckVariable(text string) error {
	name, value, ok := strings.Cut(text, "=")
	value = strings.NewReplacer("\n", "", "\t", "").Replace(value)
	if !ok || name == "" || strings.ContainsFunc(name, Unprintable) || strings.ContainsFunc(value, Unprintable) {
		return fmt.Errorf("variable %q: want NAME=VALUE of printable characters, tabs and line feeds", text)
	}
	return nil
}

// Unprintable reports whether a character must not be in a CDI spec.
func Unprintable(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }
