// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Input is what Resolve reads.
type Input struct {
	// Presets are all that there are, in any order.
	Presets []Preset
	// Namespace is that of the claims, with its labels.
	Namespace       string
	NamespaceLabels map[string]string
	// Claims are those of one pod that this driver prepares together.
	Claims []Claim
	// Pod is the one that owns the claims. Nil where none does: claims that pods share come alone.
	Pod *corev1.Pod
	// ConfigMap reads the data of a ConfigMap that is there.
	ConfigMap func(namespace, name string) (map[string]string, bool)
	// DriverNamespace is where the ConfigMaps of a ClusterDevicePreset are.
	DriverNamespace string
	// Driver is the DRA driver's name.
	Driver string
}

// Claim is an allocated claim.
type Claim struct {
	*resourceapi.ResourceClaim
	// Classes are those that it asked for and has a device of, whichever driver's.
	Classes []string
	// Devices are what it holds of this driver.
	Devices []Device
	// Owned says that only Input.Pod can have it: it was made for the pod, from a template or for an extended resource.
	Owned bool
}

// Device is an allocated device.
type Device struct {
	// Request is the request without the alternative, Class what it asked for.
	Request string
	Class   string
	// Attributes and Capacity are as published.
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
}

// Resolution is what presets give to the claims of an Input.
type Resolution struct {
	// Requests are those that get something, by claim in the order of the input and by name.
	Requests []Request `json:"requests"`
	// Refusals are presets, or parts of them, that were not applied though they were meant for a claim.
	Refusals []Refusal `json:"refusals,omitempty"`
	// Missing are ConfigMaps that a claim has to wait for.
	Missing []Refusal `json:"missing,omitempty"`
	// Notes are variables of mode default that were not needed. This is what the mode is for, so nobody has to be told.
	Notes []Refusal `json:"notes,omitempty"`
}

// Request is what presets give to the containers that use one request of a claim.
type Request struct {
	Claim   string `json:"claim"`
	Request string `json:"request"`
	// Presets are those that are for it, in the order of application.
	Presets []Origin `json:"presets"`
	// Env is sorted by name.
	Env []Variable `json:"env,omitempty"`
	// LibraryDirs are directories of the container for its loader, ToolDirs those whose programs are to be found.
	LibraryDirs []Directory `json:"libraryDirs,omitempty"`
	ToolDirs    []Directory `json:"toolDirs,omitempty"`
	// Mounts are sorted by their path in the container.
	Mounts []Mount `json:"mounts,omitempty"`
	// Libraries, Tools and Hooks are in the order of application.
	Libraries []Files `json:"libraries,omitempty"`
	Tools     []Files `json:"tools,omitempty"`
	Hooks     []Hook  `json:"hooks,omitempty"`
	// Nodes are sorted by path.
	Nodes []Node `json:"nodes,omitempty"`
	// Drivers are sorted by vendor, each of which is there once.
	Drivers []Driver `json:"drivers,omitempty"`
}

// Variable is one variable and where its value is from.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// From are the presets whose values it has, Overrode those whose values it replaced.
	From     []Origin `json:"from"`
	Overrode []Origin `json:"overrode,omitempty"`
	// FromPod says that the pod's own value is in it.
	FromPod bool `json:"fromPod,omitempty"`
	// OverrodePod says that a container sets it to something else, which is hidden.
	OverrodePod bool `json:"overrodePod,omitempty"`
}

// Directory is a directory of the container.
type Directory struct {
	Path string `json:"path"`
	From Origin `json:"from"`
}

// Mount is a mount of a preset.
type Mount struct {
	v1alpha1.PresetMount
	From     Origin   `json:"from"`
	Overrode []Origin `json:"overrode,omitempty"`
}

// Files are libraries or tools of a preset.
type Files struct {
	v1alpha1.PresetFiles
	From Origin `json:"from"`
}

// Hook is a hook of a preset.
type Hook struct {
	v1alpha1.PresetHook
	From Origin `json:"from"`
}

// Node is a device node of a preset.
type Node struct {
	v1alpha1.PresetDeviceNode
	From     Origin   `json:"from"`
	Overrode []Origin `json:"overrode,omitempty"`
}

// Driver is a driver of a preset, whose files the vendor lists.
type Driver struct {
	v1alpha1.PresetDriver
	From     Origin   `json:"from"`
	Overrode []Origin `json:"overrode,omitempty"`
}

// Refusal is what was not applied.
type Refusal struct {
	From  Origin `json:"from"`
	Claim string `json:"claim"`
	// Request is empty where the whole preset is meant.
	Request string `json:"request,omitempty"`
	// Field is the preset's.
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Resolve decides. The answer depends on nothing but the input, whatever the order of its presets.
func Resolve(ctx context.Context, in Input, conditions *Conditions) Resolution {
	users := usersOf(in)
	r := resolver{Input: in, conditions: conditions, users: users, groups: groupsOf(users)}
	for _, p := range inOrder(in.Presets) {
		r.apply(ctx, p)
	}
	r.deviceNodes()
	r.vendorDrivers()
	r.mounts()
	r.env()
	return r.finish()
}
