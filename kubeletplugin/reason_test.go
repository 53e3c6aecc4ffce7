// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TestReasons: reasons are stable, since alerts and scripts match them.
func TestReasons(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{&claim.RefusedError{Reason: claim.ReasonConfigInvalid}, "ConfigInvalid"},
		{fmt.Errorf("wrapped: %w", &claim.RefusedError{Reason: claim.ReasonNamespaceNotAllowed}), "NamespaceNotAllowed"},
		{fmt.Errorf("wrapped: %w", &record.InUseError{Owner: &record.Record{}}), "DeviceInUse"},
		{errors.Join(&record.InUseError{Owner: &record.Record{}}, errors.New("and more")), "DeviceInUse"},
		{fmt.Errorf("device x: %w", prepare.ErrDeviceGone), "DeviceGone"},
		{fmt.Errorf("node x: %w", retirement.ErrRetired), "NodeRetired"},
		{fmt.Errorf("device x: %w", quiesce.ErrQuiesced), "DriverQuiesced"},
		{fmt.Errorf("wrapped: %w", &prepare.PendingError{UID: "u1"}), "PreparePending"},
		{&record.StaleError{UID: "u1"}, "PrepareOvertaken"},
		{fmt.Errorf("claim x: %w", prepare.ErrChanged), "PrepareOvertaken"},
		{fmt.Errorf("wrapped: %w", prepare.ErrOvertaken), "PrepareOvertaken"},
		{fmt.Errorf("device x %w: another call works on it: %w", record.ErrBusy, context.DeadlineExceeded), "PreparePending"},
		{fmt.Errorf("claim x %w: another call works on it: %w", record.ErrBusy, prepare.ErrOvertaken), "PrepareOvertaken"},
		{errors.New("anything else"), "PrepareFailed"},
	}
	for _, tt := range tests {
		if got := reason(tt.err); got != tt.want {
			t.Errorf("reason(%v) = %s, want %s", tt.err, got, tt.want)
		}
	}
}
