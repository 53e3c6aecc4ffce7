// SPDX-License-Identifier: Apache-2.0

package binding

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/fpgas"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/kernelcaches"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/status"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// The conditions that pods with regions and with GPUs wait for.
const (
	bitstreamReady  = "fettle.dev/BitstreamReady"
	bitstreamFailed = "fettle.dev/BitstreamFailed"
	cachesReady     = "fettle.dev/KernelCachesReady"
	cachesFailed    = "fettle.dev/KernelCachesFailed"
)

// waiting is a region of this node whose pod is not bound yet.
func waiting(name string) nodefixture.APIResult {
	r := nodefixture.Result("region", device.KindFPGA, name)
	r.BindingConditions = []string{bitstreamReady}
	r.BindingFailureConditions = []string{bitstreamFailed}
	return r
}

// waitingGPU is a GPU of this node whose pod is not bound yet.
func waitingGPU(name string) nodefixture.APIResult {
	r := nodefixture.Result("gpu", device.KindGPU, name)
	r.BindingConditions = []string{cachesReady}
	r.BindingFailureConditions = []string{cachesFailed}
	return r
}

// said adds a condition to the claim's device.
func said(c *resourceapi.ResourceClaim, i int, condition string, status metav1.ConditionStatus) *resourceapi.ResourceClaim {
	r := &c.Status.Allocation.Devices.Results[i]
	c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{
		Driver: r.Driver, Pool: r.Pool, Device: r.Device, Conditions: []metav1.Condition{{Type: condition, Status: status}},
	})
	return c
}

func TestWhoWaits(t *testing.T) {
	elsewhere := waiting("r0")
	elsewhere.Pool = "other-node/fpga"
	another := waiting("r0")
	another.Driver = "other.example"
	going := nodefixture.Allocated("u1", waiting("r0"))
	going.DeletionTimestamp = new(metav1.Now())
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  bool
	}{
		"nothing is said yet":     {nodefixture.Allocated("u1", waiting("r0")), true},
		"not allocated":           {&resourceapi.ResourceClaim{}, false},
		"a device that waits not": {nodefixture.Allocated("u1", nodefixture.Result("region", device.KindFPGA, "r0")), false},
		"on another node":         {nodefixture.Allocated("u1", elsewhere), false},
		"of another driver":       {nodefixture.Allocated("u1", another), false},
		"ready":                   {said(nodefixture.Allocated("u1", waiting("r0")), 0, bitstreamReady, metav1.ConditionTrue), false},
		"failed":                  {said(nodefixture.Allocated("u1", waiting("r0")), 0, bitstreamFailed, metav1.ConditionTrue), false},
		"ready was taken back":    {said(nodefixture.Allocated("u1", waiting("r0")), 0, bitstreamReady, metav1.ConditionFalse), true},
		"something else is said":  {said(nodefixture.Allocated("u1", waiting("r0")), 0, "Prepared", metav1.ConditionTrue), true},
		"one of two": {
			said(nodefixture.Allocated("u1", waiting("r0"), waiting("r1")), 0, bitstreamReady, metav1.ConditionTrue), true,
		},
		"of a claim that is deleted":  {going, false},
		"beside a device that is not": {nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "g0"), waiting("r0")), true},
		"a GPU":                       {nodefixture.Allocated("u1", waitingGPU("g0")), true},
		"a GPU that has its caches":   {said(nodefixture.Allocated("u1", waitingGPU("g0")), 0, cachesReady, metav1.ConditionTrue), false},
		"a GPU of which another kind's condition is said": {
			said(nodefixture.Allocated("u1", waitingGPU("g0")), 0, bitstreamReady, metav1.ConditionTrue), true,
		},
		"beside a region that is ready": {
			said(nodefixture.Allocated("u1", waiting("r0"), waitingGPU("g0")), 0, bitstreamReady, metav1.ConditionTrue), true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := New(Config{Node: nodefixture.Node, Kinds: (&done{}).kinds()})
			if got := waits(b, tt.claim); got != tt.want {
				t.Errorf("waits: %v, want %v", got, tt.want)
			}
		})
	}
}

func waits(b *Binder, c *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(b.Kinds, func(k Kind) bool { return b.waitsFor(c, &k) })
}

