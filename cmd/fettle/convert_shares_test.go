// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// sharedGPUs is a node with GPUs of which each has four shares, and the class for them.
func sharedGPUs(n int) string {
	const gpu = `{name: gpu-%d, allowMultipleAllocations: true, attributes: {vendor: {string: nvidia}, type: {string: gpu}, ` +
		`resource.kubernetes.io/pciBusID: {string: "0000:0%[1]d:00.0"}}, capacity: {memory: {value: 80Gi, requestPolicy: {default: 20Gi, ` +
		`validRange: {min: 1Gi, step: 1Gi}}}}}`
	var gpus []string
	for i := range n {
		gpus = append(gpus, fmt.Sprintf(gpu, i))
	}
	return `apiVersion: v1
kind: Node
metadata: {name: node-1}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nvidia.gpu.fettle.dev}
spec: {selectors: [{cel: {expression: device.driver == "fettle.dev"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-1-gpu}
spec:
  driver: fettle.dev
  nodeName: node-1
  pool: {name: node-1/gpu, generation: 1, resourceSliceCount: 1}
  devices: [` + strings.Join(gpus, ", ") + `]
`
}

// TestConvertedSharesAreApart: a container that asked HAMi for shares of two GPUs has none of the same GPU twice, also where it hands one
// of them on and the claim has two requests for them.
func TestConvertedSharesAreApart(t *testing.T) {
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  initContainers: [{name: i, image: i, resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 4096}}}]
  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: N, nvidia.com/gpumem: 4096}}}]
`
	for _, n := range []string{"1", "2"} {
		var converted, stderr bytes.Buffer
		in := written(t, "pod.yaml", strings.Replace(pod, "N", n, 1))
		if code := run(t.Context(), []string{"convert", "-f", in}, &converted, &stderr); code != 0 {
			t.Fatal(stderr.String())
		}
		file := written(t, "converted.yaml", converted.String()+"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n")
		for gpus, want := range map[int]int{1: statusNoNode, 2: 0} {
			var out bytes.Buffer
			if code := run(t.Context(), []string{"plan", "-f", written(t, "cluster.yaml", sharedGPUs(gpus)), "-f", file}, &out, &out); code != want {
				t.Errorf("%s, of %d GPUs: exit status %d, want %d:\n%s%s", n, gpus, code, want, &out, &converted)
			}
		}
	}
}
