// SPDX-License-Identifier: Apache-2.0

// Package container describes what a container gets together with a device: device nodes, mounts, variables and hooks, in the terms of the
// Container Device Interface. It imports nothing of Kubernetes, so that packages that change the host may use it.
package container

import "slices"

// Edits are the changes that give a device to a container, in the terms of the Container Device Interface.
type Edits struct {
	Nodes  []Node  `json:"nodes,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`
	// Env has entries NAME=VALUE. They replace the values of the image and the pod.
	Env []string `json:"env,omitempty"`
	// Hooks run in this order, before the container's program.
	Hooks []Hook `json:"hooks,omitempty"`
}

// Empty reports whether there is nothing to edit.
func (e *Edits) Empty() bool { return len(e.Nodes)+len(e.Mounts)+len(e.Env)+len(e.Hooks) == 0 }

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
		Env: slices.Concat(e.Env, more.Env), Hooks: slices.Concat(e.Hooks, more.Hooks),
	}
}
