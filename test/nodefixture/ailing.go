// SPDX-License-Identifier: Apache-2.0

package nodefixture

import (
	"testing"
	"time"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
)

// Ailing is a machine with one device of each bad state, the first three GPUs.
func Ailing(t *testing.T, taintsKept bool) *inventory.Snapshot {
	t.Helper()
	v := Snapshot(t, "8xh100-sxm")
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return v.With(inventory.Health{TaintsKept: taintsKept, Statuses: map[string]health.Status{
		v.Devices[0].Name: {Kind: device.KindGPU, State: health.Worn, Reason: "Xid94", Message: "xid 94: a contained memory error", Since: since},
		v.Devices[1].Name: {Kind: device.KindGPU, State: health.Unhealthy, Reason: "Xid79", Message: "xid 79: off the bus", Since: since},
		v.Devices[2].Name: {Kind: device.KindGPU, State: health.Quarantined, Reason: "UndoFailed", Message: "undoing failed", Since: since},
	}})
}
