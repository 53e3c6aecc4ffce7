// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
)

// TestSplitPool: a pool's name is taken apart as it was put together, and another driver's is none of ours.
func TestSplitPool(t *testing.T) {
	for _, tc := range []struct {
		pool, node string
		kind       device.Kind
		ok         bool
	}{
		{device.PoolName("node-1.example", device.KindGPU), "node-1.example", device.KindGPU, true},
		{"node/gpu/0", "node", "gpu/0", true},
		{"/gpu", "", "gpu", true},
		{"somebody-elses", "", "", false},
		{"", "", "", false},
	} {
		if node, kind, ok := device.SplitPool(tc.pool); node != tc.node || kind != tc.kind || ok != tc.ok {
			t.Errorf("%q: %q %q %t", tc.pool, node, kind, ok)
		}
	}
}
