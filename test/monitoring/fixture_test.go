// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

const (
	repository = "../.."
	files      = repository + "/deployments/helm/fettle/files"
)

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	check.Must(t, err)
	return data
}

// promtool runs Prometheus' tool in a directory.
func promtool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("%v: install Debian's package prometheus, or what your distribution calls it", err)
	}
	command := exec.CommandContext(t.Context(), path, args...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %q: %v\n%s", args, err, output)
	}
	return string(output)
}

// rule is a rule of rules.yaml.
type rule struct {
	Alert, Record, Expr string
	For                 string
	Labels, Annotations map[string]string
}

// group is a group of rules.yaml.
type group struct {
	Name  string
	Rules []rule
}

func groups(t *testing.T) []group {
	t.Helper()
	var file struct{ Groups []group }
	check.Must(t, sigsyaml.Unmarshal(read(t, files+"/rules.yaml"), &file))
	return file.Groups
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	for _, g := range groups(t) {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no rules")
	}
	return all
}

// dashboard is what the tests read of a dashboard.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []panel
}

type panel struct {
	ID         int
	Title      string
	Datasource struct{ UID string }
	Targets    []struct {
		RefID, Expr string
		Datasource  struct{ UID string }
	}
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	paths, err := filepath.Glob(files + "/dashboards/*.json")
	check.Must(t, err)
	all := map[string]dashboard{}
	for _, path := range paths {
		var d dashboard
		check.Must(t, json.Unmarshal(read(t, path), &d))
		all[filepath.Base(path)] = d
	}
	if len(all) == 0 {
		t.Fatal("there are no dashboards")
	}
	return all
}

// variable matches a variable of a dashboard in an expression.
var variable = regexp.MustCompile(`\$\{?[a-z]+\}?`)

// expressions lists the expressions of the dashboards with values for the variables, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				all[fmt.Sprintf("%s, %s, %s", name, p.Title, target.RefID)] = variable.ReplaceAllString(target.Expr, ".*")
			}
		}
	}
	return all
}

// examples lists the expressions that the page shows.
func examples(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(read(t, page)), -1) {
		all = append(all, strings.TrimSpace(block[1]))
	}
	return all
}

const page = repository + "/docs/user/monitoring.md"
