// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
)

func names(all ...string) (out named) {
	for _, name := range all {
		out.add(name)
	}
	return out
}

// TestRepelling is what the condition says of DaemonSets and Modules that the taints keep away.
func TestRepelling(t *testing.T) {
	var many []string
	for i := range 10 {
		many = append(many, fmt.Sprintf("a/d%d", i))
	}
	for _, test := range []struct {
		name  string
		found repelled
		want  string
		says  []string
	}{
		{"none", repelled{}, "False NoneRepelled", []string{"tolerate the taints"}},
		{
			"a DaemonSet",
			repelled{daemonSets: names("mon/dcgm")},
			"True DaemonSetsRepelled",
			[]string{"no new pods run on the policy's nodes for 1 DaemonSet without", "mon/dcgm;", "spec.template.spec.tolerations"},
		},
		{
			"many",
			repelled{daemonSets: names(many...)},
			"True DaemonSetsRepelled",
			[]string{"10 DaemonSets", "a/d0, a/d1, a/d2, a/d3, a/d4, a/d5, a/d6, a/d7 and 2 more;"},
		},
		{
			"a Module, too",
			repelled{daemonSets: names("a/d", "a/b"), modules: names("a/c")},
			"True ModulesRepelled",
			[]string{"KMM unloads the driver on the policy's nodes for 1 Module without", ": a/c;", "2 DaemonSets", ": a/b, a/d;"},
		},
		{
			"some are too large",
			repelled{largeSets: 2, largeModules: 1},
			"False NoneRepelled",
			[]string{"tolerate the taints. 3 programs not looked at, since"},
		},
	} {
		c := test.found.condition()
		if string(c.Status)+" "+c.Reason != test.want {
			t.Errorf("%s: %+v, want %s", test.name, c, test.want)
		}
		for _, words := range test.says {
			if !strings.Contains(c.Message, words) {
				t.Errorf("%s: %q is not in %q", test.name, words, c.Message)
			}
		}
	}
}

// kmmModule is a Module of KMM with a spec.
func kmmModule(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kmm.sigs.x-k8s.io/v1beta1", "kind": "Module",
		"metadata": map[string]any{"namespace": "kmm", "name": "gpu"}, "spec": spec,
	}}
}

// TestModules: a Module has its driver unloaded from nodes that it selects, labels of KMM included.
func TestModules(t *testing.T) {
	var (
		loader    = map[string]any{"container": map[string]any{"kernelMappings": []any{map[string]any{"literal": "6.1"}}}}
		versioned = map[string]any{"container": map[string]any{"version": "2"}}
		pool      = map[string]any{"pool": "a"}
		tolerates = []any{map[string]any{"key": "example.com/gpu", "operator": "Exists"}}
	)
	for _, test := range []struct {
		name   string
		spec   map[string]any
		labels map[string]string
		want   bool
	}{
		{"selects the node", map[string]any{"moduleLoader": loader, "selector": pool}, map[string]string{"pool": "a"}, true},
		{"selects another", map[string]any{"moduleLoader": loader, "selector": pool}, map[string]string{"pool": "b"}, false},
		{
			"tolerates the taint",
			map[string]any{"moduleLoader": loader, "selector": pool, "tolerations": tolerates},
			map[string]string{"pool": "a"},
			false,
		},
		{"loads no driver", map[string]any{"selector": pool}, map[string]string{"pool": "a"}, false},
		{"another form", map[string]any{"moduleLoader": "x", "selector": pool}, map[string]string{"pool": "a"}, false},
		{"a version for other nodes", map[string]any{"moduleLoader": versioned, "selector": pool}, map[string]string{"pool": "a"}, false},
		{
			"a version for the node",
			map[string]any{"moduleLoader": versioned, "selector": pool},
			map[string]string{"pool": "a", "kmm.node.kubernetes.io/version-module.kmm.gpu": "1"},
			true,
		},
	} {
		p, loads := programOf(kmmModule(test.spec))
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: test.labels}}
		taints := []v1alpha1.NodeTaint{{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
		if got := loads && nodepolicy.NewGate(taints, []*corev1.Node{node}, nil).Repels(&p); got != test.want {
			t.Errorf("%s: repelled: %t", test.name, got)
		}
	}
}

