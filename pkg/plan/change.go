// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Add returns a snapshot with the objects of another. One of the same kind and name takes the place of the one that was there and, as when
// a manifest is applied, keeps its status, its UID and the node of a pod unless it says another. The objects of both are shared.
func (s Snapshot) Add(more Snapshot) Snapshot {
	s.Nodes = merged(s.Nodes, more.Nodes, func(n, before *corev1.Node) {
		if n.Status.Allocatable == nil && n.Status.Capacity == nil {
			n.Status = before.Status
		}
	})
	s.Namespaces = merged(s.Namespaces, more.Namespaces, nil)
	s.Pods = merged(s.Pods, more.Pods, func(p, before *corev1.Pod) {
		if p.Spec.NodeName == "" && p.Status.Phase == "" {
			p.Spec.NodeName, p.Status = before.Spec.NodeName, before.Status
		}
	})
	s.Quotas = merged(s.Quotas, more.Quotas, nil)
	s.Slices = merged(s.Slices, more.Slices, nil)
	s.Classes = merged(s.Classes, more.Classes, nil)
	s.Claims = merged(s.Claims, more.Claims, func(c, before *resourceapi.ResourceClaim) {
		if c.Status.Allocation == nil {
			c.Status = before.Status
		}
	})
	s.Templates = merged(s.Templates, more.Templates, nil)
	s.TaintRules = merged(s.TaintRules, more.TaintRules, nil)
	return s
}

// merged returns the objects of both lists. What a later one keeps of an earlier one of the same name is up to the function.
func merged[T interface {
	metav1.Object
	DeepCopy() T
}](objects, more []T, keep func(o, before T)) []T {
	out := slices.Clone(objects)
	for _, o := range more {
		i := slices.IndexFunc(objects, func(before T) bool { return keyOf(before) == keyOf(o) })
		if i < 0 {
			out = append(out, o)
			continue
		}
		o = o.DeepCopy()
		if o.GetUID() == "" {
			o.SetUID(objects[i].GetUID())
		}
		if keep != nil {
			keep(o, objects[i])
		}
		out[i] = o
	}
	return out
}

// Drain returns a snapshot in which a node takes no pods and those that ran there wait for another node, after the pods that wait already.
// Their generated claims are gone, and named claims that they alone used have no devices, so that they can be allocated elsewhere. Pods of
// DaemonSets and of the node itself stay. Problems are about pods that a drain would delete for good.
func (s Snapshot) Drain(name string) (Snapshot, []Problem, error) {
	i := slices.IndexFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return s, nil, fmt.Errorf("drain node %s: there is no such node in the snapshot", name)
	}
	s.Nodes = slices.Clone(s.Nodes)
	s.Nodes[i] = s.Nodes[i].DeepCopy()
	s.Nodes[i].Spec.Unschedulable = true
	s, problems := s.evict(name)
	return s, problems, nil
}

// evict makes the pods of a node wait for another.
func (s Snapshot) evict(node string) (Snapshot, []Problem) {
	var stay, moved []*corev1.Pod
	var problems []Problem
	for _, pod := range s.Pods {
		if pod.Spec.NodeName != node || finished(pod) || staysOnNode(pod) {
			stay = append(stay, pod)
			continue
		}
		if metav1.GetControllerOfNoCopy(pod) == nil {
			problems = append(problems, Problem{
				Object:  titleOf("Pod", pod.Namespace, pod.Name),
				Message: "has no controller: a drain deletes it for good; the plan goes on as if it was made again",
			})
		}
		s.Claims = givenBack(s.Claims, pod)
		pod = pod.DeepCopy()
		pod.Spec.NodeName, pod.Status, pod.DeletionTimestamp = "", corev1.PodStatus{}, nil
		moved = append(moved, pod)
	}
	s.Pods = append(stay, moved...)
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

// Remove returns a snapshot without an object: KIND/NAME, KIND/NAMESPACE/NAME, or NAMESPACE/NAME for a pod. Objects of KIND/NAME are those of
// the given namespace. A pod gives its claims back. A node takes its slices with it, and its pods wait for another.
func (s Snapshot) Remove(target, namespace string) (Snapshot, []Problem, error) {
	parts := strings.Split(target, "/")
	kind, known := removable()[strings.ToLower(parts[0])]
	switch {
	case len(parts) == 2 && known:
		return s.remove(kind, namespace, parts[1])
	case len(parts) == 2:
		return s.remove("Pod", parts[0], parts[1])
	case len(parts) == 3 && known:
		return s.remove(kind, parts[1], parts[2])
	}
	return s, nil, fmt.Errorf("remove %q: want KIND/NAME, KIND/NAMESPACE/NAME, or NAMESPACE/NAME of a pod; kinds are pod, node, claim, "+
		"template, class, slice, taintrule and quota", target)
}

// removable are the kinds by the names that people use.
func removable() map[string]string {
	out := map[string]string{}
	for kind, names := range map[string][]string{
		"Pod":                   {"pod", "pods", "po"},
		"Node":                  {"node", "nodes", "no"},
		"ResourceClaim":         {"resourceclaim", "resourceclaims", "claim", "claims"},
		"ResourceClaimTemplate": {"resourceclaimtemplate", "resourceclaimtemplates", "template", "templates"},
		"DeviceClass":           {"deviceclass", "deviceclasses", "class", "classes"},
		"ResourceSlice":         {"resourceslice", "resourceslices", "slice", "slices"},
		"DeviceTaintRule":       {"devicetaintrule", "devicetaintrules", "taintrule", "taintrules"},
		"ResourceQuota":         {"resourcequota", "resourcequotas", "quota", "quotas"},
	} {
		for _, name := range names {
			out[name] = kind
		}
	}
	return out
}

func (s Snapshot) remove(kind, namespace, name string) (Snapshot, []Problem, error) {
	var problems []Problem
	found := false
	switch kind {
	case "Pod":
		if i := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return p.Namespace == namespace && p.Name == name }); i >= 0 {
			s.Claims = givenBack(s.Claims, s.Pods[i])
		}
		s.Pods, found = without(s.Pods, namespace, name)
	case "Node":
		namespace = ""
		if s.Nodes, found = without(s.Nodes, "", name); found {
			s, problems = s.evict(name)
			s.Slices = slices.DeleteFunc(slices.Clone(s.Slices), func(slice *resourceapi.ResourceSlice) bool {
				return ptr.Deref(slice.Spec.NodeName, "") == name
			})
		}
	case "ResourceClaim":
		s.Claims, found = without(s.Claims, namespace, name)
	case "ResourceClaimTemplate":
		s.Templates, found = without(s.Templates, namespace, name)
	case "ResourceQuota":
		s.Quotas, found = without(s.Quotas, namespace, name)
	case "DeviceClass":
		namespace = ""
		s.Classes, found = without(s.Classes, "", name)
	case "ResourceSlice":
		namespace = ""
		s.Slices, found = without(s.Slices, "", name)
	case "DeviceTaintRule":
		namespace = ""
		s.TaintRules, found = without(s.TaintRules, "", name)
	}
	if !found {
		return s, nil, fmt.Errorf("remove %s: there is no such object in the snapshot", titleOf(kind, namespace, name))
	}
	return s, problems, nil
}

// without returns the objects but for one, and whether it was there.
func without[T metav1.Object](objects []T, namespace, name string) ([]T, bool) {
	out := slices.DeleteFunc(slices.Clone(objects), func(o T) bool { return o.GetNamespace() == namespace && o.GetName() == name })
	return out, len(out) < len(objects)
}