// classSays is an allocated claim whose class has a policy.
func classSays(policy string) *resourceapi.ResourceClaim {
	return nodefixture.Configured(nodefixture.Allocated("u1", waiting("r0")), resourceapi.AllocationConfigSourceClass,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{`+policy+`}}`)
}

// namesCaches is an allocated claim that names caches.
func namesCaches(list string) *resourceapi.ResourceClaim {
	return nodefixture.Configured(nodefixture.Allocated("u1", waitingGPU("g0")), resourceapi.AllocationConfigSourceClaim,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","kernelCaches":[`+list+`]}`)
}

// TestSeenTo: what is done before a pod is bound, and what is said of it.
func TestSeenTo(t *testing.T) {
	refused := &claim.RefusedError{Reason: claim.ReasonForbiddenByPolicy}
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		fails error
		asked v1alpha1.BindAfter
		// said is the condition and its reason; none: it is tried again.
		said, reason string
	}{
		"nothing asked": {claim: classSays(""), said: bitstreamReady, reason: "NotAsked"},
		"fetched":       {claim: classSays(`"bindAfter":"Fetched"`), asked: "Fetched", said: bitstreamReady, reason: "Fetched"},
		"loaded":        {claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", said: bitstreamReady, reason: "Loaded"},
		"the most that is asked": {
			claim: nodefixture.Configured(classSays(`"bindAfter":"Loaded"`), resourceapi.AllocationConfigSourceClass,
				`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{"bindAfter":"Fetched"}}`),
			asked: "Loaded", said: bitstreamReady, reason: "Loaded",
		},
		"not now": {claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", fails: errors.New("the registry is away")},
		"never": {
			claim: classSays(`"bindAfter":"Loaded"`), asked: "Loaded", fails: refused, said: bitstreamFailed, reason: "ForbiddenByPolicy",
		},
		"not to be understood": {claim: classSays(`"bindAfter":"Later"`), said: bitstreamReady, reason: "NotAsked"},
		"no cache":             {claim: nodefixture.Allocated("u1", waitingGPU("g0")), said: cachesReady, reason: "NotAsked"},
		"a cache that nobody waits for": {
			claim: namesCaches(`{"name":"add"}`), said: cachesReady, reason: "NotAsked",
		},
		"a cache": {
			claim: namesCaches(`{"name":"other"},{"name":"add","bindAfter":"Fetched"}`), asked: "Fetched", said: cachesReady, reason: "Fetched",
		},
		"a cache that cannot be had": {
			claim: namesCaches(`{"name":"add","bindAfter":"Fetched"}`), asked: "Fetched", fails: refused, said: cachesFailed,
			reason: "ForbiddenByPolicy",
		},
		"a cache that can only be fetched": {
			claim: namesCaches(`{"name":"add","bindAfter":"Loaded"}`), said: cachesReady, reason: "NotAsked",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, client, done := newTestBinder(tt.claim, tt.fails)
			err := b.handle(t.Context(), keyOfClaim(tt.claim))
			if tt.said != "" {
				check.Must(t, err)
			} else if !errors.Is(err, tt.fails) {
				t.Errorf("error %v, want %v", err, tt.fails)
			}
			if done.after != tt.asked {
				t.Errorf("done: %q, want %q", done.after, tt.asked)
			}
			if diff := cmp.Diff(tt.said+" "+tt.reason, verdict(t, client, tt.claim)); diff != "" {
				t.Errorf("said (-want +got):\n%s", diff)
			}
		})
	}
}

// here does something at once.
func here(do func()) { do() }

// TestGivenUp: a node that cannot bring a bitstream for some time gives the pod back to the scheduler.
func TestGivenUp(t *testing.T) {
	c := classSays(`"bindAfter":"Fetched"`)
	b, client, _ := newTestBinder(c, errors.New("the registry is away"))
	for i := range maxBindingTries {
		if got := verdict(t, client, c); got != " " {
			t.Fatalf("after %d tries: %s", i, got)
		}
		b.queue.Add(keyOfClaim(c))
		if !b.next(t.Context(), here) {
			t.Fatal("the queue is down")
		}
	}
	b.queue.Add(keyOfClaim(c))
	b.next(t.Context(), here)
	if got, want := verdict(t, client, c), bitstreamFailed+" PrepareFailed"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestStoppedWhileBusy: a plugin that is stopped says nothing. The next one goes on.
func TestStoppedWhileBusy(t *testing.T) {
	c := classSays(`"bindAfter":"Loaded"`)
	b, client, _ := newTestBinder(c, &claim.RefusedError{})
	ctx, cancel := context.WithCancel(t.Context())
	b.Prepare = func(context.Context, *resourceapi.ResourceClaim) error {
		cancel()
		return &claim.RefusedError{}
	}
	if err := b.handle(ctx, keyOfClaim(c)); err == nil {
		t.Error("no error")
	}
	if got := verdict(t, client, c); got != " " {
		t.Errorf("said %s", got)
	}
}

// TestBeforeTheFirstLook: as long as the machine was not looked at nothing is done, and nothing is said.
func TestBeforeTheFirstLook(t *testing.T) {
	for _, bindAfter := range []string{"Fetched", "Loaded"} {
		c := classSays(`"bindAfter":"` + bindAfter + `"`)
		b, client, done := newTestBinder(c, nil)
		b.Holder = inventory.NewHolder()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- b.handle(ctx, keyOfClaim(c)) }()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || done.after != "" {
			t.Errorf("%s: did %q: %v", bindAfter, done.after, err)
		}
		if got := verdict(t, client, c); got != " " {
			t.Errorf("%s: said %s", bindAfter, got)
		}
	}
}

