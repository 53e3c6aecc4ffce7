// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"

	"github.com/fettle-dev/fettle/pkg/health"
)

// ReportLevel takes in what another part of the plugin sees of a device: what is wrong with it now, or nothing.
func (m *Monitor) ReportLevel(ctx context.Context, source, code, device, problem string) {
	reading := health.Reading{Code: code, Kind: health.Level, Message: problem}
	if problem != "" {
		reading.Value = 1
	}
	m.logLedgerError(ctx, m.ledger.Report(health.Report{Device: device, Source: source, Readings: []health.Reading{reading}}))
}
