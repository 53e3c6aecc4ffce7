// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The condition types of a DevicePreset and a ClusterDevicePreset.
const (
	// ConditionValid is true while every field of the preset can be used as it is.
	ConditionValid = "Valid"
	// ConditionConflicting is true while another preset may select the same claims and says something else; its message says which.
	ConditionConflicting = "Conflicting"
)

// The kinds of presets.
const (
	KindDevicePreset        = "DevicePreset"
	KindClusterDevicePreset = "ClusterDevicePreset"
)

// ExcludePresetsAnnotation on a pod keeps every preset from the claims that only this pod has, where its value is "true".
const ExcludePresetsAnnotation = GroupName + "/exclude-presets"

// DevicePreset gives the containers that use the selected devices what a pod should not have to know: variables, directories, libraries
// and tools of the node. It is for claims of its own namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName={preset,presets},categories=fettle
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Conflicting",type=string,JSONPath=`.status.conditions[?(@.type=="Conflicting")].status`
// +kubebuilder:printcolumn:name="Classes",type=string,JSONPath=`.status.summary.classes`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Claims",type=integer,JSONPath=`.status.claims`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DevicePreset struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is whom the preset is for, and what it gives.
	Spec DevicePresetSpec `json:"spec"`
	// Status is what the controller found out.
	// +optional
	Status DevicePresetStatus `json:"status,omitzero"`
}

// DevicePresetList is a list of DevicePresets.
//
// +kubebuilder:object:root=true
type DevicePresetList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []DevicePreset `json:"items"`
}

// DevicePresetSpec is whom a preset is for, and what it gives.
//
// +kubebuilder:validation:XValidation:rule="has(self.deviceSelector) || has(self.podSelector)",message="select something: set deviceSelector, podSelector or both"
// +kubebuilder:validation:XValidation:rule="!has(self.mounts) || self.mounts.all(m, !m.containerPath.matches('^(/|/(run|usr|usr/local|var)|/([.]fettle|bin|dev|etc|lib|lib32|lib64|libx32|proc|run/secrets|sbin|sys|usr/bin|usr/lib|usr/lib32|usr/lib64|usr/libx32|usr/local/fettle|usr/sbin|var/run)(/.*)?)$'))",message="a mount of a DevicePreset must not cover or lie in a directory that the runtime, the loader or Kubernetes relies on, such as /usr/lib or /etc: use one such as /mnt/data"
// +kubebuilder:validation:XValidation:rule="!has(self.hooks) || self.hooks.all(h, !has(h.links) || h.links.all(l, !l.path.matches('^(/|/(run|usr|usr/local|var)|/([.]fettle|bin|dev|etc|lib|lib32|lib64|libx32|proc|run/secrets|sbin|sys|usr/bin|usr/lib|usr/lib32|usr/lib64|usr/libx32|usr/local/fettle|usr/sbin|var/run)(/.*)?)$')))",message="a link of a DevicePreset must not be in a directory that the runtime, the loader or Kubernetes relies on, such as /usr/lib or /etc"
// +kubebuilder:validation:XValidation:rule="!has(self.mounts) || self.mounts.all(m, !has(m.propagation) || m.propagation == 'None')",message="only a ClusterDevicePreset may propagate mounts"
// +kubebuilder:validation:XValidation:rule="!has(self.env) || self.env.all(e, e.name == 'LD_LIBRARY_PATH' || !e.name.matches('^(GLIBC_TUNABLES|LD_|NVIDIA_)'))",message="variables that begin with LD_, NVIDIA_ or GLIBC_TUNABLES change the loader or the container runtime: only a ClusterDevicePreset may set them"
// +kubebuilder:validation:XValidation:rule="!has(self.env) || self.env.map(e, has(e.value) ? size(bytes(e.value)) : 0).sum() <= 65536",message="the values of env must have at most 65536 bytes together: put large data into a ConfigMap or volume of the pod"
// +kubebuilder:validation:XValidation:rule="(has(self.mounts) ? self.mounts.map(m, size(bytes(m.containerPath)) + (has(m.hostPath) ? size(bytes(m.hostPath)) : 0)).sum() : 0) + (has(self.libraries) ? self.libraries.map(f, f.names.map(n, size(n)).sum() + (has(f.root) ? size(bytes(f.root)) : 0) + (has(f.directories) ? f.directories.map(d, size(bytes(d))).sum() : 0)).sum() : 0) + (has(self.tools) ? self.tools.map(f, f.names.map(n, size(n)).sum() + (has(f.root) ? size(bytes(f.root)) : 0) + (has(f.directories) ? f.directories.map(d, size(bytes(d))).sum() : 0)).sum() : 0) + (has(self.hooks) ? self.hooks.map(h, (has(h.directories) ? h.directories.map(d, size(bytes(d))).sum() : 0) + (has(h.links) ? h.links.map(l, size(bytes(l.path)) + size(bytes(l.target))).sum() : 0)).sum() : 0) <= 65536",message="the paths and names of mounts, libraries, tools and hooks must have at most 65536 bytes together"
// +kubebuilder:validation:XValidation:rule="!has(self.podSelector) || (!has(self.podSelector.matchLabels) || size(self.podSelector.matchLabels) <= 32) && (!has(self.podSelector.matchExpressions) || size(self.podSelector.matchExpressions) <= 32)",message="podSelector must have at most 32 matchLabels and 32 matchExpressions"
type DevicePresetSpec struct {
	PresetRules `json:",inline"`
}

