// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
)

func foreign(group, version, kind, name string, status map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	u.SetName(name)
	return u
}

// TestOperators: what is read of operators' objects. What has another form is no report, and an operator that is not there has none.
func TestOperators(t *testing.T) {
	config := foreign("amd.com", "v1alpha1", "DeviceConfig", "gpus", map[string]any{"nodeModuleStatus": map[string]any{
		"a": map[string]any{"containerImage": "registry.example/amdgpu:6.3", "kernelVersion": "6.1.0-1", "status": "Install-Complete"},
		"b": map[string]any{"kernelVersion": int64(6)}, "c": "nonsense",
	}})
	config.SetNamespace("kube-amd-gpu")
	policy := foreign("nvidia.com", "v1", "ClusterPolicy", "cluster-policy", map[string]any{"state": "notReady"})
	for name, tc := range map[string]struct {
		operator v1alpha1.DriverOperator
		objects  []client.Object
		want     map[string]stack.Status
	}{
		"AMD's": {
			v1alpha1.OperatorAMD,
			[]client.Object{config},
			map[string]stack.Status{"a": stack.Passed, "b": stack.Unknown, "c": stack.Unknown, "d": stack.Unknown},
		},
		"no DeviceConfig": {v1alpha1.OperatorAMD, []client.Object{policy}, map[string]stack.Status{"a": stack.Unknown}},
		"NVIDIA's, whatever it says of all nodes": {
			v1alpha1.OperatorNVIDIA, []client.Object{policy}, map[string]stack.Status{"a": stack.Passed},
		},
		"no ClusterPolicy": {v1alpha1.OperatorNVIDIA, []client.Object{config}, map[string]stack.Status{"a": stack.Unknown}},
	} {
		s := stackOf("s", "x")
		s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineExternal, External: &v1alpha1.ExternalDriver{Operator: tc.operator}}
		r := newStackReconciler(reconciler.Services{Live: cluster(t, tc.objects...)}, Checks{}, "")
		e, err := r.engineOf(t.Context(), s, nil, &stack.Observed{})
		if err != nil || e.again != time.Minute {
			t.Fatalf("%s: again in %s, %v", name, e.again, err)
		}
		for node, want := range tc.want {
			if v := e.deliver(&stack.Node{Name: node, KernelVersion: "6.1.0-1"}); v.Status != want {
				t.Errorf("%s, node %s: %+v, want %v", name, node, v, want)
			}
		}
	}
}

// TestOperatorWithoutAnswer: while the API server cannot show the objects of a vendor's operator, its stack's nodes are judged by all else.
func TestOperatorWithoutAnswer(t *testing.T) {
	f := newFixture(t).verified(t)
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Driver = v1alpha1.StackDriver{
		Engine: v1alpha1.EngineExternal, External: &v1alpha1.ExternalDriver{Operator: v1alpha1.OperatorAMD},
	}
	check.Must(t, f.api.Update(t.Context(), &s))
	refusal := apierrors.NewInternalError(errors.New("conversion webhook failed: connection refused"))
	f.own = interceptor.NewClient(f.api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if l.GetObjectKind().GroupVersionKind().Kind == "DeviceConfigList" {
				return refusal
			}
			return c.List(ctx, l, opts...)
		},
	})
	f.restart()
	f.report(t, "b", noDriver)
	if _, err := f.row.Queues[0].Reconciler.Reconcile(t.Context(), request("s")); !errors.Is(err, refusal) {
		t.Errorf("the fault is not told: %v", err)
	}
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	if w := s.Status.Waiting; len(w) != 2 || w[0].Reason != "DriverNotLoaded" || !strings.Contains(w[1].Message, "connection refused") {
		t.Errorf("nodes wait for %+v", w)
	}
}
