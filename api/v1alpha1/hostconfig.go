// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// HostConfig says how the host devices of a request (directories such as local SSDs, or character devices) are given to the pod.
// It is the opaque configuration of a ResourceClaim, a ResourceClaimTemplate or a DeviceClass.
type HostConfig struct {
	metav1.TypeMeta `json:",inline"`

	// MountPath is where a directory appears in the container: absolute and clean. It fits a request of one device. Unset:
	// the path that the administrator's configuration gives the device.
	MountPath string `json:"mountPath,omitempty"`
	// Policy is the administrator's: only a DeviceClass may carry it.
	Policy *HostPolicy `json:"policy,omitempty"`
}

// OnRelease is what happens to a directory's content when its claim is released.
type OnRelease string

// What can happen on release.
const (
	// OnReleaseEmpty removes the content before any other claim can get the directory.
	OnReleaseEmpty OnRelease = "Empty"
	// OnReleaseKeep leaves the content for the next claim, whoever owns it.
	OnReleaseKeep OnRelease = "Keep"
)

// HostPolicy is what an administrator decides for every claim of a DeviceClass of host devices.
type HostPolicy struct {
	Policy `json:",inline"`

	// OnRelease is Empty or Keep. Unset: Empty. When several classes apply to one request, Empty wins.
	OnRelease OnRelease `json:"onRelease,omitempty"`
}

// Default fills in what an author may leave out of a configuration that stands alone.
func (c *HostConfig) Default() {
	if c.Policy == nil {
		c.Policy = &HostPolicy{}
	}
	if c.Policy.OnRelease == "" {
		c.Policy.OnRelease = OnReleaseEmpty
	}
}

// Validate reports every fault of the configuration below path. A policy is a fault unless the configuration is from a class.
func (c *HostConfig) Validate(fromClass bool, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if c.MountPath != "" {
		faults = append(faults, validateMountPath(c.MountPath, path.Child("mountPath"))...)
	}
	if c.Policy == nil {
		return faults
	}
	path = path.Child("policy")
	faults = append(faults, policyOrigin(fromClass, path)...)
	faults = append(faults, c.Policy.validate(path)...)
	switch c.Policy.OnRelease {
	case "", OnReleaseEmpty, OnReleaseKeep:
	default:
		known := []OnRelease{OnReleaseEmpty, OnReleaseKeep}
		faults = append(faults, field.NotSupported(path.Child("onRelease"), c.Policy.OnRelease, known))
	}
	return faults
}

const maxMountPath = 256

// ContainerDir is the directory of a container that is Fettle's: what links in other places lead to is mounted below it.
const ContainerDir = "/.fettle"

// reservedTrees are the directories of a container that the runtime, the dynamic loader, Kubernetes or Fettle relies on. Whoever could
// mount over one of them, or over a parent, could feed a hook that runs with the host's rights, or have the runtime make the places for our
// own mounts in a directory of the host.
func reservedTrees() []string {
	return []string{
		"/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run/secrets", "/sbin", "/sys",
		"/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/fettle", "/usr/sbin", "/var/run",
		ContainerDir,
	}
}

// closedTrees are those that the runtime, or Fettle itself, lets nobody mount over.
func closedTrees() []string { return []string{"/proc", "/sys", ContainerDir} }

func validateMountPath(dir string, at *field.Path) field.ErrorList {
	switch {
	case len(dir) > maxMountPath:
		return field.ErrorList{field.TooLong(at, "", maxMountPath)}
	case !strings.HasPrefix(dir, "/"):
		return field.ErrorList{field.Invalid(at, dir, "must be absolute: start it with /")}
	case path.Clean(dir) != dir:
		return field.ErrorList{field.Invalid(at, dir, "must be clean: no //, no . or .. and no / at the end; use "+path.Clean(dir))}
	case strings.ContainsFunc(dir, unprintable):
		return field.ErrorList{field.Invalid(at, dir, "must have printable characters only")}
	}
	for _, tree := range reservedTrees() {
		if within(dir, tree) || within(tree, dir) {
			return field.ErrorList{field.Invalid(at, dir, "must not cover or lie in "+tree+": use a directory such as /mnt/data")}
		}
	}
	return nil
}

// within reports whether the clean absolute path dir is tree or lies below it.
func within(dir, tree string) bool {
	return dir == tree || tree == "/" || strings.HasPrefix(dir, tree+"/")
}
