// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Some kinds come in pairs: one for a namespace, and one for the cluster whose name begins with Cluster. The method Common of both returns
// the same type, so that code which treats the pair alike is written once.

// everyNamespace in a list of namespaces stands for all of them.
const everyNamespace = "*"

// Object is any object of the API.
//
// +kubebuilder:object:generate=false
type Object interface {
	metav1.Object
	runtime.Object
}

// CommonObject is an object of a pair of kinds.
//
// +kubebuilder:object:generate=false
type CommonObject struct {
	Object

	// Kind is the object's own kind. An object that a client decoded has none in its TypeMeta.
	Kind string
}

// OfCluster says whether the object belongs to no namespace.
func (o CommonObject) OfCluster() bool { return o.GetNamespace() == "" }

// Key returns the object's namespace and name.
func (o CommonObject) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// String returns "KIND NAME" or "KIND NAMESPACE/NAME".
func (o CommonObject) String() string {
	if o.OfCluster() {
		return o.Kind + " " + o.GetName()
	}
	return o.Kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// ReferenceNamespace returns the namespace of the Secrets and ConfigMaps that the object names: its own, or the driver's.
func (o CommonObject) ReferenceNamespace(driver string) string {
	if o.OfCluster() {
		return driver
	}
	return o.GetNamespace()
}

// CommonDevicePreset is a DevicePreset or a ClusterDevicePreset.
//
// +kubebuilder:object:generate=false
type CommonDevicePreset struct {
	CommonObject

	// Spec of a DevicePreset has only the rules.
	Spec   ClusterDevicePresetSpec
	Status *DevicePresetStatus
}

// Common returns what the pair of kinds shares.
func (p *DevicePreset) Common() CommonDevicePreset {
	return CommonDevicePreset{
		CommonObject: CommonObject{p, KindDevicePreset}, Spec: ClusterDevicePresetSpec{PresetRules: p.Spec.PresetRules}, Status: &p.Status,
	}
}

// Common returns what the pair of kinds shares.
func (p *ClusterDevicePreset) Common() CommonDevicePreset {
	return CommonDevicePreset{CommonObject: CommonObject{p, KindClusterDevicePreset}, Spec: p.Spec, Status: &p.Status}
}

// DeepCopy returns a copy of the preset and its object.
func (p CommonDevicePreset) DeepCopy() CommonDevicePreset {
	switch o := p.Object.(type) {
	case *DevicePreset:
		return o.DeepCopy().Common()
	case *ClusterDevicePreset:
		return o.DeepCopy().Common()
	}
	return p
}

// Validate reports every fault of the spec by the rules of the preset's own kind.
func (p CommonDevicePreset) Validate(path *field.Path) field.ErrorList {
	if p.Kind == KindDevicePreset {
		own := DevicePresetSpec{PresetRules: p.Spec.PresetRules}
		return own.Validate(path)
	}
	return p.Spec.Validate(path)
}

// DecodeDevicePreset decodes a preset of either kind.
func DecodeDevicePreset(u *unstructured.Unstructured) (CommonDevicePreset, error) {
	return decodeCommon[CommonDevicePreset](u, KindClusterDevicePreset, &DevicePreset{}, &ClusterDevicePreset{})
}

// CommonFPGABitstream is an FPGABitstream or a ClusterFPGABitstream.
//
// +kubebuilder:object:generate=false
type CommonFPGABitstream struct {
	CommonObject

	// Spec of an FPGABitstream has only the image and its secrets.
	Spec   ClusterFPGABitstreamSpec
	Status *FPGABitstreamStatus
}

// Common returns what the pair of kinds shares.
func (b *FPGABitstream) Common() CommonFPGABitstream {
	return CommonFPGABitstream{
		CommonObject: CommonObject{b, KindFPGABitstream},
		Spec:         ClusterFPGABitstreamSpec{Image: b.Spec.Image, ImagePullSecrets: b.Spec.ImagePullSecrets}, Status: &b.Status,
	}
}

// Common returns what the pair of kinds shares.
func (b *ClusterFPGABitstream) Common() CommonFPGABitstream {
	return CommonFPGABitstream{CommonObject: CommonObject{b, KindClusterFPGABitstream}, Spec: b.Spec, Status: &b.Status}
}

// AllowsNamespace says whether claims of a namespace may name the bitstream.
func (b CommonFPGABitstream) AllowsNamespace(namespace string) bool {
	return allows(b.CommonObject, b.Spec.Namespaces, namespace)
}

// Refused returns the controller's verdict on the bitstream's digest if the TrustPolicies refuse it, else nil.
func (b CommonFPGABitstream) Refused() *ImageVerdict {
	if v := b.Status.Verification; v != nil && v.Digest == b.Status.Digest && v.Result == VerdictRefused {
		return v
	}
	return nil
}

// DecodeFPGABitstream decodes a bitstream of either kind.
func DecodeFPGABitstream(u *unstructured.Unstructured) (CommonFPGABitstream, error) {
	return decodeCommon[CommonFPGABitstream](u, KindClusterFPGABitstream, &FPGABitstream{}, &ClusterFPGABitstream{})
}

// CommonGPUKernelCache is a GPUKernelCache or a ClusterGPUKernelCache.
//
// +kubebuilder:object:generate=false
type CommonGPUKernelCache struct {
	CommonObject

	Spec   *GPUKernelCacheSpec
	Status *GPUKernelCacheStatus
	// WorkloadNamespaces are those that a ClusterGPUKernelCache lists, "*" included.
	WorkloadNamespaces []string
}

// Common returns what the pair of kinds shares.
func (c *GPUKernelCache) Common() CommonGPUKernelCache {
	return CommonGPUKernelCache{CommonObject: CommonObject{c, KindGPUKernelCache}, Spec: &c.Spec, Status: &c.Status}
}

// Common returns what the pair of kinds shares.
func (c *ClusterGPUKernelCache) Common() CommonGPUKernelCache {
	return CommonGPUKernelCache{
		CommonObject: CommonObject{c, KindClusterGPUKernelCache}, Spec: &c.Spec.GPUKernelCacheSpec, Status: &c.Status,
		WorkloadNamespaces: c.Spec.WorkloadNamespaces,
	}
}

// AllowsNamespace says whether claims of a namespace may name the cache.
func (c CommonGPUKernelCache) AllowsNamespace(namespace string) bool {
	return allows(c.CommonObject, c.WorkloadNamespaces, namespace)
}

// Refused returns the controller's verdict on the cache's digest if the TrustPolicies refuse it, else nil.
func (c CommonGPUKernelCache) Refused() *ImageVerdict {
	if v := c.Status.Verification; v != nil && v.Digest == c.Status.ResolvedDigest && v.Result == VerdictRefused {
		return v
	}
	return nil
}

// Prewarm returns which nodes fetch the cache before a claim asks for it.
func (c CommonGPUKernelCache) Prewarm() CachePrewarm {
	if d := c.Spec.Distribution; d != nil && d.Prewarm != "" {
		return d.Prewarm
	}
	return CachePrewarmMatching
}

// VerificationMode returns the mode that the object asks for, empty if it leaves that to the policies.
func (c CommonGPUKernelCache) VerificationMode() VerificationMode {
	if c.Spec.Verification == nil {
		return ""
	}
	return c.Spec.Verification.Mode
}

// NamedNamespaces returns the workload namespaces without the "*".
func (c CommonGPUKernelCache) NamedNamespaces() []string {
	return slices.DeleteFunc(slices.Clone(c.WorkloadNamespaces), func(n string) bool { return n == everyNamespace })
}

// allows says whether claims of a namespace may name an object of a pair: their own, or one of the cluster that lists the namespace.
func allows(o CommonObject, listed []string, namespace string) bool {
	if !o.OfCluster() {
		return o.GetNamespace() == namespace
	}
	return slices.Contains(listed, namespace) || slices.Contains(listed, everyNamespace)
}

// decodeCommon decodes an object of either kind: into ofCluster if it is of the cluster's kind, else into own.
func decodeCommon[C any](u *unstructured.Unstructured, clusterKind string, own, ofCluster interface{ Common() C }) (C, error) {
	into := own
	if u.GetKind() == clusterKind {
		into = ofCluster
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
	if err != nil {
		err = fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return into.Common(), err
}
