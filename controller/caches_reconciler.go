// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/cache"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// cacheWorkers is how many objects of a kind are looked at side by side; most of the time is waiting for registries.
const cacheWorkers = 8

// cacheReconciler looks after GPUKernelCaches and ClusterGPUKernelCaches. It writes their status and the Roles for their pull secrets, and
// makes nothing else of them. So deleting an object needs nothing and there is no finalizer: no outage of a registry keeps an object, and
// nothing that came from one decides whether an update is accepted.
type cacheReconciler struct {
	client    client.Client
	recorder  events.EventRecorder
	metrics   *metrics
	clock     clock.PassiveClock
	pause     pauser
	policies  *trustPolicies
	look      func(context.Context, cache.Object, []*trust.Policy) (*cache.Outcome, error)
	interval  time.Duration
	namespace string
	turns     turns
	looks     looks
	judged    judged
	// volumes plans, and withVolumes says whether what is planned is carried out: by volumesReconciler.
	volumes     func(context.Context, volumes.Object) (volumes.Plan, error)
	withVolumes bool
}

// newCacheReconciler returns the reconciler of both kinds.
func newCacheReconciler(
	mgr manager.Manager, m *metrics, c clock.PassiveClock, pause pauser, registry *artifact.Client, policies *trustPolicies,
	faults *volumeFaults, o Options,
) *cacheReconciler {
	looker := cache.Looker{
		Live: mgr.GetAPIReader(), Registry: registry, Grants: Grants(mgr.GetAPIReader(), mgr.GetClient(), o.Namespace),
	}
	reader := volumesReader(mgr)
	reader.Users = true
	return &cacheReconciler{
		volumes: func(ctx context.Context, of volumes.Object) (volumes.Plan, error) {
			if !of.Wants() {
				return volumes.Plan{}, nil
			}
			plan, err := reader.Plan(ctx, of, o.KernelCacheVolumes)
			faults.add(types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, &plan)
			return plan, err
		},
		withVolumes: o.KernelCacheVolumes.Enabled,
		client:      mgr.GetClient(), recorder: mgr.GetEventRecorder(Name), metrics: m, clock: c, pause: pause, policies: policies,
		look: looker.Look, interval: o.BitstreamInterval, namespace: o.Namespace,
	}
}

// Reconcile looks at one object; only a ClusterGPUKernelCache has no namespace. The registry is asked when it is time, when the object
// changed, or when other policies are for it. That is remembered in memory: a new leader verifies all, since it may have another public
// root than the last one.
func (r *cacheReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o, err := r.read(ctx, req)
	if err != nil {
		r.looks.forget(req.NamespacedName)
		r.judged.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if o.GetDeletionTimestamp() != nil { // somebody else's finalizer keeps it
		_, err := r.report(ctx, o, nil)
		return reconcile.Result{}, err
	}
	all, err := r.policies.all(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	policies := o.Policies(all)
	if wait, done := r.looks.remaining(req.NamespacedName, o, r.clock.Now()); done && r.judged.by(req.NamespacedName, policies) {
		again, err := r.report(ctx, o, nil)
		return reconcile.Result{RequeueAfter: sooner(wait, again)}, err
	}
	if !r.turns.take(req.Namespace) {
		return reconcile.Result{RequeueAfter: wait.Jitter(nextTurn, 1)}, nil
	}
	defer r.turns.giveBack(req.Namespace)
	out, err := r.look(ctx, o, all)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s %s: %w", o.Kind, req, err)
	}
	again, err := r.report(ctx, o, out)
	if err != nil {
		return reconcile.Result{}, err
	}
	next := wait.Jitter(cache.Next(o, r.interval, errors.Join(out.Err, out.Refusal), r.clock.Now()), jitter)
	r.looks.note(req.NamespacedName, o, next, r.clock.Now())
	r.judged.note(req.NamespacedName, policies)
	return reconcile.Result{RequeueAfter: sooner(next, again)}, nil
}

// sooner is the shorter of two times, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// read gets the object in the form that both kinds share. It is a copy, not the cache's.
func (r *cacheReconciler) read(ctx context.Context, req reconcile.Request) (cache.Object, error) {
	if req.Namespace == "" {
		c := &v1alpha1.ClusterGPUKernelCache{}
		err := r.client.Get(ctx, req.NamespacedName, c)
		return cache.Of(c.Common(), r.namespace), err
	}
	c := &v1alpha1.GPUKernelCache{}
	err := r.client.Get(ctx, req.NamespacedName, c)
	return cache.Of(c.Common(), r.namespace), err
}

// report writes the status if it changed, in one patch, and tells of changed conditions. Out is nil where only the rest of the cluster may
// have changed. A spec that changed meanwhile is a conflict, and the next round looks at the new one. Nothing tells of pods that have
// volumes, so where there are volumes the next round is when report says, and not 0.
func (r *cacheReconciler) report(ctx context.Context, o cache.Object, out *cache.Outcome) (again time.Duration, err error) {
	before, _ := o.DeepCopyObject().(client.Object)
	status, now := o.Status.DeepCopy(), r.clock.Now()
	if out != nil {
		cache.Record(o, out, now)
		r.metrics.caches.WithLabelValues(o.Kind, conditionOf(o.Status, v1alpha1.ConditionResolved).Reason).Inc()
	}
	around, err := r.surroundings(ctx, o)
	if err == nil {
		cache.Count(o, around, now)
		err = r.write(ctx, o, before, status)
	}
	if err != nil {
		return 0, fmt.Errorf("write the status of %s %s: %w", o.Kind, client.ObjectKeyFromObject(o), err)
	}
	if len(around.Volumes.Volumes) > 0 {
		again = wait.Jitter(volumesInterval, jitter)
	}
	return again, nil
}

func (r *cacheReconciler) write(ctx context.Context, o cache.Object, before client.Object, status *v1alpha1.GPUKernelCacheStatus) error {
	if equality.Semantic.DeepEqual(status, o.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, o.Object, patch, client.FieldOwner(Name)); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.tell(ctx, o, status)
	return nil
}

// surroundings are what the nodes say of caches, which namespaces of the object's are not there, and how its volumes are.
func (r *cacheReconciler) surroundings(ctx context.Context, o cache.Object) (around cache.Surroundings, err error) {
	var nodes v1alpha1.AcceleratorNodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return around, fmt.Errorf("count the nodes that have it: %w", err)
	}
	around.Nodes = nodes.Items
	for _, name := range o.NamedNamespaces() {
		err := r.client.Get(ctx, client.ObjectKey{Name: name}, namespaceMetadata())
		if client.IgnoreNotFound(err) != nil {
			return around, fmt.Errorf("look for the namespace %s: %w", name, err)
		}
		if err != nil {
			around.MissingNamespaces = append(around.MissingNamespaces, name)
		}
	}
	around.Volumes, err = r.volumes(ctx, o.Volumes())
	return around, err
}

