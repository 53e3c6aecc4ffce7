// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/plan/explain"
)

const (
	// patience is how long a pod waits before it is explained.
	patience = 30 * time.Second
	// again is how long an explanation counts, also the one that a pod waits for devices of others.
	again = time.Minute
	// podPause is the least time between two Events of a pod, clusterBudget how many Events there are in a budgetPeriod.
	podPause      = 5 * time.Minute
	budgetPeriod  = time.Minute
	clusterBudget = 30
)

// ledger remembers what was said to which pod, in memory: a new leader says everything once more. The zero value is empty.
type ledger struct {
	entries map[types.UID]*entry
	// events are the times of the last Events of the cluster.
	events []time.Time
}

// entry is what is known of a waiting pod.
type entry struct {
	// reason is the last one found, empty for a pod that waits for nothing of ours.
	reason    explain.Reason
	explained time.Time
	// said is the reason of the last Event.
	said   explain.Reason
	posted time.Time
}

func (l *ledger) of(pod *corev1.Pod) *entry {
	if l.entries == nil {
		l.entries = map[types.UID]*entry{}
	}
	e := l.entries[pod.UID]
	if e == nil {
		e = &entry{reason: unexplained}
		l.entries[pod.UID] = e
	}
	return e
}

// retain forgets pods that wait no more.
func (l *ledger) retain(pods []*corev1.Pod) {
	waiting := map[types.UID]bool{}
	for _, pod := range pods {
		waiting[pod.UID] = true
	}
	for uid := range l.entries {
		if !waiting[uid] {
			delete(l.entries, uid)
		}
	}
}

// due returns the pods that may be explained now: those whose explanation is the oldest, then those that wait longest.
func (l *ledger) due(pods []*corev1.Pod, now time.Time) []*corev1.Pod {
	var out []*corev1.Pod
	for _, pod := range pods {
		if now.Sub(waitsSince(pod)) >= patience && now.Sub(l.of(pod).explained) >= again {
			out = append(out, pod)
		}
	}
	slices.SortStableFunc(out, func(a, b *corev1.Pod) int {
		return cmp.Or(l.of(a).explained.Compare(l.of(b).explained), waitsSince(a).Compare(waitsSince(b)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// turns returns at most n of the pods. Each namespace has one of its first pods before any has a second, so that many pods of one do not
// keep those of others waiting.
func turns(pods []*corev1.Pod, n int) []*corev1.Pod {
	turn, taken := map[*corev1.Pod]int{}, map[string]int{}
	for _, pod := range pods {
		turn[pod] = taken[pod.Namespace]
		taken[pod.Namespace]++
	}
	out := slices.Clone(pods)
	slices.SortStableFunc(out, func(a, b *corev1.Pod) int { return cmp.Compare(turn[a], turn[b]) })
	return out[:min(len(out), n)]
}

// waitsSince is when the scheduler first refused a pod, or when the pod was made: without its claims it is never refused.
func waitsSince(pod *corev1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

func (l *ledger) explained(pod *corev1.Pod, reason explain.Reason, now time.Time) {
	e := l.of(pod)
	e.reason, e.explained = reason, now
}

// mayPost says whether the reason is news, and takes it out of the budgets.
func (l *ledger) mayPost(pod *corev1.Pod, reason explain.Reason, now time.Time) bool {
	e := l.of(pod)
	l.events = slices.DeleteFunc(l.events, func(at time.Time) bool { return now.Sub(at) >= budgetPeriod })
	if e.said == reason || !e.posted.IsZero() && now.Sub(e.posted) < podPause || len(l.events) >= clusterBudget {
		return false
	}
	e.said, e.posted = reason, now
	l.events = append(l.events, now)
	return true
}

// counts returns how many pods wait for each reason.
func (l *ledger) counts() map[explain.Reason]int {
	out := map[explain.Reason]int{}
	for _, e := range l.entries {
		if e.reason != "" {
			out[e.reason]++
		}
	}
	return out
}
