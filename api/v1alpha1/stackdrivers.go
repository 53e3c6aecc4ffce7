// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"path"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The limits of a driver's container, as the CRD has them.
const (
	maxDriverArgs, maxDriverArg         = 32, 4096
	maxDriverEnv, maxDriverSecrets      = 64, 8
	maxDriverHostPaths, maxDriverPath   = 32, 512
	maxDriverRepository, maxDriverTag   = 255, 128
	maxDriverVersion, maxModuleVersion  = 63, 63
	maxDriverEnvName, maxDriverEnvValue = 128, 4096
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	driverTagForm     = regexp.MustCompile(`^([A-Za-z0-9._-]|[$][{](DRIVER_VERSION|KERNEL|OS|ARCH)[}])+$`)
	driverVersionForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	moduleVersionForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._~:+-]*$`)
	envNameForm       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// DaemonSetDriver is a driver whose container the stack runs on its nodes: one DaemonSet for each operating system, kernel and
// architecture among them.
//
// +kubebuilder:validation:XValidation:rule="!has(self.hostPaths) || self.hostPaths.all(a, self.hostPaths.exists_one(b, b.mountPath == a.mountPath))",message="mountPath: each may be there once"
// +kubebuilder:validation:XValidation:rule="self.privileged || !has(self.hostPaths) || self.hostPaths.all(p, !has(p.shared) || !p.shared)",message="only a privileged container may share what it mounts"
type DaemonSetDriver struct {
	// Repository is where the images are, without a tag: registry.example/drivers/nvidia. A digest is refused: one image does not fit
	// several kernels.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-z0-9]+([.-][a-z0-9]+)*(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`
	Repository string `json:"repository"`
	// Tag is the tag of the image for a node: ${DRIVER_VERSION}-${KERNEL}-${OS}. ${KERNEL} is the release of its kernel, ${OS} its
	// operating system with the version, as ubuntu24.04, and ${ARCH} amd64 or arm64. In these, what a tag may not have becomes an
	// underscore.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9._-]|[$][{](DRIVER_VERSION|KERNEL|OS|ARCH)[}])+$`
	Tag string `json:"tag"`
	// Version is ${DRIVER_VERSION}.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9._-]*$`
	Version string `json:"version"`
	// ModuleVersion is the version that the kernel's module has to report, as in the column Drivers of AcceleratorNodes: 580.95.5, or
	// as the driver prints it: 580.95.05, 6.19.14.31400000. Unset: any.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9._~:+-]*$`
	// +optional
	ModuleVersion string `json:"moduleVersion,omitempty"`
	// Privileged is whether the container has every right on the node. Most drivers need it, and it has to be said.
	Privileged *bool `json:"privileged"`
	// HostPID is whether the container sees the processes of the node, as drivers need that look for users of their devices.
	// +optional
	HostPID bool `json:"hostPID,omitempty"`
	// Command and Args replace those of the image.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +optional
	Command []string `json:"command,omitempty"`
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +optional
	Args []string `json:"args,omitempty"`
	// Env are variables of the container.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Env []DriverVariable `json:"env,omitempty"`
	// HostPaths are directories of the node that the container sees.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	HostPaths []DriverHostPath `json:"hostPaths,omitempty"`
	// ReadyCommand runs in the container every ten seconds until it succeeds: the driver is loaded then. Unset: it is once the container
	// runs.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +optional
	ReadyCommand []string `json:"readyCommand,omitempty"`
	// PullSecrets are names of Secrets in the namespace of drivers.
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	PullSecrets []string `json:"pullSecrets,omitempty"`
}

// DriverVariable is a variable of a driver's container.
type DriverVariable struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Value string `json:"value,omitempty"`
}

// DriverHostPath is a directory of the node in a driver's container.
type DriverHostPath struct {
	// Path is the directory. It is made if it is not there.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.contains('//') && !self.contains('/.') && (self == '/' || !self.endsWith('/'))",message="must be absolute and clean"
	Path string `json:"path"`
	// MountPath is where the container sees it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && self != '/' && !self.contains('//') && !self.contains('/.') && !self.contains(':') && !self.endsWith('/')",message="must be absolute and clean"
	MountPath string `json:"mountPath"`
	// ReadOnly is whether the container may only read it.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
	// Shared has the node see what the container mounts there, as the root of a driver. The container has to be privileged.
	// +optional
	Shared bool `json:"shared,omitempty"`
}

