// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/convert/shares"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// podMaker makes random pods as people have them: for device plugins, for what shares GPUs on top of these, and for neither.
type podMaker struct {
	*rand.Rand
	// count is the resource with the number of shared GPUs: HAMi's or Volcano's.
	count shares.Resources
	// foreign are the names of the older software that the pod has. Each must be in a note, whether it stays or not.
	foreign []string
}

func (m *podMaker) maybe(percent int) bool { return m.IntN(100) < percent }

// some returns up to most of some entries, and remembers those of older software.
func (m *podMaker) some(most int, entries map[string]string, own map[string]string) map[string]any {
	out := map[string]any{}
	for key, value := range own {
		if m.maybe(40) {
			out[key] = value
		}
	}
	for range m.IntN(most + 1) {
		keys := sortedKeys(entries)
		key := keys[m.IntN(len(keys))]
		out[key] = entries[key]
		m.foreign = append(m.foreign, key)
	}
	return out
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// The names of the older software, by where pods have them. This list is not the converter's.
func foreignAnnotations() map[string]string {
	return map[string]string{
		"nvidia.com/vgpu-mode": "hami-core", "nvidia.com/use-gpuuuid": "GPU-1,GPU-2",
		"nvidia.com/nouse-gputype": "T4", "nvidia.com/use-gputype": "A100,H100", "gpu-fraction": "0.5", "gpu-memory": "2048",
		"gpu-fraction-num-devices": "2", "nvidia.com/numa-bind": "true", "hami.io/node-scheduler-policy": "binpack",
		"hami.io/gpu-scheduler-policy": "spread", "hami.io/vgpu-time": "1", "kai.scheduler/topology": "rack",
		"runai-gpu-limit": "0.5", "mps": "true", "scheduling.run.ai/x": "y", "volcano.sh/vgpu-mode": "mig",
		"cdi.k8s.io/nvidia": "nvidia.com/gpu=all", "scheduling.volcano.sh/group-min-member": "1", "received-resource-type": "Fraction",
	}
}

func foreignLabels() map[string]string {
	return map[string]string{
		"kai.scheduler/queue": "q", "runai/queue": "q", "runai/node-pool": "p", "nvidia.com/gpu.deploy": "true", "hami.io/webhook": "ignore",
		"koordinator.sh/gpu-isolation-provider": "HAMi-core", "amd.com/tenant": "a", "runai-gpu-group": "g",
	}
}

func foreignNodeLabels() map[string]string {
	return map[string]string{
		"nvidia.com/gpu.present": "true", "nvidia.com/mig.capable": "true", "amd.com/gpu.family": "AI", "gpu.intel.com/family": "Max_Series",
		"feature.node.kubernetes.io/pci-10de.present": "true", "intel.feature.node.kubernetes.io/gpu": "true",
		"beta.amd.com/gpu.cu-count": "304", "nvidia.com/gpu.family": "hopper", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
		"cloud.google.com/gke-accelerator": "nvidia-l4", "volcano.sh/vgpu.enabled": "true",
	}
}

func foreignEnv() map[string]string {
	return map[string]string{
		"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0",
		"ZE_AFFINITY_MASK": "0", "GPU_CORE_UTILIZATION_POLICY": "force", "CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_TASK_PRIORITY": "1",
		"NVIDIA_MIG_MONITOR_DEVICES": "all", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "ONEAPI_DEVICE_SELECTOR": "level_zero:0",
	}
}

// foreignResources are those that no converter makes a claim of.
func foreignResources() map[string]string {
	return map[string]string{
		"nvidia.com/vfio": "1", "tencent.com/vcuda-core": "50", "aliyun.com/gpu-mem": "3", "koordinator.sh/gpu-core": "50",
		"nvidia.com/gpu-batch": "1", "nvidia.com/hostdev": "1", "huawei.com/Ascend910B": "1", "amd.com/gpu-vf": "1",
		"smarter-devices/nvidia0": "1", "squat.ai/gpu": "1",
	}
}

// convertible are the resources that become requests, with what their requests have.
func convertible() map[string]string {
	return map[string]string{
		"volcano.sh/vgpu-number": "volcano", "nvidia.com/gpu": "nvidia.gpu.fettle.dev", "amd.com/gpu": "amd.gpu.fettle.dev",
		"nvidia.com/mig-1g.10gb": `"1g.10gb"`,
		"nvidia.com/mig-2g.20gb": `"2g.20gb"`, "gpu.intel.com/i915": `"i915"`, "gpu.intel.com/xe": `"xe"`, "amd.com/cpx_nps4": `"cpx-nps4"`,
		"fpga.intel.com/region-" + shell: shell, "fpga.intel.com/region-" + other: other, "example.com/tesla": "tesla.example.com",
	}
}

// container makes a container; shares are those that it may have.
func (m *podMaker) container(name, phase string) map[string]any {
	limits := map[string]any{}
	requests := map[string]any{"cpu": "1"}
	names := slices.DeleteFunc(sortedKeys(convertible()), func(name string) bool {
		// Claims for HAMi's and Volcano's GPUs look alike, so that a pod has one kind of them.
		return name != m.count.Count && slices.ContainsFunc(shares.Projects(), func(r shares.Resources) bool { return r.Count == name })
	})
	for range m.IntN(3) {
		resource := names[m.IntN(len(names))]
		limits[resource] = fmt.Sprint(m.IntN(4))
		if m.maybe(30) {
			requests[resource] = limits[resource]
		}
		m.foreign = append(m.foreign, resource)
	}
	if m.maybe(20) {
		m.share(limits)
	}
	var env []any
	for name, value := range limits {
		id, ok := strings.CutPrefix(name, "fpga.intel.com/region-")
		if ok && value != "0" && m.maybe(20) && len(env) == 0 {
			env = append(env, map[string]any{"name": "FPGA_REGION_1", "value": id})
			env = append(env, map[string]any{"name": "FPGA_AFU_1", "value": []string{nlb0, nlb3}[m.IntN(2)]})
		}
	}
	if m.maybe(10) {
		for name, value := range m.some(1, foreignResources(), map[string]string{"example.com/nic": "1", "cpu": "2", "hugepages-2Mi": "4Mi"}) {
			limits[name] = value
		}
	}
	for name := range requests {
		if limits[name] != nil {
			requests[name] = limits[name]
		}
	}
	c := map[string]any{"name": name, "image": "registry.example/x:1", "resources": map[string]any{"limits": limits, "requests": requests}}
	if phase == "sidecar" {
		c["restartPolicy"] = "Always"
	}
	for key, value := range m.some(1, foreignEnv(), map[string]string{"LEVEL": "3", "MODE": "void"}) {
		env = append(env, map[string]any{"name": key, "value": value})
	}
	if len(env) > 0 {
		c["env"] = env
	}
	return c
}

// share has a container ask for shares.
func (m *podMaker) share(limits map[string]any) {
	names := map[string]string{
		"nvidia.com/gpumem": "3000", "nvidia.com/gpumem-percentage": "40", "nvidia.com/gpucores": "30", "nvidia.com/priority": "1",
	}
	if m.count.Count != "nvidia.com/gpu" {
		names = map[string]string{"volcano.sh/vgpu-memory": "2000", "volcano.sh/vgpu-memory-percentage": "100", "volcano.sh/vgpu-cores": "50"}
	}
	for range 1 + m.IntN(3) {
		name := sortedKeys(names)[m.IntN(len(names))]
		limits[name] = names[name]
		m.foreign = append(m.foreign, name)
	}
	if m.maybe(60) || limits[m.count.Count] != nil {
		limits[m.count.Count] = fmt.Sprint(1 + m.IntN(3))
	}
	m.foreign = append(m.foreign, m.count.Count)
}

// template makes a pod's spec and metadata.
func (m *podMaker) template() map[string]any {
	spec := map[string]any{"restartPolicy": "Never"}
	m.count = shares.Projects()[m.IntN(2)]
	var inits, mains []any
	for i := range m.IntN(4) {
		phase := []string{"init", "init", "sidecar"}[m.IntN(3)]
		inits = append(inits, m.container(fmt.Sprintf("i%d", i), phase))
	}
	for i := range 1 + m.IntN(3) {
		mains = append(mains, m.container(fmt.Sprintf("c%d", i), "main"))
	}
	if len(inits) > 0 {
		spec["initContainers"] = inits
	}
	spec["containers"] = mains
	if m.maybe(30) {
		spec["runtimeClassName"] = []string{"nvidia", "nvidia-cdi", "nvidia-legacy", "kata-qemu-nvidia-gpu", "gvisor"}[m.IntN(5)]
		if name := spec["runtimeClassName"].(string); name != "gvisor" {
			m.foreign = append(m.foreign, name)
		}
	}
	if m.maybe(30) {
		spec["schedulerName"] = []string{"hami-scheduler", "kai-scheduler", "volcano", "default-scheduler"}[m.IntN(4)]
		if name := spec["schedulerName"].(string); name != "default-scheduler" {
			m.foreign = append(m.foreign, name)
		}
	}
	labels := m.some(2, foreignNodeLabels(), map[string]string{"pool": "a", "gpu": "on", "kubernetes.io/arch": "amd64"})
	if m.maybe(50) && len(labels) > 0 {
		spec["nodeSelector"] = labels
	} else {
		m.foreign = slices.DeleteFunc(m.foreign, func(name string) bool { return labels[name] != nil })
	}
	var tolerations []any
	for range m.IntN(3) {
		key := []string{"nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/x", "volcano.sh/vgpu", "dedicated", "node.k/x"}[m.IntN(6)]
		tolerations = append(tolerations, map[string]any{"key": key, "operator": "Exists"})
		if key != "dedicated" && !strings.HasPrefix(key, "node.k") {
			m.foreign = append(m.foreign, key)
		}
	}
	if len(tolerations) > 0 {
		spec["tolerations"] = tolerations
	}
	if m.maybe(20) {
		key := []string{"nvidia.com/gpu.count", "gpu.intel.com/tiles", "zone", "feature.node.kubernetes.io/pci-0300_10de.present"}[m.IntN(4)]
		term := map[string]any{"matchExpressions": []any{map[string]any{"key": key, "operator": "Exists"}}}
		affinity := map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{"nodeSelectorTerms": []any{term}}}
		spec["affinity"] = map[string]any{"nodeAffinity": affinity}
		if key != "zone" {
			m.foreign = append(m.foreign, key)
		}
	}
	meta := map[string]any{}
	if a := m.some(2, foreignAnnotations(), map[string]string{"note": "mine"}); len(a) > 0 {
		meta["annotations"] = a
	}
	if l := m.some(1, foreignLabels(), map[string]string{"app": "x"}); len(l) > 0 {
		meta["labels"] = l
	}
	return map[string]any{"metadata": meta, "spec": spec}
}