// TestRepelledIsWritten: what was read and could not be written is read again, and then an Event says it.
func TestRepelledIsWritten(t *testing.T) {
	a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	a.Status.Pools = []v1alpha1.PoolStatus{{Name: "a/gpu", Kind: "gpu", Devices: 1}}
	p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: 1}}
	p.Spec.Nodes = &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}}}
	fails := true
	api := interceptor.NewClient(cluster(t, a, p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "mon", Name: "dcgm"}}), interceptor.Funcs{
		SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
		) error {
			if fails {
				return errors.New("the connection was lost")
			}
			return c.SubResource(sub).Patch(ctx, o, patch, options...)
		},
	})
	recorder := events.NewFakeRecorder(100)
	r := New(reconciler.Services{
		Client: api, Live: large.Paged(t, api, reconciler.TenantPage), Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}, true, nil, nil).Queues[0].Reconciler
	if _, err := r.Reconcile(t.Context(), request("p")); err == nil {
		t.Fatal("a status that was not written is no error")
	}
	fails = false
	again, err := r.Reconcile(t.Context(), request("p"))
	if err != nil || again.RequeueAfter < programsInterval {
		t.Fatalf("again after %s, error %v", again.RequeueAfter, err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	c := status.Condition(p.Status.Conditions, v1alpha1.ConditionRepelling)
	if c.Reason != ReasonDaemonSetsRepelled || !strings.Contains(c.Message, "mon/dcgm") {
		t.Errorf("the condition is %+v", c)
	}
	if got := told(recorder); !slices.Contains(got, "Warning "+ReasonDaemonSetsRepelled) {
		t.Errorf("Events are %q", got)
	}
}

// TestCheckRepelled: DaemonSets are read when the policy changed, some time after the nodes changed, and every ten minutes. Between two
// readings, and while they cannot be read, the condition stays.
func TestCheckRepelled(t *testing.T) {
	exporter := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "mon", Name: "dcgm"}}
	api := cluster(t, exporter)
	read, fails := 0, false
	live := interceptor.NewClient(api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, is := list.(*appsv1.DaemonSetList); !is {
				return c.List(ctx, list, options...)
			}
			if read++; fails {
				return errors.New("etcd is away")
			}
			return c.List(ctx, list, options...)
		},
	})
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	j := &judge{Services: reconciler.Services{Live: live, Clock: clock}, readings: map[string]reading{}}
	p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: 1}}
	p.Spec.Nodes = &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}}}
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
	expect := func(what string, reads int, again time.Duration, want string) {
		t.Helper()
		read = 0
		got, err := j.checkRepelled(t.Context(), p, nodes)
		if (err != nil) != fails || got < again || float64(got) > float64(again)*(1+reconciler.Jitter) {
			t.Errorf("%s: again after %s, error %v; want %s", what, got, err, again)
		}
		c := status.Condition(p.Status.Conditions, v1alpha1.ConditionRepelling)
		if read != reads || strings.TrimSpace(string(c.Status)+" "+c.Reason) != want {
			t.Errorf("%s: read %d times, %+v; want %d, %s", what, read, c, reads, want)
		}
	}
	fails = true
	expect("an outage at first", 1, 0, "Unknown NotRead")
	fails = false
	expect("first", 1, 10*time.Minute, "True DaemonSetsRepelled")
	clock.SetTime(clock.Now().Add(time.Second))
	expect("the same", 0, 10*time.Minute-time.Second, "True DaemonSetsRepelled")

	exporter.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if err := api.Update(t.Context(), exporter); err != nil {
		t.Fatal(err)
	}
	nodes[0].Spec.Taints = []corev1.Taint{{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
	nodes[0].Annotations = map[string]string{v1alpha1.TaintsAnnotation: "example.com/gpu=:NoSchedule"}
	expect("the taint was put", 0, 10*time.Minute-time.Second, "True DaemonSetsRepelled")
	nodes[0].Labels = map[string]string{"pool": "a"}
	expect("another label", 0, programsPause-time.Second, "True DaemonSetsRepelled")
	clock.SetTime(clock.Now().Add(programsPause))
	fails = true
	expect("an outage", 1, 0, "True DaemonSetsRepelled")
	fails = false
	expect("half a minute later", 1, 10*time.Minute, "False NoneRepelled")

	p.Generation++
	expect("another generation", 1, 10*time.Minute, "False NoneRepelled")
	if err := api.Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "mon", Name: "new"}}); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(10 * time.Minute))
	expect("ten minutes later", 1, 10*time.Minute, "True DaemonSetsRepelled")
	p.UID = "v"
	expect("made again", 1, 10*time.Minute, "True DaemonSetsRepelled")
	nodes = nil
	expect("no nodes", 0, 0, "")
	if len(j.readings) != 0 {
		t.Errorf("readings are %v", j.readings)
	}
}

// TestManyLargeDaemonSetsOfATenant: a tenant makes DaemonSets whose tolerations and affinities are large. The controller keeps none of them
// while it reads the others, or it would have no memory left.
func TestManyLargeDaemonSetsOfATenant(t *testing.T) {
	const pages, large = 12, 300_000
	before, most, page := int64(0), int64(0), 0
	live := interceptor.NewClient(cluster(t), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			sets, is := list.(*appsv1.DaemonSetList)
			if !is {
				return c.List(ctx, list, options...)
			}
			if page++; page == 1 {
				before = check.Heap()
			}
			most = max(most, check.Heap()-before)
			for i := range reconciler.TenantPage {
				d := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: fmt.Sprintf("d-%d-%d", page, i)}}
				d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: strings.Repeat("a", large*(i%2)+1)}}
				sets.Items = append(sets.Items, d)
			}
			if page < pages {
				sets.Continue = "next"
			}
			return nil
		},
	})
	gate := nodepolicy.NewGate([]v1alpha1.NodeTaint{{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}},
		[]*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}, nil)
	found, err := repelledFrom(t.Context(), live, gate)
	if err != nil || found.daemonSets.count != pages*13 || found.largeSets != pages*12 || len(found.daemonSets.first) != maxNamed {
		t.Errorf("%+v, error %v", found, err)
	}
	if most > large*reconciler.TenantPage {
		t.Errorf("%d bytes are kept while DaemonSets are read, want no more than a page", most)
	}
}
