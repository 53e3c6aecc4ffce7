// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/change"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// PolicyOf returns the policy by which pods on a node with these labels are evicted, nil if none are. The first policy that selects the
// node and says whether devices are reclaimed there counts.
func PolicyOf(policies []v1alpha1.PartitionPolicy, labels map[string]string) *v1alpha1.PartitionPolicy {
	for _, p := range policy.InOrder(policies) {
		if !usable(&p) {
			continue
		}
		if selected, err := policy.SelectsNode(p.Spec.NodeSelector, labels); err != nil || !selected {
			continue
		}
		if p.Spec.Nodes.Reclaim == v1alpha1.ReclaimEvict {
			return &p
		}
		return nil
	}
	return nil
}

// Allowed says whether any policy lets a pod have others evicted.
func Allowed(policies []v1alpha1.PartitionPolicy, pod *corev1.Pod) bool {
	return slices.ContainsFunc(policies, func(p v1alpha1.PartitionPolicy) bool { return usable(&p) && lets(&p, pod) })
}

// lets says whether a policy lets a pod have others evicted.
func lets(p *v1alpha1.PartitionPolicy, pod *corev1.Pod) bool {
	return p.Spec.Nodes.Reclaims(pod.Namespace, pod.Spec.PriorityClassName, Priority(pod))
}

// Wanted says whether any policy has pods evicted.
func Wanted(policies []v1alpha1.PartitionPolicy) bool {
	return slices.ContainsFunc(policies, func(p v1alpha1.PartitionPolicy) bool {
		return usable(&p) && p.Spec.Nodes.Reclaim == v1alpha1.ReclaimEvict
	})
}

// usable says whether a policy says anything of reclaiming, is valid, and is not being deleted.
func usable(p *v1alpha1.PartitionPolicy) bool {
	return p.Spec.Nodes != nil && p.Spec.Nodes.Reclaim != "" && p.DeletionTimestamp == nil && len(p.Spec.Validate(field.NewPath("spec"))) == 0
}

// candidates are the pods of a node that may be evicted: they hold devices of ours and have a lower priority. The first are those with the
// lowest priority, and of these the youngest. Pods that come back to their node at once, those of DaemonSets and of the node itself, are
// left out.
func candidates(s plan.Snapshot, node string, q Question) []*corev1.Pod {
	holders := holdersOf(s.Claims, func(r *resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == v1alpha1.DriverName && !ptr.Deref(r.AdminAccess, false)
	})
	var out []*corev1.Pod
	for _, pod := range s.Pods {
		if pod.Spec.NodeName == node && holders[pod.UID] && Priority(pod) < Priority(q.Pod) && !podspec.Ended(pod) && !q.ending(pod) &&
			!comesBack(pod) && (q.Spared == nil || !q.Spared(pod)) {
			out = append(out, pod)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(Priority(a), Priority(b)), started(b).Compare(started(a).Time), strings.Compare(nameOf(a), nameOf(b)))
	})
	return out
}

// started is when a pod began to run, or was made.
func started(pod *corev1.Pod) *metav1.Time {
	return cmp.Or(pod.Status.StartTime, &pod.CreationTimestamp)
}

// holdersOf returns the UIDs of the pods for which claims with such devices are reserved.
func holdersOf(claims []*resourceapi.ResourceClaim, counts func(*resourceapi.DeviceRequestAllocationResult) bool) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		results := claim.Status.Allocation.Devices.Results
		if !slices.ContainsFunc(results, func(r resourceapi.DeviceRequestAllocationResult) bool { return counts(&r) }) {
			continue
		}
		for _, user := range claim.Status.ReservedFor {
			if user.APIGroup == "" && user.Resource == "pods" {
				out[user.UID] = true
			}
		}
	}
	return out
}

// comesBack says whether a pod is made again on its node as soon as it is evicted.
func comesBack(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}

// withoutPreemptible returns the pods but for those that Kubernetes itself preempts for a pod once devices are free: they have a lower
// priority, and no claims. It preempts pods of one node alone: with the name of a node, those of others stay. Without it the answer is
// that for a scheduler that may preempt anywhere, which has fewer pods evicted here.
func withoutPreemptible(s plan.Snapshot, waiting *corev1.Pod, node string) []*corev1.Pod {
	holders := holdersOf(s.Claims, func(*resourceapi.DeviceRequestAllocationResult) bool { return true })
	return slices.DeleteFunc(slices.Clone(s.Pods), func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && (node == "" || pod.Spec.NodeName == node) && Priority(pod) < Priority(waiting) &&
			!holders[pod.UID] && !comesBack(pod)
	})
}

// repelling returns the pods that may keep a pod from their nodes, or from those in one domain with these: they have an anti-affinity to
// it, or it is not known whether they have.
func repelling(s plan.Snapshot, waiting *corev1.Pod) []*corev1.Pod {
	at := slices.IndexFunc(s.Namespaces, func(n *corev1.Namespace) bool { return n.Name == waiting.Namespace })
	var namespace *corev1.Namespace
	if at >= 0 {
		namespace = s.Namespaces[at]
	}
	var out []*corev1.Pod
	for _, pod := range s.Pods {
		for _, term := range podspec.AntiAffinity(pod) {
			if matches, known := term.Matches(waiting, namespace); pod.Spec.NodeName != "" && (matches || !known) {
				out = append(out, pod)
				break
			}
		}
	}
	return out
}

// ending says whether a pod ends soon by itself.
func (q *Question) ending(pod *corev1.Pod) bool {
	if q.Ending == nil {
		return pod.DeletionTimestamp != nil
	}
	return q.Ending(pod)
}

// withoutEnding returns a snapshot without the pods that end soon.
func withoutEnding(s plan.Snapshot, q Question) (plan.Snapshot, error) {
	var ending []*corev1.Pod
	for _, pod := range s.Pods {
		if pod.Spec.NodeName != "" && q.ending(pod) {
			ending = append(ending, pod)
		}
	}
	return without(s, ending)
}

// without returns a snapshot in which pods gave their claims back and are gone.
func without(s plan.Snapshot, pods []*corev1.Pod) (plan.Snapshot, error) {
	var err error
	for _, pod := range pods {
		if s, _, err = change.Remove(s, "pod/"+pod.Namespace+"/"+pod.Name, ""); err != nil {
			return s, err
		}
	}
	return s, nil
}