// tell makes Events of conditions that became other ones, and of a digest. What is well from the beginning is no news, but what the image
// is and who vouches for it. Where one word is said of several conditions, as of what is not known yet, the first counts.
func (r *cacheReconciler) tell(ctx context.Context, o cache.Object, before *v1alpha1.GPUKernelCacheStatus) {
	told := map[string]bool{}
	for _, about := range []struct {
		kind string
		well metav1.ConditionStatus
		news bool
	}{
		{v1alpha1.ConditionResolved, metav1.ConditionTrue, before.ResolvedDigest != o.Status.ResolvedDigest},
		{v1alpha1.ConditionVerified, metav1.ConditionTrue, before.ResolvedDigest != o.Status.ResolvedDigest},
		{v1alpha1.ConditionCompatible, metav1.ConditionTrue, false},
		{v1alpha1.ConditionDegraded, metav1.ConditionFalse, false},
		{v1alpha1.ConditionNamespaceMissing, metav1.ConditionFalse, false},
	} {
		was, now := conditionOf(before, about.kind), conditionOf(o.Status, about.kind)
		same := was.Status == now.Status && was.Reason == now.Reason
		firstWell := was.Status == "" && now.Status == about.well
		unknown := now.Reason == cache.ReasonNotResolved || now.Reason == cache.ReasonNoNodeTold
		if !about.news && (same || firstWell) || unknown || told[now.Reason] {
			continue
		}
		told[now.Reason] = true
		severity := corev1.EventTypeNormal
		if now.Status != about.well && now.Reason != cache.ReasonSkipped {
			severity = corev1.EventTypeWarning
		}
		klog.FromContext(ctx).Info("kernel cache", "kind", o.Kind, "object", klog.KObj(o), "reason", now.Reason, "message", now.Message)
		r.recorder.Eventf(o.Object, nil, severity, now.Reason, "JudgeKernelCache", "%s", eventNote(now.Message))
	}
}

func conditionOf(status *v1alpha1.GPUKernelCacheStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// judged remembers by which policies an object was judged last.
type judged struct {
	mu sync.Mutex
	of map[types.NamespacedName][]*trust.Policy
}

func (j *judged) note(key types.NamespacedName, policies []*trust.Policy) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.of == nil {
		j.of = map[types.NamespacedName][]*trust.Policy{}
	}
	j.of[key] = policies
}

// by says whether it was by these.
func (j *judged) by(key types.NamespacedName, policies []*trust.Policy) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	last, ok := j.of[key]
	return ok && slices.Equal(last, policies)
}

func (j *judged) forget(key types.NamespacedName) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.of, key)
}