func (d *DaemonSetDriver) validate(at *field.Path) field.ErrorList {
	faults := textFaults(d.Repository, maxDriverRepository, repositoryForm, "a repository without tag and digest", at.Child("repository"))
	faults = append(faults, textFaults(d.Tag, maxDriverTag, driverTagForm,
		"a tag with ${DRIVER_VERSION}, ${KERNEL}, ${OS} and ${ARCH}, and without a digest", at.Child("tag"))...)
	faults = append(faults, textFaults(d.Version, maxDriverVersion, driverVersionForm, "a part of a tag", at.Child("version"))...)
	if d.ModuleVersion != "" {
		faults = append(faults, textFaults(d.ModuleVersion, maxModuleVersion, moduleVersionForm, "a version", at.Child("moduleVersion"))...)
	}
	if d.Privileged == nil {
		faults = append(faults, field.Required(at.Child("privileged"), "say whether the container has every right on the node"))
	}
	faults = append(faults, wordFaults(d.Command, at.Child("command"))...)
	faults = append(faults, wordFaults(d.Args, at.Child("args"))...)
	faults = append(faults, wordFaults(d.ReadyCommand, at.Child("readyCommand"))...)
	if d.ReadyCommand != nil && len(d.ReadyCommand) == 0 {
		faults = append(faults, emptyList(at.Child("readyCommand")))
	}
	faults = append(faults, d.envFaults(at.Child("env"))...)
	faults = append(faults, d.hostPathFaults(at)...)
	at = at.Child("pullSecrets")
	faults = append(faults, atMost(len(d.PullSecrets), maxDriverSecrets, at)...)
	faults = append(faults, validateSet(d.PullSecrets, at)...)
	for i, name := range d.PullSecrets {
		faults = append(faults, objectNameFaults(name, at.Index(i))...)
	}
	return faults
}

func textFaults(text string, limit int, form *regexp.Regexp, what string, at *field.Path) field.ErrorList {
	if faults := noLonger(text, limit, at); len(faults) > 0 {
		return faults
	}
	if !form.MatchString(text) {
		return field.ErrorList{field.Invalid(at, text, "must be "+what)}
	}
	return nil
}

func wordFaults(words []string, at *field.Path) field.ErrorList {
	faults := atMost(len(words), maxDriverArgs, at)
	for i, word := range words {
		faults = append(faults, noLonger(word, maxDriverArg, at.Index(i))...)
	}
	return faults
}

func (d *DaemonSetDriver) envFaults(at *field.Path) field.ErrorList {
	faults := atMost(len(d.Env), maxDriverEnv, at)
	names := make([]string, 0, len(d.Env))
	for i, v := range d.Env {
		names = append(names, v.Name)
		faults = append(faults, textFaults(v.Name, maxDriverEnvName, envNameForm, "the name of a variable", at.Index(i).Child("name"))...)
		faults = append(faults, noLonger(v.Value, maxDriverEnvValue, at.Index(i).Child("value"))...)
	}
	return append(faults, validateSet(names, at)...)
}

func (d *DaemonSetDriver) hostPathFaults(driver *field.Path) field.ErrorList {
	at := driver.Child("hostPaths")
	faults := atMost(len(d.HostPaths), maxDriverHostPaths, at)
	seen := map[string]bool{}
	for i, p := range d.HostPaths {
		faults = append(faults, driverPathFaults(p.Path, p.Path == "/", at.Index(i).Child("path"))...)
		faults = append(faults, driverPathFaults(p.MountPath, false, at.Index(i).Child("mountPath"))...)
		if strings.Contains(p.MountPath, ":") {
			faults = append(faults, field.Invalid(at.Index(i).Child("mountPath"), p.MountPath, "must have no colon"))
		}
		if seen[p.MountPath] {
			faults = append(faults, field.Duplicate(at.Index(i).Child("mountPath"), p.MountPath))
		}
		seen[p.MountPath] = true
		if p.Shared && d.Privileged != nil && !*d.Privileged {
			faults = append(faults, field.Invalid(at.Index(i).Child("shared"), true, "only a privileged container may share what it mounts"))
		}
	}
	return faults
}

func driverPathFaults(text string, root bool, at *field.Path) field.ErrorList {
	if faults := noLonger(text, maxDriverPath, at); len(faults) > 0 || root {
		return faults
	}
	if !path.IsAbs(text) || path.Clean(text) != text || text == "/" || strings.Contains(text, "/.") {
		return field.ErrorList{field.Invalid(at, text, "must be absolute and clean")}
	}
	return nil
}