// object makes a pod, or an object with a template for pods.
func (m *podMaker) object() (object map[string]any, template map[string]any) {
	template = m.template()
	meta := map[string]any{"name": "p", "namespace": "ns"}
	if l := m.some(1, foreignLabels(), nil); m.maybe(30) && len(l) > 0 {
		meta["labels"] = l
	} else {
		m.foreign = slices.DeleteFunc(m.foreign, func(name string) bool {
			own, _ := template["metadata"].(map[string]any)["labels"].(map[string]any)
			return l[name] != nil && own[name] == nil
		})
	}
	switch m.IntN(5) {
	case 0:
		return map[string]any{"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": map[string]any{"template": template}}, template
	case 1:
		job := map[string]any{"spec": map[string]any{"template": template}}
		return map[string]any{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta, "spec": map[string]any{
			"schedule": "* * * * *", "jobTemplate": job,
		}}, template
	case 2:
		spec := map[string]any{"template": template}
		return map[string]any{"apiVersion": "v1", "kind": "ReplicationController", "metadata": meta, "spec": spec}, template
	}
	pod := template["metadata"].(map[string]any)
	for key, value := range meta {
		if pod[key] == nil {
			pod[key] = value
		} else if key == "labels" {
			for k, v := range value.(map[string]any) {
				pod[key].(map[string]any)[k] = v
			}
		}
	}
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": template["spec"]}, template
}

