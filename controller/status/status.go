// SPDX-License-Identifier: Apache-2.0

// Package status writes the status of objects, in one patch each, and makes Events of conditions that changed.
package status

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/message"
)

// jitter spreads writes that wait for the same moment.
const jitter = 0.2

// Writer writes the status of objects.
type Writer struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Budget bounds PatchReports. Nil: there is no bound.
	Budget *Budget
}

// Patch writes the status of an object if it is another than before. It returns false if nothing was written: there was no change, or the
// object is gone. A spec that changed meanwhile is a conflict, and the next round reads the new one.
func (w Writer) Patch(ctx context.Context, before, now client.Object) (written bool, err error) {
	if equality.Semantic.DeepEqual(before, now) {
		return false, nil
	}
	return w.patch(ctx, before, now)
}

// Weight says what a change of an object that all nodes watch is worth to them.
type Weight int

const (
	// Counts are how many nodes there are of a kind, and which: what people read, and no node.
	Counts Weight = iota
	// Turn is a condition with another status or reason because of what nodes report, or a further wave of a rollout.
	Turn
	// News is what the spec, a registry, a policy or a check says.
	News
)

// PatchReports writes, as Patch does, the status of an object that all nodes watch. News are written at once. What follows from reports of
// nodes is written within the budget: if it is too early, PatchReports writes nothing and returns how long to wait.
func (w Writer) PatchReports(ctx context.Context, before, now client.Object, weight Weight) (written bool, early time.Duration, err error) {
	if equality.Semantic.DeepEqual(before, now) {
		return false, 0, nil
	}
	if weight != News {
		if early, err = w.early(ctx, now, weight); early > 0 || err != nil {
			return false, early, err
		}
	}
	written, err = w.patch(ctx, before, now)
	return written, 0, err
}

// early takes a write to all nodes of the budget, or returns how long to wait, with some jitter.
func (w Writer) early(ctx context.Context, o client.Object, weight Weight) (time.Duration, error) {
	if w.Budget == nil {
		return 0, nil
	}
	var nodes v1alpha1.AcceleratorNodeList
	if err := w.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("count the nodes: %w", err)
	}
	if weight == Counts {
		return wait.Jitter(w.Budget.TakeCounts(o.GetUID(), len(nodes.Items)), jitter), nil
	}
	return wait.Jitter(w.Budget.Take(len(nodes.Items)), jitter), nil
}

// SameConditions says whether two lists of conditions have the same status and reason each: their messages and times may differ.
func SameConditions(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
	})
}

func (w Writer) patch(ctx context.Context, before, now client.Object) (written bool, err error) {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := w.Client.Status().Patch(ctx, now, patch, client.FieldOwner(names.Controller)); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return true, nil
}

// Copy returns a copy of an object, to compare it with later.
func Copy(o client.Object) client.Object {
	c, _ := o.DeepCopyObject().(client.Object)
	return c
}

// Rule says when a condition becomes an Event. It does if its status or its reason changed, unless it is well from the beginning.
type Rule struct {
	// Type is the condition's.
	Type string
	// Well is the status that asks nothing of the user.
	Well metav1.ConditionStatus
	// News makes an Event although the condition did not change, or is well from the beginning.
	News bool
	// Silent are reasons that make no Event. Normal are reasons that make no Warning, whatever the status.
	Silent, Normal []string
}

// Change is an object whose conditions may have changed.
type Change struct {
	Object client.Object
	// Kind is for the log, Action for the Events.
	Kind, Action string
	Before, Now  []metav1.Condition
}

// Announce makes Events of the conditions that the rules name. If several conditions have one reason, the first rule counts.
func (w Writer) Announce(ctx context.Context, c Change, rules ...Rule) {
	announced := map[string]bool{}
	for _, rule := range rules {
		was, now := Condition(c.Before, rule.Type), Condition(c.Now, rule.Type)
		if !rule.applies(was, now) || announced[now.Reason] {
			continue
		}
		announced[now.Reason] = true
		severity := corev1.EventTypeNormal
		if now.Status != rule.Well && !slices.Contains(rule.Normal, now.Reason) {
			severity = corev1.EventTypeWarning
		}
		klog.FromContext(ctx).Info("Condition changed", "kind", c.Kind, "object", klog.KObj(c.Object), "condition", now.Type,
			"status", now.Status, "reason", now.Reason, "message", now.Message)
		w.Recorder.Eventf(c.Object, nil, severity, now.Reason, c.Action, "%s", message.EventNote(now.Message))
	}
}

func (r Rule) applies(was, now metav1.Condition) bool {
	if now.Status == "" || slices.Contains(r.Silent, now.Reason) {
		return false
	}
	same := was.Status == now.Status && was.Reason == now.Reason
	wellFromBeginning := was.Status == "" && now.Status == r.Well
	return r.News || !same && !wellFromBeginning
}

// Condition returns a condition, and an empty one if there is none.
func Condition(conditions []metav1.Condition, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}
