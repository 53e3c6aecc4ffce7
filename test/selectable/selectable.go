// SPDX-License-Identifier: Apache-2.0

// Package selectable has fake clients select objects by the fields by which the API server does.
package selectable

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// Fields adds metadata.name of the kinds that are read by it, and spec.nodeName.
func Fields(b *fake.ClientBuilder) *fake.ClientBuilder {
	name := func(o client.Object) []string { return []string{o.GetName()} }
	for _, kind := range []client.Object{
		&corev1.Pod{}, &corev1.Node{}, &resourceapi.ResourceClaim{}, &resourceapi.ResourceClaimTemplate{},
	} {
		b = b.WithIndex(kind, "metadata.name", name)
	}
	nodeName := func(o client.Object) []string {
		switch o := o.(type) {
		case *corev1.Pod:
			return []string{o.Spec.NodeName}
		case *resourceapi.ResourceSlice:
			return []string{ptr.Deref(o.Spec.NodeName, "")}
		}
		return nil
	}
	return b.WithIndex(&corev1.Pod{}, "spec.nodeName", nodeName).WithIndex(&resourceapi.ResourceSlice{}, "spec.nodeName", nodeName)
}
