// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

const cases = "testdata/rules_test.yaml"

// TestRules: the rules parse, and each alert fires and does not fire when it should.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), read(t, files+"/rules.yaml"), 0o600))
	check.Must(t, os.WriteFile(filepath.Join(dir, "rules_test.yaml"), read(t, cases), 0o600))
	promtool(t, dir, "check", "rules", "rules.yaml")
	promtool(t, dir, "test", "rules", "rules_test.yaml")
}

// TestOrder: the cases name all groups in the order of the rules. Without it, promtool evaluates them in an order of chance.
func TestOrder(t *testing.T) {
	var file struct {
		Order []string `json:"group_eval_order"`
	}
	check.Must(t, sigsyaml.Unmarshal(read(t, cases), &file))
	var want []string
	for _, g := range groups(t) {
		want = append(want, g.Name)
	}
	if !slices.Equal(file.Order, want) {
		t.Errorf("group_eval_order of %s is %q, and the groups are %q", cases, file.Order, want)
	}
}

// TestEveryAlertIsTested: each alert is expected to fire in one case, and not to in another. Each recording rule is used.
func TestEveryAlertIsTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Alerts []struct {
				Name     string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	check.Must(t, sigsyaml.Unmarshal(read(t, cases), &file))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, one := range file.Tests {
		for _, a := range one.Alerts {
			fires[a.Name] = fires[a.Name] || len(a.Expected) > 0
			silent[a.Name] = silent[a.Name] || len(a.Expected) == 0
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" && (!fires[r.Alert] || !silent[r.Alert]) {
			t.Errorf("%s: a case in which it fires: %v, one in which it does not: %v", r.Alert, fires[r.Alert], silent[r.Alert])
		}
		delete(fires, r.Alert)
	}
	for name := range fires {
		t.Errorf("%s has cases and is no alert", name)
	}
}

// TestRunbooks: each alert has a section in a runbook, with all that a section has.
func TestRunbooks(t *testing.T) {
	const base = "https://github.com/fettle-dev/fettle/blob/main/"
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		path, anchor, _ := strings.Cut(strings.TrimPrefix(r.Annotations["runbook_url"], base), "#")
		if anchor != strings.ToLower(r.Alert) {
			t.Errorf("%s: its runbook is %s", r.Alert, r.Annotations["runbook_url"])
			continue
		}
		_, section, found := strings.Cut(string(read(t, filepath.Join(repository, path))), "\n## "+r.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, part := range []string{"\n```\nkubectl", "\n**Do:**"} {
			if !found || !strings.Contains(section, part) {
				t.Errorf("%s: its section of %s is there: %v, and lacks %q", r.Alert, path, found, part)
			}
		}
		if s := r.Labels["severity"]; s != "info" && s != "warning" && s != "critical" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if r.For == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks a time, a summary or a description", r.Alert)
		}
	}
}