// TestFailureIsShown: what cannot be fetched is said on the claim for people to read, at every try; but not what is on its way, which is no
// failure and is never given up.
func TestFailureIsShown(t *testing.T) {
	for _, tc := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		fails error
		want  string
	}{
		{"a registry that is away", classSays(`"bindAfter":"Fetched"`), errors.New("the registry is away"), "PrepareFailed"},
		{"a refusal", classSays(`"bindAfter":"Fetched"`), &claim.RefusedError{Reason: claim.ReasonForbiddenByPolicy}, "ForbiddenByPolicy"},
		{"on its way", namesCaches(`{"name":"add","bindAfter":"Fetched"}`), errUnderway, ""},
		{
			"on its way beside one that is refused", namesCaches(`{"name":"add","bindAfter":"Fetched"}`),
			errors.Join(errUnderway, &claim.RefusedError{Reason: claim.ReasonForbiddenByPolicy}), "ForbiddenByPolicy",
		},
		{"what Prepare says itself", classSays(`"bindAfter":"Loaded"`), errors.New("the registry is away"), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, _, done := newTestBinder(tc.claim, tc.fails)
			_ = b.handle(t.Context(), keyOfClaim(tc.claim)) // TestSeenTo has the errors
			if got := strings.Join(done.refused, " "); got != tc.want {
				t.Errorf("the claim shows %q, want %q", got, tc.want)
			}
		})
	}
	c := namesCaches(`{"name":"add","bindAfter":"Fetched"}`)
	b, client, _ := newTestBinder(c, errUnderway)
	for range maxBindingTries + 1 {
		b.queue.AddRateLimited(keyOfClaim(c))
	}
	if err := b.handle(t.Context(), keyOfClaim(c)); !errors.Is(err, errUnderway) {
		t.Errorf("got %v", err)
	}
	if got := verdict(t, client, c); got != " " {
		t.Errorf("given up what is on its way: %s", got)
	}
}

// TestNoAnswerIsNoTry: an API server that does not answer says nothing of the work. However long it is away, what fails afterwards for the
// first time is tried again.
func TestNoAnswerIsNoTry(t *testing.T) {
	c := classSays(`"bindAfter":"Fetched"`)
	b, client, _ := newTestBinder(c, errors.New("the registry is away"))
	key := keyOfClaim(c)
	away := true
	client.PrependReactor("*", "resourceclaims", func(ktesting.Action) (bool, runtime.Object, error) {
		return away, nil, errors.New("the API server is away")
	})
	once := func() {
		b.queue.Add(key)
		b.next(t.Context(), func(f func()) { f() })
	}
	for range maxBindingTries + 1 {
		once()
	}
	away = false
	once()
	if got := verdict(t, client, c); got != " " {
		t.Errorf("given up after one try: %s", got)
	}
	for range maxBindingTries {
		once()
	}
	if got := verdict(t, client, c); got != bitstreamFailed+" PrepareFailed" {
		t.Errorf("after all tries: %s", got)
	}
}

// TestRun: claims that wait are seen to, those that are there and those that come later, until the context ends.
func TestRun(t *testing.T) {
	c, later := classSays(`"bindAfter":"Fetched"`), namesCaches(`{"name":"add","bindAfter":"Fetched"}`)
	later.Name, later.UID = "later", "u2"
	b, client, _ := newTestBinder(c, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx) }()
	until := func(c *resourceapi.ResourceClaim, want string) {
		t.Helper()
		check.Eventually(t, "the verdict of "+c.Name+" is "+want, func() bool { return verdict(t, client, c) == want })
	}
	b.Named(keyOfClaim(c).String())
	until(c, bitstreamReady+" Fetched")
	_, err := client.ResourceV1().ResourceClaims(later.Namespace).Create(t.Context(), later, metav1.CreateOptions{})
	check.Must(t, err)
	b.Named(keyOfClaim(later).String() + "," + keyOfClaim(c).String())
	until(later, cachesReady+" Fetched")
	cancel()
	<-ended
}

