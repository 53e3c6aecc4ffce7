// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// TestGPUResources refuses what a claim cannot have, with the container and the next step.
func TestGPUResources(t *testing.T) {
	pod := func(limits string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n" +
			"  - {name: c, image: i, resources: {limits: {" + limits + "}}}\n"
	}
	for limits, want := range map[string]string{
		"nvidia.com/gpu.shared: 1":                         "Pod p: container c: resource nvidia.com/gpu.shared: a share of a GPU: say the class",
		"gpu.intel.com/monitoring: 1":                      "adminAccess and allocationMode All",
		"gpu.intel.com/millicores: 500":                    "a claim has the whole GPU: leave it out",
		"nvidia.com/gpu: 1.5":                              `quantity "1.5": expected 0 to 32 whole GPUs`,
		"nvidia.com/gpu: 33":                               "expected 0 to 32 whole GPUs",
		"nvidia.com/gpumem: 1.5":                           `container c: resource nvidia.com/gpumem: "1.5": expected a whole number of MiB`,
		"nvidia.com/gpumem-percentage: 50":                 `"50": a claim asks for an amount of memory: write nvidia.com/gpumem`,
		"nvidia.com/gpu.shared: 1, gpu.intel.com/tiles: 1": "gpu.intel.com/tiles",
	} {
		_, err := IntelFPGA([]byte(pod(limits)), "in.yaml", Options{})
		check.WantErr(t, err, nil, want)
	}
	const own = `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nvidia.example.com}
spec: {extendedResourceName: nvidia.com/gpu}
---
`
	for name, in := range map[string]string{
		"of a class in the input": own + pod("nvidia.com/gpu: 1"), "none": pod("nvidia.com/gpu: 0"), "other": pod("rdma/hca: 1"),
	} {
		result, err := IntelFPGA([]byte(in), "in.yaml", Options{})
		if err != nil || strings.Contains(string(result.YAML), "ResourceClaimTemplate") {
			t.Errorf("%s: %v, got\n%s", name, err, result.YAML)
		}
	}
}

// TestAnnotatedShares refuses what annotations ask for and a claim cannot.
func TestAnnotatedShares(t *testing.T) {
	for annotations, want := range map[string]string{
		`gpu-fraction: "0.5"`:                                "Pod p: annotation gpu-fraction: \"0.5\": a claim asks for an amount of memory",
		`gpu-memory: "2Mi"`:                                  `annotation gpu-memory: "2Mi": expected a whole number of MiB`,
		`gpu-memory: "much"`:                                 `annotation gpu-memory: "much": expected a whole number of MiB`,
		`gpu-memory: "1", gpu-fraction-num-devices: "0"`:     `annotation gpu-fraction-num-devices: "0": expected a whole number`,
		`gpu-memory: "1", gpu-fraction-container-name: "no"`: "annotation gpu-fraction-container-name: no container is called no",
	} {
		_, err := IntelFPGA([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {"+annotations+"}}\n"+
			"spec: {containers: [{name: c, image: i}]}\n"), "in.yaml", Options{})
		check.WantErr(t, err, nil, want)
	}
}

// TestAnnotationsBesideResources: where a container asks for GPUs, annotations of a share ask for none, whatever they say. They are left
// out, with a note: else the pod would ask for a share when it is converted again.
func TestAnnotationsBesideResources(t *testing.T) {
	for _, annotation := range []string{`gpu-memory: "4000"`, `gpu-fraction: "0.5"`} {
		result, err := IntelFPGA([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {"+annotation+"}}\n"+
			"spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}\n"), "in.yaml", Options{})
		check.Must(t, err)
		key, _, _ := strings.Cut(annotation, ":")
		if strings.Contains(string(result.YAML), key) || strings.Count(string(result.YAML), "deviceClassName") != 1 {
			t.Errorf("%s: got\n%s", annotation, result.YAML)
		}
		notes := strings.Join(result.Notes, "\n")
		if !strings.Contains(notes, "annotation "+key+" is left out") || strings.Contains(notes, "the annotations of a share are a request") {
			t.Errorf("%s: notes\n%s", annotation, notes)
		}
	}
}

// TestTooManyGPUs: a claim is given 32 devices at most, in however many requests.
func TestTooManyGPUs(t *testing.T) {
	const container = "  - {name: c%d, image: i, resources: {limits: {nvidia.com/gpu: %d}}}\n"
	pod := func(counts ...int) []byte {
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
		for i, n := range counts {
			text += fmt.Sprintf(container, i, n)
		}
		return []byte(text)
	}
	_, err := IntelFPGA(pod(16, 17), "in.yaml", Options{})
	check.WantErr(t, err, nil, "Pod p: 33 devices, expected at most 32 in a pod")
	_, err = IntelFPGA(pod(16, 16), "in.yaml", Options{})
	check.Must(t, err)
}

