// SPDX-License-Identifier: Apache-2.0

// Package partitionpolicies writes to the status of PartitionPolicies whether they can be used and what became of them on nodes, as the
// nodes report it, and which nodes have their taints. Which policy holds for a device is decided on its node, by package policy; package
// nodetaints writes the taints.
package partitionpolicies

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/nodetaints"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// judge writes the status of PartitionPolicies. One call runs at a time, since a Resolver serves no more.
type judge struct {
	reconciler.Services

	status   status.Writer
	resolver policy.Resolver
	// tainting says that nodes are tainted. Shared are the keys of taints that pods tolerate also if somebody else put them on nodes.
	// Taints with NoExecute are put on nodes only with the keys in noExecute.
	tainting  bool
	shared    []string
	noExecute nodepolicy.NoExecuteKeys
	// readings are those of DaemonSets and Modules, by the policy's name.
	readings map[string]reading
}

// New returns the reconciler. It follows changes of policies, of what nodes report of them, of the labels by which nodes are selected, and
// of the taints of nodes.
func New(s reconciler.Services, tainting bool, shared []string, noExecute nodepolicy.NoExecuteKeys) reconciler.Row {
	j := &judge{
		Services: s, status: s.Status(), tainting: tainting, shared: shared,
		noExecute: noExecute, readings: map[string]reading{},
	}
	return reconciler.Row{
		Name: "PartitionPolicies",
		Queues: []reconciler.Queue{{
			Name: "partitionpolicy", Reconciler: j,
			Watches: []reconciler.Watch{
				{Object: &v1alpha1.PartitionPolicy{}, Predicates: reconciler.GenerationChanged()},
				{Object: &v1alpha1.AcceleratorNode{}, Handler: onReports(s.Client)},
				{Object: &schedulingv1.PriorityClass{}, Handler: onLabels(s.Client)},
				{Object: &corev1.Node{}, Handler: onLabels(s.Client), Predicates: []predicate.Predicate{nodetaints.Changed()}},
			},
		}},
	}
}

// Reconcile judges one policy.
func (j *judge) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var p v1alpha1.PartitionPolicy
	if err := j.Client.Get(ctx, req.NamespacedName, &p); err != nil || p.DeletionTimestamp != nil {
		delete(j.readings, req.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	reports, err := j.reports(ctx, &p)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("PartitionPolicy %s: %w", req.Name, err)
	}
	before := p.DeepCopy()
	nodes, foreign, err := j.taintable(ctx, &p)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("PartitionPolicy %s: %w", req.Name, err)
	}
	var classes schedulingv1.PriorityClassList
	if err := j.Client.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list PriorityClasses: %w", err)
	}
	faults := j.resolver.Check(&p.Spec, field.NewPath("spec"))
	record(&p, faults, reports, j.Clock.Now())
	j.recordTaints(&p, faults, standings(&p, nodes), foreign)
	recordClasses(&p, faults, classes.Items, j.tainting, j.Clock.Now())
	recordReclaim(&p, faults, j.Clock.Now())
	again, unread := j.checkRepelled(ctx, &p, nodes)
	written, early, err := j.status.PatchReports(ctx, before, &p, weigh(before, &p))
	if err != nil {
		delete(j.readings, req.Name) // what was found is not written
		return reconcile.Result{}, fmt.Errorf("write the status of PartitionPolicy %s: %w", req.Name, err)
	}
	if written {
		j.announce(ctx, before, &p)
	}
	if unread != nil {
		return reconcile.Result{}, fmt.Errorf("what the taints of PartitionPolicy %s repel: %w", req.Name, unread)
	}
	return reconcile.Result{RequeueAfter: reconciler.Sooner(again, early)}, nil
}

// weigh tells what nodes report, counts or conditions that follow from them, from more: another spec, another verdict, what was read for
// it, or which taints new pods tolerate.
func weigh(before, now *v1alpha1.PartitionPolicy) status.Weight {
	was, is := before.Status.Conditions, now.Status.Conditions
	read := func(c []metav1.Condition) metav1.Condition { return status.Condition(c, v1alpha1.ConditionRepelling) }
	switch {
	case before.Status.ObservedGeneration != now.Status.ObservedGeneration, read(was) != read(is),
		!slices.Equal(before.Status.ToleratedTaints, now.Status.ToleratedTaints), !status.SameConditions(ofPolicy(was), ofPolicy(is)):
		return status.News
	case !status.SameConditions(was, is):
		return status.Turn
	}
	return status.Counts
}

// ofPolicy returns the conditions that do not follow from nodes, of which there may be thousands.
func ofPolicy(all []metav1.Condition) []metav1.Condition {
	ofNodes := []string{v1alpha1.ConditionApplied, v1alpha1.ConditionOverruled, v1alpha1.ConditionTainted}
	return slices.DeleteFunc(slices.Clone(all), func(c metav1.Condition) bool { return slices.Contains(ofNodes, c.Type) })
}

