// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// reasonReady is the reason of the Event of a node that has passed every state.
const reasonReady = "NodeReady"

// ready is the position of a node that has passed every state.
const ready = "ready"

// positions is where nodes are, by name: ready, or the state and the reason for which they wait.
type positions map[string]string

// announcer makes the Events of stacks and of their nodes.
type announcer struct {
	reconciler.Services

	// told is where each node of a stack was when Events were last made. A stack is absent until its first round in this process.
	told map[string]positions
}

func (a *announcer) forget(name string) { delete(a.told, name) }

// conditions makes Events of the conditions that changed.
func (a *announcer) conditions(ctx context.Context, before, now *v1alpha1.AcceleratorStack) {
	a.Status().Announce(ctx, status.Change{
		Object: now, Kind: v1alpha1.KindAcceleratorStack, Action: "JudgeNodes",
		Before: before.Status.Conditions, Now: now.Status.Conditions,
	},
		status.Rule{Type: v1alpha1.ConditionDegraded, Well: metav1.ConditionFalse},
		status.Rule{Type: v1alpha1.ConditionAvailable, Well: metav1.ConditionTrue, Normal: pending(now)},
		status.Rule{Type: v1alpha1.ConditionOverruled, Well: metav1.ConditionFalse},
	)
}

// pending returns the reasons for which a stack is not available although nothing failed: nodes that join are no warning.
func pending(s *v1alpha1.AcceleratorStack) []string {
	if s.Status.FailedNodes > 0 {
		return nil
	}
	return []string{status.Condition(s.Status.Conditions, v1alpha1.ConditionAvailable).Reason}
}

// nodes makes an Event on the AcceleratorNode of each node that has failed a state, that has come further with the change of its
// driver, or that has passed all since.
func (a *announcer) nodes(
	ctx context.Context, before, s *v1alpha1.AcceleratorStack, outcomes []stack.Outcome, seen *stack.Observed,
) {
	was, now := a.told[s.Name], positions{}
	if was == nil {
		was = recorded(before, outcomes)
	}
	for i := range outcomes {
		o := &outcomes[i]
		if o.Empty {
			continue
		}
		w, waits := o.Waits()
		at := position(&w, waits)
		now[o.Node] = at
		node := seen.Accelerators[o.Node]
		switch {
		case was[o.Node] == at || node == nil:
			continue
		case waits:
			klog.FromContext(ctx).V(1).Info("Node waits", "stack", s.Name, "node", o.Node, "state", w.State, "reason", w.Reason)
			text := fmt.Sprintf("state %s of AcceleratorStack %s: %s", w.State, s.Name, w.Message)
			switch {
			case w.Failed || w.Reason == stack.ReasonUpgradeDrainBlocked:
				a.tell(node, s, corev1.EventTypeWarning, w.Reason, text)
			case o.UpgradeRuns && w.State == v1alpha1.StateDriver:
				a.tell(node, s, corev1.EventTypeNormal, w.Reason, text)
			}
		default:
			a.tell(node, s, corev1.EventTypeNormal, reasonReady, "the node has passed every state of AcceleratorStack "+s.Name)
		}
	}
	a.told[s.Name] = now
}

func position(w *v1alpha1.WaitingStackNode, waits bool) string {
	if !waits {
		return ready
	}
	return fmt.Sprintf("%s %s %t", w.State, w.Reason, w.Failed)
}

// recorded returns where nodes were when another process last wrote the status, so that a restart repeats no Event. A status that does not
// name every node that waits, or that was never written, is completed with where they are now.
func recorded(before *v1alpha1.AcceleratorStack, outcomes []stack.Outcome) positions {
	out := positions{}
	s := &before.Status
	for i := range s.Waiting {
		out[s.Waiting[i].Node] = position(&s.Waiting[i], true)
	}
	if s.ObservedGeneration > 0 && int(s.Nodes-s.ReadyNodes) <= len(s.Waiting) {
		for i := range outcomes {
			if _, named := out[outcomes[i].Node]; !named {
				out[outcomes[i].Node] = ready
			}
		}
		return out
	}
	for i := range outcomes {
		if _, named := out[outcomes[i].Node]; !named && s.ObservedGeneration > 0 {
			w, waits := outcomes[i].Waits()
			out[outcomes[i].Node] = position(&w, waits)
		}
	}
	return out
}

func (a *announcer) tell(node *v1alpha1.AcceleratorNode, s *v1alpha1.AcceleratorStack, severity, reason, note string) {
	a.Recorder.Eventf(node, s, severity, reason, "JudgeNode", "%s", message.EventNote(note))
}
