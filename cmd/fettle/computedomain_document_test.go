// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// channels is what NVIDIA's driver adds to a cluster with its GPU side off: the class of channels, a channel a node, and the template that
// its controller makes for the page's ComputeDomain (dra-driver-nvidia-gpu 9593204).
const channels = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: compute-domain-default-channel.nvidia.com}
spec:
  selectors:
  - cel:
      expression: >-
        device.driver == 'compute-domain.nvidia.com' && device.attributes['compute-domain.nvidia.com'].type == 'channel' &&
        device.attributes['compute-domain.nvidia.com'].id == 0
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1-channels}
spec:
  driver: compute-domain.nvidia.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: daemon-0, attributes: {type: {string: daemon}, id: {int: 0}}}
  - {name: channel-0, attributes: {type: {string: channel}, id: {int: 0}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: train-channel}
spec:
  spec:
    devices:
      requests:
      - name: channel
        exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}
      config:
      - requests: [channel]
        opaque:
          driver: compute-domain.nvidia.com
          parameters:
            apiVersion: resource.nvidia.com/v1beta1
            kind: ComputeDomainChannelConfig
            domainID: 2f1b2f52-1ef9-4b87-a3c3-43d6fe0d6f0e
            allocationMode: Single
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nvidia.gpu.fettle.dev}
spec:
  selectors: [{cel: {expression: 'device.driver == "fettle.dev" && device.attributes["fettle.dev"].vendor == "nvidia"'}}]
---
apiVersion: v1
kind: Node
metadata: {name: n1}
`

// gpusOfCliques is a node's slice with a GPU for each clique. An empty one stands for a GPU that is not in its fabric yet.
func gpusOfCliques(cliques ...string) string {
	var b strings.Builder
	b.WriteString(`---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1-gpus}
spec:
  driver: fettle.dev
  nodeName: n1
  pool: {name: n1/gpu, generation: 1, resourceSliceCount: 1}
  devices:
`)
	for i, clique := range cliques {
		fmt.Fprintf(&b, "  - {name: gpu-%d, attributes: {vendor: {string: nvidia}", i)
		if clique != "" {
			fmt.Fprintf(&b, ", fabricClique: {string: %s}", clique)
		}
		b.WriteString("}}\n")
	}
	return b.String()
}

// TestComputeDomainDocument: the page's pod gets four GPUs of one clique from Fettle and a channel from NVIDIA's driver, and no node where
// there are not as many of one clique.
func TestComputeDomainDocument(t *testing.T) {
	_, examples := examplesOf(t, "compute-domains.md")
	if len(examples) != 2 {
		t.Fatalf("the page has %d examples, want the chart's values and the objects", len(examples))
	}
	const a, b = "7c1de0a4-33f2-4f0e-9b51-0a6c2f8d4e19.1", "7c1de0a4-33f2-4f0e-9b51-0a6c2f8d4e19.2"
	for name, tc := range map[string]struct {
		cliques []string
		status  int
		want    string
	}{
		"one clique": {
			[]string{b, a, a, "", a, a},
			0,
			"channel=compute-domain.nvidia.com/n1/channel-0 gpus=fettle.dev/n1/gpu/gpu-1,fettle.dev/n1/gpu/gpu-2," +
				"fettle.dev/n1/gpu/gpu-4,fettle.dev/n1/gpu/gpu-5",
		},
		"two cliques": {[]string{a, a, a, b, b, b}, 3, "1 cannot allocate all claims"},
		"no fabric":   {[]string{"", "", "", ""}, 3, "1 cannot allocate all claims"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cluster, pods := filepath.Join(dir, "cluster.yaml"), filepath.Join(dir, "pods.yaml")
			check.Must(t, os.WriteFile(cluster, []byte(channels+gpusOfCliques(tc.cliques...)), 0o600))
			check.Must(t, os.WriteFile(pods, []byte(examples[1]), 0o600))
			status, stdout, stderr := call(t, "plan", "-f", cluster, "-f", pods)
			if status != tc.status || !strings.Contains(strings.Join(strings.Fields(stdout), " "), tc.want) {
				t.Errorf("exit status %d, want %d; printed\n%s%s\nwant %q", status, tc.status, stdout, stderr, tc.want)
			}
		})
	}
}