// announce makes an Event if the policy became valid or invalid, or is invalid for another reason, if nodes got all of its taints or
// cannot get them, and if reclaim: Evict evicts no pod.
func (j *judge) announce(ctx context.Context, before, now *v1alpha1.PartitionPolicy) {
	was := status.Condition(before.Status.Conditions, v1alpha1.ConditionValid)
	is := status.Condition(now.Status.Conditions, v1alpha1.ConditionValid)
	j.status.Announce(ctx, status.Change{
		Object: now, Kind: v1alpha1.KindPartitionPolicy, Action: "JudgePartitionPolicy",
		Before: before.Status.Conditions, Now: now.Status.Conditions,
	}, status.Rule{
		Type: v1alpha1.ConditionValid, Well: metav1.ConditionTrue, News: is.Status != metav1.ConditionTrue && was.Message != is.Message,
	}, status.Rule{
		Type: v1alpha1.ConditionTainted, Well: metav1.ConditionTrue, Silent: []string{ReasonNotValid, ReasonWaiting},
		Normal: []string{ReasonNoNodes},
	}, status.Rule{
		Type: v1alpha1.ConditionRepelling, Well: metav1.ConditionFalse, Silent: []string{ReasonNotRead},
	}, status.Rule{
		Type: v1alpha1.ConditionPriorityClasses, Well: metav1.ConditionTrue, Silent: []string{ReasonNotValid, ReasonWaiting, ReasonSwitchedOff},
	}, status.Rule{
		Type: v1alpha1.ConditionReclaiming, Well: metav1.ConditionTrue, Silent: []string{ReasonNotValid},
	})
}

// reports returns what the nodes report of a policy, of the nodes that it selects and of those that report it anyway.
func (j *judge) reports(ctx context.Context, p *v1alpha1.PartitionPolicy) ([]report, error) {
	if !p.Spec.DividesDevices() {
		return nil, nil
	}
	var accelerators v1alpha1.AcceleratorNodeList
	if err := j.Client.List(ctx, &accelerators, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list AcceleratorNodes: %w", err)
	}
	var nodes corev1.NodeList
	if err := j.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	return reportsOf(p, accelerators.Items, nodes.Items), nil
}

// taintable returns the nodes that a policy taints, sorted by name, writes to its status which of its taints pods tolerate, and returns the
// others.
func (j *judge) taintable(ctx context.Context, p *v1alpha1.PartitionPolicy) (out []*corev1.Node, foreign []foreignTaint, err error) {
	p.Status.ToleratedTaints = nil
	if !j.tainting || !nodepolicy.Taints(p) {
		return nil, nil, nil
	}
	var nodes corev1.NodeList
	if err := j.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list Nodes: %w", err)
	}
	p.Status.ToleratedTaints, foreign = tolerable(p, nodes.Items, j.shared)
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if !selection(p.Spec.NodeSelector).Matches(labels.Set(n.Labels)) {
			continue
		}
		var a v1alpha1.AcceleratorNode
		if err := j.Client.Get(ctx, client.ObjectKeyFromObject(n), &a); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, nil, fmt.Errorf("read AcceleratorNode %s: %w", n.Name, err)
		}
		if nodepolicy.HasDevices(&a, n.Annotations[v1alpha1.TaintsAnnotation]) {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out, foreign, nil
}

// standings returns how nodes stand to the taints of a policy.
func standings(p *v1alpha1.PartitionPolicy, nodes []*corev1.Node) (out []nodepolicy.Standing) {
	for _, n := range nodes {
		out = append(out, nodepolicy.StandingOf(n.Name, n.Spec.Taints, p.Spec.Nodes.Taints))
	}
	return out
}

// onReports queues the policies of which a node reports something else, some time later, since the nodes follow a policy together. If the
// node comes or goes, or has its first device or none any more, it queues all policies: one that selects the node waits for its report.
func onReports(c client.Reader) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, before, now client.Object) {
		if before == nil || now == nil || hasDevices(before) != hasDevices(now) {
			queueAll(ctx, c, q)
			return
		}
		queued := map[string]bool{}
		for _, p := range reconciler.Difference(
			reconciler.NodeStatus(before).PartitionPolicies, reconciler.NodeStatus(now).PartitionPolicies,
		) {
			if !queued[p.Name] {
				queued[p.Name] = true
				q.AddAfter(request(p.Name), reconciler.Gathering)
			}
		}
	})
}

func hasDevices(object client.Object) bool {
	return nodepolicy.HasDevices(&v1alpha1.AcceleratorNode{Status: reconciler.NodeStatus(object)}, "")
}

// onLabels queues all policies, any of which may select the node or no longer select it, or want the PriorityClass.
func onLabels(c client.Reader) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, _, _ client.Object) { queueAll(ctx, c, q) })
}

func queueAll(ctx context.Context, c client.Reader, q reconciler.RequestQueue) {
	var list v1alpha1.PartitionPolicyList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "List the PartitionPolicies that a change of a node concerns")
	}
	for i := range list.Items {
		q.AddAfter(request(list.Items[i].Name), reconciler.Gathering)
	}
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
