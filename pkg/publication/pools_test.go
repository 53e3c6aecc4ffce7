// SPDX-License-Identifier: Apache-2.0

package publication

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
)

// TestBindingConditions: the names are in slices and on claims, and each kind has its own.
func TestBindingConditions(t *testing.T) {
	for kind, want := range map[device.Kind][2]string{
		device.KindFPGA: {"fettle.dev/BitstreamReady", "fettle.dev/BitstreamFailed"},
		device.KindGPU:  {"fettle.dev/KernelCachesReady", "fettle.dev/KernelCachesFailed"},
	} {
		if ready, failed := BindingConditions(kind); ready != want[0] || failed != want[1] {
			t.Errorf("%s: %s and %s, want %v", kind, ready, failed, want)
		}
	}
}