// TestSlowClaimsDelayNoOther: however many claims wait for a slow registry, another is seen to.
func TestSlowClaimsDelayNoOther(t *testing.T) {
	quick := classSays(`"bindAfter":"Fetched"`)
	b, client, _ := newTestBinder(quick, nil)
	const slowClaims = 10
	away, began := make(chan struct{}), make(chan struct{})
	ready := b.Kinds[0].Ready
	b.Kinds[0].Ready = func(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, s *inventory.Snapshot) error {
		if c.Name != quick.Name {
			began <- struct{}{}
			<-away
			return nil
		}
		return ready(ctx, c, a, s)
	}
	check.Must(t, client.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), quick.Namespace, quick.Name))
	create := func(c *resourceapi.ResourceClaim) {
		t.Helper()
		_, err := client.ResourceV1().ResourceClaims(c.Namespace).Create(t.Context(), c, metav1.CreateOptions{})
		check.Must(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx) }()
	var names []string
	for i := range slowClaims {
		slow := quick.DeepCopy()
		slow.Name, slow.UID = fmt.Sprintf("slow-%d", i), types.UID(fmt.Sprintf("slow-%d", i))
		create(slow)
		names = append(names, keyOfClaim(slow).String())
	}
	b.Named(strings.Join(names, ","))
	for range slowClaims {
		<-began
	}
	create(quick)
	b.Named(strings.Join(append(names, keyOfClaim(quick).String()), ","))
	check.Eventually(t, "the claim that has its files is ready", func() bool {
		return verdict(t, client, quick) == bitstreamReady+" Fetched"
	})
	close(away)
	cancel()
	<-ended
}

// TestGone: a claim that was deleted, or was seen to, needs nothing.
func TestGone(t *testing.T) {
	c := classSays(`"bindAfter":"Fetched"`)
	b, client, done := newTestBinder(c, nil)
	check.Must(t, b.handle(t.Context(), types.NamespacedName{Namespace: "team-a", Name: "gone"}))
	check.Must(t, b.handle(t.Context(), keyOfClaim(c)))
	done.after = ""
	check.Must(t, b.handle(t.Context(), keyOfClaim(c)))
	if done.after != "" {
		t.Errorf("did %s for what was seen to", done.after)
	}
	client.PrependReactor("get", "resourceclaims", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	if b.handle(t.Context(), keyOfClaim(c)) == nil {
		t.Error("an API server that is away counts as no claim")
	}
}

// done is what a binder did.
type done struct {
	after v1alpha1.BindAfter
	seen  []device.Kind
	// refused are the reasons that the claim shows.
	refused []string
	fails   error
}

// writer notes which refusals it writes.
type writer struct {
	*status.ClaimWriter
	done *done
}

func (w writer) WriteRefusal(ctx context.Context, c *resourceapi.ResourceClaim, cause error) error {
	w.done.refused = append(w.done.refused, w.Reason(cause))
	return w.ClaimWriter.WriteRefusal(ctx, c, cause)
}

// errUnderway is about what is on its way.
var errUnderway = errors.New("ask again soon")

// kinds are those of a plugin, which note what is done.
func (d *done) kinds() []Kind {
	ready := func(kind device.Kind) func(context.Context, *resourceapi.ResourceClaim, claim.Allocation, *inventory.Snapshot) error {
		return func(context.Context, *resourceapi.ResourceClaim, claim.Allocation, *inventory.Snapshot) error {
			d.after = v1alpha1.BindAfterFetched
			d.seen = append(d.seen, kind)
			return d.fails
		}
	}
	return []Kind{
		{Kind: device.KindFPGA, Subject: "the bitstream is", BindAfter: fpgas.BindAfter, Ready: ready(device.KindFPGA)},
		{Kind: device.KindGPU, Subject: "the kernel caches are", BindAfter: kernelcaches.BindAfter, Ready: ready(device.KindGPU)},
	}
}

func newTestBinder(c *resourceapi.ResourceClaim, fails error) (*Binder, *fake.Clientset, *done) {
	client := fake.NewClientset(c)
	d := &done{fails: fails}
	reason := func(err error) string { return stdcmp.Or(prepare.Reason(err), "PrepareFailed") }
	b := New(Config{
		Node: nodefixture.Node, Client: client, Holder: inventory.NewHolder(), Kinds: d.kinds(), Reason: reason, Resolve: resolve,
		Claims: writer{status.NewClaimWriter(status.ClaimConfig{
			Client: client, Events: events.NewFakeRecorder(100), Clock: clock.RealClock{}, Reason: reason, Overtaken: prepare.Overtaken,
		}), d},
		Prepare: func(context.Context, *resourceapi.ResourceClaim) error {
			d.after = v1alpha1.BindAfterLoaded
			return d.fails
		},
		Underway:  func(err error) bool { return errors.Is(err, errUnderway) },
		Permanent: func(err error) bool { _, refused := errors.AsType[*claim.RefusedError](err); return refused },
	})
	b.Holder.Set(nodefixture.SnapshotWith())
	b.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemFastSlowRateLimiter[types.NamespacedName](0, 0, 1))
	return b, client, d
}

