// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
)

const namespace = "fettle-system"

func cluster(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	// The kinds that stacks read and write, and no more: the fake client goes through all of them for each object that it writes.
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, policyv1.AddToScheme, resourceapi.AddToScheme, v1alpha1.AddToScheme,
	} {
		check.Must(t, add(scheme))
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.AcceleratorStack{}, &v1alpha1.AcceleratorNode{}).
		WithInterceptorFuncs(interceptor.Funcs{Create: func(
			ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption,
		) error {
			o.SetCreationTimestamp(metav1.Now()) // as the API server does
			return c.Create(ctx, o, opts...)
		}}).Build()
}

// machine is a node in order, with the plugin's pod and its report.
func machine(name, pool string) []client.Object {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}}}
	node.Status.NodeInfo.BootID, node.Status.NodeInfo.KernelVersion = "boot-1", "6.1.0-1"
	pod := podOn(name, namespace, "plugin-"+name)
	pod.UID, pod.Labels = "pod-1", map[string]string{names.ComponentLabel: names.PluginComponent}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	a.Status.Facts = &v1alpha1.NodeFacts{BootID: "boot-1", PluginPod: "pod-1"}
	a.Status.Pools = []v1alpha1.PoolStatus{{Name: name + "/gpu", Kind: "gpu", Devices: 8}}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished, v1alpha1.ConditionHealthy} {
		a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Test"})
	}
	return []client.Object{node, pod, a}
}

func stackOf(name, pool string) *v1alpha1.AcceleratorStack {
	s := &v1alpha1.AcceleratorStack{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}}
	s.Spec.Driver.Engine = v1alpha1.EngineHost
	s.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}
	return s
}

// told returns the Events since the last call: "Warning DriverNotLoaded".
func told(recorder *events.FakeRecorder) (out []string) {
	for {
		select {
		case e := <-recorder.Events:
			out = append(out, strings.Join(strings.Fields(e)[:2], " "))
		default:
			slices.Sort(out)
			return out
		}
	}
}

// fixture is a reconciler with the stack s, which selects the nodes a and b.
type fixture struct {
	// api is what the rest of the cluster reads and writes with, own what the controller does; nil: the same.
	api, own client.WithWatch
	recorder *events.FakeRecorder
	row      reconciler.Row
	checks   Checks
	drivers  string
	t        *testing.T
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	objects := slices.Concat(machine("a", "x"), machine("b", "x"), machine("c", "y"), []client.Object{stackOf("s", "x")})
	f := &fixture{api: cluster(t, objects...), recorder: events.NewFakeRecorder(100), t: t}
	f.restart()
	return f
}

