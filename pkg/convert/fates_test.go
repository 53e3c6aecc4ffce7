// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/convert/shares"
	"github.com/fettle-dev/fettle/pkg/convert/traces"
	"github.com/fettle-dev/fettle/test/check"
)

// fateRow is what becomes of names: a line of testdata/fates.txt, and a row of the page that is made of it.
type fateRow struct {
	where string
	names []string
	fate  string
	line  string
}

func fateRows(t *testing.T) (rows []fateRow) {
	t.Helper()
	text, err := os.ReadFile("testdata/fates.txt")
	check.Must(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		cells := strings.Split(line, " | ")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(cells) != 5 {
			t.Fatalf("%d columns, want 5: %s", len(cells), line)
		}
		row := fateRow{where: cells[1], fate: cells[3], line: line}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1) {
			row.names = append(row.names, name[1])
		}
		rows = append(rows, row)
	}
	return rows
}

// TestFatesPage: the page has a row for each line of the list. -update writes it.
func TestFatesPage(t *testing.T) {
	var out strings.Builder
	out.WriteString("<!-- Made by: go test ./pkg/convert -run TestFatesPage -update -->\n\n# What `fettle convert` makes of each name\n\n" +
		"*carried*: the output says the same. *left out*: nothing in the output says it, and the command says so. " +
		"*stays*: the pod keeps it, and the command says so. *refused*: nothing is written, and the error names it. " +
		"`*` stands for any end.\n\n" +
		"| source | where | names | fate | why |\n|---|---|---|---|---|\n")
	for _, row := range fateRows(t) {
		out.WriteString("| " + row.line + " |\n")
	}
	check.Golden(t, "../../docs/user/reference/convert-names.md", out.String())
}

// TestFates converts an input with each name of the table, and compares what becomes of it.
func TestFates(t *testing.T) {
	rows := fateRows(t)
	if len(rows) < 25 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for _, row := range rows {
		for _, pattern := range row.names {
			name := strings.ReplaceAll(pattern, "*", "x")
			for _, where := range strings.FieldsFunc(strings.ReplaceAll(row.where, " and ", ", "), func(r rune) bool { return r == ',' }) {
				where = strings.TrimSpace(where)
				t.Run(where+" "+name, func(t *testing.T) { checkFate(t, where, name, row.fate) })
			}
		}
	}
}

func checkFate(t *testing.T, where, name, fate string) {
	t.Helper()
	if where == "setting" {
		in, err := yaml.Marshal(withSetting(name))
		check.Must(t, err)
		out, err := DevicePlugin(in, "in", PolicyOptions{})
		compareFate(t, Result{Notes: out.Notes}, err, lastOf(name), fate)
		return
	}
	in, err := yaml.Marshal(withName(where, name))
	check.Must(t, err)
	out, err := IntelFPGA(in, "in", Options{})
	pod := out.YAML
	if at := strings.LastIndex(string(pod), "---\n"); at >= 0 {
		pod = pod[at:]
	}
	compareFate(t, Result{YAML: pod, Notes: out.Notes}, err, name, fate)
}

// lastOf is the end of a setting's path, as errors and notes have it.
func lastOf(path string) string { return path[strings.LastIndex(path, ".")+1:] }

// compareFate compares what became of a name with what the table says. out has the pod alone.
func compareFate(t *testing.T, out Result, err error, name, fate string) {
	t.Helper()
	if fate == "refused" {
		check.WantErr(t, err, nil, name)
		return
	}
	check.Must(t, err)
	has := named([]string{string(out.YAML)}, name)
	said := slices.ContainsFunc(out.Notes, func(note string) bool { return named([]string{note}, name) })
	left := slices.ContainsFunc(out.Notes, func(note string) bool {
		return named([]string{note}, name) && (strings.Contains(note, "left out") || strings.Contains(note, "--map"))
	})
	switch {
	case !said:
		t.Errorf("no note names it: %q", out.Notes)
	case fate == "carried" && has, fate == "left out" && (has || !left), fate == "stays" && !has:
		t.Errorf("want it %s: %q\n%s", fate, out.Notes, out.YAML)
	case !slices.Contains([]string{"carried", "left out", "stays"}, fate):
		t.Errorf("%q is no fate", fate)
	}
}