// ClusterDevicePreset is a DevicePreset for claims of every namespace that it selects. It is the administrator's: it may name any path of
// the nodes, and device nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName={clusterpreset,clusterpresets},categories=fettle
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Conflicting",type=string,JSONPath=`.status.conditions[?(@.type=="Conflicting")].status`
// +kubebuilder:printcolumn:name="Classes",type=string,JSONPath=`.status.summary.classes`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Claims",type=integer,JSONPath=`.status.claims`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterDevicePreset struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is whom the preset is for, and what it gives.
	Spec ClusterDevicePresetSpec `json:"spec"`
	// Status is what the controller found out.
	// +optional
	Status DevicePresetStatus `json:"status,omitzero"`
}

// ClusterDevicePresetList is a list of ClusterDevicePresets.
//
// +kubebuilder:object:root=true
type ClusterDevicePresetList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []ClusterDevicePreset `json:"items"`
}

// ClusterDevicePresetSpec is whom a preset is for, and what it gives.
//
// +kubebuilder:validation:XValidation:rule="has(self.deviceSelector) || has(self.podSelector)",message="select something: set deviceSelector, podSelector or both"
// +kubebuilder:validation:XValidation:rule="!has(self.mounts) || self.mounts.all(m, !m.containerPath.matches('^/([.]fettle|proc|sys)(/.*)?$'))",message="a mount must not cover or lie in /.fettle, /proc or /sys"
// +kubebuilder:validation:XValidation:rule="!has(self.hooks) || self.hooks.all(h, !has(h.links) || h.links.all(l, !l.path.matches('^/([.]fettle|proc|sys)(/.*)?$')))",message="a link must not be in /.fettle, /proc or /sys"
// +kubebuilder:validation:XValidation:rule="!has(self.env) || self.env.map(e, has(e.value) ? size(bytes(e.value)) : 0).sum() <= 65536",message="the values of env must have at most 65536 bytes together: put large data into a ConfigMap or volume of the pod"
// +kubebuilder:validation:XValidation:rule="(has(self.mounts) ? self.mounts.map(m, size(bytes(m.containerPath)) + (has(m.hostPath) ? size(bytes(m.hostPath)) : 0)).sum() : 0) + (has(self.libraries) ? self.libraries.map(f, f.names.map(n, size(n)).sum() + (has(f.root) ? size(bytes(f.root)) : 0) + (has(f.directories) ? f.directories.map(d, size(bytes(d))).sum() : 0)).sum() : 0) + (has(self.tools) ? self.tools.map(f, f.names.map(n, size(n)).sum() + (has(f.root) ? size(bytes(f.root)) : 0) + (has(f.directories) ? f.directories.map(d, size(bytes(d))).sum() : 0)).sum() : 0) + (has(self.hooks) ? self.hooks.map(h, (has(h.directories) ? h.directories.map(d, size(bytes(d))).sum() : 0) + (has(h.links) ? h.links.map(l, size(bytes(l.path)) + size(bytes(l.target))).sum() : 0)).sum() : 0) <= 65536",message="the paths and names of mounts, libraries, tools and hooks must have at most 65536 bytes together"
// +kubebuilder:validation:XValidation:rule="!has(self.podSelector) || (!has(self.podSelector.matchLabels) || size(self.podSelector.matchLabels) <= 32) && (!has(self.podSelector.matchExpressions) || size(self.podSelector.matchExpressions) <= 32)",message="podSelector must have at most 32 matchLabels and 32 matchExpressions"
type ClusterDevicePresetSpec struct {
	PresetRules `json:",inline"`
	// NamespaceSelector selects the namespaces of the claims by their labels, of which kubernetes.io/metadata.name is one. Unset: all.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// DeviceNodes are character devices of the node beside those that the claim's devices have anyway.
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MaxItems=32
	// +optional
	DeviceNodes []PresetDeviceNode `json:"deviceNodes,omitempty"`
	// Driver is the driver of a vendor whose files are given by the vendor's own list of them, so that nobody has to name them.
	// +optional
	Driver *PresetDriver `json:"driver,omitempty"`
}

