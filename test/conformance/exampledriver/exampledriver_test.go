// SPDX-License-Identifier: Apache-2.0

// Package exampledriver runs the conformance checks against the example driver of Kubernetes, built from source. Its faults are known, so
// the test shows that the tool finds them in a driver that was written without it, and nothing else.
package exampledriver

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/conformance"
	"github.com/fettle-dev/fettle/test/conformance/plugintest"
)

// TestMain lets the test's own binary be the command that restarts and reboots.
func TestMain(m *testing.M) {
	if status, ok := plugintest.Command(os.Args); ok {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

func TestAPI(t *testing.T) {
	program := exampleDriver(t)
	dir := t.TempDir()
	tool := plugintest.Build(t, dir, "test/conformance/fettle-conformance")
	kube, kubeconfig := plugintest.Cluster(t, dir, nodeName, apitest.Start(t, nil))
	on := func(t *testing.T, driver string, flags ...string) *site {
		return newSite(t, site{program: program, tool: tool, kubeconfig: kubeconfig, driver: driver, flags: flags})
	}
	t.Run("known faults", func(t *testing.T) { testKnownFaults(t, on(t, "gpu.example.com")) })
	t.Run("shares", func(t *testing.T) { testShares(t, on(t, "shared.example.com", "--gpu-allow-multiple-allocations")) })
	plugintest.WantCleanedUp(t.Context(), t, kube)
}

// expected is how a check ends that does not pass: the cause of its failure and words of what it says, or words of why it is skipped.
type expected struct{ cause, failure, skipped string }

// knownFaults is what version 0.4.0 does not do. It keeps no account of who holds what: Prepare in cmd/dra-example-kubeletplugin/state.go
// looks at the claim alone. It writes spec files only for a claim that its checkpoint does not have, and the checkpoint outlives a reboot.
// It answers each device with an id of its own and the common one.
func knownFaults() map[string]expected {
	held := expected{cause: string(conformance.CauseHeldGiven), failure: "want"}
	lost := expected{cause: string(conformance.CauseUnresolved), failure: "does not resolve"}
	health := expected{skipped: "the plugin offers no health service"}
	shared := expected{skipped: "needs 1 free devices that allow several allocations"}
	return map[string]expected{
		"use/double": held, "use/partly-held": held, "use/admin-access": held, "use/same-name-new-uid": held,
		"concurrency/one-device": held, "concurrency/prepare-unprepare": held, "restart/prepare": held,
		"cdi/wiped": lost, "reboot/prepare": lost,
		"cdi/unique":          {failure: "id k8s.gpu.example.com/gpu=common comes twice"},
		"health/first-report": health, "health/resent": health, "health/reconnect": health,
		"shared/together": shared, "shared/apart": shared, "shared/one-claim": shared,
	}
}

// testKnownFaults wants the known faults found, in groups by their causes, and all other checks passed.
func testKnownFaults(t *testing.T, s *site) {
	got, cases := s.run(t, s.commands...)
	if got.Status != 1 {
		t.Errorf("the tool's exit status is %d, want 1", got.Status)
	}
	want := knownFaults()
	for _, c := range cases {
		if fault := problem(c, want[c.Name]); fault != "" {
			t.Errorf("%s %s, want %+v", c.Name, fault, want[c.Name])
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		t.Errorf("not in the report: %v", slices.Sorted(maps.Keys(want)))
	}
	_, findings, _ := strings.Cut(got.Stdout, "\nFindings, by cause:\n")
	findings, _, _ = strings.Cut(findings, "\n\n")
	if n := strings.Count("\n"+findings, "\n* "); n != 3 {
		t.Errorf("%d findings, want 3: one for each cause", n)
	}
	page, err := os.ReadFile("../README.md")
	must(t, err)
	if !strings.Contains(string(page), "\nFindings, by cause:\n"+findings+"\n") {
		t.Errorf("README.md does not show the findings as they are:\n%s", findings)
	}
}

// problem compares how a check ended with how it should. It is "" where they agree.
func problem(c plugintest.Case, want expected) string {
	switch {
	case c.Failure != nil && (want.failure == "" || want.cause != c.Failure.Cause || !strings.Contains(c.Failure.Text, want.failure)):
		return "failed by cause " + c.Failure.Cause + ": " + c.Failure.Text
	case c.Skipped != nil && (want.skipped == "" || !strings.Contains(c.Skipped.Text, want.skipped)):
		return "was skipped: " + c.Skipped.Text
	case c.Failure == nil && c.Skipped == nil && want != expected{}:
		return "passed"
	}
	return ""
}

// testShares has the driver publish nothing but devices that allow several allocations. Checks that want a held device refused have nothing
// to do there.
func testShares(t *testing.T, s *site) {
	got, cases := s.run(t, "--focus=^(shared|prepare|unprepare|use|cleanup)/")
	if got.Status != 0 {
		t.Errorf("the tool's exit status is %d, want 0", got.Status)
	}
	var passed, skipped []string
	for _, c := range cases {
		switch {
		case c.Failure != nil:
			t.Errorf("%s failed: %s", c.Name, c.Failure.Text)
		case c.Skipped != nil:
			skipped = append(skipped, c.Name)
		case strings.HasPrefix(c.Name, "shared/"):
			passed = append(passed, c.Name)
		}
	}
	if diff := cmp.Diff([]string{"shared/together", "shared/apart", "shared/one-claim"}, passed); diff != "" {
		t.Errorf("passed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"use/double", "use/partly-held", "use/admin-access", "use/same-name-new-uid"}, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
