// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/trust"
	"github.com/fettle-dev/fettle/test/check"
)

// plain is an artifact without content.
type plain struct{ v1alpha1.CommonFPGABitstream }

func (p plain) Head() Head {
	return Head{
		CommonObject: p.CommonObject, Image: p.Spec.Image, Digest: p.Status.Digest, ObservedGeneration: p.Status.ObservedGeneration,
		Conditions: &p.Status.Conditions,
	}
}

func (p plain) Read(context.Context, *registry.Source, artifact.Descriptor) error { return nil }

func (p plain) Record(r Result) {
	p.Status.Digest, p.Status.ObservedGeneration = r.Digest, p.GetGeneration()
}

func (p plain) Observe(context.Context, time.Time) (Observed, error) { return Observed{}, nil }

// site is a reconciler of plain artifacts. What the registry says is out, or err.
type site struct {
	*Reconciler

	client client.WithWatch
	clock  *clocktesting.FakeClock
	out    *Outcome
	err    error
	asked  int
}

func newSite(t *testing.T, objects ...client.Object) *site {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{
		clock: clocktesting.NewFakeClock(time.Now()), out: &Outcome{Digest: "sha256:top"},
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.FPGABitstream{}).Build(),
	}
	kind := Kind{
		Interval: time.Minute, Action: "Test", PolicyOptional: true,
		Policies: func(context.Context) ([]*trust.Policy, error) { return nil, nil },
		Get: func(ctx context.Context, key types.NamespacedName) (Artifact, error) {
			b, err := pairs.Bitstream(ctx, s.client, key)
			return plain{b}, err
		},
	}
	resolve := func(context.Context, *Kind, Artifact, []*trust.Policy) (*Outcome, error) {
		s.asked++
		return s.out, s.err
	}
	services := reconciler.Services{Client: s.client, Recorder: events.NewFakeRecorder(100), Clock: s.clock}
	s.Reconciler = NewReconciler(services, kind, resolve, Counts{
		Resolved: metrics.CounterBy("test_total", "A test.", "kind", "reason"), Refused: metrics.GaugeBy("test_refused", "A test.", "kind"),
	}, v1alpha1.KindFPGABitstream)
	return s
}

func bitstream(name string) *v1alpha1.FPGABitstream {
	b := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), Generation: 1}}
	b.Spec.Image = "registry.example/nlb0:v1"
	return b
}

func (s *site) reconcile(t *testing.T, o client.Object) (reconcile.Result, error) {
	t.Helper()
	return s.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
}

// reported is an artifact of which a node reports something else each time, by which other nodes may do more.
type reported struct {
	plain
	n *int
}

func (r reported) Observe(context.Context, time.Time) (Observed, error) {
	*r.n++
	r.Status.Nodes = new(int32(*r.n))
	return Observed{Admits: true}, nil
}

// TestReportsAreRare: what nodes report is written as rarely as the number of nodes asks for, and the newest then; what a registry says is
// written at once.
func TestReportsAreRare(t *testing.T) {
	const nodes, seconds = 2000, 60
	b := bitstream("b")
	objects := []client.Object{b}
	for i := range nodes {
		objects = append(objects, &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}})
	}
	s := newSite(t, objects...)
	n := 0
	s.kind.Interval = time.Hour
	get := s.kind.Get
	s.kind.Get = func(ctx context.Context, key types.NamespacedName) (Artifact, error) {
		a, err := get(ctx, key)
		if one, ok := a.(plain); ok && err == nil {
			return reported{one, &n}, nil
		}
		return a, err
	}
	s.status.Budget = status.NewBudget(s.clock)
	if _, err := s.reconcile(t, b); err != nil {
		t.Fatal(err)
	}
	written := func() int {
		var now v1alpha1.FPGABitstream
		check.Must(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(b), &now))
		return int(*now.Status.Nodes)
	}
	writes, last := 0, written()
	for range seconds {
		s.clock.Step(time.Second)
		result, err := s.reconcile(t, b)
		check.Must(t, err)
		switch now := written(); {
		case now != last && now != n:
			t.Fatalf("%d is written where %d is the newest", now, n)
		case now != last:
			writes, last = writes+1, now
		case result.RequeueAfter <= 0 || result.RequeueAfter > 5*time.Second:
			t.Fatalf("not written, and tried again after %s", result.RequeueAfter)
		}
	}
	if writes < seconds/2-1 || writes > seconds/2+6 {
		t.Errorf("%d writes in %d seconds for %d nodes", writes, seconds, nodes)
	}
	s.due.Forget(client.ObjectKeyFromObject(b))
	if _, err := s.reconcile(t, b); err != nil || written() != n {
		t.Errorf("what the registry says is not written at once: %v", err)
	}
}

