// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/pull"
)

// The reasons of a TrustPolicy's condition Valid. They are stable.
const (
	reasonPolicyValid   = "Valid"
	reasonPolicyInvalid = "Invalid"
)

// longestCondition is how long the message of a condition may be.
const longestCondition = 2048

// trustReconciler says in the status of TrustPolicies whether they can be used.
type trustReconciler struct {
	client   client.Client
	recorder events.EventRecorder
	clock    clock.PassiveClock
	pause    pauser
	policies *trustPolicies
}

func newTrustReconciler(mgr manager.Manager, c clock.PassiveClock, pause pauser, policies *trustPolicies) *trustReconciler {
	return &trustReconciler{
		client: mgr.GetClient(), recorder: mgr.GetEventRecorder(Name), clock: c, pause: pause, policies: policies,
	}
}

// register adds the reconciler to the manager; the CRDs must be established.
func (r *trustReconciler) register(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).Named("trustpolicy").
		For(&v1alpha1.TrustPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// Reconcile looks at one policy.
func (r *trustReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	object := &v1alpha1.TrustPolicy{}
	if err := r.client.Get(ctx, req.NamespacedName, object); err != nil || object.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	before := object.DeepCopy()
	condition := policyCondition(r.policies.cache.One(object).Fault())
	condition.ObservedGeneration, condition.LastTransitionTime = object.Generation, metav1.NewTime(r.clock.Now())
	object.Status.ObservedGeneration = object.Generation
	meta.SetStatusCondition(&object.Status.Conditions, condition)
	if equality.Semantic.DeepEqual(before.Status, object.Status) {
		return reconcile.Result{}, nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, object, patch, client.FieldOwner(Name)); err != nil {
		if err = client.IgnoreNotFound(err); err != nil {
			err = fmt.Errorf("write the status of TrustPolicy %s: %w", req.Name, err)
		}
		return reconcile.Result{}, err
	}
	r.tell(ctx, object, meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionValid), condition)
	return reconcile.Result{}, nil
}

// policyCondition says whether a policy can be used. An invalid one refuses all images that it is for.
func policyCondition(fault error) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue, Reason: reasonPolicyValid, Message: "every key and trusted root can be used",
	}
	if fault != nil {
		c.Status, c.Reason = metav1.ConditionFalse, reasonPolicyInvalid
		c.Message = pull.Clip("until it is mended, the images that it is for are refused: "+fault.Error(), longestCondition)
	}
	return c
}

// tell makes an Event of a condition that became another one. What is well from the beginning is no news.
func (r *trustReconciler) tell(ctx context.Context, object *v1alpha1.TrustPolicy, was *metav1.Condition, now metav1.Condition) {
	severity := corev1.EventTypeNormal
	if now.Status != metav1.ConditionTrue {
		severity = corev1.EventTypeWarning
	}
	if was == nil && severity == corev1.EventTypeNormal || was != nil && was.Status == now.Status && was.Message == now.Message {
		return
	}
	klog.FromContext(ctx).Info("trust policy", "object", klog.KObj(object), "reason", now.Reason, "message", now.Message)
	r.recorder.Eventf(object, nil, severity, now.Reason, "JudgeTrustPolicy", "%s", eventNote(now.Message))
}
