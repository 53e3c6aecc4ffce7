// SPDX-License-Identifier: Apache-2.0

package health

import (
	"strconv"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// NVML is what NVIDIA's library says of one GPU as a report. A recovery that it does not ask for any more, or counters that went
// back, mean that the GPU was reset, which ends its Xids too.
func NVML(device string, s nvml.DeviceState) Report {
	r := Report{Device: device, Source: SourceNVML, Covers: []string{SourceXid}}
	level := func(code string, on bool) {
		reading := Reading{Code: code, Kind: Level}
		if on {
			reading.Value = 1
		}
		r.Readings = append(r.Readings, reading)
	}
	level("lost", s.Lost)
	if s.RemapPending != nil {
		level("remap-pending", *s.RemapPending)
	}
	if s.RemapFailure != nil {
		level("remap-failure", *s.RemapFailure)
	}
	if s.RecoveryAction != "" {
		for _, action := range recoveryActions(s.RecoveryAction) {
			level(RecoveryPrefix+action, action == s.RecoveryAction)
		}
	}
	if s.CorrectedECC != nil {
		r.Readings = append(r.Readings, Reading{Code: "ecc-corrected", Kind: Counter, Value: *s.CorrectedECC})
	}
	if s.UncorrectedECC != nil {
		r.Readings = append(r.Readings, Reading{Code: "ecc-uncorrected", Kind: Counter, Value: *s.UncorrectedECC})
	}
	return r
}

// recoveryActions are the actions to report, the one that is asked for and those that are not.
func recoveryActions(now string) []string {
	actions := []string{
		"gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "system-reboot",
	}
	for _, known := range append(actions, nvml.RecoveryNone) {
		if known == now {
			return actions
		}
	}
	return append(actions, now)
}

// Xid is a critical error as an event.
func Xid(device string, e nvml.Event) Event {
	return Event{Device: device, Source: SourceXid, Code: strconv.FormatUint(e.Xid, 10)}
}
