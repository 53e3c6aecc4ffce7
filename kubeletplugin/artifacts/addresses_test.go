// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestRanges: the services' ranges and the addresses of the node and its pods, asked for every few minutes, and kept while the API server
// is silent.
func TestRanges(t *testing.T) {
	kube := fake.NewClientset(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.3.0/24", "fd01:0:0:3::/64"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "192.0.2.3"}, {Type: corev1.NodeHostName, Address: "node-1"},
			}},
		},
		&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd02::/112"}},
		},
	)
	silent := false
	kube.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return silent, nil, errors.New("no answer")
	})
	clock := clocktesting.NewFakePassiveClock(time.Now())
	a := &Addresses{Kube: kube, Node: "node-1", Clock: clock}
	silent = true
	if got, err := a.Ranges(t.Context()); err == nil {
		t.Errorf("nothing is known, and yet there is %v", got)
	}
	read := func(what string) {
		t.Helper()
		ranges, err := a.Ranges(t.Context())
		if err != nil {
			t.Fatal(what, err)
		}
		var got []string
		for _, r := range ranges {
			got = append(got, r.String())
		}
		want := []string{"10.244.3.0/24", "fd01:0:0:3::/64", "10.96.0.0/16", "fd02::/112", "192.0.2.3/32"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(what, diff)
		}
	}
	silent = false
	read("at first")
	asked := len(kube.Actions())
	read("at once")
	if len(kube.Actions()) != asked {
		t.Errorf("asked again at once: %v", kube.Actions()[asked:])
	}
	clock.SetTime(clock.Now().Add(addressesTTL))
	silent = true
	read("while the API server is silent")
	if len(kube.Actions()) == asked {
		t.Error("not asked again")
	}
}
