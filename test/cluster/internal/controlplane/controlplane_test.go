// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"slices"
	"testing"

	"github.com/fettle-dev/fettle/test/cluster/internal/controlplane"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

func TestCommandEmulates(t *testing.T) {
	for _, test := range []struct {
		component, emulate string
		want               bool
	}{
		{controlplane.APIServer, "1.34", true},
		{controlplane.ControllerManager, "1.34", true},
		{controlplane.Scheduler, "1.34", true},
		{controlplane.APIServer, "", false},
		{controlplane.Etcd, "1.34", false},
	} {
		args, ok := controlplane.Command(plan.Cluster{Options: plan.Options{Emulate: test.emulate}}, test.component)
		if !ok {
			t.Fatalf("%s is unknown", test.component)
		}
		if got := slices.Contains(args, "--emulated-version=kube=1.34"); got != test.want {
			t.Errorf("%s, emulate %q: flag is set: %v, want %v", test.component, test.emulate, got, test.want)
		}
	}
}

func TestCommandKnowsOnlyItsComponents(t *testing.T) {
	if _, ok := controlplane.Command(plan.Cluster{}, "kubelet"); ok {
		t.Error("kubelet is no component of the control plane")
	}
}
