// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/message"
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

func (p PossibleHolder) compare(o PossibleHolder) int {
	return strings.Compare(p.Namespace+"/"+p.Name, o.Namespace+"/"+o.Name)
}

// maxWhy bounds the bytes of why a pod may hold a driver: paths and values of a pod may be as large as the pod.
const maxWhy = 256

// String returns NAMESPACE/NAME and why.
func (p PossibleHolder) String() string { return fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, p.Why) }

// MayHold adds to what a step waits for the pods that may hold the driver without a claim, which no step evicts. It sorts them.
func (s *Step) MayHold(pods []PossibleHolder) {
	if len(pods) == 0 {
		return
	}
	slices.SortFunc(pods, PossibleHolder.compare)
	var names []string
	for i, p := range pods {
		if i == namedHolders {
			names = append(names, fmt.Sprintf("and %d more", len(pods)-i))
			break
		}
		names = append(names, p.String())
	}
	s.Message += "; pods that may hold the driver without a claim: " + strings.Join(names, ", ")
}

// holdsWithoutClaim returns what of a pod's YAML gives it devices that no claim allocates to it, empty if nothing does. NVIDIA's runtime
// gives devices to pods that name it (nvidia-container-toolkit, its mode legacy), and what the host's directory has can be opened.
func holdsWithoutClaim(pod *corev1.Pod) string {
	if class := pod.Spec.RuntimeClassName; class != nil && strings.Contains(*class, "nvidia") {
		return "runtimeClassName " + *class
	}
	containers := containersOf(pod)
	for i := range containers {
		if why := containerHolds(&containers[i]); why != "" {
			return why
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

// containersOf are all containers of a pod, those that were added to debug it included.
func containersOf(pod *corev1.Pod) []corev1.Container {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for i := range pod.Spec.EphemeralContainers {
		containers = append(containers, corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return containers
}

// containerHolds returns what of a container gives it devices: NVIDIA's variable, whose value may stand elsewhere, or a resource of a
// device plugin. A pod whose extended resources are a claim's has that claim, too.
func containerHolds(c *corev1.Container) string {
	for _, v := range c.Env {
		if v.Name == "NVIDIA_VISIBLE_DEVICES" && (v.ValueFrom != nil || !slices.Contains([]string{"", "void", "none"}, v.Value)) {
			return "NVIDIA_VISIBLE_DEVICES of container " + c.Name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		if amount := c.Resources.Limits[name]; !amount.IsZero() && ofPlugin(string(name)) {
			return fmt.Sprintf("resource %s of container %s", name, c.Name)
		}
	}
	return ""
}

// ofPlugin reports whether an extended resource is that of a vendor's device plugin.
func ofPlugin(name string) bool {
	return slices.ContainsFunc(vendors.All(), func(v vendors.Vendor) bool {
		return slices.ContainsFunc(slices.Concat(slices.Collect(maps.Values(v.Plugins))...), func(begin string) bool {
			return strings.HasPrefix(name, begin)
		})
	})
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

// PossibleHolders lists those of a node's pods that may hold its driver without a claim, by namespace and name. Pods of Fettle's own
// namespaces are left out, as are holders, which have claims.
func PossibleHolders(pods []*corev1.Pod, node string, holders []Holder, own ...string) []PossibleHolder {
	var out []PossibleHolder
	for _, pod := range pods {
		if pod.Spec.NodeName != node || podspec.Ended(pod) || slices.Contains(own, pod.Namespace) {
			continue
		}
		why := holdsWithoutClaim(pod)
		if why == "" || slices.ContainsFunc(holders, func(h Holder) bool { return h.UID == string(pod.UID) }) {
			continue
		}
		out = append(out, PossibleHolder{Namespace: pod.Namespace, Name: pod.Name, Why: message.Clip(why, maxWhy)})
	}
	slices.SortFunc(out, PossibleHolder.compare)
	return out
}
