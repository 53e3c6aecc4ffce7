// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/evict"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// mortal is a client of a process that is killed right after a write. refuse begins the names of pods that a budget keeps.
// conflicts has each patch of an AcceleratorNode meet another's.
type mortal struct {
	left, writes int
	refuse       string
	conflicts    bool
}

var errKilled = errors.New("the process was killed")

func (m *mortal) dead() bool { return m.left > 0 && m.writes >= m.left }

func (m *mortal) after(write func() error) error {
	if m.dead() {
		return errKilled
	}
	if err := write(); err != nil {
		return err
	}
	if m.writes++; m.dead() {
		return errKilled
	}
	return nil
}

func (m *mortal) client(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return m.after(func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return m.after(func() error { return c.Delete(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if _, node := o.(*v1alpha1.AcceleratorNode); node && m.conflicts {
				return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("acceleratornodes").GroupResource(), o.GetName(), errors.New("changed"))
			}
			return m.after(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return m.after(func() error { return c.Apply(ctx, o, opts...) })
		},
		SubResourceCreate: func(
			ctx context.Context, c client.Client, name string, o, sub client.Object, opts ...client.SubResourceCreateOption,
		) error {
			if m.refuse != "" && strings.HasPrefix(o.GetName(), m.refuse) {
				return apierrors.NewTooManyRequests("the disruption budget web needs 1 healthy pod", 0)
			}
			return m.after(func() error { return c.SubResource(name).Create(ctx, o, sub, opts...) })
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
		) error {
			return m.after(func() error { return c.SubResource(name).Patch(ctx, o, p, opts...) })
		},
		SubResourceApply: func(
			ctx context.Context, c client.Client, name string, o runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
		) error {
			return m.after(func() error { return c.SubResource(name).Apply(ctx, o, opts...) })
		},
	})
}

// upgrading is a stack whose nodes run the driver 1 and are to run 2, each with a pod that holds a device.
func (f *fixture) upgrading(t *testing.T) *fixture {
	t.Helper()
	f.inUse(t)
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Driver.DaemonSet.Version = "2"
	check.Must(t, f.api.Update(t.Context(), &s))
	return f
}

// otherKernel is a stack of whose nodes one has come back with another kernel: the pod of the driver for the old one is still there.
func (f *fixture) otherKernel(t *testing.T) *fixture {
	t.Helper()
	f.inUse(t)
	f.kernel(t, "b", "6.1.0-2")
	return f
}

// inUse is a stack whose nodes run the driver 1, each with a pod that holds a device.
func (f *fixture) inUse(t *testing.T) {
	t.Helper()
	f.driving(t)
	f.checks = Checks{Namespace: "fettle-selftest", Image: pluginImage}
	for _, node := range []string{"a", "b"} {
		f.runs(t, node, "6.1.0-1", running())
		f.report(t, node, func(s *v1alpha1.AcceleratorNodeStatus) { s.Checks[0].Time.Time = time.Now().Add(-time.Hour) })
		pod := podOn(node, "default", "user-"+node)
		pod.UID = types.UID("uid-" + node)
		f.write(t, pod)
		claim := objects.Claim("default", pod.Name, objects.Request("r", "gpu.fettle.dev"))
		claim.Status.Allocation = objects.Allocation(objects.Result("r", v1alpha1.DriverName, node+"/gpu", "gpu-0"))
		claim.Status.ReservedFor = objects.ReservedFor(pod.Name, pod.UID)
		f.write(t, claim)
	}
}

// podOn is a pod on a node, with one container.
func podOn(node, namespace, name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.NodeName, p.Spec.Containers = node, []corev1.Container{{Name: "c", Image: "registry.example/c:1"}}
	return p
}

// write creates an object with its status. A real API server takes that from another call than the rest.
func (f *fixture) write(t *testing.T, o client.Object) {
	t.Helper()
	with, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		t.Fatalf("%T is no object after it was copied", o)
	}
	check.Must(t, f.api.Create(t.Context(), o))
	if _, controllers := o.(*v1alpha1.AcceleratorStack); f.own == nil || controllers {
		return // the status of a stack is the controller's, which makes it
	}
	with.SetResourceVersion(o.GetResourceVersion())
	with.SetUID(o.GetUID())
	check.Must(t, f.api.Status().Update(t.Context(), with))
}