// PresetRules are what both kinds of presets have.
type PresetRules struct {
	// DeviceSelector selects claims by what they ask for and hold.
	// +optional
	DeviceSelector *PresetDeviceSelector `json:"deviceSelector,omitempty"`
	// PodSelector selects pods by their labels, beside the deviceSelector. It can be asked only of a claim that one pod owns: one made
	// from a template or for an extended resource. On a claim that pods share the preset is refused, with an Event.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// Priority orders presets of one kind: the higher is applied later, and the later wins. Presets of the namespace come after those of
	// the cluster. At equal priority the younger is later.
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// Env are variables.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Env []PresetEnv `json:"env,omitempty"`
	// EnvFrom are ConfigMaps, each of whose keys becomes a variable. Env comes after them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	EnvFrom []PresetEnvFrom `json:"envFrom,omitempty"`
	// Mounts are directories and files of the node, or scratch directories of the claim.
	// +listType=map
	// +listMapKey=containerPath
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Mounts []PresetMount `json:"mounts,omitempty"`
	// Libraries are shared libraries of the node, which programs of the container then find by their names.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Libraries []PresetFiles `json:"libraries,omitempty"`
	// Tools are programs of the node, which the container then finds in /usr/bin.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Tools []PresetFiles `json:"tools,omitempty"`
	// Hooks are what Fettle does in the container's root before its program starts, beside what libraries and tools need anyway.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Hooks []PresetHook `json:"hooks,omitempty"`
	// LeftOut is the size of rules that a process did not keep in memory. No object has it.
	LeftOut int `json:"-"`
}

// PresetDeviceSelector selects the requests of a claim that a preset is for. What is set must all hold.
//
// +kubebuilder:validation:XValidation:rule="has(self.deviceClassNames) || has(self.cel) || has(self.absent)",message="set deviceClassNames, cel or absent"
// +kubebuilder:validation:XValidation:rule="!has(self.minCount) || has(self.deviceClassNames) || has(self.cel)",message="minCount counts what deviceClassNames or cel selects: set one of them"
type PresetDeviceSelector struct {
	// DeviceClassNames are classes that the claims of the pod must ask for together, every one of them. The preset is for the requests
	// of these classes. A claim that pods share counts alone.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	DeviceClassNames []string `json:"deviceClassNames,omitempty"`
	// CEL is a condition on an allocated device, as in a DeviceClass: device.attributes["fettle.dev"].vendor == "nvidia". The preset is for
	// the requests that hold a device for which it is true.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	CEL string `json:"cel,omitempty"`
	// MinCount is the least number of devices that the claims of the pod must hold together. Only devices that deviceClassNames and cel
	// select are counted. Unset: 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	// +optional
	MinCount *int32 `json:"minCount,omitempty"`
	// Absent is what no claim of the pod may hold.
	// +optional
	Absent *PresetAbsent `json:"absent,omitempty"`
}

// PresetSummary has texts for the columns of kubectl, which print lists as JSON.
type PresetSummary struct {
	// Classes are the first of the classes that the preset selects.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Classes string `json:"classes,omitempty"`
}

// PresetAbsent are devices that keep a preset away: one that was asked for by any of the classes, or one for which the condition holds.
//
// +kubebuilder:validation:XValidation:rule="has(self.deviceClassNames) || has(self.cel)",message="set deviceClassNames, cel or both"
type PresetAbsent struct {
	// DeviceClassNames are classes of which the claims of the pod ask for none.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	DeviceClassNames []string `json:"deviceClassNames,omitempty"`
	// CEL is a condition that holds for no device of the claims of the pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	CEL string `json:"cel,omitempty"`
}

