// SPDX-License-Identifier: Apache-2.0

package change

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// Drain returns a snapshot in which a node takes no pods and those that ran there wait for another node, after the pods that wait
// already. Their generated claims are gone, and named claims that they alone used have no devices, so that they can be allocated
// elsewhere. Pods of DaemonSets and of the node itself stay. Problems are about pods that a drain would delete for good.
func Drain(s plan.Snapshot, name string) (plan.Snapshot, []plan.Problem, error) {
	i := slices.IndexFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return s, nil, fmt.Errorf("drain node %s: there is no such node in the snapshot", name)
	}
	s.Nodes = slices.Clone(s.Nodes)
	s.Nodes[i] = s.Nodes[i].DeepCopy()
	s.Nodes[i].Spec.Unschedulable = true
	s, problems := evict(s, name)
	return s, problems, nil
}

// evict makes the pods of a node wait for another.
func evict(s plan.Snapshot, node string) (plan.Snapshot, []plan.Problem) {
	var stay, moved []*corev1.Pod
	var problems []plan.Problem
	for _, pod := range s.Pods {
		if pod.Spec.NodeName != node || podspec.Ended(pod) || staysOnNode(pod) {
			stay = append(stay, pod)
			continue
		}
		if metav1.GetControllerOfNoCopy(pod) == nil {
			problems = append(problems, plan.Problem{
				Object:  "Pod " + pod.Namespace + "/" + pod.Name,
				Message: "has no controller: a drain deletes it for good; the plan goes on as if it was made again",
			})
		}
		s.Claims = givenBack(s.Claims, pod)
		pod = pod.DeepCopy()
		pod.Spec.NodeName, pod.Status, pod.DeletionTimestamp = "", corev1.PodStatus{}, nil
		moved = append(moved, pod)
	}
	s.Pods = slices.Concat(stay, moved)
	return s, problems
}

// staysOnNode says whether a drain leaves a pod where it is.
func staysOnNode(pod *corev1.Pod) bool {
	controller := metav1.GetControllerOfNoCopy(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || controller != nil && (controller.Kind == "DaemonSet" || controller.Kind == "Node")
}

// givenBack returns the claims without those that were made for a pod, and without the devices of those that it alone used.
func givenBack(claims []*resourceapi.ResourceClaim, pod *corev1.Pod) []*resourceapi.ResourceClaim {
	var out []*resourceapi.ResourceClaim
	for _, claim := range claims {
		if madeFor(claim, pod) {
			continue
		}
		uses := func(r resourceapi.ResourceClaimConsumerReference) bool {
			return r.Resource == "pods" && r.Name == pod.Name && (r.UID == pod.UID || pod.UID == "")
		}
		if claim.Namespace == pod.Namespace && slices.ContainsFunc(claim.Status.ReservedFor, uses) {
			claim = claim.DeepCopy()
			claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, uses)
			if len(claim.Status.ReservedFor) == 0 {
				claim.Status = resourceapi.ResourceClaimStatus{}
			}
		}
		out = append(out, claim)
	}
	return out
}

// madeFor says whether a claim was made for a pod, of a template or for its extended resources.
func madeFor(claim *resourceapi.ResourceClaim, pod *corev1.Pod) bool {
	if claim.Namespace != pod.Namespace {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner != nil && owner.Kind == "Pod" {
		return owner.Name == pod.Name && (owner.UID == pod.UID || pod.UID == "")
	}
	return slices.ContainsFunc(pod.Status.ResourceClaimStatuses, func(status corev1.PodResourceClaimStatus) bool {
		named := slices.ContainsFunc(pod.Spec.ResourceClaims, func(p corev1.PodResourceClaim) bool {
			return p.Name == status.Name && p.ResourceClaimName == nil
		})
		return named && ptr.Deref(status.ResourceClaimName, "") == claim.Name
	})
}
