// SPDX-License-Identifier: Apache-2.0

// Package traces knows what pods have for the software that gave them GPUs before: annotations, labels, tolerations, runtime classes,
// variables and resources of device plugins, of schedulers that share GPUs and of the labellers of nodes. It says what becomes of each that
// a pod keeps.
//
// Sources: NVIDIA's device plugin, GPU feature discovery and container toolkit, AMD's and Intel's device plugins and node labellers, HAMi
// (pkg/device), Volcano's vGPU plugin, KAI-Scheduler (pkg/common/constants) and Run:ai, Koordinator, and the CDI annotations of runtimes.
package traces

import (
	"fmt"
	"slices"
	"strings"
)

// Place is where a pod has a name.
type Place string

// The places, as notes call them.
const (
	Annotation   Place = "annotations"
	Label        Place = "labels"
	NodeSelector Place = "nodeSelector"
	Affinity     Place = "affinity"
	Toleration   Place = "tolerations"
	Scheduler    Place = "schedulerName"
	RuntimeClass Place = "runtimeClassName"
	Variable     Place = "env"
	Resource     Place = "resources"
)

// Name is one that a pod has. Container is empty where it is the pod's.
type Name struct {
	Place           Place
	Name, Container string
}

// rule says what becomes of names that stay. It is for an exact name, for all of a domain and those below it (a pattern with a dot before),
// or for all that begin with what ends in *.
type rule struct {
	places  []Place
	pattern string
	says    string
}

// The fates that several names have.
const (
	unread   = "which Fettle does not read"
	selector = unread + ": what it says of GPUs belongs into the claim's selectors"
	node     = "a label that the older software puts on nodes: without it the pod waits for ever"
	past     = "which may show the container other GPUs than its claim has: leave it out"
	cudaSays = "which CUDA and the older software read: the claim says what the container has"
)

// rules are tried in order.
func rules() []rule {
	list := []rule{
		{[]Place{Annotation, Label}, ".gkm.io", "which nothing reads where pods have claims"},
		{[]Place{Annotation}, "nvidia.com/vgpu-mode", unread + ": a PartitionPolicy says whether GPUs are shared or divided"},
		{[]Place{Annotation}, "nvidia.com/numa-bind", unread + ": write a constraint with matchAttribute resource.kubernetes.io/numaNode"},
		{[]Place{Annotation}, "hami.io/gpu-scheduler-policy", unread + ": the scheduler chooses among devices"},
		{[]Place{Annotation}, "hami.io/node-scheduler-policy", unread + ": the scheduler chooses among nodes"},
		{[]Place{Annotation}, "mps", unread + ": a PartitionPolicy allows the strategy MPS, and a claim asks for it"},
		{[]Place{Annotation}, "runai-gpu-limit", unread + ": a share has one amount of memory"},
		{[]Place{Annotation}, "cdi.k8s.io/*", "by which the runtime gives devices past the claim: leave it out"},
		{[]Place{Label}, "kai.scheduler/queue", unread + ": queues are the other scheduler's"},
		{[]Place{Label}, "runai/queue", unread + ": queues are the other scheduler's"},
		{[]Place{Variable}, "NVIDIA_VISIBLE_DEVICES", past},
		{[]Place{Variable}, "NVIDIA_MIG_*", past},
	}
	for _, name := range []string{
		"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR",
		"CUDA_DEVICE_MEMORY_LIMIT*", "CUDA_DEVICE_SM_LIMIT", "CUDA_TASK_PRIORITY", "CUDA_DISABLE_CONTROL", "GPU_CORE_UTILIZATION_POLICY",
		"CUDA_OVERSUBSCRIBE", "CUDA_MPS_*",
	} {
		list = append(list, rule{[]Place{Variable}, name, cudaSays})
	}
	metadata := []Place{Annotation, Label}
	for _, name := range []string{
		"gpu-fraction*", "gpu-memory*", "received-resource-type", "runai-*", "runai/*", "pod-group-name",
	} {
		list = append(list, rule{metadata, name, selector})
	}
	nodes := []Place{NodeSelector, Affinity}
	for _, name := range []string{
		"feature.node.kubernetes.io/pci-*", "intel.feature.node.kubernetes.io/gpu*", "cloud.google.com/gke-accelerator*",
		"cloud.google.com/gke-gpu*", "k8s.amazonaws.com/accelerator", "node-role.kubernetes.io/runai*", "gpu.node/*",
	} {
		list = append(list, rule{nodes, name, node})
	}
	for _, domain := range domains() {
		list = append(list, rule{metadata, domain, selector}, rule{nodes, domain, node})
	}
	return list
}

