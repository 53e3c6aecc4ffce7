// SPDX-License-Identifier: Apache-2.0

package usecases

import (
	"fmt"
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
			report := planOf(t, c, "")
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

// planOf makes the plan of a use case for a version of Kubernetes, the newest if it is empty.
func planOf(t *testing.T, c Case, version string) plan.Report {
	t.Helper()
	snapshot, problems := snapshotOf(t, c)
	snapshot.Version = version
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

// TestTable: the tables have every use case, those of the prototype in the first, and say whether and since when they work.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(string(text), "\n## What the prototype lacks\n")
	row := regexp.MustCompile(`(?m)^\| \[([\w-]+)\]\(([\w-]+)/README.md\) \| [^|]+ \| ([^|]+) \| [^\n]+ \|$`)
	type entry struct {
		Prototype bool
		Works     string
	}
	want, got, prototype := map[string]entry{}, map[string]entry{}, 0
	for i, part := range []string{first, second} {
		for _, match := range row.FindAllStringSubmatch(part, -1) {
			if match[1] != match[2] {
				t.Errorf("the row of %s links to %s", match[1], match[2])
			}
			got[match[1]] = entry{i == 0, match[3]}
		}
	}
	for _, c := range cases(t) {
		works := "yes"
		switch {
		case c.Expect.Cannot:
			works = "no"
		case c.Expect.Since != "":
			works = "since " + c.Expect.Since
		}
		if c.Expect.Prototype != "" {
			prototype++
		}
		want[c.Name] = entry{c.Expect.Prototype != "", works}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("use cases (-directories +tables):\n%s", diff)
	}
	if prototype != 31 {
		t.Errorf("%d use cases are of the prototype, want 31", prototype)
	}
}

// TestSince: a use case works in the versions that it says, and not in the one before.
func TestSince(t *testing.T) {
	const oldest = 34
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			minor := oldest
			if c.Expect.Since != "" {
				if _, err := fmt.Sscanf(c.Expect.Since, "1.%d", &minor); err != nil || minor == oldest {
					t.Fatalf("since %q: want a version above 1.%d", c.Expect.Since, oldest)
				}
				if placed(planOf(t, c, fmt.Sprintf("1.%d", minor-1))) == placed(planOf(t, c, "")) {
					t.Errorf("the plan for 1.%d is that for the newest version, want it to be another", minor-1)
				}
			}
			want, got := planOf(t, c, "").Pods, planOf(t, c, fmt.Sprintf("1.%d", minor)).Pods
			for name, pod := range want {
				if (pod.Node == nil) != (got[name].Node == nil) {
					t.Errorf("pod %s: 1.%d says %q, the newest version %q", name, minor, got[name].Reason, pod.Reason)
				}
			}
		})
	}
}

// placed says which pod has which devices.
func placed(r plan.Report) string {
	var lines []string
	for name, pod := range r.Pods {
		lines = append(lines, fmt.Sprint(name, " ", pod.Devices))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
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