// TestPodsLoseNothing converts random pods. Each leaf of a pod is in what it became, or a note names it, and so is each name of the older
// software whether it stays or not. The claims ask for as many devices as Kubernetes counted for the pod.
func TestPodsLoseNothing(t *testing.T) {
	random := seed.New(t)
	options := Options{Classes: map[string]string{"example.com/tesla": "tesla.example.com"}, GPUMemory: new(resource.MustParse("80Gi"))}
	converted, refused := 0, 0
	for i := range 2000 {
		m := &podMaker{Rand: random}
		object, template := m.object()
		in, err := yaml.Marshal(object)
		check.Must(t, err)
		out, err := IntelFPGA(in, "in.yaml", options)
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), " 32 ") && !strings.Contains(err.Error(), "one bitstream") {
				t.Fatalf("pod %d: %v\n%s", i, err, in)
			}
			continue
		}
		after := objectsIn(t, out.YAML)
		last := after[len(after)-1]
		if last["kind"] != object["kind"] {
			t.Fatalf("pod %d: the last object is a %v", i, last["kind"])
		}
		if len(after) > 1 {
			converted++
		}
		for _, l := range lost(object, last, out.Notes) {
			t.Errorf("pod %d: %v is lost", i, l)
		}
		for _, name := range m.foreign {
			if !named(out.Notes, name) {
				t.Errorf("pod %d: nothing is said of %s", i, name)
			}
		}
		checkCounts(t, template, after)
		checkMemory(t, template, after)
		if i < 100 {
			checkOutput(t, out.YAML, options)
		}
		if t.Failed() {
			t.Fatalf("in:\n%s\nout:\n%s\nnotes:\n%s", in, out.YAML, strings.Join(out.Notes, "\n"))
		}
	}
	if converted < 1000 {
		t.Errorf("%d of 2000 pods were converted and %d refused", converted, refused)
	}
}

