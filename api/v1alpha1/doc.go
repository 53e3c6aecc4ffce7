// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds every kind of the API group fettle.dev: the objects that CRDs define and the opaque configurations
// that ResourceClaims and DeviceClasses carry. Each kind has one file with its types, defaults and validation.
//
// +kubebuilder:object:generate=true
// +groupName=fettle.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// GroupName is the API group of every Fettle kind.
	GroupName = "fettle.dev"
	// DriverName is the DRA driver's name in ResourceSlices, allocations and opaque configurations.
	DriverName = "fettle.dev"
)

// GroupVersion is the group and version of this package's kinds.
//
//nolint:gochecknoglobals // a constant that Go cannot express as one
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// AddToScheme registers the kinds that are objects of the API server, so that a client can read and write them. Opaque
// configurations are not objects and are not registered.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &AcceleratorNode{}, &AcceleratorNodeList{},
		&AcceleratorStack{}, &AcceleratorStackList{},
		&FPGABitstream{}, &FPGABitstreamList{}, &ClusterFPGABitstream{}, &ClusterFPGABitstreamList{},
		&DevicePreset{}, &DevicePresetList{}, &ClusterDevicePreset{}, &ClusterDevicePresetList{},
		&GPUKernelCache{}, &GPUKernelCacheList{}, &ClusterGPUKernelCache{}, &ClusterGPUKernelCacheList{},
		&PartitionPolicy{}, &PartitionPolicyList{},
		&TrustPolicy{}, &TrustPolicyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
