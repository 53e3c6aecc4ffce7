// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"testing"

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
