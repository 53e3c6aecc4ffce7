// SPDX-License-Identifier: Apache-2.0

package stackstates

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/placement"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

const (
	namespace = "fettle-drivers"
	exporter  = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec: {containers: [{name: exporter, image: 'registry.example/exporter:${KERNEL}'}]}
`
	settings = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n"
	job      = `
apiVersion: batch/v1
kind: Job
metadata: {name: build}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: build, image: 'registry.example/build:${KERNEL}'}]}}}
`
)

// fixture is a stack with two nodes of one kernel and one of another.
type fixture struct {
	api    client.WithWatch
	keeper *Keeper
	stack  *v1alpha1.AcceleratorStack
	nodes  []stack.Node
	writes int
	fail   error
}

func newFixture(t *testing.T, states ...v1alpha1.ExtraState) *fixture {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{stack: &v1alpha1.AcceleratorStack{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "uid-s"}}}
	f.stack.Spec.Driver.Engine, f.stack.Spec.States = v1alpha1.EngineHost, states
	f.api = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if f.fail != nil {
				return f.fail
			}
			f.writes++
			return c.Apply(ctx, o, opts...)
		},
	}).Build()
	for name, kernel := range map[string]string{"a": "6.1.0-1", "b": "6.1.0-1", "c": "6.1.0+"} {
		f.nodes = append(f.nodes, node(name, kernel))
	}
	slices.SortFunc(f.nodes, func(a, b stack.Node) int { return strings.Compare(a.Name, b.Name) })
	f.restart()
	return f
}

// node is one that has passed all states up to Published.
func node(name, kernel string) stack.Node {
	a := &v1alpha1.AcceleratorNodeStatus{
		Facts: &v1alpha1.NodeFacts{BootID: "boot", BootTime: new(metav1.NewTime(time.Unix(1700000000, 0)))},
		Pools: []v1alpha1.PoolStatus{{Name: name + "/gpu", Kind: "gpu", Devices: 1}},
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished, v1alpha1.ConditionHealthy} {
		a.Conditions = append(a.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
	}
	return stack.Node{
		Name: name, BootID: "boot", KernelVersion: kernel, Architecture: "amd64", OSImage: "Ubuntu 24.04.1 LTS", Accelerator: a,
		Delivered: stack.Host(),
	}
}

// restart has another process go on.
func (f *fixture) restart() {
	f.keeper = New(reconciler.Services{Client: f.api, Live: f.api}, namespace)
}

func (f *fixture) files(t *testing.T, name, text string) {
	t.Helper()
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	check.Must(t, client.IgnoreNotFound(f.api.Delete(t.Context(), c.DeepCopy())))
	c.Data = map[string]string{"a.yaml": text}
	c.UID = "" // another version of it
	check.Must(t, f.api.Create(t.Context(), c))
	f.restart() // the fake API server counts versions from one
}

// want has the keeper do a round and compares what is known of the nodes, by state: "a=Passed b=StatePending".
func (f *fixture) want(t *testing.T, step string, want ...string) {
	t.Helper()
	result, err := f.keeper.Keep(t.Context(), f.stack, f.nodes)
	if err = errors.Join(err, result.Fault); err != nil {
		t.Fatalf("%s: %v", step, err)
	}
	var got []string
	for at := range f.stack.Spec.States {
		var of []string
		for _, name := range slices.Sorted(maps.Keys(result.Extras)) {
			of = append(of, name+"="+result.Extras[name][at].Verdict.Reason)
		}
		got = append(got, strings.Join(of, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", step, got, want)
		for name, extras := range result.Extras {
			t.Logf("%s: %+v", name, extras)
		}
	}
}

// sets returns the nodes of the DaemonSets by the images of these.
func (f *fixture) sets(t *testing.T) string {
	t.Helper()
	var list appsv1.DaemonSetList
	check.Must(t, f.api.List(t.Context(), &list, client.InNamespace(namespace)))
	var out []string
	for i := range list.Items {
		spec := &list.Items[i].Spec.Template.Spec
		out = append(out, spec.Containers[0].Image+" "+strings.Join(placement.Of(spec.Affinity), ""))
	}
	slices.Sort(out)
	return strings.ReplaceAll(strings.Join(out, ", "), "registry.example/", "")
}

// runs gives a node the pod of the DaemonSet that is for it, as that is at present.
func (f *fixture) runs(t *testing.T, node string, state corev1.ContainerState) {
	t.Helper()
	var list appsv1.DaemonSetList
	check.Must(t, f.api.List(t.Context(), &list, client.InNamespace(namespace)))
	for i := range list.Items {
		d := &list.Items[i]
		if !slices.Contains(placement.Of(d.Spec.Template.Spec.Affinity), node) {
			continue
		}
		p := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy()}
		p.Namespace, p.Name, p.Spec.NodeName = namespace, d.Name+"-"+node, node
		_ = f.api.Delete(t.Context(), p.DeepCopy())
		ready := corev1.ConditionFalse
		if state.Running != nil {
			ready = corev1.ConditionTrue
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "exporter", State: state}}
		check.Must(t, f.api.Create(t.Context(), p))
		return
	}
	t.Fatalf("no DaemonSet is for node %s", node)
}

func running(after time.Duration) corev1.ContainerState {
	at := metav1.NewTime(time.Unix(1700000000, 0).Add(after))
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}
}

func extraState(name string, after v1alpha1.StackState, from string) v1alpha1.ExtraState {
	return v1alpha1.ExtraState{
		Name: v1alpha1.StackState(name), After: after, Manifests: v1alpha1.StateManifests{ConfigMap: from},
		Check: v1alpha1.StateCheck{Pods: &metav1.LabelSelector{}},
	}
}

// TestKeep: objects are made for the nodes that have come so far, one for each platform; a node that fails holds back itself; nothing is
// taken down because of an earlier state, by another process neither; and what is not wanted any more goes.
func TestKeep(t *testing.T) {
	f := newFixture(t, extraState("Exporter", v1alpha1.StatePublished, "exporter"))
	f.want(t, "no ConfigMap", "a=ManifestsMissing b=ManifestsMissing c=ManifestsMissing")
	f.files(t, "exporter", exporter+settings)
	f.nodes[1].Accelerator.Facts.WithoutDriver, f.nodes[2].BootID = 1, "another"
	f.want(t, "one node has come", "a=StatePending b=StatePending c=StatePending")
	if got := f.sets(t); got != "exporter:6.1.0-1 a" {
		t.Errorf("for the node that has come: %s", got)
	}
	f.nodes[1], f.nodes[2] = node("b", "6.1.0-1"), node("c", "6.1.0+")
	f.want(t, "all have", "a=StatePending b=StatePending c=StatePending")
	if got := f.sets(t); got != "exporter:6.1.0-1 ab, exporter:6.1.0_ c" {
		t.Errorf("for all nodes: %s", got)
	}
	f.runs(t, "a", running(time.Minute))
	f.runs(t, "b", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "boom"}})
	f.runs(t, "c", running(-time.Minute))
	f.want(t, "pods", "a=Passed b=StateFailed c=StateOtherBoot")
	writes := f.writes
	f.want(t, "nothing new", "a=Passed b=StateFailed c=StateOtherBoot")
	if f.writes != writes {
		t.Errorf("written %d times more", f.writes-writes)
	}
	f.restart()
	f.nodes[0].Accelerator.Facts.WithoutDriver = 1 // DriverChecked flickers
	f.want(t, "an earlier state is in doubt", "a=Passed b=StateFailed c=StateOtherBoot")
	if got := f.sets(t); got != "exporter:6.1.0-1 ab, exporter:6.1.0_ c" {
		t.Errorf("after another process began: %s", got)
	}
	f.files(t, "exporter", strings.Replace(exporter, "exporter:", "exporter:v2-", 1))
	f.want(t, "other manifests", "a=StateOutdated b=StateFailed c=StateOutdated")
	if got := f.sets(t); got != "exporter:v2-6.1.0-1 ab, exporter:v2-6.1.0_ c" {
		t.Errorf("of other manifests: %s", got)
	}
	var gone corev1.ConfigMap
	if err := f.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "settings"}, &gone); !apierrors.IsNotFound(err) {
		t.Errorf("an object that is not in the manifests any more is there: %v", err)
	}
	f.files(t, "exporter", "kind: Secret")
	f.want(t, "refused", "a=ManifestsRefused b=ManifestsRefused c=ManifestsRefused")
	f.nodes = f.nodes[:2]
	f.files(t, "exporter", exporter)
	f.want(t, "a platform without nodes, and the manifests of before", "a=Passed b=StateFailed")
	if got := f.sets(t); got != "exporter:6.1.0-1 ab" {
		t.Errorf("one platform: %s", got)
	}
	f.stack.Spec.States = nil
	f.want(t, "no states")
	if got := f.sets(t); got != "" {
		t.Errorf("without states: %s", got)
	}
}

// TestPlatformUnknown: while the platform of a node is not known, it keeps the pods of the platform that it had.
func TestPlatformUnknown(t *testing.T) {
	random := seed.New(t)
	f := newFixture(t, extraState("Exporter", v1alpha1.StatePublished, "exporter"))
	f.files(t, "exporter", exporter)
	f.want(t, "all have come", "a=StatePending b=StatePending c=StatePending")
	known := slices.Clone(f.nodes)
	for range 30 {
		at := random.IntN(len(f.nodes))
		if f.nodes[at] = known[at]; random.IntN(2) == 0 {
			f.nodes[at].KernelVersion = ""
		}
		if random.IntN(3) == 0 {
			f.restart()
		}
		if _, err := f.keeper.Keep(t.Context(), f.stack, f.nodes); err != nil {
			t.Fatal(err)
		}
		if got := f.sets(t); got != "exporter:6.1.0-1 ab, exporter:6.1.0_ c" {
			t.Fatalf("with kernels %q, %q and %q: %s", f.nodes[0].KernelVersion, f.nodes[1].KernelVersion, f.nodes[2].KernelVersion, got)
		}
	}
}

// TestOrder: a state begins on a node once it has passed the one before.
func TestOrder(t *testing.T) {
	f := newFixture(t, extraState("First", v1alpha1.StatePublished, "first"), extraState("Second", v1alpha1.StatePublished, "second"))
	f.files(t, "first", exporter)
	f.files(t, "second", strings.ReplaceAll(exporter, "exporter", "second"))
	pending := "a=StatePending b=StatePending c=StatePending"
	f.want(t, "no pod", pending, pending)
	f.runs(t, "a", running(time.Minute))
	f.want(t, "one has passed", "a=Passed b=StatePending c=StatePending", pending)
	if got := f.sets(t); got != "exporter:6.1.0-1 ab, exporter:6.1.0_ c, second:6.1.0-1 a" {
		t.Errorf("the second on %s", got)
	}
}

// TestJob: a Job runs once for each platform, and again if its manifest is another.
func TestJob(t *testing.T) {
	e := extraState("Build", v1alpha1.StateFacts, "build")
	e.Check = v1alpha1.StateCheck{Job: "build"}
	f := newFixture(t, e)
	f.files(t, "build", job)
	f.want(t, "no Job", "a=StateNotMet b=StateNotMet c=StateNotMet")
	ends := func(image string, kind batchv1.JobConditionType) {
		t.Helper()
		var list batchv1.JobList
		check.Must(t, f.api.List(t.Context(), &list))
		for i := range list.Items {
			if o := &list.Items[i]; strings.HasSuffix(o.Spec.Template.Spec.Containers[0].Image, image) {
				o.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue}}
				check.Must(t, f.api.Status().Update(t.Context(), o))
				return
			}
		}
		t.Fatalf("no Job has the image %s", image)
	}
	ends("6.1.0-1", batchv1.JobComplete)
	ends("6.1.0_", batchv1.JobFailed)
	f.want(t, "ended", "a=Passed b=Passed c=StateFailed")
	f.files(t, "build", strings.Replace(job, "build:", "build:v2-", 1))
	f.want(t, "another manifest", "a=StateNotMet b=StateNotMet c=StateNotMet")
	f.want(t, "made again", "a=StateNotMet b=StateNotMet c=StateNotMet")
	ends("v2-6.1.0-1", batchv1.JobComplete)
	f.want(t, "ended again", "a=Passed b=Passed c=StateNotMet")
}

// TestRefused: nothing of others is taken over, what the API server refuses is said at the nodes, and other faults are tried again.
func TestRefused(t *testing.T) {
	f := newFixture(t, extraState("Exporter", "", "exporter"), extraState("Other", v1alpha1.StateFacts, "other"))
	f.keeper = New(reconciler.Services{Client: f.api, Live: f.api}, "")
	off := "a=StatesOff b=StatesOff c=StatesOff"
	f.want(t, "switched off", off, off)
	f.stack.Spec.States = f.stack.Spec.States[1:]
	check.Must(t, f.api.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}, Data: map[string]string{"theirs": "x"},
	}))
	f.files(t, "other", exporter+settings)
	f.want(t, "somebody else's object", "a=StateRefused b=StateRefused c=StateRefused")
	var theirs corev1.ConfigMap
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "settings"}, &theirs))
	if theirs.Data["theirs"] != "x" || len(theirs.Labels) > 0 {
		t.Errorf("an object of somebody else's is %+v", theirs)
	}
	f.files(t, "other", exporter)
	f.want(t, "written", "a=StatePending b=StatePending c=StatePending")
	f.files(t, "other", strings.Replace(exporter, "exporter:", "exporter:v2-", 1))
	f.fail = errors.New("the network is away")
	if result, err := f.keeper.Keep(t.Context(), f.stack, f.nodes); err != nil || !errors.Is(result.Fault, f.fail) || len(result.Extras) != 3 {
		t.Errorf("the network is away: %+v, %v", result, err)
	}
	f.fail = apierrors.NewBadRequest("spec.template: wrong")
	f.want(t, "the API server refuses", "a=StateRefused b=StateRefused c=StateRefused")
	f.fail = nil
	f.want(t, "well again", "a=StatePending b=StatePending c=StatePending")
	for _, name := range []string{"a", "b", "c"} {
		f.runs(t, name, running(time.Minute))
	}
	f.stack.Spec.States = append(f.stack.Spec.States, extraState("Twice", v1alpha1.StateFacts, "other"))
	f.want(t, "one object for two states", "a=Passed b=Passed c=Passed", "a=StateRefused b=StateRefused c=StateRefused")
	other := f.stack.DeepCopy()
	other.Name, other.Spec.States = "t", other.Spec.States[1:]
	f.stack = other
	f.want(t, "one object for two stacks", "a=StateRefused b=StateRefused c=StateRefused")
}

// TestChecks: what a state's check and its stack have to agree with, conditions, and names of systems.
func TestChecks(t *testing.T) {
	const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec: {containers: [{name: server, image: registry.example/server}]}
`
	condition := v1alpha1.StateCheck{Condition: &v1alpha1.StateCondition{
		APIVersion: "apps/v1", Kind: "Deployment", Name: "server", Type: "Available",
	}}
	pods := v1alpha1.StateCheck{Pods: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}}
	for _, tc := range []struct {
		name, text string
		check      v1alpha1.StateCheck
		want       string
	}{
		{"no DaemonSet", settings, pods, "ManifestsRefused"},
		{"no Job of the name", job, v1alpha1.StateCheck{Job: "other"}, "ManifestsRefused"},
		{"no version of a driver", strings.ReplaceAll(exporter, "${KERNEL}", "${DRIVER_VERSION}"), pods, "ManifestsRefused"},
		{"a system without a name", strings.ReplaceAll(exporter, "${KERNEL}", "${OS}"), pods, "OSUnknown"},
		{"no pod is selected", exporter, pods, "StatePending"},
		{"no condition", deployment, condition, "StateNotMet"},
		{"a condition of no object", exporter, condition, "StateNotMet"},
	} {
		e := extraState("Exporter", v1alpha1.StateFacts, "exporter")
		e.Check = tc.check
		f := newFixture(t, e)
		f.nodes[2].OSImage = "Plan 9"
		f.files(t, "exporter", tc.text)
		if tc.want == "OSUnknown" {
			f.want(t, tc.name, "a=StatePending b=StatePending c=OSUnknown")
			continue
		}
		f.want(t, tc.name, fmt.Sprintf("a=%[1]s b=%[1]s c=%[1]s", tc.want))
	}
	e := extraState("Server", v1alpha1.StateFacts, "server")
	e.Check = condition
	f := newFixture(t, e)
	f.files(t, "server", deployment)
	f.want(t, "not available", "a=StateNotMet b=StateNotMet c=StateNotMet")
	var d appsv1.Deployment
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "server"}, &d))
	d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}}
	check.Must(t, f.api.Status().Update(t.Context(), &d))
	f.want(t, "available", "a=Passed b=Passed c=Passed")
	if d.Spec.Template.Spec.Affinity != nil || d.Spec.Selector.MatchLabels[objectLabel] == "" {
		t.Errorf("the Deployment is %+v", d.Spec)
	}
}

