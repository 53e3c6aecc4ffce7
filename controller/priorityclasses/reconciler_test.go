// SPDX-License-Identifier: Apache-2.0

package priorityclasses

import (
	"testing"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// TestReconcile is what becomes of a PriorityClass, by what is there and what a policy wants.
func TestReconcile(t *testing.T) {
	ours := map[string]string{names.ManagedByLabel: names.Controller}
	class := func(value int32, labels map[string]string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu", Labels: labels}, Value: value}
	}
	for name, test := range map[string]struct {
		live   *schedulingv1.PriorityClass
		wanted bool
		// want are the values after each of two rounds, 0 for none.
		want [2]int32
	}{
		"made":           {nil, true, [2]int32{1000, 1000}},
		"as wanted":      {class(1000, ours), true, [2]int32{1000, 1000}},
		"another value":  {class(5, ours), true, [2]int32{0, 1000}},
		"not wanted":     {class(1000, ours), false, [2]int32{0, 0}},
		"somebody's":     {class(5, nil), true, [2]int32{5, 5}},
		"somebody's own": {class(5, nil), false, [2]int32{5, 5}},
		"nothing":        {nil, false, [2]int32{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme, err := reconciler.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			b := fake.NewClientBuilder().WithScheme(scheme)
			if test.live != nil {
				b = b.WithObjects(test.live)
			}
			if test.wanted {
				p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}}
				p.Spec.Nodes = &v1alpha1.NodePartition{PriorityClasses: []v1alpha1.NodePriorityClass{{Name: "gpu", Value: 1000, Description: "d"}}}
				b = b.WithObjects(p)
			}
			c := b.Build()
			k := &keeper{client: c}
			for round, want := range test.want {
				key := client.ObjectKey{Name: "gpu"}
				if _, err := k.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
				var got schedulingv1.PriorityClass
				err := c.Get(t.Context(), key, &got)
				if client.IgnoreNotFound(err) != nil || got.Value != want || apierrors.IsNotFound(err) != (want == 0) {
					t.Fatalf("round %d: value %d, error %v; want %d", round, got.Value, err, want)
				}
				if want == 1000 && (got.Description != "d" || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "1" || !Ours(&got)) {
					t.Errorf("round %d: %+v", round, got)
				}
			}
		})
	}
}