// ended lets pods go that are being deleted, as kubelets do once their containers have ended.
func (f *fixture) ended(t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	check.Must(t, f.api.List(t.Context(), &pods))
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp != nil {
			check.Must(t, client.IgnoreNotFound(f.api.Delete(t.Context(), p, client.GracePeriodSeconds(0))))
		}
	}
}

// others does what the rest of a cluster does between two rounds: the controllers of DaemonSets and claims, kubelets, and plugins.
func (f *fixture) others(t *testing.T) {
	t.Helper()
	f.ended(t)
	var claims resourceapi.ResourceClaimList
	check.Must(t, f.api.List(t.Context(), &claims))
	for i := range claims.Items {
		c := &claims.Items[i]
		if apierrors.IsNotFound(f.api.Get(t.Context(), client.ObjectKeyFromObject(c), &corev1.Pod{})) {
			check.Must(t, f.api.Delete(t.Context(), c))
		}
	}
	var sets appsv1.DaemonSetList
	check.Must(t, f.api.List(t.Context(), &sets))
	for i := range sets.Items {
		d := &sets.Items[i]
		for _, term := range d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			node := term.MatchFields[0].Values[0]
			p := podOn(node, drivers, "driver-"+node)
			p.Labels, p.Annotations = d.Spec.Template.Labels, d.Spec.Template.Annotations
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: driverContainer, State: running()}}
			if apierrors.IsNotFound(f.api.Get(t.Context(), client.ObjectKeyFromObject(p), &corev1.Pod{})) {
				f.write(t, p)
			}
		}
	}
	var checks corev1.PodList
	check.Must(t, f.api.List(t.Context(), &checks, client.InNamespace("fettle-selftest")))
	for i := range checks.Items {
		checks.Items[i].Status.Phase = corev1.PodSucceeded
		check.Must(t, f.api.Status().Update(t.Context(), &checks.Items[i]))
	}
	for _, name := range []string{"a", "b"} {
		var a v1alpha1.AcceleratorNode
		check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: name}, &a))
		meta.RemoveStatusCondition(&a.Status.Conditions, v1alpha1.ConditionQuiesced)
		a.Status.Pools[0].Devices, a.Status.Pools[0].Withheld = 8, 0
		if a.Annotations[v1alpha1.QuiesceAnnotation] != "" {
			a.Status.Pools[0].Devices, a.Status.Pools[0].Withheld = 0, 8
			a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionQuiesced, Status: metav1.ConditionTrue, Reason: "Quiesced", LastTransitionTime: metav1.Now(),
			})
		}
		check.Must(t, f.api.Status().Update(t.Context(), &a))
	}
}

// state is what is left on each node: its annotations, the image of its driver, and whether its user's pod is there.
func (f *fixture) state(t *testing.T) string {
	t.Helper()
	var out []string
	for _, name := range []string{"a", "b"} {
		var a v1alpha1.AcceleratorNode
		check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: name}, &a))
		var p corev1.Pod
		_ = f.api.Get(t.Context(), client.ObjectKey{Namespace: drivers, Name: "driver-" + name}, &p)
		_, tag, _ := strings.Cut(p.Annotations[stack.DriverImageAnnotation], ":")
		user := f.api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "user-" + name}, &corev1.Pod{}) == nil
		var notes []string
		for key := range a.Annotations {
			notes = append(notes, strings.TrimPrefix(key, "fettle.dev/"))
		}
		slices.Sort(notes)
		out = append(out, fmt.Sprintf("%s %v %s user %t", name, notes, tag, user))
	}
	return strings.Join(out, "; ")
}

