// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
)

// The reasons of the conditions, beside those of nodes.
const (
	// ReasonNoNodes: the stack holds for no node with a device.
	ReasonNoNodes = "NoNodes"
	// ReasonAllReady: every node has passed every state.
	ReasonAllReady = "AllNodesReady"
	// ReasonSettled: every state of every node is known.
	ReasonSettled = "Settled"
	// ReasonNoFailure: no node has failed a state.
	ReasonNoFailure = "NoNodeFailed"
	// ReasonOverruled and ReasonNotOverruled: an older stack holds for nodes that this one selects, or none does.
	ReasonOverruled    = "Overruled"
	ReasonNotOverruled = "NotOverruled"
	// reasonWaiting stands for a reason that a condition may not have.
	reasonWaiting = "Waiting"
)

// maxNamed is how many stacks the condition Overruled names.
const maxNamed = 8

// Record writes to a stack's status how far its nodes are, and returns those that wait: first those that have failed a state, then by name.
func Record(s *v1alpha1.AcceleratorStack, selection Selection, outcomes []Outcome, now time.Time) []v1alpha1.WaitingStackNode {
	status := &s.Status
	status.ObservedGeneration = s.Generation
	status.Nodes, status.ReadyNodes, status.FailedNodes, status.EmptyNodes, status.UpgradingNodes = 0, 0, 0, 0, 0
	status.OverruledNodes = number(selection.Overruled)
	states := s.Spec.StateNames()
	counts := make([]v1alpha1.StackStateCount, 0, len(states))
	for _, name := range states {
		counts = append(counts, v1alpha1.StackStateCount{Name: name})
	}
	var waiting []v1alpha1.WaitingStackNode
	for i := range outcomes {
		o := &outcomes[i]
		if o.Empty {
			status.EmptyNodes++
			continue
		}
		status.Nodes++
		if o.UpgradeRuns {
			status.UpgradingNodes++
		}
		count(counts, o)
		w, waits := o.Waits()
		switch {
		case !waits:
			status.ReadyNodes++
			continue
		case w.Failed:
			status.FailedNodes++
		}
		waiting = append(waiting, w)
	}
	slices.SortFunc(waiting, func(a, b v1alpha1.WaitingStackNode) int {
		return cmp.Or(-compareBool(a.Failed, b.Failed), cmp.Compare(a.Node, b.Node))
	})
	status.States = counts
	status.SetWaiting(waiting)
	for _, c := range conditions(status, selection, waiting) {
		c.ObservedGeneration, c.LastTransitionTime = s.Generation, metav1.NewTime(now)
		c.Message = message.Clip(c.Message, message.ReadableCondition)
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return waiting
}

func count(counts []v1alpha1.StackStateCount, o *Outcome) {
	for i := range counts {
		at := slices.Index(o.States, counts[i].Name)
		switch {
		case at >= 0 && o.Verdicts[at].Status == Passed:
			counts[i].Passed++
		case at >= 0 && o.Verdicts[at].Status == Failed:
			counts[i].Failed++
		default:
			counts[i].Unknown++
		}
	}
}

func conditions(s *v1alpha1.AcceleratorStackStatus, selection Selection, waiting []v1alpha1.WaitingStackNode) []metav1.Condition {
	available := metav1.Condition{
		Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionTrue, Reason: ReasonAllReady,
		Message: fmt.Sprintf("%d of %d nodes have passed every state", s.ReadyNodes, s.Nodes),
	}
	progressing := metav1.Condition{
		Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: ReasonSettled,
		Message: "every state of every node is known",
	}
	degraded := metav1.Condition{
		Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionFalse, Reason: ReasonNoFailure, Message: "no node has failed a state",
	}
	pending := slices.IndexFunc(waiting, func(w v1alpha1.WaitingStackNode) bool { return !w.Failed })
	if pending >= 0 {
		progressing.Status, progressing.Reason = metav1.ConditionTrue, conditionReason(waiting[pending].Reason)
		progressing.Message = waiting[pending].String() + more(len(waiting)-int(s.FailedNodes)-1, "wait")
	}
	if s.FailedNodes > 0 {
		degraded.Status, degraded.Reason = metav1.ConditionTrue, conditionReason(waiting[0].Reason)
		degraded.Message = waiting[0].String() + more(int(s.FailedNodes)-1, "failed")
	}
	switch {
	case s.Nodes == 0:
		available.Status, available.Reason = metav1.ConditionUnknown, ReasonNoNodes
		available.Message = "the stack holds for no node on which a device was found" + without(s, selection)
	case len(waiting) > 0:
		available.Status, available.Reason = metav1.ConditionFalse, conditionReason(waiting[0].Reason)
		available.Message += "; " + waiting[0].String()
	}
	return []metav1.Condition{available, progressing, degraded, overruled(selection)}
}

// without says why selected nodes do not count.
func without(s *v1alpha1.AcceleratorStackStatus, selection Selection) string {
	switch {
	case s.EmptyNodes > 0:
		return fmt.Sprintf(": %d selected nodes have none", s.EmptyNodes)
	case selection.Overruled > 0:
		return ": the condition Overruled names the stacks that hold for those that it selects"
	}
	return ": look at spec.nodeSelector, and whether Fettle's plugin runs on the nodes"
}

func overruled(selection Selection) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionOverruled, Status: metav1.ConditionFalse, Reason: ReasonNotOverruled,
		Message: "no older stack selects a node of this one",
	}
	if selection.Overruled == 0 {
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, ReasonOverruled
	c.Message = fmt.Sprintf("%d selected nodes belong to an older stack: %s", selection.Overruled,
		strings.Join(selection.By[:min(len(selection.By), maxNamed)], ", "))
	return c
}

func more(count int, does string) string {
	if count <= 0 {
		return ""
	}
	return fmt.Sprintf("; %d more %s", count, does)
}

// compareBool puts true after false.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// number is a count as the API has it.
func number(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// conditionReason is a node's reason if a condition may have it: the API server refuses the whole status otherwise.
func conditionReason(reason string) string {
	if conditionReasonForm.MatchString(reason) {
		return reason
	}
	return reasonWaiting
}

//nolint:gochecknoglobals // a constant that Go cannot express as such
var conditionReasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)
