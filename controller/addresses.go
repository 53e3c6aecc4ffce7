// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// clusterAddresses returns the ranges of the cluster's services, and those of the pods and addresses of its nodes. They are not contacted
// for references. A network plugin may give pods other addresses than their Node says; these the administrator lists.
func clusterAddresses(cached client.Reader) registry.Ranges {
	return func(ctx context.Context) ([]netip.Prefix, error) {
		var services networkingv1.ServiceCIDRList
		if err := cached.List(ctx, &services); err != nil {
			return nil, fmt.Errorf("list the ranges of services: %w", err)
		}
		var nodes corev1.NodeList
		if err := cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		var out []netip.Prefix
		for i := range services.Items {
			out = append(out, registry.ParseRanges(services.Items[i].Spec.CIDRs...)...)
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			out = append(out, registry.ParseRanges(n.Spec.PodCIDRs...)...)
			for _, a := range n.Status.Addresses {
				out = append(out, registry.ParseRanges(a.Address)...)
			}
		}
		return out, nil
	}
}

// cachedNodes has the cache keep of Nodes only what clusterAddresses, stacks and the taints of policies depend on.
func cachedNodes(byObject map[client.Object]cache.ByObject) {
	byObject[&corev1.Node{}] = cache.ByObject{Transform: func(object any) (any, error) {
		n, ok := object.(*corev1.Node)
		if !ok {
			return object, nil
		}
		kept := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels},
			Spec:       corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs, Taints: n.Spec.Taints},
			Status: corev1.NodeStatus{Addresses: n.Status.Addresses, NodeInfo: corev1.NodeSystemInfo{
				BootID: n.Status.NodeInfo.BootID, KernelVersion: n.Status.NodeInfo.KernelVersion, OSImage: n.Status.NodeInfo.OSImage,
				Architecture: n.Status.NodeInfo.Architecture,
			}},
		}
		if noted, ok := n.Annotations[v1alpha1.TaintsAnnotation]; ok {
			kept.Annotations = map[string]string{v1alpha1.TaintsAnnotation: noted}
		}
		return kept, nil
	}}
}

// logReason writes to the log what a tenant is not told of a registry.
func logReason(ctx context.Context, ref artifact.Reference, reason error) {
	klog.FromContext(ctx).Info("Cannot read from a registry", "reference", ref.String(), "reason", reason)
}