// checkCounts compares the devices of the claims with what the scheduler counted for the pod.
func checkCounts(t *testing.T, template map[string]any, after []map[string]any) {
	t.Helper()
	wants := counts(t, template)
	has := map[string]int64{}
	for _, object := range after {
		if object["kind"] != "ResourceClaimTemplate" {
			continue
		}
		raw, err := json.Marshal(object)
		check.Must(t, err)
		var claims resourceapi.ResourceClaimTemplate
		check.Must(t, json.Unmarshal(raw, &claims))
		for _, r := range claims.Spec.Spec.Devices.Requests {
			text := r.Exactly.DeviceClassName
			for _, s := range r.Exactly.Selectors {
				text += s.CEL.Expression
			}
			for name, word := range convertible() {
				if strings.Contains(text, word) {
					has[name] += max(r.Exactly.Count, 1)
				}
			}
		}
	}
	for name := range convertible() {
		if has[name] != wants[name] {
			t.Errorf("the claims ask for %d of %s, and Kubernetes counted %d", has[name], name, wants[name])
		}
	}
}

// checkMemory wants each request for NVIDIA's GPUs to ask for the memory of the largest share that a container of it asked for, and for
// none where one of them asked for whole GPUs. The percentages are of 80Gi.
func checkMemory(t *testing.T, template map[string]any, after []map[string]any) {
	t.Helper()
	users, sizes := map[string][]int64{}, map[string]int64{}
	for _, c := range containersIn(template) {
		limits, _ := c["resources"].(map[string]any)["limits"].(map[string]any)
		for name, mebibytes := range map[string]int64{
			"nvidia.com/gpumem-percentage": 32768, "nvidia.com/gpumem": 3000, "volcano.sh/vgpu-memory": 2000,
		} {
			if limits[name] != nil && (name != "nvidia.com/gpumem-percentage" || limits["nvidia.com/gpumem"] == nil) {
				sizes[c["name"].(string)] = mebibytes << 20
			}
		}
	}
	for _, c := range containersIn(podIn(after[len(after)-1])) {
		claims, _ := c["resources"].(map[string]any)["claims"].([]any)
		for _, claim := range claims {
			request := fmt.Sprint(claim.(map[string]any)["request"])
			users[request] = append(users[request], sizes[c["name"].(string)])
		}
	}
	annotated := len(removedAnnotations(template)) > 0
	for _, object := range after[:len(after)-1] {
		raw, err := json.Marshal(object)
		check.Must(t, err)
		var claims resourceapi.ResourceClaimTemplate
		check.Must(t, json.Unmarshal(raw, &claims))
		for _, r := range claims.Spec.Spec.Devices.Requests {
			if r.Exactly.DeviceClassName != "nvidia.gpu.fettle.dev" || annotated {
				continue
			}
			want, got := slices.Max(users[r.Name]), int64(0)
			if slices.Contains(users[r.Name], 0) {
				want = 0
			}
			if r.Exactly.Capacity != nil {
				memory := r.Exactly.Capacity.Requests["memory"]
				got = memory.Value()
			}
			if got != want {
				t.Errorf("request %s asks for %d bytes of memory, want %d", r.Name, got, want)
			}
		}
	}
}

