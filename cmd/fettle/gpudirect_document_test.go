// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

const podWithGPU = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: a
  namespace: default
  ownerReferences:
  - {apiVersion: v1, kind: Pod, name: train, uid: "1", controller: true}
spec:
  devices:
    requests:
    - {name: gpu, exactly: {deviceClassName: nvidia.gpu.fettle.dev}}
status:
  allocation:
    devices:
      results:
      - {request: gpu, driver: fettle.dev, pool: node/gpu, device: gpu0}
---
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: default, uid: "1"}
spec:
  containers:
  - name: main
    image: train
    resources: {claims: [{name: gpu}]}
  resourceClaims:
  - {name: gpu, resourceClaimTemplateName: gpu}
status:
  resourceClaimStatuses:
  - {name: gpu, resourceClaimName: a}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-gpu}
spec:
  driver: fettle.dev
  nodeName: node
  pool: {name: node/gpu, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu0, attributes: {vendor: {string: VENDOR}, type: {string: TYPE}}}
`

// TestGPUDirectDocument: the page's preset names the nodes for whole GPUs of NVIDIA, and a node that has none of them keeps no claim
// waiting.
func TestGPUDirectDocument(t *testing.T) {
	_, examples := examplesOf(t, "gpudirect.md")
	if len(examples) != 2 {
		t.Fatalf("the page has %d examples, want a preset and a claim", len(examples))
	}
	dir := t.TempDir()
	preset, claim := filepath.Join(dir, "preset.yaml"), filepath.Join(dir, "claim.yaml")
	check.Must(t, os.WriteFile(preset, []byte(examples[0]), 0o600))
	check.Must(t, os.WriteFile(claim, []byte(examples[1]), 0o600))
	if status, stdout, stderr := call(t, "validate", preset, claim); status != 0 {
		t.Errorf("validate: exit status %d, %s%s", status, stdout, stderr)
	}
	for device, given := range map[string]bool{"nvidia gpu": true, "nvidia mig": false, "nvidia vfio": false, "amd gpu": false} {
		vendor, kind, _ := strings.Cut(device, " ")
		args := []string{"preset", "explain", "--presets", preset, "--root", t.TempDir()}
		text := strings.NewReplacer("VENDOR", vendor, "TYPE", kind).Replace(podWithGPU)
		for i, object := range strings.Split(text, "\n---\n") {
			flag := []string{"claim", "pod", "slices"}[i]
			file := filepath.Join(dir, flag+vendor+kind+".yaml")
			check.Must(t, os.WriteFile(file, []byte(object), 0o600))
			args = append(args, "--"+flag, file)
		}
		status, stdout, stderr := call(t, args...)
		if status != 0 || strings.Contains(stdout, "would wait") {
			t.Errorf("%s: exit status %d, printed\n%s%s", device, status, stdout, stderr)
		}
		if strings.Contains(stdout, "device node /dev/gdrdrv, optional") != given {
			t.Errorf("%s: want the nodes of the preset: %t; printed\n%s", device, given, stdout)
		}
	}
}
