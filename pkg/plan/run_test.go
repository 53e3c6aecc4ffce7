// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPlans makes a plan of each file in testdata and compares it with the report beside it.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("snapshots in testdata: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			got := reportOf(t, file)
			check.Golden(t, strings.TrimSuffix(file, ".yaml")+".report", got)
			if again := reportOf(t, file); string(again) != string(got) {
				t.Errorf("a second plan of the same differs:\n%s", cmp.Diff(string(got), string(again)))
			}
		})
	}
}

func reportOf(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, problems, err := plan.Read([]plan.File{{Name: filepath.Base(file), Data: data}}, "")
	if err != nil {
		t.Fatal(err)
	}
	cluster, _, err := plan.NewCluster(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	report, err := plan.Run(t.Context(), cluster, cluster.Pending(), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report.Problems = append(problems, report.Problems...)
	out, err := json.Marshal(report)
	if err == nil {
		out, err = yaml.JSONToYAML(out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}
