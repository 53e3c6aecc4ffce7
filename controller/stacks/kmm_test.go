// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
)

// labels returns the labels of a node.
func (f *fixture) labels(t *testing.T, name string, change map[string]string) map[string]string {
	t.Helper()
	var node corev1.Node
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: name}, &node))
	if change != nil {
		maps.Copy(node.Labels, change)
		check.Must(t, f.api.Update(t.Context(), &node))
	}
	return node.Labels
}

// TestDroppedModule: a stack that has another engine leaves no Module, also where no node has its label, and no label, also if it is of a
// namespace of drivers that the chart's values do not name any more. Labels of other Modules stay. What is gone is not asked for again.
func TestDroppedModule(t *testing.T) {
	f := newFixture(t).verified(t)
	f.drivers = drivers
	module := &unstructured.Unstructured{}
	module.SetGroupVersionKind(moduleKind())
	module.SetNamespace(drivers)
	module.SetName(stack.ModuleName("s"))
	check.Must(t, f.api.Create(t.Context(), module))
	deletes := 0
	f.own = interceptor.NewClient(f.api, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if o.GetObjectKind().GroupVersionKind() == moduleKind() {
				deletes++
			}
			return c.Delete(ctx, o, opts...)
		},
	})
	f.restart()
	f.reconcile(t, "s")
	if err := f.api.Get(t.Context(), client.ObjectKeyFromObject(module), module); !apierrors.IsNotFound(err) {
		t.Errorf("the Module without a labelled node: %v", err)
	}
	f.reconcile(t, "s")
	if deletes != 1 {
		t.Errorf("the Module was deleted %d times", deletes)
	}

	others := map[string]string{
		stack.KMMLabel("old", stack.ModuleName("other")): "1", stack.KMMLabel("team", "their-driver"): "1",
		stack.KMMLabel(drivers, "their-driver"): "1", "pool": "x",
	}
	f.labels(t, "a", others)
	f.labels(t, "a", map[string]string{
		stack.KMMLabel("old", stack.ModuleName("s")): "1", stack.KMMLabel(drivers, stack.ModuleName("s")): "1",
	})
	f.reconcile(t, "s")
	if got := f.labels(t, "a", nil); !maps.Equal(got, others) {
		t.Errorf("the labels are %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(others)))
	}
}

func byKMM() v1alpha1.StackDriver {
	return v1alpha1.StackDriver{Engine: v1alpha1.EngineKMM, KMM: &v1alpha1.KMMDriver{
		Version: "2", KernelMappings: []v1alpha1.KernelMapping{{Regexp: ".*", Image: "registry.example/d"}},
		Modprobe: v1alpha1.KMMModprobe{ModuleName: "amdgpu"},
	}}
}

// hasLoaded is what KMM has of a node on which the module of a stack is loaded.
func hasLoaded(node, of, version string) *unstructured.Unstructured {
	loaded := map[string]any{
		"name": stack.ModuleName(of), "namespace": drivers, "version": version, "bootId": "boot-1",
		"config": map[string]any{"kernelVersion": "6.1.0-1", "containerImage": "registry.example/d"},
	}
	report := foreign("kmm.sigs.x-k8s.io", "v1beta1", "NodeModulesConfig", node, map[string]any{"modules": []any{loaded}})
	report.Object["spec"] = map[string]any{"modules": []any{loaded}}
	return report
}

