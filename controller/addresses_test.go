// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestClusterAddresses: the ranges of services, and those of each node's pods and the node's own, from what the cache keeps of Nodes.
func TestClusterAddresses(t *testing.T) {
	kept := map[client.Object]cache.ByObject{}
	cachedNodes(kept)
	objects := []client.Object{
		&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
		},
	}
	for i := range 2 {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{"a": "b"}},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i)}, ProviderID: "x"},
			Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{}}, Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i)}, {Type: corev1.NodeHostName, Address: "node"},
			}},
		}
		for _, by := range kept {
			trimmed, err := by.Transform(node)
			if err != nil {
				t.Fatal(err)
			}
			node, _ = trimmed.(*corev1.Node)
		}
		if node.Labels["a"] != "b" || node.Status.Images != nil || node.Spec.ProviderID != "" {
			t.Errorf("the cache keeps %+v", node)
		}
		objects = append(objects, node)
	}
	ranges, err := clusterAddresses(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build())(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range ranges {
		got = append(got, r.String())
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"10.244.0.0/24", "10.244.1.0/24", "10.96.0.0/16", "192.0.2.0/32", "192.0.2.1/32"}, got); diff != "" {
		t.Error(diff)
	}
}