func resolve(_ context.Context, c *resourceapi.ResourceClaim) (claim.Allocation, error) {
	return claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
}

func keyOfClaim(c *resourceapi.ResourceClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
}

// verdict is the binding condition that is true on the claim's device, and its reason.
func verdict(t *testing.T, client *fake.Clientset, c *resourceapi.ResourceClaim) string {
	t.Helper()
	now, err := client.ResourceV1().ResourceClaims(c.Namespace).Get(t.Context(), c.Name, metav1.GetOptions{})
	check.Must(t, err)
	for _, d := range now.Status.Devices {
		for _, condition := range d.Conditions {
			if strings.HasPrefix(condition.Type, v1alpha1.GroupName) && condition.Status == metav1.ConditionTrue {
				return condition.Type + " " + condition.Reason
			}
		}
	}
	return " "
}

// TestTwoKinds: a claim with devices of both kinds waits for both, each with its own word.
func TestTwoKinds(t *testing.T) {
	c := nodefixture.Allocated("u1", waiting("r0"), waitingGPU("g0"))
	nodefixture.Configured(c, resourceapi.AllocationConfigSourceClass,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{"bindAfter":"Fetched"}}`)
	nodefixture.Configured(c, resourceapi.AllocationConfigSourceClaim,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","kernelCaches":[{"name":"add","bindAfter":"Fetched"}]}`)
	c.Status.Allocation.Devices.Config[0].Requests, c.Status.Allocation.Devices.Config[1].Requests = []string{"region"}, []string{"gpu"}
	b, client, done := newTestBinder(c, nil)
	check.Must(t, b.handle(t.Context(), keyOfClaim(c)))
	check.Must(t, b.handle(t.Context(), keyOfClaim(c)))
	now, err := client.ResourceV1().ResourceClaims(c.Namespace).Get(t.Context(), c.Name, metav1.GetOptions{})
	check.Must(t, err)
	said := map[string][]string{}
	for _, d := range now.Status.Devices {
		for _, condition := range d.Conditions {
			said[d.Device] = append(said[d.Device], condition.Type)
		}
	}
	if diff := cmp.Diff(map[string][]string{"r0": {bitstreamReady}, "g0": {cachesReady}}, said); diff != "" || len(done.seen) != 2 {
		t.Errorf("seen to %v; said (-want +got):\n%s", done.seen, diff)
	}
	if waits(b, now) {
		t.Error("it still waits")
	}
}

// TestNamed: a claim is handled once however often the same names come, and again after a while for as long as it is named.
func TestNamed(t *testing.T) {
	b, _, _ := newTestBinder(classSays(`"bindAfter":"Fetched"`), nil)
	defer b.queue.ShutDown()
	handled := func(want ...string) {
		t.Helper()
		var got []string
		for b.queue.Len() > 0 {
			key, _ := b.queue.Get()
			got = append(got, key.String())
			b.queue.Done(key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
	}
	b.Named("a/x,b/y")
	handled("a/x", "b/y")
	b.Named("a/x,b/y")
	handled()
	b.Named("b/y,c/z")
	handled("c/z")
	b.lookAgain(t.Context())
	handled("b/y", "c/z")
	b.Named("a/x")
	handled("a/x")
	b.Named("")
	b.lookAgain(t.Context())
	handled()
}
