// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/rollout"
)

// rollouts remembers when nodes got the caches that are being rolled out, by their objects. It is in memory: with a new leader a wave may
// take longer. The zero value is empty.
type rollouts struct {
	mu       sync.Mutex
	progress map[types.NamespacedName]progress
}

// progress is when the number of nodes that have a digest changed.
type progress struct {
	digest string
	done   int
	at     time.Time
}

func (r *rollouts) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.progress, key)
}

// note notes how many nodes have a digest, and returns since when there are so many.
func (r *rollouts) note(key types.NamespacedName, digest string, done int, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.progress == nil {
		r.progress = map[types.NamespacedName]progress{}
	}
	if p := r.progress[key]; p.digest != digest || p.done != done || p.at.IsZero() {
		r.progress[key] = progress{digest, done, now}
	}
	return r.progress[key].at
}

// advance admits further nodes to a cache if it is time. It returns when to look again; 0 is when a watched object changes. An object whose
// digest was rolled out before there were waves has none.
func (r *rollouts) advance(o object, nodes []v1alpha1.AcceleratorNode, now time.Time) time.Duration {
	s, key := o.Status, o.Key()
	switch {
	case s.Admitted == nil || *s.Admitted >= rollout.All:
		r.forget(key)
		return 0
	case o.Prewarm() == v1alpha1.CachePrewarmNone:
		s.Admitted, s.AdmittedSince = nil, nil
		r.forget(key)
		return 0
	case !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady):
		s.Admitted, s.AdmittedSince = new(int32), nil // no node may fetch it, and the first wave begins when they may
		r.forget(key)
		return 0
	}
	w := waveOf(o, nodes)
	changed := r.note(key, s.ResolvedDigest, w.Done, now)
	if s.AdmittedSince != nil && !s.AdmittedSince.After(now) { // the clock of a leader before this one may be ahead
		w.Since = now.Sub(s.AdmittedSince.Time)
		if s.AdmittedSince.After(changed) {
			changed = s.AdmittedSince.Time
		}
	}
	w.Idle = now.Sub(changed)
	next, look := rollout.Next(*s.Admitted, w)
	if next != *s.Admitted {
		s.Admitted, s.AdmittedSince = &next, &metav1.Time{Time: now}
	}
	return look
}

// waveOf counts the nodes with a GPU, and what those of them report that are admitted.
func waveOf(o object, nodes []v1alpha1.AcceleratorNode) rollout.Wave {
	s := o.Status
	w := rollout.Wave{Quiet: o.Prewarm() != v1alpha1.CachePrewarmAll}
	for i := range nodes {
		node := &nodes[i]
		if !hasGPU(node.Status.Pools) {
			continue
		}
		w.Nodes++
		if !rollout.Admits(*s.Admitted, node.Name, s.ResolvedDigest) {
			continue
		}
		w.Admitted++
		for _, entry := range cachesOf(&node.Status, o) {
			if !isNewest(s, entry.Digest) {
				continue
			}
			switch entry.Phase {
			case v1alpha1.NodeCacheExtracted:
				w.Done++
			case v1alpha1.NodeCacheDownloading:
				w.Busy++
			case v1alpha1.NodeCacheError: // it tries again
			}
			break
		}
	}
	return w
}
