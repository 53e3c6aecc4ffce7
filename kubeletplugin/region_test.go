// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/record"
)

// TestHoldsRegion: who takes or gives back a region has the taints of its siblings decided anew.
func TestHoldsRegion(t *testing.T) {
	plain := &record.Record{Devices: []record.Device{{Name: "gpu0"}}}
	region := &record.Record{Devices: []record.Device{{Name: "r0", CoTenancy: "Shared"}}}
	if holdsRegion(plain) || !holdsRegion(region) {
		t.Error("a record does not tell whether it is of a region")
	}
}
