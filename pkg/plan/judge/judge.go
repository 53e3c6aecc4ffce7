// SPDX-License-Identifier: Apache-2.0

// Package judge says of each device why a claim can have it or not. It does every check of the scheduler itself and reports all that fail,
// where the scheduler stops at the first and names none. The scheduler's allocator stays the authority: tests hold the two against each
// other.
package judge

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Input is what the scheduler looks at when it tries one node for the claims of one pod. Objects have the API server's defaults, and slices
// have the taints of DeviceTaintRules.
type Input struct {
	Features structured.Features
	Slices   []*resourceapi.ResourceSlice
	Classes  map[string]*resourceapi.DeviceClass
	// State has what is allocated, Holders which claims have it.
	State   structured.AllocatedState
	Holders map[structured.DeviceID][]Holder
	Node    *corev1.Node
	// Claims have no allocation yet.
	Claims []*resourceapi.ResourceClaim
}

// Holder is a claim that has a device.
type Holder struct {
	Namespace, Name string
	// Consumed is what it has of a device that several claims share.
	Consumed structured.ConsumedCapacity
}
