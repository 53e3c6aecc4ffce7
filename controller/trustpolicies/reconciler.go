// SPDX-License-Identifier: Apache-2.0

// Package trustpolicies reads the cluster's TrustPolicies for the controller and says in their status whether they can be used.
package trustpolicies

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// The reasons of a TrustPolicy's condition Valid. They are stable.
const (
	reasonValid   = "Valid"
	reasonInvalid = "Invalid"
)

// judge writes the status of TrustPolicies.
type judge struct {
	client   client.Client
	status   status.Writer
	clock    clock.PassiveClock
	policies *Reader
}

// New returns the reconciler.
func New(s reconciler.Services, policies *Reader) reconciler.Row {
	j := &judge{client: s.Client, status: s.Status(), clock: s.Clock, policies: policies}
	return reconciler.Row{
		Name: "TrustPolicies",
		Queues: []reconciler.Queue{{
			Name: "trustpolicy", Reconciler: j,
			Watches: []reconciler.Watch{{Object: &v1alpha1.TrustPolicy{}, Predicates: reconciler.GenerationChanged()}},
		}},
	}
}

// Reconcile judges one policy.
func (j *judge) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	policy := &v1alpha1.TrustPolicy{}
	if err := j.client.Get(ctx, req.NamespacedName, policy); err != nil || policy.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := policy.DeepCopy()
	now := valid(j.policies.cache.One(policy).Fault())
	now.ObservedGeneration, now.LastTransitionTime = policy.Generation, metav1.NewTime(j.clock.Now())
	policy.Status.ObservedGeneration, policy.Status.Summary = policy.Generation, summarize(&policy.Spec)
	meta.SetStatusCondition(&policy.Status.Conditions, now)
	written, err := j.status.Patch(ctx, before, policy)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("write the status of TrustPolicy %s: %w", req.Name, err)
	}
	if written {
		j.announce(ctx, before, policy)
	}
	return reconcile.Result{}, nil
}

// summarize returns the texts for the columns of kubectl.
func summarize(spec *v1alpha1.TrustPolicySpec) *v1alpha1.TrustSummary {
	return &v1alpha1.TrustSummary{
		Images: v1alpha1.Enumerate(spec.Images), Namespaces: cmp.Or(v1alpha1.Enumerate(spec.Namespaces), "all"),
	}
}

// announce makes an Event if the policy became valid or invalid, or is invalid for another reason.
func (j *judge) announce(ctx context.Context, before, now *v1alpha1.TrustPolicy) {
	was := status.Condition(before.Status.Conditions, v1alpha1.ConditionValid)
	is := status.Condition(now.Status.Conditions, v1alpha1.ConditionValid)
	j.status.Announce(ctx, status.Change{
		Object: now, Kind: v1alpha1.KindTrustPolicy, Action: "JudgeTrustPolicy",
		Before: before.Status.Conditions, Now: now.Status.Conditions,
	}, status.Rule{
		Type: v1alpha1.ConditionValid, Well: metav1.ConditionTrue, News: is.Status != metav1.ConditionTrue && was.Message != is.Message,
	})
}

// valid says whether a policy can be used. An invalid one refuses all images that it is for.
func valid(fault error) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue, Reason: reasonValid, Message: "every key and trusted root can be used",
	}
	if fault != nil {
		c.Status, c.Reason = metav1.ConditionFalse, reasonInvalid
		c.Message = message.Clip("the images that the policy is for are refused until it is corrected: "+fault.Error(), message.ReadableCondition)
	}
	return c
}

// Reader reads the TrustPolicies of the cluster.
type Reader struct {
	client client.Reader
	cache  *trust.Cache
}

// NewReader returns a reader of policies. It compiles a policy without a trusted root of its own with the public one. Policies hold at the
// mirrors of registries, too.
func NewReader(c client.Reader, publicRoot []byte, mirrors registryname.Mirrors) *Reader {
	return &Reader{client: c, cache: trust.NewCache(publicRoot, mirrors)}
}

// All returns every policy, sorted by name. Two results are equal if no policy changed in between.
func (r *Reader) All(ctx context.Context) ([]*trust.Policy, error) {
	var list v1alpha1.TrustPolicyList
	if err := r.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list TrustPolicies: %w", err)
	}
	objects := make([]*v1alpha1.TrustPolicy, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	slices.SortFunc(objects, func(a, b *v1alpha1.TrustPolicy) int { return strings.Compare(a.Name, b.Name) })
	return r.cache.All(objects), nil
}
