// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestRulesAreRendered: the PrometheusRule has the groups of the file, with links to the runbooks that the values name.
func TestRulesAreRendered(t *testing.T) {
	const shipped, own = "https://github.com/fettle-dev/fettle/blob/main/docs/user/runbooks/", "https://wiki.example/fettle/"
	data, err := os.ReadFile(filepath.Join(chartDir, "files/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ values, runbooks string }{
		{"monitoring.rules.enabled=true", shipped},
		{"monitoring.rules.enabled=true,monitoring.rules.labels.release=prometheus,monitoring.rules.runbooks=" + own, own},
	} {
		rule := find(t, renderObjects(t, "--set="+test.values, "--api-versions=monitoring.coreos.com/v1"), "PrometheusRule", "fettle")
		var want map[string]any
		if err := sigsyaml.Unmarshal(bytes.ReplaceAll(data, []byte(shipped), []byte(test.runbooks)), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, rule.Object["spec"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.values, diff)
		}
		if got := rule.GetLabels()["release"]; (got == "prometheus") != (test.runbooks == own) {
			t.Errorf("%s: label release is %q", test.values, got)
		}
	}
}

// TestDashboardsAreRendered: each dashboard is in a ConfigMap where Grafana's sidecar looks for it.
func TestDashboardsAreRendered(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(chartDir, "files/dashboards/*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d dashboards, %v", len(paths), err)
	}
	objects := renderObjects(t, "--set=monitoring.dashboards.enabled=true,monitoring.dashboards.namespace=grafana")
	for _, path := range paths {
		file := filepath.Base(path)
		configMap := find(t, objects, "ConfigMap", file[:len(file)-len(".json")]+"-dashboard")
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := unstructured.NestedStringMap(configMap.Object, "data")
		if err != nil || strings.TrimSpace(got[file]) != strings.TrimSpace(string(want)) || len(got) != 1 {
			t.Errorf("%s: %v (-want +got):\n%s", file, err, cmp.Diff(string(want), got[file]))
		}
		if configMap.GetLabels()["grafana_dashboard"] != "1" || configMap.GetNamespace() != "grafana" {
			t.Errorf("%s is in %s with labels %v", file, configMap.GetNamespace(), configMap.GetLabels())
		}
		checkLabels(t, file, configMap)
	}
}