// goOn runs rounds until a state is reached. A process that was killed is followed by another.
func (f *fixture) goOn(t *testing.T, m *mortal, want string) {
	t.Helper()
	const rounds = 40
	ctx := klog.NewContext(t.Context(), klog.Logger{}) // which says nothing
	f.startWith(m)
	for range rounds {
		_, err := f.row.Queues[0].Reconciler.Reconcile(ctx, request("s"))
		switch {
		case err == nil && f.state(t) == want:
			return
		case errors.Is(err, errKilled) || m.dead():
			*m = mortal{refuse: m.refuse, writes: m.writes}
			f.startWith(m)
		case err != nil:
			t.Fatal(err)
		}
		f.others(t)
	}
	t.Fatalf("got %s\nwant %s", f.state(t), want)
}

// TestUpgradeStuck: a node whose pod a budget keeps goes on waiting, and the others are changed.
func TestUpgradeStuck(t *testing.T) {
	f := newFixture(t).upgrading(t)
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Upgrade = &v1alpha1.StackUpgrade{DrainTimeout: &metav1.Duration{Duration: time.Minute}}
	check.Must(t, f.api.Update(t.Context(), &s))
	var a v1alpha1.AcceleratorNode
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
	a.Annotations = map[string]string{v1alpha1.UpgradeAnnotation: "s " + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}
	check.Must(t, f.api.Update(t.Context(), &a))
	f.goOn(t, &mortal{refuse: "user-a"}, "a [upgrade] 1-6.1.0-1 user true; b [] 2-6.1.0-1 user false")
	now := f.reconcileAs(t, &mortal{refuse: "user-a"})
	if now.Status.UpgradingNodes != 1 || len(now.Status.Waiting) != 1 || now.Status.Waiting[0].Reason != "UpgradeDrainBlocked" ||
		!strings.Contains(now.Status.Waiting[0].Message, "disruption budget web") {
		t.Errorf("status %+v", now.Status)
	}
	if err := f.api.Delete(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if _, err := f.row.Queues[0].Reconciler.Reconcile(t.Context(), request("s")); err != nil {
		t.Fatal(err)
	}
	if got := f.state(t); !strings.Contains(got, "a [] 1-6.1.0-1") {
		t.Errorf("after the stack is gone: %s", got)
	}
}

// TestStuckNamesPods: a node that is stuck names the pods on it that may hold the driver without a claim. Others have no pods read for it.
func TestStuckNamesPods(t *testing.T) {
	pod := func(namespace, name, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
		p.Spec.NodeName, p.Spec.RuntimeClassName = node, new("nvidia")
		return p
	}
	plain := pod("team", "plain", "a")
	plain.Spec.RuntimeClassName = nil
	ended := pod("team", "ended", "a")
	ended.Status.Phase = corev1.PodSucceeded
	reads, refused := 0, error(nil)
	api := fake.NewClientBuilder().
		WithObjects(
			pod("team", "dcgm", "a"), pod("team", "elsewhere", "b"), pod("fettle-drivers", "driver", "a"), plain, ended, pod("team", "web", "a"),
		).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
			p, _ := o.(*corev1.Pod)
			return []string{p.Spec.NodeName}
		}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				reads++
				if refused != nil {
					return refused
				}
				return c.List(ctx, list, opts...)
			},
		}).Build()
	u := &upgrader{Services: reconciler.Services{Live: api}, own: []string{"fettle-system", "fettle-drivers"}}
	node := stack.UpgradeNode{Node: &stack.Node{Name: "a"}, Holders: []stack.Holder{{Namespace: "team", Name: "web", UID: "web"}}}
	const named = "waits; pods that may hold the driver without a claim: team/dcgm (runtimeClassName nvidia)"
	for _, tc := range []struct {
		step  stack.Step
		reads int
		want  string
	}{
		{stack.Step{Phase: stack.PhaseQuiescing}, 0, "waits"},
		{stack.Step{Phase: stack.PhaseDraining, Stuck: true}, 0, "waits"},
		{stack.Step{Phase: stack.PhaseQuiescing, Stuck: true}, 1, named},
		{stack.Step{Phase: stack.PhaseChanging, Failed: true}, 1, named},
	} {
		reads, tc.step.Message = 0, "waits"
		u.nameOthers(t.Context(), &tc.step, &node)
		if tc.step.Message != tc.want || reads != tc.reads {
			t.Errorf("%s: %d reads, %q, want %q", tc.step.Phase, reads, tc.step.Message, tc.want)
		}
	}
	refused = errors.New("not allowed")
	step := stack.Step{Phase: stack.PhaseChanging, Failed: true, Message: "waits"}
	if u.nameOthers(t.Context(), &step, &node); !strings.Contains(step.Message, "is not known: ") {
		t.Errorf("without the right to list pods: %q", step.Message)
	}
}

