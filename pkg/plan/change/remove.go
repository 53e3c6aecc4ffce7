// SPDX-License-Identifier: Apache-2.0

package change

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// Remove returns a snapshot without an object: KIND/NAME, KIND/NAMESPACE/NAME, or NAMESPACE/NAME for a pod. Objects of KIND/NAME are
// those of the given namespace. A pod gives its claims back. A node takes its slices with it, and its pods wait for another.
func Remove(s plan.Snapshot, target, namespace string) (plan.Snapshot, []plan.Problem, error) {
	parts := strings.Split(target, "/")
	kind, known := removable()[strings.ToLower(parts[0])]
	switch {
	case len(parts) == 2 && known:
		return remove(s, kind, namespace, parts[1])
	case len(parts) == 2:
		return remove(s, "Pod", parts[0], parts[1])
	case len(parts) == 3 && known:
		return remove(s, kind, parts[1], parts[2])
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
		"PodGroup":              {"podgroup", "podgroups"},
	} {
		for _, name := range names {
			out[name] = kind
		}
	}
	return out
}

func remove(s plan.Snapshot, kind, namespace, name string) (plan.Snapshot, []plan.Problem, error) {
	var problems []plan.Problem
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
			s, problems = evict(s, name)
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
	case "PodGroup":
		s.PodGroups, found = without(s.PodGroups, namespace, name)
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
		return s, nil, fmt.Errorf("remove %s: there is no such object in the snapshot", kind+" "+strings.TrimPrefix(namespace+"/"+name, "/"))
	}
	return s, problems, nil
}

// without returns the objects but for one, and whether it was there.
func without[T metav1.Object](objects []T, namespace, name string) ([]T, bool) {
	out := slices.DeleteFunc(slices.Clone(objects), func(o T) bool { return o.GetNamespace() == namespace && o.GetName() == name })
	return out, len(out) < len(objects)
}
