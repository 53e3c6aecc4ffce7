// SPDX-License-Identifier: Apache-2.0

// Package preset decides what the presets of a cluster give to the claims of a pod: which presets select which claims, in which order they
// apply, what their values become together, and which preset each value is from. It knows no node. Other packages look up libraries by
// name, mount, and write files.
package preset

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Input is what Resolve needs.
type Input struct {
	// Presets are all presets of the cluster, in any order.
	Presets []Preset
	// Namespace is the namespace of the claims, NamespaceLabels its labels.
	Namespace       string
	NamespaceLabels map[string]string
	// Claims are the claims of one pod that this driver prepares together.
	Claims []Claim
	// Shared are the claims that the pod uses beside them and does not own. They count for what a preset selects, and get nothing here.
	Shared []Claim
	// Pod owns the claims. It is nil for a shared claim, which comes alone.
	Pod *corev1.Pod
	// ConfigMap reads the data of a ConfigMap, and reports whether it exists.
	ConfigMap func(namespace, name string) (map[string]string, bool)
	// DriverNamespace is the namespace of the ConfigMaps of a ClusterDevicePreset.
	DriverNamespace string
	// Driver is the name of the DRA driver.
	Driver string
}

// Claim is an allocated claim.
type Claim struct {
	*resourceapi.ResourceClaim
	// Classes are the classes that the claim asked for and got a device of, of any driver.
	Classes []string
	// Devices are the devices of this driver that the claim holds.
	Devices []Device
	// Owned says that only Input.Pod can use the claim: it was made for the pod, from a template or for an extended resource.
	Owned bool
}

// Device is an allocated device.
type Device struct {
	// Request is the name of the request, without the alternative. Class is the class that it asked for.
	Request string
	Class   string
	// Attributes and Capacity are the published ones.
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
}

// Resolution is what presets give to the claims of an Input.
type Resolution struct {
	// Requests lists the requests that get something, by claim in the order of the input, and by name.
	Requests []Request `json:"requests"`
	// Refusals lists presets, or parts of them, that selected a claim and were not applied.
	Refusals []Refusal `json:"refusals,omitempty"`
	// Missing lists what a claim has to wait for: ConfigMaps, and presets that give too much.
	Missing []Refusal `json:"missing,omitempty"`
	// Notes lists variables of mode default that were not needed. The mode is made for that, so it is not reported.
	Notes []Refusal `json:"notes,omitempty"`
}

// Request is what presets give to the containers that use one request of a claim.
type Request struct {
	Claim   string `json:"claim"`
	Request string `json:"request"`
	// Presets are the presets that select the request, in the order of application.
	Presets []Origin `json:"presets"`
	// Env is sorted by name.
	Env []Variable `json:"env,omitempty"`
	// LibraryDirs are directories of the container for its loader. ToolDirs are directories of the container with programs.
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
	// Drivers are sorted by vendor. Each vendor occurs once.
	Drivers []Driver `json:"drivers,omitempty"`
}

// Variable is a variable and the origin of its value.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// From lists the presets whose values the variable has. Overrode lists the presets whose values were replaced.
	From     []Origin `json:"from"`
	Overrode []Origin `json:"overrode,omitempty"`
	// FromPod says that the value contains the pod's own.
	FromPod bool `json:"fromPod,omitempty"`
	// OverrodePod says that a container sets the variable to another value, which is hidden.
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

// Driver is a driver of a preset. The vendor lists its files.
type Driver struct {
	v1alpha1.PresetDriver
	From     Origin   `json:"from"`
	Overrode []Origin `json:"overrode,omitempty"`
}

// Refusal says what was not applied.
type Refusal struct {
	From  Origin `json:"from"`
	Claim string `json:"claim"`
	// Request is empty if the whole preset was not applied.
	Request string `json:"request,omitempty"`
	// Field is the field of the preset.
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Resolve decides what presets give to the claims. The answer depends only on the input, and not on the order of its presets.
func Resolve(ctx context.Context, in Input, conditions *Conditions) Resolution {
	users := usersOf(in)
	r := resolver{
		Input: in, conditions: conditions, users: users, groups: groupsOf(users), given: map[requestKey]*Request{},
		variables: map[string][]envEntry{}, mounted: map[string][]entry[v1alpha1.PresetMount]{},
		nodes:   map[string][]entry[v1alpha1.PresetDeviceNode]{},
		over:    map[int]bool{},
		drivers: map[v1alpha1.DriverVendor][]entry[v1alpha1.PresetDriver]{},
	}
	for _, p := range inOrder(in.Presets) {
		r.apply(ctx, p)
	}
	r.deviceNodes()
	r.vendorDrivers()
	r.mounts()
	r.env()
	return r.finish()
}
