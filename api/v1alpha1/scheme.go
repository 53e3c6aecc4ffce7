// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme registers the kinds that are objects of the API server, so that a client can read and write them. Opaque
// configurations are not objects and are not registered.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &AcceleratorNode{}, &AcceleratorNodeList{},
		&FPGABitstream{}, &FPGABitstreamList{}, &ClusterFPGABitstream{}, &ClusterFPGABitstreamList{},
		&DevicePreset{}, &DevicePresetList{}, &ClusterDevicePreset{}, &ClusterDevicePresetList{},
		&GPUKernelCache{}, &GPUKernelCacheList{}, &ClusterGPUKernelCache{}, &ClusterGPUKernelCacheList{},
		&TrustPolicy{}, &TrustPolicyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
