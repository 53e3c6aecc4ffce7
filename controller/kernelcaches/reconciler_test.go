// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
	"github.com/fettle-dev/fettle/test/check"
)

// cacheCase is a reconciler whose registry counts how often it is asked, and says what out and image have.
type cacheCase struct {
	reconciler.Queue

	client client.WithWatch
	clock  *clocktesting.FakeClock
	events *events.FakeRecorder
	out    artifacts.Outcome
	image  *v1alpha1.CacheImage
	plan   volumes.Plan
	fault  error // of the plan
	asked  int
}

func newCacheCase(t *testing.T, objects ...client.Object) *cacheCase {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c := &cacheCase{
		clock: clocktesting.NewFakeClock(time.Now()), events: events.NewFakeRecorder(100),
		out: artifacts.Outcome{Digest: "sha256:top", Judged: "sha256:top"}, image: &v1alpha1.CacheImage{Digest: "sha256:top"},
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(
			&v1alpha1.GPUKernelCache{}, &v1alpha1.ClusterGPUKernelCache{}, &v1alpha1.AcceleratorNode{}, &v1alpha1.TrustPolicy{}).Build(),
	}
	services := reconciler.Services{Client: c.client, Live: c.client, Recorder: c.events, Clock: c.clock, Namespace: "fettle"}
	options := Options{
		Interval: time.Minute, Policies: trustpolicies.NewReader(c.client, nil, nil).All,
		Volumes: volumes.NewPlanner(services, volumes.Options{}),
	}
	resolve := func(_ context.Context, _ *artifacts.Kind, a artifacts.Artifact, policies []*trust.Policy) (*artifacts.Outcome, error) {
		c.asked++
		out := c.out
		out.Policies = a.Head().Applying(policies)
		if o, ok := a.(*cache); ok && out.Digest != "" {
			o.image = c.image
		}
		return &out, nil
	}
	plan := func(context.Context, volumes.Object) (volumes.Plan, error) { return c.plan, c.fault }
	c.Queue = newRow(services, options, resolve, plan).Queues[0]
	return c
}

func (c *cacheCase) reconcile(t *testing.T, object client.Object) time.Duration {
	t.Helper()
	key := client.ObjectKeyFromObject(object)
	result, err := c.Reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.client.Get(t.Context(), key, object); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return result.RequeueAfter
}

// told returns the Events since the last call: "Warning Refused".
func (c *cacheCase) told() (out []string) {
	for {
		select {
		case e := <-c.events.Events:
			out = append(out, strings.Join(strings.Fields(e)[:2], " "))
		default:
			return out
		}
	}
}

func nodeWith(name string) *v1alpha1.AcceleratorNode {
	return &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func kernels(namespace, name, image string) *v1alpha1.GPUKernelCache {
	o := &v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1", Generation: 1}}
	o.Spec.Image = image
	return o
}

func skipping(name, uid string, generation int64, images ...string) *v1alpha1.TrustPolicy {
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Generation: generation}}
	p.Spec.Images, p.Spec.Mode = images, v1alpha1.VerificationSkip
	return p
}

