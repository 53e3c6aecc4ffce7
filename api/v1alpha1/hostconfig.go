// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/mountpath"
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
	c.Policy.OnRelease = cmp.Or(c.Policy.OnRelease, OnReleaseEmpty)
}

// Validate reports every fault of the configuration below path. A policy is a fault unless the configuration is from a class.
func (c *HostConfig) Validate(fromClass bool, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if c.MountPath != "" {
		faults = append(faults, mountpath.Validate(c.MountPath, path.Child("mountPath"))...)
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
