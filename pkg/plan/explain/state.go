// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// placed explains a pod that the scheduler has done with, or must not touch.
func placed(e *Explanation, c *plan.Cluster, pod *corev1.Pod) bool {
	devices := devicesOf(c, pod)
	with := ""
	if len(devices) > 0 {
		with = " with " + strings.Join(devices, ", ")
	}
	switch {
	case podspec.Ended(pod):
		e.First = fmt.Sprintf("the pod has ended on node %s: it waits for nothing", pod.Spec.NodeName)
	case pod.DeletionTimestamp != nil:
		e.First = "the pod is being deleted: it gets no devices any more"
	case pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning:
		e.First = fmt.Sprintf("the pod runs on node %s%s", pod.Spec.NodeName, with)
	case pod.Spec.NodeName != "":
		e.First = fmt.Sprintf("the pod has node %s%s, and kubelet prepares it there: what delays that is in the Events of the pod and of its "+
			"claims", pod.Spec.NodeName, with)
	default:
		return false
	}
	e.Reason = Placed
	return true
}

// devicesOf lists the devices that a pod's claims have.
func devicesOf(c *plan.Cluster, pod *corev1.Pod) []string {
	claims, err := c.PodClaims(pod)
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range claims {
		out = append(out, deviceNames(p.Claim)...)
	}
	return out
}

func deviceNames(claim *resourceapi.ResourceClaim) []string {
	if claim.Status.Allocation == nil {
		return nil
	}
	var out []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		name := r.Driver + "/" + r.Pool + "/" + r.Device
		if ptr.Deref(r.AdminAccess, false) {
			name += " (admin access)"
		}
		out = append(out, name)
	}
	return out
}

// asksForNothing says whether a pod asks for no devices, by claims or by extended resources.
func asksForNothing(c *plan.Cluster, pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return false
	}
	return !slices.ContainsFunc(c.Nodes, func(node *corev1.Node) bool { return c.ExtendedClaim(pod, node) != nil })
}

// otherReason says where to look if it is not about devices.
func otherReason(said []Saying) string {
	for _, s := range said {
		if s.From == fromCondition {
			return "the scheduler says: " + s.Words
		}
	}
	return "the scheduler has said nothing of it yet"
}

// condition returns what the scheduler last said against a pod.
func condition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c
		}
	}
	return nil
}

// uses says whether a pod names a claim.
func uses(pod *corev1.Pod, claim *resourceapi.ResourceClaim) bool {
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil && *name == claim.Name {
			return true
		}
	}
	owner := metav1.GetControllerOfNoCopy(claim)
	return owner != nil && owner.Kind == "Pod" && owner.UID == pod.UID
}

// allocatedText says what a claim has, and who uses it.
func allocatedText(claim *resourceapi.ResourceClaim) string {
	text := "the claim has " + strings.Join(deviceNames(claim), ", ")
	var users []string
	for _, r := range claim.Status.ReservedFor {
		users = append(users, r.Resource+" "+r.Name)
	}
	switch {
	case len(users) == 0:
		return text + ", and no pod uses it: the devices are free again when the claim is deleted, or when Kubernetes takes them back"
	case len(users) >= resourceapi.ResourceClaimReservedForMaxSize:
		return fmt.Sprintf("%s, and %d pods use it, the most that a claim can have: further pods wait", text, len(users))
	}
	return text + ", for " + strings.Join(users, ", ")
}