// EnvMode is what a preset's variable does to what there is already.
//
// +kubebuilder:validation:Enum=set;default;prepend;append
type EnvMode string

// The modes. What the container's image sets cannot be seen and loses, whatever the mode.
const (
	// EnvSet gives the variable this value, whoever else sets it.
	EnvSet EnvMode = "set"
	// EnvDefault gives it only if no container of the pod that uses the request sets it, and no preset before.
	EnvDefault EnvMode = "default"
	// EnvPrepend and EnvAppend join the value to that of the presets before, or of the pod.
	EnvPrepend EnvMode = "prepend"
	EnvAppend  EnvMode = "append"
)

// PresetEnv is one variable. LD_LIBRARY_PATH and PATH take only mode append, and are not set: their directories are made known to the
// container's loader, or their programs linked from /usr/bin, so that what the image sets stays.
//
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueFrom)",message="set exactly one of value and valueFrom"
// +kubebuilder:validation:XValidation:rule="!has(self.separator) || has(self.mode) && self.mode in ['prepend', 'append']",message="separator is for mode prepend and append"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['PATH', 'LD_LIBRARY_PATH']) || has(self.mode) && self.mode == 'append' && has(self.value) && !has(self.separator)",message="PATH and LD_LIBRARY_PATH take only mode append, with a value: another would hide what the image sets"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['PATH', 'LD_LIBRARY_PATH']) || !has(self.value) || self.value.matches('^(/([^/.:]|[.][^/.:]|[.][.][^/:])[^/:]*)+(:(/([^/.:]|[.][^/.:]|[.][.][^/:])[^/:]*)+)*$') && self.value.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.value.contains('\\uFFFD')",message="the value of PATH and LD_LIBRARY_PATH: directories between colons, each absolute, clean and printable: no //, no . or .. and no / at the end"
// +kubebuilder:validation:XValidation:rule="self.name != 'LD_LIBRARY_PATH' || !has(self.value) || !self.value.matches('[ #=;,*?$]|\\\\[|\\\\]|\\\\\\\\')",message="the directories of LD_LIBRARY_PATH must have none of the characters that mean something to a loader, such as = or a space"
type PresetEnv struct {
	// Name is the variable's. No preset may set Fettle's own: FETTLE_*, FPGA_AFU*, FPGA_BITSTREAM_ID*, FPGA_DRIVER_PARAMS*, FPGA_REGION*.
	// Only a ClusterDevicePreset may set LD_*, NVIDIA_* and GLIBC_TUNABLES.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(FETTLE_|FPGA_AFU|FPGA_BITSTREAM_ID|FPGA_DRIVER_PARAMS|FPGA_REGION)')",message="is a variable of Fettle's: no preset may set it"
	Name string `json:"name"`
	// Value is taken as it is: $(NAME) is not expanded.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} \\\\t\\\\n]*$') && !self.contains('\\uFFFD')",message="must have printable characters, tabs and line feeds only"
	// +optional
	Value *string `json:"value,omitempty"`
	// ValueFrom is where the value is read when a claim is prepared.
	// +optional
	ValueFrom *PresetEnvSource `json:"valueFrom,omitempty"`
	// Mode is what happens to a value that is there already. Unset: set.
	// +optional
	Mode EnvMode `json:"mode,omitempty"`
	// Separator is what stands between values that are joined. Unset: a colon.
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule="self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} \\\\t\\\\n]*$') && !self.contains('\\uFFFD')",message="must have printable characters, tabs and line feeds only"
	// +optional
	Separator *string `json:"separator,omitempty"`
}

// PresetEnvSource is where a value is from.
type PresetEnvSource struct {
	// ConfigMapKeyRef is a key of a ConfigMap in the preset's namespace; for a ClusterDevicePreset in the driver's.
	ConfigMapKeyRef PresetConfigMapKey `json:"configMapKeyRef"`
}

