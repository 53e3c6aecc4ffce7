// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
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
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/presets"
	"github.com/fettle-dev/fettle/pkg/preset"
)

const (
	// grantInterval is how often a Role is looked at that nobody should have touched, grantRetry how soon one is tried again that could
	// not be made: an administrator may have allowed it meanwhile.
	grantInterval = 10 * time.Minute
	grantRetry    = time.Minute
)

// presetEvent is word that a preset is to be looked at.
type presetEvent = event.TypedGenericEvent[*metav1.PartialObjectMetadata]

// presetReconciler looks after DevicePresets and ClusterDevicePresets. It writes their status and the Roles for their ConfigMaps. One call
// runs at a time.
type presetReconciler struct {
	client    client.Client
	recorder  events.EventRecorder
	clock     clock.PassiveClock
	pause     pauser
	grants    grant.Writer
	namespace string
	// allowed are the paths of the nodes that a DevicePreset may name.
	allowed []preset.AllowedHostPath
	index   presets.Index
	granted looks
	// again has others looked at, of which something else is to be said since this one changed.
	again chan presetEvent
}

func newPresetReconciler(mgr manager.Manager, c clock.PassiveClock, pause pauser, o Options) *presetReconciler {
	return &presetReconciler{
		client: mgr.GetClient(), recorder: mgr.GetEventRecorder(Name), clock: c, pause: pause, namespace: o.Namespace,
		allowed: o.AllowedHostPaths,
		grants:  Grants(mgr.GetAPIReader(), mgr.GetClient(), o.Namespace), again: make(chan presetEvent, 1024),
	}
}

// register adds the reconciler of both kinds to the manager; the CRDs must be established. A change of a spec counts, and what nodes say
// of claims.
func (r *presetReconciler) register(mgr manager.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return builder.ControllerManagedBy(mgr).Named("devicepreset").
		Watches(&v1alpha1.DevicePreset{}, &handler.EnqueueRequestForObject{}, changed).
		Watches(&v1alpha1.ClusterDevicePreset{}, &handler.EnqueueRequestForObject{}, changed).
		Watches(&v1alpha1.AcceleratorNode{}, onPresetCounts()).
		WatchesRawSource(source.Channel(r.again, gathered[*metav1.PartialObjectMetadata](client.ObjectKeyFromObject))).
		Complete(r)
}

