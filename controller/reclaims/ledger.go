// SPDX-License-Identifier: Apache-2.0

package reclaims

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// policyPause is the least time between two reclaims of a policy: the waiting pod gets its node meanwhile.
	policyPause = time.Minute
	// policyLimit is how long a policy waits for a pod that was evicted and does not end.
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

// retain forgets pods that wait no more.
func (l *ledger) retain(pods []*corev1.Pod) {
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
