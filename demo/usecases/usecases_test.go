// SPDX-License-Identifier: Apache-2.0

package usecases

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/pkg/plan"
)

func cases(t *testing.T) []Case {
	t.Helper()
	all, err := Load(".")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestPlan compares the plan of every use case with what it expects.
func TestPlan(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			report := planOf(t, c)
			got := map[string]Pod{}
			for name, pod := range report.Pods {
				got[name] = shown(pod, c.Expect.Pods[name].Waits)
			}
			if diff := cmp.Diff(c.Expect.Pods, got); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
			compareProblems(t, c.Expect.Problems, report.Problems)
		})
	}
}

// planOf makes the plan of a use case.
func planOf(t *testing.T, c Case) plan.Report {
	t.Helper()
	snapshot, problems := snapshotOf(t, c)
	cluster, _, err := plan.NewCluster(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	report, err := plan.Run(t.Context(), cluster, cluster.Pending(), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report.Problems = slices.Concat(problems, report.Problems)
	return report
}

func snapshotOf(t *testing.T, c Case) (plan.Snapshot, []plan.Problem) {
	t.Helper()
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	snapshot, problems, err := plan.Read(files, "")
	if err != nil {
		t.Fatal(err)
	}
	return snapshot, problems
}

// shown is a pod as the files expect have it. Of a reason it has the part that is wanted, if it is there.
func shown(p plan.PodResult, waits string) Pod {
	if p.Node == nil {
		if waits != "" && strings.Contains(p.Reason, waits) {
			return Pod{Waits: waits}
		}
		return Pod{Waits: p.Reason}
	}
	return Pod{Node: *p.Node, Fits: p.Fits, Devices: p.Devices}
}

func compareProblems(t *testing.T, want []string, got []plan.Problem) {
	t.Helper()
	for _, p := range got {
		text := p.Object + ": " + p.Message
		if i := slices.IndexFunc(want, func(part string) bool { return strings.Contains(text, part) }); i >= 0 {
			want = slices.Delete(slices.Clone(want), i, i+1)
			continue
		}
		t.Errorf("problem that is not wanted: %s", text)
	}
	for _, part := range want {
		t.Errorf("no problem has %q", part)
	}
}

// TestTable: the table has every use case, and says of those of the prototype whether they work.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/user/use-cases.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| \[([\w-]+)\]\(../../demo/usecases/([\w-]+)/README.md\) \| [^|]+ \| ([^|]+) \|(.*)$`)
	prototype, names := 0, []string{}
	found := row.FindAllStringSubmatch(string(text), -1)
	for _, c := range cases(t) {
		i := slices.IndexFunc(found, func(match []string) bool { return match[1] == c.Name && match[2] == c.Name })
		if i < 0 {
			t.Errorf("the table has no row for %s", c.Name)
			continue
		}
		names = append(names, c.Name)
		switch verdict, last := found[i][3], found[i][4] == ""; {
		case last != (c.Expect.Prototype == ""):
			t.Errorf("%s is in the wrong table: expect names the prototype's file %q", c.Name, c.Expect.Prototype)
		case !last && (verdict == "no") != c.Expect.Cannot:
			t.Errorf("%s works: %s; expect says cannot: %t", c.Name, verdict, c.Expect.Cannot)
		}
		if c.Expect.Prototype != "" {
			prototype++
		}
	}
	if prototype != 31 {
		t.Errorf("%d use cases are of the prototype, want 31", prototype)
	}
	if len(found) != len(names) {
		t.Errorf("the table has %d rows for %d use cases", len(found), len(names))
	}
}

// TestSelectors compiles every selector of the use cases.
func TestSelectors(t *testing.T) {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	for _, c := range cases(t) {
		snapshot, _ := snapshotOf(t, c)
		for _, selector := range selectors(snapshot) {
			if selector.CEL == nil {
				t.Errorf("%s: a selector without CEL", c.Name)
			} else if result := compiler.CompileCELExpression(selector.CEL.Expression, cel.Options{}); result.Error != nil {
				t.Errorf("%s: %s: %v", c.Name, selector.CEL.Expression, result.Error)
			}
		}
	}
}

// selectors returns those of all classes, templates and claims.
func selectors(s plan.Snapshot) []resourceapi.DeviceSelector {
	var out []resourceapi.DeviceSelector
	for _, class := range s.Classes {
		out = append(out, class.Spec.Selectors...)
	}
	specs := []resourceapi.ResourceClaimSpec{}
	for _, template := range s.Templates {
		specs = append(specs, template.Spec.Spec)
	}
	for _, claim := range s.Claims {
		specs = append(specs, claim.Spec)
	}
	for _, spec := range specs {
		for _, r := range spec.Devices.Requests {
			if r.Exactly != nil {
				out = append(out, r.Exactly.Selectors...)
			}
			for _, sub := range r.FirstAvailable {
				out = append(out, sub.Selectors...)
			}
		}
	}
	return out
}

// TestPools holds the largest pools to the numbers of the prototype and the limits of the API.
func TestPools(t *testing.T) {
	all := cases(t)
	i := slices.IndexFunc(all, func(c Case) bool { return c.Name == "pools-two-nodes-dgxa100" })
	if i < 0 {
		t.Fatal("no pools-two-nodes-dgxa100")
	}
	snapshot, _ := snapshotOf(t, all[i])
	type size struct{ Slices, Sets, Counters, Devices, Largest int }
	got := map[string]size{}
	for _, s := range snapshot.Slices {
		n := got[*s.Spec.NodeName]
		n.Slices++
		n.Sets += len(s.Spec.SharedCounters)
		for _, set := range s.Spec.SharedCounters {
			n.Counters += len(set.Counters)
		}
		n.Devices += len(s.Spec.Devices)
		n.Largest = max(n.Largest, len(s.Spec.Devices))
		got[*s.Spec.NodeName] = n
	}
	each := size{Slices: 5, Sets: 8, Counters: 112, Devices: 208, Largest: 52}
	if diff := cmp.Diff(map[string]size{"nvidia-00": each, "nvidia-01": each}, got); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}

// TestLinks: every README links to the files of its directory.
func TestLinks(t *testing.T) {
	for _, c := range cases(t) {
		readme, err := os.ReadFile(filepath.Join(c.Name, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(c.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if name := file.Name(); !file.IsDir() && name != "README.md" && !strings.Contains(string(readme), "]("+name+")") {
				t.Errorf("%s/README.md does not link to %s", c.Name, name)
			}
		}
	}
}
