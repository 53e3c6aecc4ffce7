// SPDX-License-Identifier: Apache-2.0

package reclaims

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// policyPause is the least time between two reclaims of a policy: the waiting pod gets its node meanwhile.
	policyPause = time.Minute
	// policyLimit is how long a policy waits for a pod that was evicted, or deleted, and does not end.
	policyLimit = 10 * time.Minute
	// podPause is how long a pod for which nothing can be done is left alone. After each reclaim for a pod it doubles, up to maxPause: another
	// pod may have been faster, and would be again.
	podPause = time.Minute
	maxPause = time.Hour
)

// ledger remembers what was done, in memory: a new leader sees pods that are being deleted, and waits for these. The zero value is empty.
type ledger struct {
	policies map[string]reclaimed
	pods     map[types.UID]*entry
	// turns is when a pod of a namespace was judged last.
	turns map[string]time.Time
}

// reclaimed is the last reclaim of a policy.
type reclaimed struct {
	at      time.Time
	evicted []types.UID
}

// entry is what is known of a waiting pod.
type entry struct {
	next  time.Time
	pause time.Duration
	// judged is when it was last decided what to do for the pod.
	judged time.Time
	// refused says that the pod was told of a PodDisruptionBudget, unjudged that it was told that evictions might not help it.
	refused, unjudged bool
}

func (l *ledger) of(pod *corev1.Pod) *entry {
	if l.pods == nil {
		l.pods = map[types.UID]*entry{}
	}
	e := l.pods[pod.UID]
	if e == nil {
		e = &entry{pause: podPause}
		l.pods[pod.UID] = e
	}
	return e
}

// retain forgets pods that wait no more. It remembers the turn of a namespace for longer: making its pods again is to gain nothing.
func (l *ledger) retain(pods []*corev1.Pod, now time.Time) {
	maps.DeleteFunc(l.turns, func(_ string, at time.Time) bool { return now.Sub(at) >= maxPause })
	waiting := map[types.UID]bool{}
	for _, pod := range pods {
		waiting[pod.UID] = true
	}
	for uid := range l.pods {
		if !waiting[uid] {
			delete(l.pods, uid)
		}
	}
}

// due says whether it is time to decide for a pod.
func (l *ledger) due(pod *corev1.Pod, now time.Time) bool { return !now.Before(l.of(pod).next) }

// next returns at most n of the pods, in their order. Namespaces take turns, so that many pods of one for which nothing can be done do not
// keep those of others waiting: the namespaces whose last turn is the longest ago come first, and each has one pod before any has a second.
// Of one namespace, the pods whose last decision is the longest ago come first, and before these those without any.
func (l *ledger) next(pods []*corev1.Pod, n int) []*corev1.Pod {
	var namespaces []string
	of := map[string][]*corev1.Pod{}
	for _, pod := range pods {
		if of[pod.Namespace] == nil {
			namespaces = append(namespaces, pod.Namespace)
		}
		of[pod.Namespace] = append(of[pod.Namespace], pod)
	}
	for _, list := range of {
		slices.SortStableFunc(list, func(a, b *corev1.Pod) int { return l.of(a).judged.Compare(l.of(b).judged) })
	}
	slices.SortStableFunc(namespaces, func(a, b string) int { return l.turns[a].Compare(l.turns[b]) })
	chosen := map[types.UID]bool{}
	for turn := 0; len(chosen) < min(n, len(pods)); turn++ {
		for _, namespace := range namespaces {
			if turn < len(of[namespace]) && len(chosen) < n {
				chosen[of[namespace][turn].UID] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !chosen[pod.UID] })
}

// judged notes that it is decided now what to do for a pod.
func (l *ledger) judged(pod *corev1.Pod, now time.Time) {
	if l.turns == nil {
		l.turns = map[string]time.Time{}
	}
	l.turns[pod.Namespace], l.of(pod).judged = now, now
}

// nothing notes that nothing can be done for a pod now.
func (l *ledger) nothing(pod *corev1.Pod, now time.Time) {
	e := l.of(pod)
	e.next = now.Add(e.pause)
}

// refused notes that a PodDisruptionBudget keeps pods, and says whether the pod has to be told.
func (l *ledger) refused(pod *corev1.Pod, now time.Time) bool {
	e := l.of(pod)
	news := !e.refused
	e.refused, e.next = true, now.Add(e.pause)
	return news
}

// unjudged notes that it is not known what would help a pod, and says whether the pod has to be told.
func (l *ledger) unjudged(pod *corev1.Pod, now time.Time) bool {
	e := l.of(pod)
	news := !e.unjudged
	e.unjudged, e.next = true, now.Add(e.pause)
	return news
}

// reclaimed notes which pods were evicted for a pod by a policy.
func (l *ledger) reclaimed(policy string, pod *corev1.Pod, evicted []types.UID, now time.Time) {
	if l.policies == nil {
		l.policies = map[string]reclaimed{}
	}
	l.policies[policy] = reclaimed{at: now, evicted: evicted}
	e := l.of(pod)
	e.next, e.refused = now.Add(e.pause), false
	e.pause = min(2*e.pause, maxPause)
}

// busy says whether a policy may not evict pods now: the last were evicted a moment ago, or one of them did not end yet.
func (l *ledger) busy(policy string, pods []*corev1.Pod, now time.Time) bool {
	last, found := l.policies[policy]
	if !found || now.Sub(last.at) >= policyLimit {
		return false
	}
	there := func(pod *corev1.Pod) bool { return slices.Contains(last.evicted, pod.UID) }
	return now.Sub(last.at) < policyPause || slices.ContainsFunc(pods, there)
}
