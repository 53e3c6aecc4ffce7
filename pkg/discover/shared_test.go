// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/container"
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
	}
}