// TestOneDriverANode: a node gets no driver of a stack before that of another stack, or of another engine, has left it. KMM would load a
// module that is there already, which does nothing, and then unload it for the other.
func TestOneDriverANode(t *testing.T) {
	f := newFixture(t).verified(t)
	f.drivers = drivers
	label := stack.KMMLabel(drivers, stack.ModuleName("s"))
	module, pod := hasLoaded("a", "other", "1"), podOn("b", drivers, "driver-b")
	check.Must(t, f.api.Create(t.Context(), module))
	pod.Labels = map[string]string{stack.DriverLabel: "driver-0123456789"}
	pod.Annotations = map[string]string{stack.DriverStackAnnotation: "other", stack.DriverKernelAnnotation: "6.1.0-1"}
	pod.Finalizers = []string{"example.com/unloads"}
	check.Must(t, f.api.Create(t.Context(), pod))
	check.Must(t, f.api.Delete(t.Context(), pod))
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Driver = byKMM()
	check.Must(t, f.api.Update(t.Context(), &s))
	f.restart()
	got := f.reconcile(t, "s")
	for i, node := range []string{"a", "b"} {
		if f.labels(t, node, nil)[label] != "" {
			t.Errorf("node %s gets a second driver", node)
		}
		if len(got.Status.Waiting) != 2 || !strings.Contains(got.Status.Waiting[i].Message, []string{stack.ModuleName("other"), pod.Name}[i]) {
			t.Errorf("nodes wait for %+v", got.Status.Waiting)
		}
	}
	check.Must(t, f.api.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	pod.Finalizers = nil
	check.Must(t, f.api.Update(t.Context(), pod))
	check.Must(t, f.api.Delete(t.Context(), module))
	f.reconcile(t, "s")
	for _, node := range []string{"a", "b"} {
		if f.labels(t, node, nil)[label] != "2" {
			t.Errorf("node %s gets no driver", node)
		}
	}
}

// TestModuleBesideDaemonSet: a node gets no pod of a driver before KMM has unloaded that of another stack, unless it has one already.
func TestModuleBesideDaemonSet(t *testing.T) {
	f := driving(t)
	module := hasLoaded("a", "other", "1")
	check.Must(t, f.api.Create(t.Context(), module))
	f.restart()
	f.reconcile(t, "s")
	if got := f.sets(t); !maps.Equal(got, map[string]string{"6.1.0-1": "b"}) {
		t.Errorf("the DaemonSets are of %q, and KMM has a module on node a", got)
	}
	check.Must(t, f.api.Delete(t.Context(), module))
	f.reconcile(t, "s")
	check.Must(t, f.api.Create(t.Context(), hasLoaded("a", "other", "1")))
	f.restart()
	f.reconcile(t, "s")
	if got := f.sets(t); !maps.Equal(got, map[string]string{"6.1.0-1": "ab"}) {
		t.Errorf("the DaemonSets are of %q", got)
	}
}

// TestModuleNotWritten: while the API server does not take a Module, as when KMM's webhook does not answer, nodes are judged by what KMM
// reports, no change of a driver begins or goes on, and nodes that have passed every state with the new driver are released.
func TestModuleNotWritten(t *testing.T) {
	f := newFixture(t).verified(t)
	f.drivers = drivers
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Driver = byKMM()
	s.Spec.Upgrade = &v1alpha1.StackUpgrade{MaxUnavailable: new(intstr.FromInt32(2))}
	check.Must(t, f.api.Update(t.Context(), &s))
	for node, version := range map[string]string{"a": "2", "b": "1"} {
		f.labels(t, node, map[string]string{stack.KMMLabel(drivers, stack.ModuleName("s")): version})
		check.Must(t, f.api.Create(t.Context(), hasLoaded(node, "s", version)))
	}
	var a v1alpha1.AcceleratorNode
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
	a.Annotations = map[string]string{v1alpha1.UpgradeAnnotation: "s " + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}
	check.Must(t, f.api.Update(t.Context(), &a))
	refusal := apierrors.NewInternalError(errors.New(`failed calling webhook "vmodule.kb.io": connection refused`))
	f.own = interceptor.NewClient(f.api, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if of, is := o.(interface{ GetKind() string }); is && of.GetKind() == "Module" {
				return refusal
			}
			return c.Apply(ctx, o, opts...)
		},
	})
	f.restart()
	_, err := f.row.Queues[0].Reconciler.Reconcile(t.Context(), request("s"))
	if !errors.Is(err, refusal) {
		t.Errorf("the fault is not told: %v", err)
	}
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
	if len(a.Annotations) > 0 {
		t.Errorf("node a has passed every state, and keeps %v", a.Annotations)
	}
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "b"}, &a))
	if len(a.Annotations) > 0 {
		t.Errorf("the change of the driver of node b begins: %v", a.Annotations)
	}
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	if s.Status.ReadyNodes != 1 || len(s.Status.Waiting) != 1 || !strings.Contains(s.Status.Waiting[0].Message, "connection refused") {
		t.Errorf("the status is %+v", s.Status)
	}
}