// verified has the nodes of the fixture checked already.
func (f *fixture) verified(t *testing.T) *fixture {
	t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		var a v1alpha1.AcceleratorNode
		if err := f.api.Get(t.Context(), client.ObjectKey{Name: name}, &a); err != nil {
			t.Fatal(err)
		}
		checkedOnce(name, &a)
		if err := f.api.Status().Update(t.Context(), &a); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// restart has another process go on.
func (f *fixture) restart() { f.startWith(&mortal{}) }

// startWith has another process go on, which dies as m says.
func (f *fixture) startWith(m *mortal) {
	own := f.own
	if own == nil {
		own = f.api
	}
	own = m.client(own)
	f.row = New(reconciler.Services{
		Client: own, Recorder: f.recorder, Clock: clocktesting.NewFakePassiveClock(time.Now()), Namespace: namespace,
		Live: large.Paged(f.t, own, reconciler.TenantPage),
	}, f.checks, f.drivers)
}

func (f *fixture) reconcile(t *testing.T, name string) *v1alpha1.AcceleratorStack {
	t.Helper()
	key := client.ObjectKey{Name: name}
	if _, err := f.row.Queues[0].Reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	var s v1alpha1.AcceleratorStack
	if err := f.api.Get(t.Context(), key, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// report changes what a node reports.
func (f *fixture) report(t *testing.T, name string, change func(*v1alpha1.AcceleratorNodeStatus)) {
	t.Helper()
	var a v1alpha1.AcceleratorNode
	if err := f.api.Get(t.Context(), client.ObjectKey{Name: name}, &a); err != nil {
		t.Fatal(err)
	}
	change(&a.Status)
	if err := f.api.Status().Update(t.Context(), &a); err != nil {
		t.Fatal(err)
	}
}

func noDriver(s *v1alpha1.AcceleratorNodeStatus) {
	s.SetProblems([]v1alpha1.NodeProblem{{Subject: "0000:17:00.0", Reason: "DriverNotLoaded", Message: "load nvidia"}})
	s.Facts.WithoutDriver = 1
}

// TestReconcile: the status follows the nodes, is written only if it changed, a failing node holds back no other, and Events say which
// node failed and that it recovered.
func TestReconcile(t *testing.T) {
	f := newFixture(t).verified(t)
	expect := func(what, available, degraded string, ready, failed int32, want ...string) {
		t.Helper()
		s := f.reconcile(t, "s")
		for kind, want := range map[string]string{v1alpha1.ConditionAvailable: available, v1alpha1.ConditionDegraded: degraded} {
			c := status.Condition(s.Status.Conditions, kind)
			if string(c.Status)+" "+c.Reason != want || c.ObservedGeneration != s.Generation {
				t.Errorf("%s: %+v, want %s", what, c, want)
			}
		}
		if s.Status.Nodes != 2 || s.Status.ReadyNodes != ready || s.Status.FailedNodes != failed {
			t.Errorf("%s: %+v", what, s.Status)
		}
		if diff := cmp.Diff(want, told(f.recorder)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", what, diff)
		}
		version := s.ResourceVersion
		if again := f.reconcile(t, "s"); again.ResourceVersion != version {
			t.Errorf("%s: the same status was written again", what)
		}
		if got := told(f.recorder); got != nil {
			t.Errorf("%s: told again: %q", what, got)
		}
	}
	expect("all in order", "True AllNodesReady", "False NoNodeFailed", 2, 0, "Normal NodeReady", "Normal NodeReady")
	f.report(t, "b", noDriver)
	expect("one without a driver", "False DriverNotLoaded", "True DriverNotLoaded", 1, 1, "Warning DriverNotLoaded", "Warning DriverNotLoaded")
	f.restart()
	expect("another controller", "False DriverNotLoaded", "True DriverNotLoaded", 1, 1)
	f.report(t, "b", mended)
	expect("mended", "True AllNodesReady", "False NoNodeFailed", 2, 0, "Normal AllNodesReady", "Normal NoNodeFailed", "Normal NodeReady")
	f.report(t, "a", func(s *v1alpha1.AcceleratorNodeStatus) { s.Facts.BootID = "boot-0" })
	expect("one reports of another boot", "False OtherBoot", "False NoNodeFailed", 1, 0, "Normal OtherBoot")
}

// TestFailedWhileAway: what failed while no controller ran is told by the next.
func TestFailedWhileAway(t *testing.T) {
	f := newFixture(t).verified(t)
	f.reconcile(t, "s")
	told(f.recorder)
	f.report(t, "b", noDriver)
	f.restart()
	f.reconcile(t, "s")
	if got := told(f.recorder); !slices.Equal(got, []string{"Warning DriverNotLoaded", "Warning DriverNotLoaded"}) {
		t.Errorf("told %q", got)
	}
}

// TestGone: a stack that is gone leaves no metric, and the nodes to the next.
func TestGone(t *testing.T) {
	f := newFixture(t).verified(t)
	younger := stackOf("younger", "x")
	younger.CreationTimestamp = metav1.NewTime(time.Now())
	if err := f.api.Create(t.Context(), younger); err != nil {
		t.Fatal(err)
	}
	f.reconcile(t, "s")
	if s := f.reconcile(t, "younger"); s.Status.OverruledNodes != 2 || s.Status.Nodes != 0 {
		t.Errorf("the younger one has %+v", s.Status)
	}
	if err := f.api.Delete(t.Context(), stackOf("s", "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.row.Queues[0].Reconciler.Reconcile(t.Context(), request("s")); err != nil {
		t.Errorf("a stack that is gone: %v", err)
	}
	if s := f.reconcile(t, "younger"); s.Status.OverruledNodes != 0 || s.Status.ReadyNodes != 2 {
		t.Errorf("the younger one has %+v", s.Status)
	}
}

// later is a queue that notes what comes at once and what after a while.
type later struct {
	reconciler.RequestQueue
	names []string
}

func (l *later) AddAfter(r reconcile.Request, _ time.Duration) { l.names = append(l.names, r.Name) }

func (l *later) Add(r reconcile.Request) { l.names = append(l.names, "now "+r.Name) }

// TestQueued: changes that states are judged by queue the stacks, and what changes with each claim does not.
func TestQueued(t *testing.T) {
	all := watches(cluster(t, stackOf("s", "x"), stackOf("r", "x")))
	const stacks, reports, nodes, pods = 0, 1, 2, 3
	changedReport := func(change func(*v1alpha1.AcceleratorNodeStatus)) client.Object {
		a, _ := machine("a", "x")[2].(*v1alpha1.AcceleratorNode)
		change(&a.Status)
		return a
	}
	rebooted, _ := machine("a", "x")[0].(*corev1.Node)
	rebooted.Status.NodeInfo.BootID = "boot-2"
	unready, _ := machine("a", "x")[1].(*corev1.Pod)
	unready.Status.Conditions = nil
	both := []string{"r", "s"}
	for _, test := range []struct {
		name        string
		watch       int
		before, now client.Object
		want        []string
	}{
		{"a stack comes", stacks, nil, stackOf("s", "x"), []string{"now s", "r", "s"}},
		{"a stack goes", stacks, stackOf("s", "x"), nil, []string{"now s", "r", "s"}},
		{"a claim is prepared", reports, machine("a", "x")[2], changedReport(func(s *v1alpha1.AcceleratorNodeStatus) {
			s.PreparedClaims, s.Pools[0].Used = 1, 1
		}), nil},
		{"a driver is missing", reports, machine("a", "x")[2], changedReport(noDriver), both},
		{"a node reports", reports, nil, machine("a", "x")[2], both},
		{"a node starts again", nodes, machine("a", "x")[0], rebooted, both},
		{"a node's heartbeat", nodes, machine("a", "x")[0], machine("a", "x")[0], nil},
		{"other labels", nodes, machine("a", "x")[0], machine("a", "y")[0], both},
		{"the plugin is not ready", pods, machine("a", "x")[1], unready, both},
		{"the plugin's pod goes", pods, machine("a", "x")[1], nil, both},
	} {
		var q later
		w := all[test.watch]
		switch {
		case test.before == nil:
			w.Handler.Create(t.Context(), event.CreateEvent{Object: test.now}, &q)
		case test.now == nil:
			w.Handler.Delete(t.Context(), event.DeleteEvent{Object: test.before}, &q)
		default:
			change := event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.now}
			if w.Predicates[0].Update(change) {
				w.Handler.Update(t.Context(), change, &q)
			}
		}
		if slices.Sort(q.names); !slices.Equal(q.names, slices.Sorted(slices.Values(test.want))) {
			t.Errorf("%s: queued %q, want %q", test.name, q.names, test.want)
		}
	}
}

// TestMetrics: the counts and the check that is due follow the stack and are gone with it.
func TestMetrics(t *testing.T) {
	f := newFixture(t).verified(t)
	f.checks = Checks{Namespace: "fettle-selftest", Image: pluginImage}
	f.restart()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.row.Metrics...)
	values := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, family := range families {
			for _, m := range family.Metric {
				name := strings.TrimPrefix(family.GetName(), "fettle_controller_stack_")
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				out[name] = m.GetGauge().GetValue()
			}
		}
		return out
	}
	s := f.reconcile(t, "s")
	got := values()
	due := time.Unix(int64(got["check_due_timestamp_seconds s"]), 0)
	if due.Before(time.Now()) || due.After(time.Now().Add(stack.DefaultCheckInterval)) || got["nodes s ClaimChecked passed"] != 2 {
		t.Errorf("due %s, metrics %v", due, got)
	}
	f.report(t, "b", noDriver)
	f.reconcile(t, "s")
	if got := values(); got["nodes s DriverChecked failed"] != 1 || got["nodes s DriverChecked passed"] != 1 {
		t.Errorf("metrics %v after one node failed", got)
	}
	if err := f.api.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKey{Name: "s"}
	if _, err := f.row.Queues[0].Reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if got := values(); len(got) > 0 {
		t.Errorf("metrics %v of a stack that is gone", got)
	}
}
