// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// TestExternal: what operators show of a node's driver. A report about another kernel is none, and no node has another one's verdict.
func TestExternal(t *testing.T) {
	nvidia := func(state string) (stack.Operator, map[string]string) {
		labels := map[string]string{"nvidia.com/gpu-driver-upgrade-state": state}
		if state == "" {
			labels = nil
		}
		return stack.Operator{Kind: v1alpha1.OperatorNVIDIA, Objects: 1}, labels
	}
	amd := func(kernel, status string) (stack.Operator, map[string]string) {
		return stack.Operator{Kind: v1alpha1.OperatorAMD, Objects: 1, Modules: map[string]stack.Module{
			"a": {Image: "registry.example/amdgpu:6.3", KernelVersion: kernel, Status: status},
			"b": {KernelVersion: "6.1.0-1", Status: "Upgrade-Failed"},
		}}, nil
	}
	none := func(kind v1alpha1.DriverOperator, objects int) (stack.Operator, map[string]string) {
		return stack.Operator{Kind: kind, Objects: objects}, nil
	}
	type observed func() (stack.Operator, map[string]string)
	of := func(f func(string, string) (stack.Operator, map[string]string), a, b string) observed {
		return func() (stack.Operator, map[string]string) { return f(a, b) }
	}
	state := func(s string) observed { return func() (stack.Operator, map[string]string) { return nvidia(s) } }
	without := func(kind v1alpha1.DriverOperator, objects int) observed {
		return func() (stack.Operator, map[string]string) { return none(kind, objects) }
	}
	for _, tc := range []struct {
		name     string
		observed observed
		status   stack.Status
		reason   string
	}{
		{"NVIDIA's, not there", without(v1alpha1.OperatorNVIDIA, 0), stack.Unknown, stack.ReasonOperatorMissing},
		{"NVIDIA's, no upgrade", state(""), stack.Passed, stack.ReasonPassed},
		{"NVIDIA's, upgraded", state("upgrade-done"), stack.Passed, stack.ReasonPassed},
		{"NVIDIA's, drains", state("drain-required"), stack.Unknown, stack.ReasonDriverChanging},
		{"NVIDIA's, failed", state("upgrade-failed"), stack.Failed, stack.ReasonDriverFailed},
		{"AMD's, not there", without(v1alpha1.OperatorAMD, 0), stack.Unknown, stack.ReasonOperatorMissing},
		{"AMD's, not on the node", without(v1alpha1.OperatorAMD, 1), stack.Unknown, stack.ReasonDriverPending},
		{"AMD's, another kernel", of(amd, "6.1.0-0", "Install-Complete"), stack.Unknown, stack.ReasonDriverPending},
		{"AMD's, installed", of(amd, "6.1.0-1", "Install-Complete"), stack.Passed, stack.ReasonPassed},
		{"AMD's, upgraded", of(amd, "6.1.0-1", "Upgrade-Complete"), stack.Passed, stack.ReasonPassed},
		{"AMD's, without an upgrade policy", of(amd, "6.1.0-1", ""), stack.Passed, stack.ReasonPassed},
		{"AMD's, starts", of(amd, "6.1.0-1", "Install-In-Progress"), stack.Unknown, stack.ReasonDriverChanging},
		{"AMD's, restarts the node", of(amd, "6.1.0-1", "Reboot-In-Progress"), stack.Unknown, stack.ReasonDriverChanging},
		{"AMD's, failed", of(amd, "6.1.0-1", "Drain-Failed"), stack.Failed, stack.ReasonDriverFailed},
		{"AMD's, took too long", of(amd, "6.1.0-1", "Upgrade-Timed-Out"), stack.Failed, stack.ReasonDriverFailed},
	} {
		o, labels := tc.observed()
		n := healthy("a")
		n.Labels = labels
		if v := stack.External(n, &o); v.Status != tc.status || v.Reason != tc.reason || v.Message == "" {
			t.Errorf("%s: %+v, want %v %s", tc.name, v, tc.status, tc.reason)
		}
	}
}
