// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// Workers is how many objects of a kind are reconciled side by side. Most of the time is waiting for registries.
const Workers = 16

// Reconciler takes objects of one pair of kinds through the pipeline. It writes their status and the Roles for their pull secrets, and
// makes nothing else of them. So the deletion of an object needs nothing and there is no finalizer: an outage of a registry keeps no
// object.
type Reconciler struct {
	kind    Kind
	clock   clock.PassiveClock
	status  status.Writer
	resolve Resolve
	counts  Counts
	refused refused
	turns   turns
	due     reconciler.Schedule
	judges  judges
}

// Counts are the metrics of a pair of kinds.
type Counts struct {
	// Resolved counts the outcomes, by kind of object and reason. Refused is how many objects the TrustPolicies refuse now, by kind.
	Resolved *prometheus.CounterVec
	Refused  *prometheus.GaugeVec
}

// NewReconciler returns the reconciler of a kind, whose objects are of the named kinds.
func NewReconciler(s reconciler.Services, k Kind, resolve Resolve, counts Counts, kinds ...string) *Reconciler {
	for _, kind := range kinds {
		counts.Refused.WithLabelValues(kind).Set(0)
	}
	return &Reconciler{
		kind: k, clock: s.Clock, status: s.Status(), resolve: resolve, counts: counts,
	}
}

// Reconcile takes one object through the pipeline. It asks the registry if the object is due, if it changed, or if other policies are for
// it. Otherwise it only writes what other objects of the cluster report. What is due is kept in memory: a new leader asks about all
// objects, since it may have another public root than the last one.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	a, err := r.kind.Get(ctx, req.NamespacedName)
	if err != nil {
		r.forget(req)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	h := a.Head()
	if h.GetDeletionTimestamp() != nil { // a finalizer of another party keeps it
		r.forget(req)
		again, err := r.report(ctx, a, nil)
		return reconcile.Result{RequeueAfter: again}, err
	}
	policies, err := r.kind.Policies(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	applying := h.Applying(policies)
	judged, same := r.judges.same(req.NamespacedName, applying)
	if wait, done := r.due.Remaining(req.NamespacedName, h, r.clock.Now()); done && same {
		again, err := r.report(ctx, a, nil)
		return reconcile.Result{RequeueAfter: reconciler.Sooner(wait, again)}, err
	}
	turn, giveBack, ok := r.turns.take(ctx, req.Namespace)
	if !ok {
		return reconcile.Result{RequeueAfter: wait.Jitter(nextTurn, 1)}, nil
	}
	defer giveBack()
	if judged && !same {
		a = rejudged{a}
	}
	next, again, err := r.ask(ctx, turn, a, policies)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.due.Done(req.NamespacedName, h, next, r.clock.Now())
	r.judges.Store(req.NamespacedName, applying)
	return reconcile.Result{RequeueAfter: reconciler.Sooner(next, again)}, nil
}

func (r *Reconciler) forget(req reconcile.Request) {
	r.due.Forget(req.NamespacedName)
	r.judges.Delete(req.NamespacedName)
	r.refused.set(r.counts.Refused, req.NamespacedName, "")
}

// ask asks the registry during a turn and writes what it said. It returns when to ask again, and when to report again.
func (r *Reconciler) ask(ctx, turn context.Context, a Artifact, policies []*trust.Policy) (next, again time.Duration, err error) {
	out, err := r.resolve(turn, &r.kind, a, policies)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", a.Head().CommonObject, err)
	}
	if again, err = r.report(ctx, a, out); err != nil {
		return 0, 0, err
	}
	var fault error
	if out != nil {
		fault = errors.Join(out.Err, out.Refusal)
	}
	return wait.Jitter(Next(&r.kind, a.Head(), fault, r.clock.Now()), reconciler.Jitter), again, nil
}

// report writes the status, and makes Events of its conditions. The outcome is nil if only other objects may have changed: what nodes
// report is written as the budget allows. It returns when to report again; 0 is when a watched object changes.
func (r *Reconciler) report(ctx context.Context, a Artifact, out *Outcome) (again time.Duration, err error) {
	h, now := a.Head(), r.clock.Now()
	before, was := status.Copy(h.Object), append([]metav1.Condition(nil), *h.Conditions...)
	if out != nil {
		Record(&r.kind, a, out, now)
		r.counts.Resolved.WithLabelValues(h.Kind, status.Condition(*h.Conditions, v1alpha1.ConditionResolved).Reason).Inc()
	}
	r.refused.set(r.counts.Refused, client.ObjectKeyFromObject(h.Object), h.refusedKind())
	observed, err := a.Observe(ctx, now)
	if err != nil {
		return 0, fmt.Errorf("write the status of %s: %w", h.CommonObject, err)
	}
	weight := status.Counts
	switch {
	case out != nil:
		weight = status.News
	case observed.Admits || !status.SameConditions(was, *h.Conditions):
		weight = status.Turn
	}
	written, early, err := r.status.PatchReports(ctx, before, h.Object, weight)
	if err != nil {
		return 0, fmt.Errorf("write the status of %s: %w", h.CommonObject, err)
	}
	if written {
		r.announce(ctx, h, a.Head(), was)
	}
	return reconciler.Sooner(observed.Again, early), nil
}