// removedAnnotations are those by which a pod may ask for a share.
func removedAnnotations(template map[string]any) []string {
	var names []string
	annotations, _ := template["metadata"].(map[string]any)["annotations"].(map[string]any)
	for name := range annotations {
		if shares.IsKAI(name) {
			names = append(names, name)
		}
	}
	return names
}

// podIn is the template of an object, or the pod itself.
func podIn(object map[string]any) map[string]any {
	spec := object["spec"].(map[string]any)
	if job, ok := spec["jobTemplate"].(map[string]any); ok {
		return podIn(job)
	}
	if template, ok := spec["template"].(map[string]any); ok {
		return template
	}
	return object
}

// containersIn are those of a pod.
func containersIn(pod map[string]any) (all []map[string]any) {
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := pod["spec"].(map[string]any)[list].([]any)
		for _, c := range containers {
			if c := c.(map[string]any); c["resources"] != nil {
				all = append(all, c)
			}
		}
	}
	return all
}

// counts are those of Kubernetes for a pod. Volcano's GPUs count as NVIDIA's, and annotations for KAI-Scheduler do where containers ask for
// nothing.
func counts(t *testing.T, template map[string]any) map[string]int64 {
	t.Helper()
	raw, err := json.Marshal(template)
	check.Must(t, err)
	var pod corev1.Pod
	check.Must(t, json.Unmarshal(raw, &pod))
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for name, quantity := range r.Limits { // as the API server fills them in, and the webhooks of HAMi and Volcano
				for _, project := range shares.Projects() {
					if _, ok := r.Limits[corev1.ResourceName(project.Count)]; project.Has(string(name)) && !ok {
						r.Requests[corev1.ResourceName(project.Count)] = resource.MustParse("1")
					}
				}
				r.Requests[name] = quantity
			}
		}
	}
	all := map[string]int64{}
	gpus := int64(0)
	for name, quantity := range resourcehelper.PodRequests(&pod, resourcehelper.PodResourcesOptions{}) {
		if all[string(name)] = quantity.Value(); convertible()[string(name)] != "" && !strings.HasPrefix(string(name), "fpga.") {
			gpus += quantity.Value()
		}
	}
	all["nvidia.com/gpu"] += all["volcano.sh/vgpu-number"]
	all["volcano.sh/vgpu-number"] = 0
	if a := pod.Annotations; gpus == 0 && (a["gpu-fraction"] != "" || a["gpu-memory"] != "") {
		if all["nvidia.com/gpu"] = 1; a["gpu-fraction-num-devices"] != "" {
			all["nvidia.com/gpu"] = 2
		}
	}
	return all
}