// TestForgotten: nothing is remembered of an object that is gone, or that is being deleted.
func TestForgotten(t *testing.T) {
	gone, kept := bitstream("gone"), bitstream("kept")
	kept.Finalizers = []string{"example.com/backup"}
	s := newSite(t, gone, kept)
	for _, o := range []client.Object{gone, kept} {
		if _, err := s.reconcile(t, o); err != nil {
			t.Fatal(err)
		}
	}
	judged := func() (n int) {
		s.judges.Range(func(any, any) bool { n++; return true })
		return n
	}
	if s.due.Len() != 2 || judged() != 2 || s.asked != 2 {
		t.Fatalf("asked %d times, remembered %d and %d", s.asked, s.due.Len(), judged())
	}
	for _, o := range []client.Object{gone, kept} {
		if err := s.client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := s.reconcile(t, o); err != nil {
			t.Fatal(err)
		}
	}
	if s.due.Len() != 0 || judged() != 0 || s.asked != 2 {
		t.Errorf("asked %d times, remembered %d and %d", s.asked, s.due.Len(), judged())
	}
}

// TestRefusedAreCounted: the metric is how many objects the policies refuse now, of those that are there.
func TestRefusedAreCounted(t *testing.T) {
	a, b := bitstream("a"), bitstream("b")
	s := newSite(t, a, b)
	wants := func(what string, want float64) {
		t.Helper()
		if got := testutil.ToFloat64(s.counts.Refused.WithLabelValues(v1alpha1.KindFPGABitstream)); got != want {
			t.Errorf("%s: %v are refused, want %v", what, got, want)
		}
	}
	ask := func(o client.Object, refusal error) {
		t.Helper()
		s.out = &Outcome{Digest: "sha256:top", Judged: "sha256:top", Refusal: refusal, Policies: []*trust.Policy{{}}}
		if refusal == nil {
			s.out.Judged = ""
		}
		s.due.Forget(client.ObjectKeyFromObject(o))
		if _, err := s.reconcile(t, o); err != nil {
			t.Fatal(err)
		}
	}
	wants("before", 0)
	ask(a, trust.ErrRefused)
	ask(b, trust.ErrRefused)
	ask(b, trust.ErrRefused)
	wants("both", 2)
	ask(a, nil)
	wants("one is accepted", 1)
	if err := s.client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reconcile(t, b); err != nil {
		t.Fatal(err)
	}
	wants("the other is gone", 0)
}

// TestAsked: trouble with the API server is tried again and counts as no answer; every answer is counted, and one that says that nothing
// changed is not.
func TestAsked(t *testing.T) {
	b := bitstream("b")
	s := newSite(t, b)
	s.out, s.err = nil, errors.New("away")
	if _, err := s.reconcile(t, b); !errors.Is(err, s.err) || s.due.Len() != 0 || len(s.turns.taken) != 0 {
		t.Errorf("%v; remembered %d, turns %v", err, s.due.Len(), s.turns.taken)
	}
	s.out, s.err = &Outcome{Err: artifact.ErrNotFound}, nil
	result, err := s.reconcile(t, b)
	if err != nil || result.RequeueAfter < firstRetry || result.RequeueAfter > firstRetry*2 {
		t.Errorf("not found: %v, %v", result, err)
	}
	s.clock.Step(result.RequeueAfter)
	s.out = nil
	if _, err := s.reconcile(t, b); err != nil || s.asked != 3 {
		t.Errorf("nothing to say: %v, asked %d times", err, s.asked)
	}
	n := testutil.ToFloat64(s.counts.Resolved.WithLabelValues("FPGABitstream", ReasonNotFound))
	if n != 1 || testutil.CollectAndCount(s.counts.Resolved) != 1 {
		t.Errorf("counted %v", n)
	}
}

// TestFault: the reason of a kind's own error counts before all others, wherever it is in the chain.
func TestFault(t *testing.T) {
	fault := &Fault{Reason: "Torn", Err: artifact.ErrNotFound}
	for _, err := range []error{fault, errors.Join(errors.New("x"), fault)} {
		if got := ReasonOf(err); got != "Torn" || !errors.Is(err, artifact.ErrNotFound) {
			t.Errorf("%v has the reason %s", err, got)
		}
	}
}