// TestConditionWithoutAnswer: an object that the API server cannot show, since the webhook that converts it or the server that has it does
// not answer, leaves its state unknown, and no other: drivers of the stack go on being changed, and its nodes being checked.
func TestConditionWithoutAnswer(t *testing.T) {
	first, second := extraState("Exporter", v1alpha1.StateFacts, "exporter"), extraState("Server", v1alpha1.StateDriver, "server")
	second.Check = v1alpha1.StateCheck{Condition: &v1alpha1.StateCondition{
		APIVersion: "apps/v1", Kind: "Deployment", Name: "server", Type: "Available",
	}}
	f := newFixture(t, first, second)
	f.files(t, "exporter", exporter)
	f.files(t, "server", settings)
	f.want(t, "before", "a=StatePending b=StatePending c=StatePending", "a=StatePending b=StatePending c=StatePending")
	for _, name := range []string{"a", "b", "c"} {
		f.runs(t, name, running(time.Minute))
	}
	f.want(t, "answers", "a=Passed b=Passed c=Passed", "a=StateNotMet b=StateNotMet c=StateNotMet")
	for _, refusal := range []error{
		apierrors.NewInternalError(errors.New("conversion webhook failed: connection refused")), apierrors.NewServiceUnavailable("no endpoints"),
	} {
		f.keeper.live = interceptor.NewClient(f.api, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if o.GetObjectKind().GroupVersionKind().Kind == "Deployment" {
					return refusal
				}
				return c.Get(ctx, key, o, opts...)
			},
		})
		result, err := f.keeper.Keep(t.Context(), f.stack, f.nodes)
		check.Must(t, err)
		if !errors.Is(result.Fault, refusal) {
			t.Errorf("the fault is %v", result.Fault)
		}
		for name, states := range result.Extras {
			if states[0].Verdict.Status != stack.Passed || states[1].Verdict.Status != stack.Unknown ||
				!strings.Contains(states[1].Verdict.Message, refusal.Error()) {
				t.Errorf("node %s: %+v", name, states)
			}
		}
	}
}