// PresetConfigMapKey is a key of a ConfigMap.
type PresetConfigMapKey struct {
	// Name is the ConfigMap's.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
	// Key is one of its data.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$`
	Key string `json:"key"`
	// Optional says that the variable is left out where there is no such ConfigMap or key. Otherwise the claim waits for it.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// PresetEnvFrom is a ConfigMap whose keys become variables.
type PresetEnvFrom struct {
	// ConfigMapRef is a ConfigMap in the preset's namespace; for a ClusterDevicePreset in the driver's.
	ConfigMapRef PresetConfigMap `json:"configMapRef"`
	// Prefix comes before each key.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// Mode is set or default. Unset: set.
	// +kubebuilder:validation:XValidation:rule="self in ['set', 'default']",message="must be set or default: keys of a ConfigMap are not joined"
	// +optional
	Mode EnvMode `json:"mode,omitempty"`
}

// PresetConfigMap names a ConfigMap.
type PresetConfigMap struct {
	// Name is the ConfigMap's.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
	// Optional says that nothing is given where there is no such ConfigMap. Otherwise the claim waits for it.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// PresetMount is a directory or file in the container.
//
// +kubebuilder:validation:XValidation:rule="has(self.hostPath) != has(self.scratch)",message="set exactly one of hostPath and scratch"
// +kubebuilder:validation:XValidation:rule="!has(self.scratch) || !has(self.readOnly) && !(has(self.optional) && self.optional) && !(has(self.recursive) && self.recursive) && !has(self.propagation)",message="a scratch directory is empty, writable and private: readOnly, optional, recursive and propagation are for a hostPath"
type PresetMount struct {
	// HostPath is a directory or file of the node, absolute and clean. That of a DevicePreset must lie below one of the driver's
	// allowedHostPaths, with no symbolic link on the way.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.contains('\\uFFFD')",message="must be absolute, clean and printable: no //, no . or .. and no / at the end"
	// +optional
	HostPath string `json:"hostPath,omitempty"`
	// Scratch is a directory of the claim's own, empty at first and gone with the claim.
	// +optional
	Scratch *PresetScratch `json:"scratch,omitempty"`
	// ContainerPath is where it appears, absolute and clean.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.contains('\\uFFFD')",message="must be absolute, clean and printable: no //, no . or .. and no / at the end"
	ContainerPath string `json:"containerPath"`
	// ReadOnly keeps the container from writing. Unset: true.
	// +optional
	ReadOnly *bool `json:"readOnly,omitempty"`
	// Optional says that the mount is left out on a node that has no such path. Otherwise the claim waits for it.
	// +optional
	Optional bool `json:"optional,omitempty"`
	// Recursive says that what is mounted below the path on the node comes along.
	// +optional
	Recursive bool `json:"recursive,omitempty"`
	// Propagation is whether what is mounted there later comes along. Unset: None. Only a ClusterDevicePreset may have another.
	// +optional
	Propagation MountPropagation `json:"propagation,omitempty"`
}

// MountPropagation is whether a container sees what is mounted on the node below its mount later.
//
// +kubebuilder:validation:Enum=None;HostToContainer
type MountPropagation string

// The propagations that a preset may have.
const (
	PropagationNone            MountPropagation = MountPropagation(corev1.MountPropagationNone)
	PropagationHostToContainer MountPropagation = MountPropagation(corev1.MountPropagationHostToContainer)
)

// PresetScratch is a directory of the claim's own.
type PresetScratch struct {
	// SizeLimit is the most that it holds, such as 512Mi. What is written counts as memory of the pod that writes it.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!self.matches('[eE].*[0-9]{3}') && isQuantity(self) && quantity(self).isGreaterThan(quantity('0')) && quantity(self).isLessThan(quantity('8Ei'))",message="must be a quantity above 0 and below 8Ei, such as 512Mi"
	SizeLimit string `json:"sizeLimit"`
	// Medium is Memory, a tmpfs, for which the chart's presets.scratch must be on. Unset: Memory.
	// +kubebuilder:validation:Enum=Memory
	// +optional
	Medium ScratchMedium `json:"medium,omitempty"`
}

// ScratchMedium is what a scratch directory is kept on.
type ScratchMedium string

// ScratchMemory is memory of the node, and the only medium.
const ScratchMemory ScratchMedium = "Memory"

// PresetFiles are files of the node that are found by their names.
type PresetFiles struct {
	// Names are file names, in which * and ? stand for any text: libcuda.so.*. Libraries are looked up as the node's own loader would,
	// tools in the node's directories for programs.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_*?][A-Za-z0-9_.*?+-]*$`
	Names []string `json:"names"`
	// Root is the directory of the node that the driver is installed in, such as /run/nvidia/driver. Unset: /. That of a DevicePreset must
	// lie below one of the driver's allowedHostPaths.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self == '/' || self.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.contains('\\uFFFD')",message="must be absolute, clean and printable: no //, no . or .. and no / at the end"
	// +optional
	Root string `json:"root,omitempty"`
	// Directories below the root are looked in first.
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.all(d, d.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && d.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !d.contains('\\uFFFD'))",message="each must be absolute, clean and printable: no //, no . or .. and no / at the end"
	// +optional
	Directories []string `json:"directories,omitempty"`
	// Optional says that names which the node does not have are left out. Otherwise the claim waits for them.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// DriverVendor is a vendor whose driver is known to Fettle.
//
// +kubebuilder:validation:Enum=NVIDIA
type DriverVendor string

// DriverNVIDIA is NVIDIA's driver, whose files are those that NVIDIA's container toolkit finds.
const DriverNVIDIA DriverVendor = "NVIDIA"

// PresetDriver is what containers need of a driver that is installed on the node: libraries, programs, firmware and sockets, as the
// vendor lists them for the version that is there.
type PresetDriver struct {
	// Vendor is whose driver it is.
	Vendor DriverVendor `json:"vendor"`
	// Root is the directory of the node that the driver is installed in, such as /run/nvidia/driver. Unset: the one that the node's plugin
	// is configured with, which is / where nobody said otherwise.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self == '/' || self.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.contains('\\uFFFD')",message="must be absolute, clean and printable: no //, no . or .. and no / at the end"
	// +optional
	Root string `json:"root,omitempty"`
	// Optional says that nothing is given on a node that has no such driver. Otherwise the claim waits for it.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// PresetDeviceNode is a character device of the node.
type PresetDeviceNode struct {
	// Path is below /dev, on the node and in the container: /dev/kfd.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/dev(/[A-Za-z0-9_:,+=@-][A-Za-z0-9._:,+=@-]*)+$`
	Path string `json:"path"`
	// ReadOnly keeps the container from writing to it.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
	// Optional says that it is left out on a node that does not have it. Otherwise the claim waits for it.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// HookName is one of the hooks that Fettle brings.
//
// +kubebuilder:validation:Enum=ldconfig;links
type HookName string

// The hooks.
const (
	// HookLdconfig makes directories known to the container's loader.
	HookLdconfig HookName = "ldconfig"
	// HookLinks makes symbolic links in the container.
	HookLinks HookName = "links"
)

// PresetHook is one hook.
//
// +kubebuilder:validation:XValidation:rule="(self.name == 'ldconfig') == has(self.directories)",message="directories are what ldconfig needs, and only that"
// +kubebuilder:validation:XValidation:rule="(self.name == 'links') == has(self.links)",message="links are what the hook links needs, and only that"
type PresetHook struct {
	// Name is the hook's.
	Name HookName `json:"name"`
	// Directories of the container, absolute and clean, hold libraries.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.all(d, d.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && d.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !d.contains('\\uFFFD') && !d.matches('[ #=:;,*?$]|\\\\[|\\\\]|\\\\\\\\'))",message="each must be absolute, clean and printable, with none of the characters that mean something to a loader, such as = or a space"
	// +optional
	Directories []string `json:"directories,omitempty"`
	// Links are made in the container.
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Links []PresetLink `json:"links,omitempty"`
}

// PresetLink is a symbolic link in the container.
type PresetLink struct {
	// Path is where the link is, absolute and clean.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.contains('\\uFFFD')",message="must be absolute, clean and printable: no //, no . or .. and no / at the end"
	Path string `json:"path"`
	// Target is what it says.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.contains('\\uFFFD') && self.matches('^(/|[.]|(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+|[.][.](/[.][.])*(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)*|([^/.]|[.][^/.]|[.][.][^/])[^/]*(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)*)$') && !self.contains('::') && !self.endsWith(':')",message="must be a clean path of printable characters, with no :: in it and no : at the end"
	Target string `json:"target"`
}

// DevicePresetStatus is what the controller found out about a preset.
type DevicePresetStatus struct {
	// ObservedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Summary has texts for the columns of kubectl.
	// +optional
	Summary *PresetSummary `json:"summary,omitempty"`
	// Claims is how many claims have what the preset gives, and Nodes on how many nodes they are.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Claims *int32 `json:"claims,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	Nodes *int32 `json:"nodes,omitempty"`
	// Conditions are Valid and Conflicting.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
