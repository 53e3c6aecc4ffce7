// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// commandScenarios are those that are planned by the command line too. It has to find out the version and what that means.
func commandScenarios() []scenario {
	names := []string{
		"a half keeps the whole", "two shares of a device", "an extended resource", "a tainted device is left out", "a device of another claim",
	}
	return slices.DeleteFunc(scenarios(), func(s scenario) bool { return !slices.Contains(names, s.name) })
}

// playCommand asks "fettle plan" what would happen if a pod was created, and creates it.
func (c *cluster) playCommand(t *testing.T) {
	fettle, config := c.fettle(t), kubeconfig(t, t.TempDir(), c.config, "")
	for _, s := range commandScenarios() {
		t.Run(s.name, func(t *testing.T) {
			s := s.placed()
			defer c.clear(t, s)
			c.arrange(t, s)
			for _, p := range s.pods() {
				file := filepath.Join(t.TempDir(), "pod.yaml")
				if err := os.WriteFile(file, manifests(t, []client.Object{p}), 0o600); err != nil {
					t.Fatal(err)
				}
				planned := commandPlan(t, fettle, "--kubeconfig", config, "--from-cluster", "--add", file)
				result, found := planned.Pods[p.Namespace+"/"+p.Name]
				if !found {
					t.Fatalf("fettle plan says nothing of pod %s", p.Name)
				}
				c.write(t, p)
				compare(t, p.Name, outcomeOf(result), c.settle(t, p, outcomeOf(result)))
			}
		})
	}
}

// commandPlan runs "fettle plan".
func commandPlan(t *testing.T, fettle string, args ...string) plan.Report {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), fettle, append([]string{"plan", "-o", "json"}, args...)...)
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if code := command.ProcessState.ExitCode(); code != 0 && code != 3 {
		t.Fatalf("fettle plan: %v\n%s", err, &stderr)
	}
	var report plan.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("fettle plan: %v\n%s", err, &stdout)
	}
	return report
}