// TestLabelsAreOfGPUs: what a label says of GPUs is asked of no other device of the pod.
func TestLabelsAreOfGPUs(t *testing.T) {
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {nvidia.com/gpu.family: hopper}
  containers:
  - {name: c, image: i, resources: {limits: {LIMITS}}}
`
	options := Options{Classes: map[string]string{"rdma/hca": "nic.example.com", "example.com/h100": "gpu.fettle.dev"}}
	for limits, want := range map[string]string{
		"nvidia.com/gpu: 1, rdma/hca: 1": "nvidia.gpu.fettle.dev", "example.com/h100: 1": "gpu.fettle.dev",
	} {
		result, err := IntelFPGA([]byte(strings.ReplaceAll(pod, "LIMITS", limits)), "in.yaml", options)
		check.Must(t, err)
		var template resourceapi.ResourceClaimTemplate
		check.Must(t, yaml.Unmarshal([]byte(strings.Split(string(result.YAML), "\n---\n")[0]), &template))
		var got []string
		for _, r := range template.Spec.Spec.Devices.Requests {
			if len(r.Exactly.Selectors) > 0 {
				got = append(got, r.Exactly.DeviceClassName)
			}
		}
		if diff := cmp.Diff([]string{want}, got); diff != "" {
			t.Errorf("%s: classes with a selector (-want +got):\n%s\n%s", limits, diff, result.YAML)
		}
	}
}

// TestMemoryOfWholeGPUs: a label with the memory of a node's GPUs is no selector of instances, which have a part of it.
func TestMemoryOfWholeGPUs(t *testing.T) {
	for resource, stays := range map[string]bool{"nvidia.com/gpu": false, "nvidia.com/mig-1g.10gb": true} {
		got, err := IntelFPGA([]byte(`apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {nvidia.com/gpu.memory: "81559"}
  containers: [{name: c, image: i, resources: {limits: {`+resource+`: 1}}}]
`), "in.yaml", Options{})
		check.Must(t, err)
		text := string(got.YAML)
		if strings.Contains(text, "gpu.memory") != stays || strings.Contains(text, "81559Mi") == stays {
			t.Errorf("%s:\n%s", resource, text)
		}
	}
}

// TestOtherKinds: an object that has GPUs in a way that is not known stays, and a note names its resources.
func TestOtherKinds(t *testing.T) {
	for in, want := range map[string]string{
		"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec: {tasks: [{template: {spec: {containers: [{resources: " +
			"{limits: {volcano.sh/vgpu-number: 1, nvidia.com/mig-1g.10gb: 1}}}]}}}]}\n": "Job j names nvidia.com/mig-1g.10gb, volcano.sh/",
		"apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {requests.tencent.com/vcuda-core: 4}}\n": "Quota q names " +
			"tencent.com/vcuda-core and is left as it is",
	} {
		result, err := IntelFPGA([]byte(in), "in.yaml", Options{})
		check.Must(t, err)
		if string(result.YAML) != in || !strings.Contains(strings.Join(result.Notes, "\n"), want) {
			t.Errorf("notes %q, want %q, with\n%s", result.Notes, want, result.YAML)
		}
	}
}

// TestNothingToConvert says so, and gives the input back.
func TestNothingToConvert(t *testing.T) {
	for _, in := range []string{
		"", "# only a comment\n", "a: 1\n", "# a\n---\n# b\napiVersion: v1\nkind: Namespace\nmetadata: {name: nvidia}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {tolerations: [{key: nvidia.com/gpu}], containers: []}\n",
	} {
		result, err := IntelFPGA([]byte(in), "in.yaml", Options{})
		if err != nil || !strings.Contains(strings.Join(result.Notes, "\n"), "in.yaml: nothing to convert") {
			t.Errorf("%q: %v, notes %q", in, err, result.Notes)
		}
		for line := range strings.Lines(in) {
			if strings.HasPrefix(line, "#") && strings.Contains(in, ": ") && !strings.Contains(string(result.YAML), line) {
				t.Errorf("%q: %q is lost in %q", in, line, result.YAML)
			}
		}
	}
	_, err := IntelFPGA([]byte("a: [1\n"), "in.yaml", Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "in.yaml:1: invalid YAML: ") {
		t.Errorf("got %v, want invalid YAML", err)
	}
}