// Reconcile looks at one preset; only a ClusterDevicePreset has no namespace.
func (r *presetReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := r.sync(ctx, req.NamespacedName); err != nil {
		return reconcile.Result{}, err
	}
	o, err := r.read(ctx, req)
	if err != nil || o.GetDeletionTimestamp() != nil {
		r.granted.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	again, refused, err := r.grant(ctx, req.NamespacedName, o)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s %s: %w", o.Kind, req, err)
	}
	if err := r.report(ctx, req.NamespacedName, o, refused); err != nil {
		return reconcile.Result{}, fmt.Errorf("write the status of %s %s: %w", o.Kind, req, err)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// sync brings the index to what the cache has, and has those looked at that collided with what changed, or do now.
func (r *presetReconciler) sync(ctx context.Context, self types.NamespacedName) error {
	var own v1alpha1.DevicePresetList
	var ofCluster v1alpha1.ClusterDevicePresetList
	for _, list := range []client.ObjectList{&own, &ofCluster} {
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list presets: %w", err)
		}
	}
	now, parse := map[types.NamespacedName]presets.Version{}, map[types.NamespacedName]func() preset.Preset{}
	add := func(o client.Object, of func() preset.Preset) {
		key := client.ObjectKeyFromObject(o)
		now[key], parse[key] = presets.Version{UID: o.GetUID(), Generation: o.GetGeneration()}, of
	}
	for i := range own.Items {
		add(&own.Items[i], func() preset.Preset { return preset.Of(own.Items[i].DeepCopy().Common()) })
	}
	for i := range ofCluster.Items {
		add(&ofCluster.Items[i], func() preset.Preset { return preset.Of(ofCluster.Items[i].DeepCopy().Common()) })
	}
	touched := r.index.Sync(ctx, now, func(key types.NamespacedName) preset.Preset { return parse[key]() })
	for _, key := range touched {
		if key == self {
			continue
		}
		select {
		case r.again <- presetEvent{Object: &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		}}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// read gets the preset in the form that both kinds share. It is a copy, not the cache's.
func (r *presetReconciler) read(ctx context.Context, req reconcile.Request) (presets.Object, error) {
	if req.Namespace == "" {
		p := &v1alpha1.ClusterDevicePreset{}
		err := r.client.Get(ctx, req.NamespacedName, p)
		return presets.Of(p.Common(), r.namespace), err
	}
	p := &v1alpha1.DevicePreset{}
	err := r.client.Get(ctx, req.NamespacedName, p)
	return presets.Of(p.Common(), r.namespace), err
}

// grant brings the preset's Role to the ConfigMaps that it names: none where it names none, or is not valid. Refused is why it cannot be.
func (r *presetReconciler) grant(
	ctx context.Context, key types.NamespacedName, o presets.Object,
) (again time.Duration, refused, err error) {
	request := o.Grant()
	if len(request.Names) == 0 || len(r.index.Faults(key)) > 0 {
		r.granted.forget(key)
		if o.Status.ObservedGeneration != o.GetGeneration() { // the spec may have named some until now
			err = r.grants.Revoke(ctx, request)
		}
		return 0, nil, err
	}
	now := r.clock.Now()
	if again, done := r.granted.remaining(key, o, now); done {
		return again, nil, nil
	}
	err = presets.Explain(o, r.grants.Ensure(ctx, request))
	switch {
	case presets.NotGranted(err):
		r.granted.forget(key)
		return wait.Jitter(grantRetry, jitter), err, nil
	case err != nil:
		return 0, nil, err
	}
	again = wait.Jitter(grantInterval, jitter)
	r.granted.note(key, o, again, now)
	return again, nil, nil
}

// report writes the status if it changed, in one patch, and tells of a changed condition. A spec that changed meanwhile is a conflict, and
// the next round looks at the new one.
func (r *presetReconciler) report(ctx context.Context, key types.NamespacedName, o presets.Object, refused error) error {
	var nodes v1alpha1.AcceleratorNodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("count the claims that have something from it: %w", err)
	}
	found := presets.Findings{Faults: r.index.Faults(key), NotGranted: refused, Conflicts: r.index.Conflicts(key)}
	if own, ok := o.Object.(*v1alpha1.DevicePreset); ok {
		p := preset.Of(own.Common())
		found.Outside = p.Outside(r.allowed)
	}
	found.Claims, found.Nodes = presets.Count(nodes.Items, key.Namespace, key.Name)
	before, _ := o.DeepCopyObject().(client.Object)
	status := o.Status.DeepCopy()
	presets.Record(o.Status, o.GetGeneration(), found, r.clock.Now())
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

// tell makes Events of conditions that became other ones. What is well from the beginning is no news.
func (r *presetReconciler) tell(ctx context.Context, o presets.Object, before *v1alpha1.DevicePresetStatus) {
	for kind, well := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionValid: metav1.ConditionTrue, v1alpha1.ConditionConflicting: metav1.ConditionFalse,
	} {
		was, now := meta.FindStatusCondition(before.Conditions, kind), meta.FindStatusCondition(o.Status.Conditions, kind)
		unchanged := was != nil && was.Status == now.Status && was.Reason == now.Reason
		if unchanged || now.Status == metav1.ConditionUnknown || was == nil && now.Status == well {
			continue
		}
		severity := corev1.EventTypeNormal
		if now.Status != well {
			severity = corev1.EventTypeWarning
		}
		klog.FromContext(ctx).Info("preset", "kind", o.Kind, "object", klog.KObj(o), "reason", now.Reason, "message", now.Message)
		r.recorder.Eventf(o.Object, nil, severity, now.Reason, "JudgePreset", "%s", eventNote(now.Message))
	}
}

// eventNote is a text as long as an Event takes.
func eventNote(text string) string {
	const limit = 1000
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "..."
}