// domains are those of the older software's names.
func domains() []string {
	return []string{
		".nvidia.com", ".amd.com", ".gpu.intel.com", ".fpga.intel.com", ".hami.io", ".kai.scheduler", ".run.ai", ".volcano.sh", ".koordinator.sh",
		".tencent.com", ".aliyun.com", ".gkm.io", ".huawei.com", ".cambricon.com", ".hygon.com", ".iluvatar.ai", ".mthreads.com",
		".metax-tech.com", ".enflame.com", ".habana.ai", ".squat.ai", ".smarter-devices", ".4pd.io", "runai/*", "intel.com/gpu*",
		"alpha.kubernetes.io/nvidia-gpu*", "xilinx.com/fpga-*",
	}
}

func (r rule) matches(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	switch begin, prefix := strings.CutSuffix(r.pattern, "*"); {
	case prefix:
		return strings.HasPrefix(name, begin)
	case strings.HasPrefix(r.pattern, "."):
		return strings.HasSuffix("."+domain, r.pattern)
	}
	return name == r.pattern
}

// Note says what becomes of a name that a pod keeps. Empty: it is not of the older software.
func Note(n Name) string {
	of := ""
	if n.Container != "" {
		of = "container " + n.Container + ": "
	}
	for _, r := range rules() {
		if slices.Contains(r.places, n.Place) && r.matches(n.Name) {
			return fmt.Sprintf("%s%s %s %s, %s", of, n.Place, keeps(n.Place), n.Name, r.says)
		}
	}
	return inOtherPlaces(of, n)
}

// inOtherPlaces says it of names that are of the older software wherever a pod has them.
func inOtherPlaces(of string, n Name) string {
	gpus := strings.Contains(n.Name, "nvidia") || strings.Contains(n.Name, "amd")
	switch {
	case n.Place == Scheduler && n.Name != "" && n.Name != "default-scheduler":
		return fmt.Sprintf("schedulerName %s stays: without that scheduler the pod waits for ever", n.Name)
	case n.Place == RuntimeClass && gpus:
		return fmt.Sprintf("runtimeClassName %s stays: it may give containers other GPUs than their claims have", n.Name)
	case n.Place == Toleration && ofDomain(n.Name):
		return fmt.Sprintf("the toleration of %s stays, for as long as nodes have that taint", n.Name)
	case n.Place == Resource && ofDomain(n.Name):
		return fmt.Sprintf("%sit keeps the resource %s: without what offers it the pod waits for ever; --map %[2]s=CLASS converts it", of,
			n.Name)
	}
	return ""
}

// Patterns lists what names of the older software are known by: names, beginnings with a * after them, and domains with a dot before.
func Patterns() []string {
	var all []string
	for _, r := range rules() {
		all = append(all, r.pattern)
	}
	all = append(all, domains()...)
	slices.Sort(all)
	return slices.Compact(all)
}

// keeps is the verb of a place.
func keeps(p Place) string {
	if p == Annotation || p == Label {
		return "keep"
	}
	return "keeps"
}

// ofDomain reports whether a name begins with a domain of the older software.
func ofDomain(name string) bool {
	return slices.ContainsFunc(domains(), func(domain string) bool { return rule{pattern: domain}.matches(name) })
}
