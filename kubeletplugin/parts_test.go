// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/kubeletplugin/devicehealth"
	"github.com/fettle-dev/fettle/kubeletplugin/foreigndevices"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TestParts lists which part takes part in what, in the order in which they are asked. A method of another form would take part in nothing.
func TestParts(t *testing.T) {
	p := newPlugin(t, t.TempDir())
	for what, c := range map[string]struct{ got, want []string }{
		"reviews": {names[inventory.Reviewer](p), []string{
			"foreigndevices.Feature", "hostdirs.Feature", "fpgas.Feature", "partitions.Feature", "quiesce.State",
		}},
		"runs": {names[runner](p), []string{
			"foreigndevices.Feature", "kernelcaches.Feature", "partitions.Feature", "sharing.Feature", "devicehealth.Monitor", "artifacts.Node",
			"status.Reporter", "status.ClaimWriter",
		}},
		"watches": {names[watcher](p), []string{
			"nodeview.View", "deviceclasses.Classes", "kernelcaches.Feature", "partitions.Feature", "presets.Feature",
		}},
		"reasons": {names[reasoner](p), []string{
			"foreigndevices.Feature", "kernelcaches.Feature", "fpgas.Feature", "presets.Feature", "devicehealth.Monitor", "retirement.State",
			"quiesce.State",
		}},
		"dropped fields": {names[fieldsUser](p), []string{"partitions.Feature", "devicehealth.Monitor"}},
		"files": {names[destroyer](p), []string{
			"kernelcaches.Feature", "fpgas.Feature", "partitions.Feature", "sharing.Feature", "presets.Feature", "devicehealth.Monitor",
			"quiesce.State", "artifacts.Node",
		}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// names returns the types of the parts that have the methods of T.
func names[T any](p *Plugin) (out []string) {
	for _, part := range having[T](p.parts) {
		out = append(out, strings.TrimPrefix(fmt.Sprintf("%T", part), "*"))
	}
	return out
}

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
		{fmt.Errorf("device x: %w", foreigndevices.ErrForeign), "LeftToAnotherDriver"},
		{fmt.Errorf("wrapped: %w", &prepare.PendingError{UID: "u1"}), "PreparePending"},
		{&record.StaleError{UID: "u1"}, "PrepareOvertaken"},
		{fmt.Errorf("claim x: %w", prepare.ErrChanged), "PrepareOvertaken"},
		{fmt.Errorf("wrapped: %w", prepare.ErrOvertaken), "PrepareOvertaken"},
		{fmt.Errorf("device x %w: another call works on it: %w", record.ErrBusy, context.DeadlineExceeded), "PreparePending"},
		{fmt.Errorf("claim x %w: another call works on it: %w", record.ErrBusy, prepare.ErrOvertaken), "PrepareOvertaken"},
		{fmt.Errorf("wrapped: %w", devicehealth.ErrUnhealthy), "DeviceUnhealthy"},
		{fmt.Errorf("wrapped: %w", cachemount.ErrNotReady), "KernelCacheNotReady"},
		{fmt.Errorf("wrapped: %w", region.ErrMemory), "RegionUnusable"},
		{errors.New("anything else"), "PrepareFailed"},
	}
	permanent := []string{"ConfigInvalid", "NamespaceNotAllowed", "NodeRetired", "DeviceUnhealthy", "LeftToAnotherDriver"}
	p := newPlugin(t, t.TempDir())
	for _, tt := range tests {
		if got := p.parts.reason(tt.err); got != tt.want {
			t.Errorf("reason(%v) = %s, want %s", tt.err, got, tt.want)
		}
		if got, want := p.parts.isPermanent(tt.err), slices.Contains(permanent, tt.want); got != want {
			t.Errorf("isPermanent(%v) = %v, want %v", tt.err, got, want)
		}
	}
}

// TestPendingIsUnderway: a Prepare that goes on when its time is over, as of a large bitstream, is no failure for which the scheduler
// would look for another node.
func TestPendingIsUnderway(t *testing.T) {
	if !isUnderway(fmt.Errorf("wrapped: %w", &prepare.PendingError{UID: "u1"})) {
		t.Error("a Prepare that goes on counts as failed")
	}
	if isUnderway(errors.New("the registry is away")) {
		t.Error("a failure counts as work that goes on")
	}
}
