// SPDX-License-Identifier: Apache-2.0

// Package reclaim decides which pods that hold devices are evicted for a waiting pod with a higher priority, as PartitionPolicies allow
// it. It asks the planner what the scheduler would do without these pods, and changes nothing.
package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// Patience is how long the scheduler must have found no node for a pod before others are evicted for it.
const Patience = 20 * time.Second

// DefaultTimeout bounds the search of one decision. It is less than callers wait for one.
const DefaultTimeout = 8 * time.Second

// errTimeout ends the search of one decision.
var errTimeout = errors.New("the search took too long")

// Outcome is what is to be done for a waiting pod.
type Outcome string

// The outcomes.
const (
	// Fits: the scheduler finds a node without any eviction, or by preempting pods without devices.
	Fits Outcome = "fits"
	// Ending: it finds one when pods that are being deleted and end soon are gone.
	Ending Outcome = "ending"
	// Unjudged: the pod asks for something that the planner does not look at, slices of a pool are missing, or the search took too long. So an
	// eviction might not help, or not be needed.
	Unjudged Outcome = "unjudged"
	// NoSet: no pods may be evicted that would help.
	NoSet Outcome = "no-set"
	// Evict: the pods in Victims are to be evicted.
	Evict Outcome = "evict"
)

// Question is about one waiting pod.
type Question struct {
	// Snapshot has the pods that run on nodes with devices, too.
	Snapshot plan.Snapshot
	Policies []v1alpha1.PartitionPolicy
	Pod      *corev1.Pod
	// Spared says whether a pod cannot be evicted now. Nil: none is spared.
	Spared func(*corev1.Pod) bool
	// Ending says whether a pod ends soon by itself. One that is being deleted and does not is evicted like others, so that it ends sooner.
	// Nil: all that are being deleted end soon.
	Ending func(*corev1.Pod) bool
	// Busy says whether no pods are evicted for a policy now. Nil: none is busy.
	Busy func(policy string) bool
	// Timeout bounds the search. DefaultTimeout holds where it is 0.
	Timeout time.Duration
}

// Decision is the answer.
type Decision struct {
	Outcome Outcome
	// Policy allows the eviction, Node is where the devices are, and Victims are who has them, sorted by namespace and name.
	Policy, Node string
	Victims      []*corev1.Pod
	// Why says what makes the pod Unjudged.
	Why []string
}

// Eligible says whether pods may be evicted for a pod, as far as it tells by itself: the scheduler found no node for it for some time, it
// may preempt others, and no node is kept for it.
func Eligible(pod *corev1.Pod, now time.Time) bool {
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	if at < 0 || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || podspec.Ended(pod) || len(pod.Spec.SchedulingGates) > 0 {
		return false
	}
	c := &pod.Status.Conditions[at]
	return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && now.Sub(c.LastTransitionTime.Time) >= Patience &&
		pod.Status.NominatedNodeName == "" && ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) != corev1.PreemptNever
}

// Priority returns the priority of a pod.
func Priority(pod *corev1.Pod) int32 { return ptr.Deref(pod.Spec.Priority, 0) }

// Decide answers a question. When the search takes too long it answers with the best of the nodes that it has searched to the end, and
// with Unjudged if no pods of these may be evicted. The end of the context is an error.
func Decide(ctx context.Context, q Question) (Decision, error) {
	limited, cancel := context.WithTimeoutCause(ctx, cmp.Or(q.Timeout, DefaultTimeout), errTimeout)
	defer cancel()
	d, err := decide(limited, q)
	unjudged, is := errors.AsType[unjudgedError](err)
	if errors.Is(err, errTimeout) {
		unjudged, is = unjudgedError{[]string{tookTooLong}}, true
	}
	if is {
		err = nil
		if d.Outcome != Evict {
			d = Decision{Outcome: Unjudged, Why: unjudged.why}
		}
	}
	if err != nil {
		return Decision{}, err
	}
	slices.SortFunc(d.Victims, func(a, b *corev1.Pod) int { return strings.Compare(nameOf(a), nameOf(b)) })
	return d, nil
}

// decide answers a question. With an error it returns what it found before.
func decide(ctx context.Context, q Question) (Decision, error) {
	s := q.Snapshot
	s.Pods = withoutPreemptible(s, q.Pod, "")
	if fits, err := try(ctx, s, q.Pod, ""); err != nil || fits {
		return Decision{Outcome: Fits}, err
	}
	s, err := withoutEnding(s, q)
	if err != nil {
		return Decision{}, err
	}
	if fits, err := try(ctx, s, q.Pod, ""); err != nil || fits {
		return Decision{Outcome: Ending}, err
	}
	if s, err = withoutEnding(q.Snapshot, q); err != nil {
		return Decision{}, err
	}
	return leastHarm(ctx, s, q)
}

// leastHarm looks for the pods to evict on each node. A node of which they are not known is left out, and the error says so if no other
// node has any.
func leastHarm(ctx context.Context, s plan.Snapshot, q Question) (Decision, error) {
	best := Decision{Outcome: NoSet}
	var undecided error
	repelling := repelling(s, q.Pod)
	for _, node := range sortedNodes(s.Nodes) {
		p := PolicyOf(q.Policies, node.Labels)
		if p == nil || !lets(p, q.Pod) || q.Busy != nil && q.Busy(p.Name) {
			continue
		}
		set, err := smallest(ctx, narrow(s, node, q.Pod, repelling), candidates(s, node.Name, q), q.Pod, node.Name)
		_, unjudged := errors.AsType[unjudgedError](err)
		switch {
		case unjudged:
			undecided = err
		case err != nil:
			return best, fmt.Errorf("node %s: %w", node.Name, err)
		case len(set) > 0 && (best.Outcome != Evict || lessHarm(set, best.Victims)):
			best = Decision{Outcome: Evict, Policy: p.Name, Node: node.Name, Victims: set}
		}
	}
	return best, undecided
}

// lessHarm says whether a set of pods is smaller than another or, of the same size, has lower priorities.
func lessHarm(a, b []*corev1.Pod) bool {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(highest(a), highest(b)), cmp.Compare(sum(a), sum(b))) < 0
}

func highest(pods []*corev1.Pod) int32 {
	return Priority(slices.MaxFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(Priority(a), Priority(b)) }))
}

func sum(pods []*corev1.Pod) int64 {
	total := int64(0)
	for _, pod := range pods {
		total += int64(Priority(pod))
	}
	return total
}

func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
