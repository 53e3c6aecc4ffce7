// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/hostfiles"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPlanOfHangingServer: a preset with a path of a file system that does not answer fails its claims in time. Other claims may share
// their devices, which are locked meanwhile.
func TestPlanOfHangingServer(t *testing.T) {
	tools := clusterPreset("tools", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Env = []v1alpha1.PresetEnv{{Name: "A", Value: new("x")}}
	})
	w := newPresetWorld(t, tools)
	patience := testingclock.NewFakeClock(time.Unix(0, 0))
	w.reads = sysfs.NewReads(patience, findPatience)
	back := make(chan struct{})
	w.Find = func(string, preset.Request, []string) (hostfiles.Found, error) {
		<-back
		return hostfiles.Found{}, nil
	}
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err = w.Plan(t.Context(), prepare.Request{Claim: claimOfClass("u1", ofGPU("main", "gpu0"))})
	}()
	check.Wind(t, "Plan ends", patience, findPatience, check.Received(done))
	check.WantErr(t, err, sysfs.ErrNoAnswer)
	close(back)
	check.Eventually(t, "the claim is planned", func() bool {
		_, err := w.Plan(t.Context(), prepare.Request{Claim: claimOfClass("u1", ofGPU("main", "gpu0"))})
		return err == nil
	})
}