// TestWhenCachesAreAsked: the registry is asked at its time, after a change of the object and after one of its policies, and for nothing
// else.
func TestWhenCachesAreAsked(t *testing.T) {
	object := kernels("a", "kernels", "registry.example/team/kernels:v1")
	policy := skipping("ours", "p1", 1, "registry.example/team/*")
	c := newCacheCase(t, object, policy)
	asked := 0
	expect := func(what string, again bool) time.Duration {
		t.Helper()
		next := c.reconcile(t, object)
		if again {
			asked++
		}
		if c.asked != asked {
			t.Fatalf("%s: asked %d times, want %d", what, c.asked, asked)
		}
		return next
	}
	change := func(o client.Object, generation int64) {
		t.Helper()
		o.SetGeneration(generation)
		if err := c.client.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	next := expect("new", true)
	if next < time.Minute || next > 72*time.Second {
		t.Errorf("the next look is in %v", next)
	}
	expect("nothing changed", false)
	c.clock.Step(next)
	expect("its time", true)
	change(object, 2)
	expect("another spec", true)
	change(policy, 2)
	expect("another generation of its policy", true)
	expect("resolved", false)
	other := skipping("another", "p2", 1, "quay.io/**")
	if err := c.client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	expect("a policy for other images", false)
	other.Spec.Images = []string{"**"}
	change(other, 2)
	expect("which is for all now", true)
	if err := c.client.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	expect("its policy is gone", true)
	if err := c.client.Create(t.Context(), skipping("ours", "p3", 2, "registry.example/team/*")); err != nil {
		t.Fatal(err)
	}
	expect("made again with the same name and generation", true)
	object.Spec.UpdatePolicy = &v1alpha1.CacheUpdatePolicy{Interval: &metav1.Duration{Duration: time.Hour}}
	change(object, 3)
	if next := expect("an interval of its own", true); next < time.Hour || next > 72*time.Minute {
		t.Errorf("the next look is in %v", next)
	}
	if err := c.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	c.reconcile(t, object)
}

// TestPolicyMadeAgain: a policy that was deleted and made again is another one, also for the verdict in a status, and also while the
// registry cannot be asked. What an unchanged policy said stays.
func TestPolicyMadeAgain(t *testing.T) {
	object := kernels("a", "kernels", "registry.example/team/kernels:v1")
	policy := skipping("ours", "p1", 1, "registry.example/team/*")
	c := newCacheCase(t, object, policy)
	c.reconcile(t, object)
	c.out = artifacts.Outcome{Err: fmt.Errorf("the registry is %w", artifact.ErrUnavailable)}
	judged := func(what string, want bool) {
		t.Helper()
		c.clock.Step(2 * time.Minute)
		c.reconcile(t, object)
		if got := object.Status.Verification != nil; got != want || object.Status.ResolvedDigest != "sha256:top" {
			t.Errorf("%s: status %+v, want a verdict: %v", what, object.Status, want)
		}
	}
	judged("while the registry is down", true)
	check.Must(t, c.client.Delete(t.Context(), policy))
	check.Must(t, c.client.Create(t.Context(), skipping("ours", "p2", 1, "registry.example/team/*")))
	judged("its policy was made again", false)
	judged("later", false)
	c.out = artifacts.Outcome{Digest: "sha256:top", Judged: "sha256:top"}
	judged("the registry is back", true)
}

// TestVolumesAreWritten: the status has the volumes as they are, and is written again after a while, since no watch reports their users.
func TestVolumesAreWritten(t *testing.T) {
	object := kernels("a", "kernels", "registry.example/team/kernels@sha256:"+strings.Repeat("1", 64))
	object.Spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume}
	c := newCacheCase(t, object, skipping("ours", "p1", 1, "registry.example/team/*"))
	if next := c.reconcile(t, object); next != 0 {
		t.Errorf("without a volume the next look is in %v", next)
	}
	c.plan.Volumes = []v1alpha1.CacheVolume{{Namespace: "a", ClaimName: "kernels", Phase: v1alpha1.CacheVolumeFilled, Digest: "sha256:top"}}
	next := c.reconcile(t, object)
	if next < volumes.Interval || next > 2*volumes.Interval || object.Status.Phase != v1alpha1.CacheExtracted {
		t.Errorf("with a volume the next look is in %v, status %+v", next, object.Status)
	}
	if diff := gocmp.Diff(c.plan.Volumes, object.Status.Volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	c.plan.Pods = []volumes.User{{Node: "n1", Digest: "sha256:top"}}
	c.reconcile(t, object)
	if object.Status.Phase != v1alpha1.CacheRunning || object.Status.Counts.PodsRunning != 1 || c.asked != 1 {
		t.Errorf("asked %d times, status %+v", c.asked, object.Status)
	}
	c.plan, c.fault = volumes.Plan{}, errors.New("no pods")
	_, err := c.Reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
	check.WantErr(t, err, nil, "no pods")
}

// TestCacheEvents: each change makes one Event, and a condition that is well from the beginning makes none.
func TestCacheEvents(t *testing.T) {
	object := kernels("a", "kernels", "registry.example/kernels:v1")
	node := nodeWith("n1")
	c := newCacheCase(t, object, node, skipping("all", "p", 1, "**"))
	step := func(what string, change func(), want ...string) {
		t.Helper()
		change()
		c.clock.Step(2 * time.Minute)
		c.reconcile(t, object)
		got := c.told()
		slices.Sort(got)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	says := func(phase v1alpha1.NodeCachePhase, fit, unfit int32) func() {
		return func() {
			node.Status.KernelCaches = []v1alpha1.NodeCache{{
				Namespace: "a", Name: "kernels", Digest: "sha256:top", Phase: phase, CompatibleDevices: fit, IncompatibleDevices: unfit,
			}}
			if err := c.client.Status().Update(t.Context(), node); err != nil {
				t.Fatal(err)
			}
		}
	}
	step("new", func() {}, "Normal Resolved", "Normal Skipped")
	step("the same", func() {})
	step("down", func() { c.out = artifacts.Outcome{Err: artifact.ErrUnavailable} }, "Warning RegistryUnavailable")
	step("still down", func() {})
	step("another digest", func() {
		c.out, c.image = artifacts.Outcome{Digest: "sha256:top", Judged: "sha256:top"}, &v1alpha1.CacheImage{}
	}, "Normal Resolved")
	step("fits", says(v1alpha1.NodeCacheExtracted, 1, 0), "Normal Fits")
	step("failed", says(v1alpha1.NodeCacheError, 0, 0), "Warning NodesFailed")
	step("fits nothing", says(v1alpha1.NodeCacheExtracted, 0, 1), "Normal NoFailure", "Warning FitsNoGPU")
	step("refused", func() { c.out.Refusal = trust.ErrRefused }, "Warning Refused")
	step("gone", func() { c.out = artifacts.Outcome{Err: artifact.ErrNotFound} }, "Warning NotFound")
	if object.Status.Phase != v1alpha1.CacheError || len(object.Status.Conditions) != 7 {
		t.Errorf("status %+v", object.Status)
	}
}

// TestCacheKeptByOthers: the status of an object that a foreign finalizer keeps says that it is being deleted, and no registry is asked.
func TestCacheKeptByOthers(t *testing.T) {
	object := kernels("a", "kernels", "registry.example/kernels:v1")
	object.Finalizers = []string{"example.com/backup"}
	c := newCacheCase(t, object)
	if err := c.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if c.reconcile(t, object); object.Status.Phase != v1alpha1.CacheDeleting || c.asked > 0 {
		t.Errorf("phase %s, asked %d times", object.Status.Phase, c.asked)
	}
	object.Finalizers = nil
	if err := c.client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	c.reconcile(t, object)
}

// TestMissingNamespaces: those of a ClusterGPUKernelCache that are not there are named.
func TestMissingNamespaces(t *testing.T) {
	object := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "kernels", UID: "1", Generation: 1}}
	object.Spec.Image, object.Spec.WorkloadNamespaces = "registry.example/kernels:v1", []string{"there", "not"}
	c := newCacheCase(t, object, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "there"}}, skipping("all", "p", 1, "**"))
	c.reconcile(t, object)
	condition := status.Condition(object.Status.Conditions, v1alpha1.ConditionNamespaceMissing)
	if condition.Status != metav1.ConditionTrue || condition.Message != "there is no namespace not" {
		t.Errorf("condition %+v", condition)
	}
	if diff := gocmp.Diff([]string{"Normal Resolved", "Normal Skipped", "Warning NamespacesMissing"}, c.told()); diff != "" {
		t.Error(diff)
	}
}