// TestDropFails: a stack that has another engine is judged although what the one before left cannot be taken away: a label of one node,
// since a webhook for nodes does not answer, or its DaemonSet. The labels of other nodes go.
func TestDropFails(t *testing.T) {
	f := driving(t)
	f.reconcile(t, "s")
	label := stack.KMMLabel(drivers, stack.ModuleName("s"))
	for _, node := range []string{"a", "b"} {
		f.labels(t, node, map[string]string{label: "1"})
	}
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineHost}
	check.Must(t, f.api.Update(t.Context(), &s))
	refusal := apierrors.NewInternalError(errors.New("failed calling webhook: connection refused"))
	f.own = interceptor.NewClient(f.api, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if _, node := o.(*corev1.Node); node && o.GetName() == "a" {
				return refusal
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if _, pod := o.(*corev1.Pod); !pod {
				return refusal
			}
			return c.Delete(ctx, o, opts...)
		},
	})
	f.restart()
	if _, err := f.row.Queues[0].Reconciler.Reconcile(t.Context(), request("s")); !errors.Is(err, refusal) {
		t.Errorf("the fault is not told: %v", err)
	}
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	if s.Status.Nodes != 2 || s.Status.ReadyNodes != 2 {
		t.Errorf("the status is %+v", s.Status)
	}
	if f.labels(t, "b", nil)[label] != "" {
		t.Error("node b keeps the label")
	}
}

// TestKMMAway: while the API server does not serve KMM's kinds, as when KMM itself is changed, no node whose driver is being changed gets
// its devices back.
func TestKMMAway(t *testing.T) {
	f := newFixture(t).verified(t)
	f.drivers = drivers
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineKMM, KMM: &v1alpha1.KMMDriver{
		Version: "2", KernelMappings: []v1alpha1.KernelMapping{{Regexp: ".*", Image: "registry.example/d"}},
		Modprobe: v1alpha1.KMMModprobe{ModuleName: "amdgpu"},
	}}
	check.Must(t, f.api.Update(t.Context(), &s))
	var a v1alpha1.AcceleratorNode
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
	notes := map[string]string{
		v1alpha1.UpgradeAnnotation: "s " + time.Now().UTC().Format(time.RFC3339), v1alpha1.QuiesceAnnotation: v1alpha1.QuiesceByUpgrade,
	}
	a.Annotations = maps.Clone(notes)
	check.Must(t, f.api.Update(t.Context(), &a))
	f.own = interceptor.NewClient(f.api, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if of, is := o.(interface{ GetKind() string }); is && of.GetKind() == "Module" {
				return &meta.NoKindMatchError{GroupKind: moduleKind().GroupKind(), SearchedVersions: []string{moduleKind().Version}}
			}
			return c.Apply(ctx, o, opts...)
		},
	})
	f.restart()
	got := f.reconcile(t, "s")
	if !slices.ContainsFunc(got.Status.Waiting, func(w v1alpha1.WaitingStackNode) bool { return w.Reason == stack.ReasonKMMMissing }) {
		t.Errorf("nodes wait for %+v", got.Status.Waiting)
	}
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
	if !maps.Equal(a.Annotations, notes) {
		t.Errorf("the node has %v", a.Annotations)
	}
}