// TestLargePodsOfAStuckNode: a tenant keeps a node's driver from being changed, and has many large pods there. The controller keeps none of
// them while it reads the others.
func TestLargePodsOfAStuckNode(t *testing.T) {
	const pages, text = 4, 300_000
	before, most, page := int64(0), int64(0), 0
	live := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			pods, _ := list.(*corev1.PodList)
			if page++; page == 1 {
				before = check.Heap()
			}
			most = max(most, check.Heap()-before)
			for i := range reconciler.TenantPage {
				p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: fmt.Sprintf("p-%d", (pages+1-page)*reconciler.TenantPage-1-i)}}
				p.Spec.NodeName = "a"
				p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
					Path: "/dev/nvidia" + strings.Repeat("0", text),
				}}}}
				pods.Items = append(pods.Items, p)
			}
			if page < pages {
				pods.Continue = "next"
			}
			return nil
		},
	})
	u := &upgrader{Services: reconciler.Services{Live: live}}
	step := stack.Step{Phase: stack.PhaseChanging, Failed: true}
	u.nameOthers(t.Context(), &step, &stack.UpgradeNode{Node: &stack.Node{Name: "a"}})
	m := step.Message
	if !strings.Contains(m, "b/p-0 (hostPath /dev/nvidia00") || !strings.Contains(m, "and 97 more") || len(m) > 4096 {
		t.Errorf("%d bytes: %.300q", len(m), m)
	}
	if most > text*reconciler.TenantPage {
		t.Errorf("%d bytes are kept while pods are read, want no more than a page", most)
	}
}

// TestDriversOffMeanwhile: where the controller may not run drivers any more, a node whose driver was being changed is let go of: its
// plugin serves again, and no taint stays.
func TestDriversOffMeanwhile(t *testing.T) {
	for _, before := range []string{
		"a [upgrade] 1-6.1.0-1 user true; b [] 1-6.1.0-1 user true", "a [quiesce upgrade] 1-6.1.0-1 user false; b [] 1-6.1.0-1 user true",
	} {
		f := newFixture(t).upgrading(t)
		f.goOn(t, &mortal{}, before)
		f.drivers = ""
		f.reconcileAs(t, &mortal{})
		if got := f.state(t); !strings.HasPrefix(got, "a []") || !strings.Contains(got, "b []") {
			t.Errorf("after %s it is %s", before, got)
		}
	}
}

// TestUpgradeOfManyPods: pods that a budget keeps, however many, keep no others on the node from being asked to go in time.
func TestUpgradeOfManyPods(t *testing.T) {
	f := newFixture(t).upgrading(t)
	last := client.ObjectKey{Namespace: "default", Name: "without-a-budget"}
	names := []string{last.Name}
	for i := range 3 * maxEvictions {
		names = append(names, fmt.Sprint("user-a-", i))
	}
	for _, name := range names {
		pod := podOn("a", last.Namespace, name)
		pod.UID = types.UID("uid-" + name)
		f.write(t, pod)
		claim := objects.Claim(last.Namespace, name, objects.Request("r", "gpu.fettle.dev"))
		claim.Status.Allocation = objects.Allocation(objects.Result("r", v1alpha1.DriverName, "a/gpu", "gpu-0"))
		claim.Status.ReservedFor = objects.ReservedFor(pod.Name, pod.UID)
		f.write(t, claim)
	}
	f.startWith(&mortal{refuse: "user-a"})
	const rounds = 8
	for range rounds {
		f.reconcile(t, "s")
		f.others(t)
	}
	if err := f.api.Get(t.Context(), last, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod without a budget was not evicted: %v", err)
	}
	f.reconcile(t, "s")
	if err := f.api.Get(t.Context(), client.ObjectKey{Namespace: last.Namespace, Name: "user-a-0"}, &corev1.Pod{}); err != nil {
		t.Errorf("a pod with one: %v", err)
	}
}