// later is a queue that notes what comes after a while.
type later struct {
	reconciler.RequestQueue
	keys []string
}

func (l *later) AddAfter(r reconcile.Request, after time.Duration) {
	if after != reconciler.Gathering {
		l.keys = append(l.keys, "too soon")
	}
	l.keys = append(l.keys, r.String())
}

// queued is a queue that notes what comes at once.
type queued struct{ later }

func (q *queued) Add(r reconcile.Request) { q.keys = append(q.keys, r.String()) }

// TestConcernedByPolicies: a policy queues the caches that it is for, was for, or has judged.
func TestConcernedByPolicies(t *testing.T) {
	judgedBy := kernels("a", "judged", "quay.io/x:v1")
	judgedBy.Status.Verification = &v1alpha1.ImageVerdict{Policies: []v1alpha1.PolicyReference{{Name: "p", Generation: 1}}}
	ofCluster := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	ofCluster.Spec.Image = "registry.example/a/x:v1"
	c := newCacheCase(t, judgedBy, ofCluster,
		kernels("a", "first", "registry.example/a/x:v1"), kernels("b", "second", "registry.example/b/x:v1"))
	invalid := skipping("p", "1", 3, "registry.example/b/*")
	invalid.Spec.Namespaces = []string{"b"}
	invalid.Spec.Authorities = []v1alpha1.TrustAuthority{{Name: "release"}}
	enforced := skipping("q", "1", 1, "origin.example/a/*")
	enforced.Spec.Mode = v1alpha1.VerificationEnforce
	for _, test := range []struct {
		name        string
		before, now *v1alpha1.TrustPolicy
		want        []string
	}{
		{"new, of a registry that has these as a mirror", nil, enforced, []string{"/all", "a/first"}},
		{"new", nil, skipping("p", "1", 1, "registry.example/a/*"), []string{"/all", "a/first", "a/judged"}},
		{"new, of another name", nil, skipping("q", "1", 1, "registry.example/*/*"), []string{"/all", "a/first", "b/second"}},
		{
			"changed",
			skipping("q", "1", 1, "registry.example/a/*"), skipping("q", "1", 2, "registry.example/b/*"),
			[]string{"/all", "a/first", "b/second"},
		},
		{"gone", skipping("p", "1", 1, "example.com/**"), nil, []string{"a/judged"}},
		{"invalid", nil, invalid, []string{"a/judged", "b/second"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var q queued
			for _, scope := range []pairs.Scope{pairs.OfNamespaces, pairs.OfCluster} {
				h := (&resolver{
					client: c.client, mirrors: registryname.Mirrors{"origin.example": {"registry.example"}},
				}).onPolicies(scope)
				switch {
				case test.before == nil:
					h.Create(t.Context(), event.CreateEvent{Object: test.now}, &q)
				case test.now == nil:
					h.Delete(t.Context(), event.DeleteEvent{Object: test.before}, &q)
				default:
					h.Update(t.Context(), event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.now}, &q)
				}
			}
			slices.Sort(q.keys)
			if diff := gocmp.Diff(test.want, q.keys); diff != "" {
				t.Errorf("queued (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConcernedByNodes: a node that says something else of a cache has it counted, and one with a GPU that comes has those counted that
// all nodes fetch.
func TestConcernedByNodes(t *testing.T) {
	everywhere := kernels("a", "everywhere", "registry.example/x:v1")
	everywhere.Spec.Distribution = &v1alpha1.CacheDistribution{Prewarm: v1alpha1.CachePrewarmAll}
	c := newCacheCase(t, everywhere, kernels("a", "somewhere", "registry.example/x:v1"))
	node := func(gpu bool, names ...string) *v1alpha1.AcceleratorNode {
		n := nodeWith("n")
		if gpu {
			n.Status.Pools = []v1alpha1.PoolStatus{{Kind: "gpu", Devices: 1}}
		}
		for _, name := range names {
			namespace, name, _ := strings.Cut(name, "/")
			n.Status.KernelCaches = append(n.Status.KernelCaches, v1alpha1.NodeCache{Namespace: namespace, Name: name})
		}
		return n
	}
	short := func(n *v1alpha1.AcceleratorNode) *v1alpha1.AcceleratorNode {
		inShort(&n.Status)
		return n
	}
	for name, test := range map[string]struct {
		before, now *v1alpha1.AcceleratorNode
		want        []string
	}{
		"got one that it tells in short": {short(node(true, "a/x")), short(node(true, "a/x", "a/somewhere")), []string{"a/somewhere"}},
		"got one":                        {node(true, "a/x"), node(true, "a/x", "a/y"), []string{"a/y"}},
		"got one of all":                 {node(true), node(true, "/x"), []string{"/x"}},
		"got a GPU":                      {node(false), node(true), []string{"a/everywhere"}},
		"the same":                       {node(true, "a/x"), node(true, "a/x"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var q queued
			for _, scope := range []pairs.Scope{pairs.OfNamespaces, pairs.OfCluster} {
				(&resolver{client: c.client}).onNodes(scope).Update(t.Context(), event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.now}, &q)
			}
			if diff := gocmp.Diff(test.want, q.keys); diff != "" {
				t.Errorf("queued (-want +got):\n%s", diff)
			}
		})
	}
}
