// SPDX-License-Identifier: Apache-2.0

// Package container describes what a container gets together with a device: device nodes, mounts, variables and hooks, in the terms of
// the Container Device Interface. It imports nothing of Kubernetes, so that packages whose code changes the host may use it.
package container

import "slices"

// Edits are the changes to a container, in the terms of the Container Device Interface, that give it a device.
type Edits struct {
	Nodes  []Node  `json:"nodes,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`
	// Env are NAME=VALUE. They replace what the image and the pod set.
	Env []string `json:"env,omitempty"`
	// Hooks run in their order, before the container's program.
	Hooks []Hook `json:"hooks,omitempty"`
}

// Empty says that there is nothing to edit.
func (e *Edits) Empty() bool { return len(e.Nodes)+len(e.Mounts)+len(e.Env)+len(e.Hooks) == 0 }

// Hook is a program of the host that the runtime runs in the container's namespaces, with the container's root as it will be and the
// host's still in reach (createContainer of the OCI runtime specification).
type Hook struct {
	// Path is the program's on the host, Args those of its command line, the first its name.
	Path string   `json:"path"`
	Args []string `json:"args"`
}

// Node is a character device node made inside the container. The numbers come from the host tree's dev attribute (or
// /proc/devices), so the node need not exist on the host's /dev.
type Node struct {
	// Path is absolute, in the container: /dev/dri/renderD128.
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
	// Permissions are the device cgroup's: "rw" for workloads, "r" for an admin's look.
	Permissions string `json:"permissions"`
}

// Mount is a bind mount of a directory or file of the host.
type Mount struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
	// Alone leaves out what is mounted below it on the host.
	Alone bool `json:"alone,omitempty"`
	// Follows has the container see what is mounted below it on the host later.
	Follows bool `json:"follows,omitempty"`
}

// With returns the edits followed by others. Neither is changed.
func (e Edits) With(more Edits) Edits {
	return Edits{
		Nodes: slices.Concat(e.Nodes, more.Nodes), Mounts: slices.Concat(e.Mounts, more.Mounts),
		Env: slices.Concat(e.Env, more.Env), Hooks: slices.Concat(e.Hooks, more.Hooks),
	}
}
