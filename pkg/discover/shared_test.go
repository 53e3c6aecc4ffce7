// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"maps"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
)

// TestSharedNode: by a node that all GPUs of a driver have in common nobody uses one of them.
func TestSharedNode(t *testing.T) {
	for name, want := range map[string]bool{
		"nvidiactl": true, "nvidia-uvm": true, "nvidia-uvm-tools": true, "nvidia-modeset": true, "kfd": true, "dxg": true,
		"nvidia0": false, "nvidia12": false, "dri/renderD128": false, "dri/card0": false,
	} {
		if got := SharedNode(container.Node{Path: "/dev/" + name}); got != want {
			t.Errorf("%s: %t", name, got)
		}
		// What MIG instances get of their GPU's nodes.
		if got := SharedNVIDIANode(container.Node{Path: "/dev/" + name}); got != (want && name != "kfd" && name != "dxg") {
			t.Errorf("%s counts as NVIDIA's: %t", name, got)
		}
	}
}

// TestRenderNodes: a GPU of NVIDIA has its render node where that is wanted and nvidia-drm made one, and loses nothing where it did not.
func TestRenderNodes(t *testing.T) {
	machine := parseMachine(t, "../../test/machines/2xa100-2xn6000.txtar")
	for name, wanted := range map[string]bool{"wanted": true, "not wanted": false} {
		opts := machineOptions()
		opts.RenderNodes = wanted
		renders := map[string]bool{}
		for _, d := range discoverIn(t, expand(t, machine), opts).Devices {
			if device.StringOf(d.Attributes[device.AttributeVendor]) != "nvidia" {
				continue
			}
			for _, n := range d.Edits.Nodes {
				if strings.HasPrefix(n.Path, "/dev/dri/") {
					renders[n.Path] = true
				}
			}
		}
		if want := map[string]bool{"/dev/dri/renderD128": true, "/dev/dri/renderD129": true}; wanted && !maps.Equal(renders, want) ||
			!wanted && len(renders) > 0 {
			t.Errorf("%s: nodes %v", name, renders)
		}
	}
	opts := machineOptions()
	opts.RenderNodes = true
	devices := discoverIn(t, expand(t, parseMachine(t, "../../test/machines/1xh100-vm.txtar")), opts).Devices
	if len(devices) != 1 {
		t.Errorf("without nvidia-drm: %d devices, want the GPU", len(devices))
	}
}