// TestUpgradeOfPodsThatHang: while evictions get no answer, as with a webhook for them that hangs, a round waits for one of each node, and
// not for all one after the other, which would keep other nodes and stacks waiting for minutes. All are asked in turn.
func TestUpgradeOfPodsThatHang(t *testing.T) {
	for _, pods := range []int{3, maxEvictions + 1} {
		synctest.Test(t, func(t *testing.T) {
			asked := map[string]int{}
			hangs := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{SubResourceCreate: func(
				ctx context.Context, _ client.Client, _ string, o, _ client.Object, _ ...client.SubResourceCreateOption,
			) error {
				asked[o.GetName()]++
				<-ctx.Done()
				return fmt.Errorf("post: %w", ctx.Err())
			}})
			u := &upgrader{Services: reconciler.Services{Client: hangs}, turns: turns{}}
			step := &stack.Step{Node: "a"}
			for i := range pods {
				step.Evict = append(step.Evict, stack.Holder{Namespace: "default", Name: fmt.Sprint("p", i)})
			}
			began := time.Now()
			for round := range 2 * pods {
				refused := u.evict(t.Context(), stackOf("s", "x"), step)
				if took := time.Since(began); took != time.Duration(round+1)*evict.Timeout || !strings.Contains(refused, "default/p") {
					t.Fatalf("round %d ends after %s: %q", round, took, refused)
				}
			}
			for i := range pods {
				if name := fmt.Sprint("p", i); asked[name] != 2 {
					t.Errorf("pod %s was asked %d times", name, asked[name])
				}
			}
		})
	}
}

// TestUpgradePercentage: a percentage is of the nodes that count for the stack. Those without a device do not, however many there are.
func TestUpgradePercentage(t *testing.T) {
	f := newFixture(t).upgrading(t)
	for i := range 8 {
		name := fmt.Sprint("empty-", i)
		for _, o := range machine(name, "x") {
			f.write(t, o)
		}
		f.report(t, name, func(a *v1alpha1.AcceleratorNodeStatus) { a.Pools = nil })
	}
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Upgrade = &v1alpha1.StackUpgrade{MaxUnavailable: new(intstr.FromString("50%"))}
	check.Must(t, f.api.Update(t.Context(), &s))
	if now := f.reconcileAs(t, &mortal{}).Status; now.Nodes != 2 || now.EmptyNodes != 8 || now.UpgradingNodes != 1 {
		t.Errorf("%d nodes and %d empty ones: the driver of %d is changed at once", now.Nodes, now.EmptyNodes, now.UpgradingNodes)
	}
}

// TestUpgradeConflict: a stack is not available while a node has the note of a change, which somebody's write kept from going.
func TestUpgradeConflict(t *testing.T) {
	f := driving(t)
	for _, node := range []string{"a", "b"} {
		f.runs(t, node, "6.1.0-1", running())
	}
	if got := f.reconcile(t, "s"); !meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionAvailable) {
		t.Fatalf("before: %+v", got.Status.Waiting)
	}
	var a v1alpha1.AcceleratorNode
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
	a.Annotations = map[string]string{v1alpha1.UpgradeAnnotation: "s " + time.Unix(1700000000, 0).UTC().Format(time.RFC3339)}
	check.Must(t, f.api.Update(t.Context(), &a))
	got := f.reconcileAs(t, &mortal{conflicts: true})
	if meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionAvailable) || len(got.Status.Waiting) != 1 ||
		got.Status.Waiting[0].Reason != stack.ReasonUpgradeChecking {
		t.Errorf("with the note: %+v %+v", got.Status.Conditions, got.Status.Waiting)
	}
	if got = f.reconcileAs(t, &mortal{}); !meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionAvailable) {
		t.Errorf("after: %+v", got.Status.Waiting)
	}
}

func (f *fixture) reconcileAs(t *testing.T, m *mortal) *v1alpha1.AcceleratorStack {
	t.Helper()
	f.startWith(m)
	return f.reconcile(t, "s")
}