// withName makes a pod that has a name in a place.
func withName(where, name string) object {
	limits := object{"nvidia.com/gpu": "1"}
	container := object{"name": "main", "image": "registry.example/x:1", "resources": object{"limits": limits}}
	spec := object{"containers": list{container}}
	meta := object{"name": "p"}
	value := map[string]string{
		"nvidia.com/gpu.memory": "81559", "amd.com/gpu.vram": "64G", "nvidia.com/gpu.compute.major": "9", "gpu-memory": "2000",
		"gpu-fraction": "0.5",
	}[name]
	if value == "" {
		value = "1"
	}
	switch where {
	case "resource":
		limits[name] = "1"
		if strings.HasPrefix(name, "volcano.sh/") || strings.HasPrefix(name, "gpu.intel.com/") || strings.HasPrefix(name, "amd.com/") {
			delete(limits, "nvidia.com/gpu")
		}
	case "annotation":
		if shares.IsKAI(name) {
			delete(container, "resources")
		}
		meta["annotations"] = object{name: value}
	case "annotation beside resources":
		meta["annotations"] = object{name: value}
	case "label":
		meta["labels"] = object{name: value}
	case "toleration":
		spec["tolerations"] = list{object{"key": name, "operator": "Exists"}}
	case "scheduler":
		spec["schedulerName"] = name
	case "runtime class":
		spec["runtimeClassName"] = name
	case "node selector":
		spec["nodeSelector"] = object{name: value}
	case "affinity":
		terms := list{object{"matchExpressions": list{object{"key": name, "operator": "Exists"}}}}
		required := object{"nodeSelectorTerms": terms}
		spec["affinity"] = object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": required}}
	case "variable":
		container["env"] = list{object{"name": name, "value": value}}
	default:
		panic(fmt.Sprintf("no pod has a %s", where))
	}
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
}

// withSetting makes a configuration of NVIDIA's device plugin that has a setting.
func withSetting(path string) object {
	config := object{"version": "v1", "sharing": object{"timeSlicing": object{"resources": list{
		object{"name": "nvidia.com/gpu", "replicas": 4},
	}}}}
	at := config
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		if at[key] == nil {
			at[key] = object{}
		}
		if key == "gpus" || key == "migs" {
			item := object{}
			at[key] = list{item}
			at = item
			continue
		}
		at = at[key].(object)
	}
	if at[keys[len(keys)-1]] = true; path == "sharing.mps" {
		at["mps"] = object{"resources": list{}}
	}
	return config
}

// TestFatesAreAll: each name that the code knows is in the table.
func TestFatesAreAll(t *testing.T) {
	var names []string
	for _, row := range fateRows(t) {
		names = append(names, row.names...)
	}
	for path := range pluginFates() {
		if !slices.Contains(names, path) {
			t.Errorf("the table has no setting %s", path)
		}
	}
	for _, pattern := range traces.Patterns() {
		domain, ok := strings.CutPrefix(pattern, ".")
		if ok {
			pattern = domain + "/*"
		}
		if !slices.Contains(names, pattern) && !slices.Contains([]string{"gpu-fraction*", "gpu-memory*"}, pattern) {
			t.Errorf("the table has no %s", pattern)
		}
	}
	for _, project := range shares.Projects() {
		for _, name := range project.Names() {
			if !slices.Contains(names, name) {
				t.Errorf("the table has no resource %s", name)
			}
		}
	}
	for _, name := range []string{shares.KAIFraction, shares.KAIMemory, shares.KAIDevices, shares.KAIContainer} {
		if !slices.Contains(names, name) {
			t.Errorf("the table has no annotation %s", name)
		}
	}
}