// announce makes Events of conditions that changed, and of another digest: which digest the image is and what the policies say of it is
// news even if both conditions are well from the beginning.
func (r *Reconciler) announce(ctx context.Context, before, now Head, was []metav1.Condition) {
	moved := before.Digest != now.Digest
	change := status.Change{Object: now.Object, Kind: now.Kind, Action: r.kind.Action, Before: was, Now: *now.Conditions}
	verified := status.Rule{
		Type: v1alpha1.ConditionVerified, Well: metav1.ConditionTrue, News: moved,
		Silent: []string{ReasonNotResolved}, Normal: []string{ReasonSkipped},
	}
	if r.kind.PolicyOptional {
		verified.Silent = append(verified.Silent, ReasonNoTrustPolicy, ReasonHostFile)
	}
	rules := []status.Rule{
		{Type: v1alpha1.ConditionResolved, Well: metav1.ConditionTrue, News: moved || now.Image == "" && len(was) == 0}, verified,
	}
	r.status.Announce(ctx, change, append(rules, r.kind.Announced...)...)
}

// refusedKind returns the kind of an object that the TrustPolicies refuse, else "".
func (h Head) refusedKind() string {
	c := status.Condition(*h.Conditions, v1alpha1.ConditionVerified)
	if h.GetDeletionTimestamp() != nil || c.Status != metav1.ConditionFalse || c.Reason == ReasonWarned {
		return ""
	}
	return h.Kind
}

// refused has the objects that the TrustPolicies refuse. The zero value may be used at once.
type refused struct {
	mu    sync.Mutex
	kinds map[types.NamespacedName]string
}

// set notes that an object of a kind is refused, or with "" that it is not, and sets the gauge.
func (r *refused) set(gauge *prometheus.GaugeVec, object types.NamespacedName, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = map[types.NamespacedName]string{}
	}
	changed := map[string]bool{kind: true, r.kinds[object]: true}
	delete(r.kinds, object)
	if kind != "" {
		r.kinds[object] = kind
	}
	delete(changed, "")
	for k := range changed {
		n := 0
		for _, other := range r.kinds {
			if other == k {
				n++
			}
		}
		gauge.WithLabelValues(k).Set(float64(n))
	}
}

const (
	// turnsPerNamespace is how many objects of one namespace are resolved at once: a registry that answers slowly must not hold up others.
	turnsPerNamespace = 2
	// reserved is how many workers only take objects of namespaces that have none, and for no longer than hurried. So some namespaces with
	// registries that never answer do not keep all workers.
	reserved = Workers / 4
	hurried  = 20 * time.Second
	// nextTurn is when an object tries again that got no turn.
	nextTurn = 2 * time.Second
)

// turns counts the objects that are being resolved, by namespace. The zero value may be used at once.
type turns struct {
	mu    sync.Mutex
	taken map[string]int
	// all counts the turns of all namespaces. Objects of the cluster have workers of their own.
	all int
}

// take takes a turn of the namespace until giveBack is called, if there is one left. The turn is over when the context ends.
func (t *turns) take(ctx context.Context, namespace string) (turn context.Context, giveBack func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	crowded := namespace != "" && t.all >= Workers-reserved
	if t.taken[namespace] >= turnsPerNamespace || crowded && t.taken[namespace] > 0 {
		return ctx, nil, false
	}
	if t.taken == nil {
		t.taken = map[string]int{}
	}
	t.taken[namespace]++
	cancel := func() {}
	if namespace != "" {
		t.all++
	}
	if crowded {
		ctx, cancel = context.WithTimeout(ctx, hurried)
	}
	return ctx, func() { cancel(); t.giveBack(namespace) }, true
}

func (t *turns) giveBack(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if namespace != "" {
		t.all--
	}
	if t.taken[namespace]--; t.taken[namespace] == 0 {
		delete(t.taken, namespace)
	}
}

// judges remembers the policies by which each object was judged last, by the object's name. The zero value may be used at once.
type judges struct{ sync.Map }

// same says whether an object was judged before, and whether by these policies.
func (j *judges) same(key types.NamespacedName, policies []*trust.Policy) (judged, same bool) {
	last, ok := j.Load(key)
	then, _ := last.([]*trust.Policy)
	return ok, ok && slices.Equal(then, policies)
}

// rejudged is an artifact whose verdict is of other policies. Its status does not tell them from policies that were made again with the
// same names.
type rejudged struct{ Artifact }

// Head implements [Artifact].
func (a rejudged) Head() Head {
	h := a.Artifact.Head()
	h.Verification = nil
	return h
}
