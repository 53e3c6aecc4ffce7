// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// PossibleHolder is a pod that may hold the driver of a node without a claim. A change of the driver does not evict it, and cannot unload a
// driver that it holds.
type PossibleHolder struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Why is what its YAML shows: "runtimeClassName nvidia".
	Why string `json:"why"`
}

// holdsWithoutClaim returns what of a pod's YAML gives it devices that no claim allocates to it, empty if nothing does. NVIDIA's runtime
// gives devices to pods that name it (nvidia-container-toolkit, its mode legacy), and what the host's directory has can be opened.
func holdsWithoutClaim(pod *corev1.Pod) string {
	if class := pod.Spec.RuntimeClassName; class != nil && strings.Contains(*class, "nvidia") {
		return "runtimeClassName " + *class
	}
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for i := range containers {
		for _, v := range containers[i].Env {
			if v.Name == "NVIDIA_VISIBLE_DEVICES" && !slices.Contains([]string{"", "void", "none"}, v.Value) {
				return "NVIDIA_VISIBLE_DEVICES of container " + containers[i].Name
			}
		}
	}
	privileged := slices.ContainsFunc(containers, func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})
	for i := range pod.Spec.Volumes {
		source := pod.Spec.Volumes[i].HostPath
		if source == nil {
			continue
		}
		switch at := path.Clean(source.Path); {
		case isDeviceNode(at):
			return "hostPath " + at
		case privileged && (at == "/" || at == "/dev"):
			return "privileged, with hostPath " + at
		}
	}
	return ""
}

// isDeviceNode reports whether a path of the host is, or has, nodes of devices such as Fettle's.
func isDeviceNode(at string) bool {
	name, below := strings.CutPrefix(at, "/dev/")
	return below && (strings.HasPrefix(name, "vfio") || slices.ContainsFunc(vendors.All(), func(v vendors.Vendor) bool {
		return slices.ContainsFunc(v.Nodes, func(begin string) bool {
			return strings.HasPrefix(at, strings.TrimSuffix(begin, "/"))
		})
	}))
}

// possibleHolders lists the pods of a node that may hold its driver without a claim, by namespace and name.
func (p *previewer) possibleHolders(node string, holders []Holder) []PossibleHolder {
	var out []PossibleHolder
	for _, pod := range p.Pods {
		if pod.Spec.NodeName != node || podspec.Ended(pod) || pod.Namespace == p.Namespace || pod.Namespace == p.Drivers {
			continue
		}
		why := holdsWithoutClaim(pod)
		if why == "" || slices.ContainsFunc(holders, func(h Holder) bool { return h.UID == string(pod.UID) }) {
			continue
		}
		out = append(out, PossibleHolder{Namespace: pod.Namespace, Name: pod.Name, Why: why})
	}
	slices.SortFunc(out, func(a, b PossibleHolder) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out
}