// TestOwnNodes: a node has something of a stack if a DaemonSet of it runs there. The pods of Deployments and Jobs run on any node, also on
// those without a device.
func TestOwnNodes(t *testing.T) {
	f := newFixture(t, extraState("Exporter", v1alpha1.StatePublished, "exporter"))
	const anywhere = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: server}\n" +
		"spec: {selector: {matchLabels: {app: s}}, template: {metadata: {labels: {app: s}}, spec: {containers: [{name: s, image: s}]}}}\n"
	f.files(t, "exporter", exporter+anywhere+"---"+strings.ReplaceAll(job, ":${KERNEL}", ""))
	f.want(t, "made", "a=StatePending b=StatePending c=StatePending")
	var deployments appsv1.DeploymentList
	var sets appsv1.DaemonSetList
	var jobs batchv1.JobList
	for _, list := range []client.ObjectList{&deployments, &sets, &jobs} {
		check.Must(t, f.api.List(t.Context(), list, client.InNamespace(namespace)))
	}
	seen := stack.NewObserved()
	for node, template := range map[string]corev1.PodTemplateSpec{
		"a": sets.Items[0].Spec.Template, "plain": deployments.Items[0].Spec.Template, "other": jobs.Items[0].Spec.Template,
	} {
		p := &corev1.Pod{ObjectMeta: template.ObjectMeta}
		p.Spec.NodeName = node
		seen.AddDriver(p)
	}
	if _, has := seen.Has["a"]["s"]; !has || len(seen.Has) != 1 {
		t.Errorf("nodes with something of a stack: %v, want a", seen.Has)
	}
}
