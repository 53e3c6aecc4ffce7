// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/plan"
)

const (
	// maxTries is how many sets are tried on one node before a set is taken that may be larger than needed, of which no pod can be left out.
	maxTries = 200
	// tryTimeout bounds what the allocator tries on one node.
	tryTimeout = time.Second
)

// unjudgedError says why it is not known whether a pod fits: it asks for something that the planner does not look at, devices are only
// published in part, or the search on a node took too long. It is not a no, since an eviction that is not needed harms as much as one that
// does not help.
type unjudgedError struct{ why []string }

func (e unjudgedError) Error() string {
	return "it is not known whether the pod fits: " + strings.Join(e.why, ", ")
}

const tookTooLong = "the search took too long"

// try says whether the scheduler finds a node for a pod, or takes the given one. The error is an unjudgedError if that is not known, and
// names the cause of the context's end.
func try(ctx context.Context, s plan.Snapshot, pod *corev1.Pod, node string) (bool, error) {
	if ctx.Err() != nil {
		return false, stoppedBy(ctx)
	}
	c, _, err := plan.NewCluster(s)
	if err != nil {
		return false, err
	}
	report, err := plan.Run(ctx, c, []*corev1.Pod{pod.DeepCopy()}, plan.Options{Timeout: tryTimeout, Only: node})
	if err != nil {
		return false, err
	}
	result := report.Pods[nameOf(pod)]
	switch {
	case result.Stopped && ctx.Err() != nil:
		return false, stoppedBy(ctx)
	case result.Stopped:
		return false, unjudgedError{[]string{tookTooLong}}
	}
	var why []string
	if result.Node == nil { // what is not looked at can only be one reason more
		for _, pool := range result.Incomplete {
			if strings.HasPrefix(pool, v1alpha1.DriverName+"/") {
				why = append(why, "slices of pool "+pool+" are missing")
			}
		}
	} else {
		for _, field := range result.Unjudged {
			why = append(why, field+" is not looked at")
		}
	}
	if len(why) > 0 {
		return false, unjudgedError{why}
	}
	return result.Node != nil, nil
}

func stoppedBy(ctx context.Context) error {
	return fmt.Errorf("the search for pods to evict was stopped: %w", context.Cause(ctx))
}

// search looks for the smallest set of pods of one node.
type search struct {
	snapshot   plan.Snapshot
	candidates []*corev1.Pod
	pod        *corev1.Pod
	node       string
	tries      int
}

// smallest returns the smallest set of candidates without which the pod fits, nil if there is none. Of sets of the same size it takes
// the one whose highest priority is the lowest. If it is not known of one set whether it helps, the error is an unjudgedError: that set may
// be the smallest.
func smallest(ctx context.Context, s plan.Snapshot, candidates []*corev1.Pod, pod *corev1.Pod, node string) ([]*corev1.Pod, error) {
	if len(candidates) == 0 {
		return nil, nil
	}
	w := &search{snapshot: s, candidates: candidates, pod: pod, node: node}
	if fits, err := w.fits(ctx, candidates); err != nil || !fits {
		return nil, err
	}
	for size := 1; size < len(candidates); size++ {
		set, err := w.ofSize(ctx, size, len(candidates), nil)
		if err != nil || set != nil {
			return set, err
		}
		if w.tries >= maxTries {
			return w.reduced(ctx)
		}
	}
	return candidates, nil
}

// fits says whether the pod fits once these pods are gone.
func (w *search) fits(ctx context.Context, set []*corev1.Pod) (bool, error) {
	w.tries++
	s, err := without(w.snapshot, set)
	if err != nil {
		return false, err
	}
	return try(ctx, s, w.pod, w.node)
}

// ofSize returns the first set that helps, of size pods among the first below candidates and those of chosen. Sets without the last
// candidates, which have the highest priorities, come first.
func (w *search) ofSize(ctx context.Context, size, below int, chosen []*corev1.Pod) ([]*corev1.Pod, error) {
	if size == 0 {
		fits, err := w.fits(ctx, chosen)
		if err != nil || !fits {
			return nil, err
		}
		return chosen, nil
	}
	for last := size - 1; last < below && w.tries < maxTries; last++ {
		set, err := w.ofSize(ctx, size-1, last, append(slices.Clone(chosen), w.candidates[last]))
		if err != nil || set != nil {
			return set, err
		}
	}
	return nil, nil
}

// reduced spares one candidate after the other, those with the highest priority first, as long as the pod fits.
func (w *search) reduced(ctx context.Context) ([]*corev1.Pod, error) {
	set := slices.Clone(w.candidates)
	for _, spared := range slices.Backward(w.candidates) {
		fewer := slices.DeleteFunc(slices.Clone(set), func(p *corev1.Pod) bool { return p == spared })
		fits, err := w.fits(ctx, fewer)
		if err != nil {
			return nil, err
		}
		if fits {
			set = fewer
		}
	}
	return set, nil
}

// narrow returns what decides whether a pod fits one node: many sets are tried there, and the rest of a large cluster would be copied each
// time. Of other nodes it is the pods that repel the pod, perhaps from a whole zone.
func narrow(s plan.Snapshot, node *corev1.Node, pod *corev1.Pod, repelling []*corev1.Pod) plan.Snapshot {
	kept := map[string]bool{node.Name: true}
	s.Pods = slices.DeleteFunc(withoutPreemptible(s, pod, node.Name), func(p *corev1.Pod) bool { return p.Spec.NodeName != node.Name })
	for _, p := range repelling {
		if p.Spec.NodeName != node.Name {
			kept[p.Spec.NodeName] = true
			s.Pods = append(s.Pods, p)
		}
	}
	s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n *corev1.Node) bool { return !kept[n.Name] })
	s.Slices = slices.DeleteFunc(slices.Clone(s.Slices), func(slice *resourceapi.ResourceSlice) bool {
		return ptr.Deref(slice.Spec.NodeName, node.Name) != node.Name
	})
	pools := map[[2]string]bool{}
	for _, slice := range s.Slices {
		pools[[2]string{slice.Spec.Driver, slice.Spec.Pool.Name}] = true
	}
	s.Claims = slices.DeleteFunc(slices.Clone(s.Claims), func(claim *resourceapi.ResourceClaim) bool {
		return claim.Namespace != pod.Namespace && (claim.Status.Allocation == nil || !slices.ContainsFunc(
			claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
				return pools[[2]string{r.Driver, r.Pool}]
			}))
	})
	return s
}

func sortedNodes(nodes []*corev1.Node) []*corev1.Node {
	return slices.SortedFunc(slices.Values(nodes), func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
}
