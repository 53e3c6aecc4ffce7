// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds every kind of the API group fettle.dev: the objects that CRDs define and the opaque configurations
// that ResourceClaims and DeviceClasses carry. Each kind has one file with its types, defaults and validation.
//
// +kubebuilder:object:generate=true
// +groupName=fettle.dev
package v1alpha1

import (
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
