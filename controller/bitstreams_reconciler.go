// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/bitstream"
	"github.com/fettle-dev/fettle/controller/grant"
)

const (
	// bitstreamWorkers is how many objects of a kind are looked at side by side; most of the time is waiting for registries.
	bitstreamWorkers = 8
	// turnsOfNamespace is how many of them one namespace gets: a registry that answers slowly must not hold up the others.
	turnsOfNamespace = 2
	// nextTurn is when to try again.
	nextTurn = 2 * time.Second
	// jitter spreads what would otherwise come together at each interval.
	jitter = 0.2
)

// bitstreamReconciler looks after FPGABitstreams and ClusterFPGABitstreams. It writes their status and the Roles for their pull secrets.
// Deleting an object needs nothing, so no outage of a registry keeps one.
type bitstreamReconciler struct {
	client    client.Client
	recorder  events.EventRecorder
	metrics   *metrics
	clock     clock.PassiveClock
	pause     pauser
	look      func(context.Context, bitstream.Object) (*bitstream.Outcome, error)
	interval  time.Duration
	namespace string
	turns     turns
	looks     looks
}

// newBitstreamReconciler returns the reconciler of both kinds.
func newBitstreamReconciler(
	mgr manager.Manager, m *metrics, c clock.PassiveClock, pause pauser, registry bitstream.Registry, o Options,
) *bitstreamReconciler {
	look := bitstream.Looker{
		Live: mgr.GetAPIReader(), Registry: registry, Verifier: bitstream.NoTrustPolicy{},
		Grants: Grants(mgr.GetAPIReader(), mgr.GetClient(), o.Namespace),
	}.Look
	return &bitstreamReconciler{
		client: mgr.GetClient(), recorder: mgr.GetEventRecorder(Name), metrics: m, clock: c, pause: pause,
		look: look, interval: o.BitstreamInterval, namespace: o.Namespace,
	}
}

// Grants are the Roles that the controller makes and an uninstall removes. Live must not read from a cache.
func Grants(live client.Reader, writer client.Writer, namespace string) grant.Writer {
	return grant.Writer{
		Live: live, Client: writer, Namespace: namespace, Account: PluginAccount, Labels: map[string]string{ManagedByLabel: Name},
	}
}

// register adds the reconciler to the manager, once a kind; the CRDs must be established. A change of the spec counts, one of the images
// that the status knows, and one of the nodes that hold their files.
func (r *bitstreamReconciler) register(mgr manager.Manager) error {
	var faults []error
	for name, kind := range map[string]client.Object{
		"fpgabitstream": &v1alpha1.FPGABitstream{}, "clusterfpgabitstream": &v1alpha1.ClusterFPGABitstream{},
	} {
		faults = append(faults, builder.ControllerManagedBy(mgr).Named(name).
			For(kind, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, imagesChanged()))).
			Watches(&v1alpha1.AcceleratorNode{}, r.onNodes(kind)).
			WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: bitstreamWorkers}).
			Complete(r))
	}
	return errors.Join(faults...)
}

// Reconcile looks at one object; only a ClusterFPGABitstream has no namespace.
func (r *bitstreamReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o, err := r.read(ctx, req)
	if err != nil || o.GetDeletionTimestamp() != nil {
		r.looks.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if wait, done := r.looks.remaining(req.NamespacedName, o, r.clock.Now()); done {
		return reconcile.Result{RequeueAfter: wait}, r.report(ctx, o, nil)
	}
	if !r.turns.take(req.Namespace) {
		return reconcile.Result{RequeueAfter: wait.Jitter(nextTurn, 1)}, nil
	}
	defer r.turns.giveBack(req.Namespace)
	out, err := r.look(ctx, o)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s %s: %w", o.Kind, req, err)
	}
	var fault error
	if out != nil {
		fault = out.Err
	}
	if err := r.report(ctx, o, out); err != nil {
		return reconcile.Result{}, err
	}
	next := wait.Jitter(bitstream.Next(o, r.interval, fault, r.clock.Now()), jitter)
	r.looks.note(req.NamespacedName, o, next, r.clock.Now())
	return reconcile.Result{RequeueAfter: next}, nil
}

// read gets the object in the form that both kinds share. It is a copy, not the cache's.
func (r *bitstreamReconciler) read(ctx context.Context, req reconcile.Request) (bitstream.Object, error) {
	if req.Namespace == "" {
		b := &v1alpha1.ClusterFPGABitstream{}
		err := r.client.Get(ctx, req.NamespacedName, b)
		return bitstream.Of(b.Common(), r.namespace), err
	}
	b := &v1alpha1.FPGABitstream{}
	err := r.client.Get(ctx, req.NamespacedName, b)
	return bitstream.Of(b.Common(), r.namespace), err
}

// report writes the status if it changed, in one patch, and tells of a changed condition. Out is nil where only the nodes may have
// changed. A spec that changed meanwhile is a conflict, and the next round looks at the new one.
func (r *bitstreamReconciler) report(ctx context.Context, o bitstream.Object, out *bitstream.Outcome) error {
	if err := r.write(ctx, o, out); err != nil {
		return fmt.Errorf("write the status of %s %s: %w", o.Kind, client.ObjectKeyFromObject(o), err)
	}
	return nil
}

func (r *bitstreamReconciler) write(ctx context.Context, o bitstream.Object, out *bitstream.Outcome) error {
	before, _ := o.DeepCopyObject().(client.Object)
	was, digest := resolvedOf(o), o.Status.Digest
	status := o.Status.DeepCopy()
	if out != nil {
		bitstream.Record(o.Status, o.GetGeneration(), *out, r.clock.Now())
		r.metrics.bitstreams.WithLabelValues(o.Kind, resolvedOf(o).Reason).Inc()
	}
	now := resolvedOf(o)
	if err := r.count(ctx, o.Status); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(status, o.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, o.Object, patch, client.FieldOwner(Name)); err != nil {
		return client.IgnoreNotFound(err)
	}
	if was.Status == now.Status && was.Reason == now.Reason && digest == o.Status.Digest {
		return nil
	}
	severity := corev1.EventTypeNormal
	if now.Status != metav1.ConditionTrue {
		severity = corev1.EventTypeWarning
	}
	klog.FromContext(ctx).Info("bitstream", "kind", o.Kind, "object", klog.KObj(o), "reason", now.Reason, "message", now.Message)
	r.recorder.Eventf(o.Object, nil, severity, now.Reason, "ResolveBitstream", "%s", now.Message)
	return nil
}

func resolvedOf(o bitstream.Object) metav1.Condition {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionResolved); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// turns counts who is being looked at, by namespace.
type turns struct {
	mu    sync.Mutex
	taken map[string]int
}

// take says whether the namespace has a turn left.
func (t *turns) take(namespace string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken[namespace] >= turnsOfNamespace {
		return false
	}
	if t.taken == nil {
		t.taken = map[string]int{}
	}
	t.taken[namespace]++
	return true
}

func (t *turns) giveBack(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken[namespace]--; t.taken[namespace] == 0 {
		delete(t.taken, namespace)
	}
}
