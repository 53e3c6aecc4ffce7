// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	chart     = "../deployments/helm/fettle/"
	cacheType = "../api/v1alpha1/gpukernelcache.go"
)

// TestFacts compares what pages say with the code. Both regular expressions have one group, and every match on the page must be a value
// that the code has. With all set, the page must have every value of the code, too.
func TestFacts(t *testing.T) {
	for _, fact := range []struct {
		page, says, source, has string
		all                     bool
	}{
		{"cli.md", `(?m)^\| (\d) \| .*(?:plan|quota check)`, "../cmd/fettle/*.go", `(?m)^(?:const |\t)status\w+ += (\d)$`, true},
		{"cli.md", `which is ((?:\w+, )*\w+ or \w+)\. The shell`, "../cmd/fettle/complete.go", `return \[\]string\{("bash".*)\} \}`, true},
		{"kernel-caches.md", "claim may add (`\\w+` to `\\w+`)", cacheType, `may add in memory: (\w+ to \w+)\.`, true},
		{"kernel-caches.md", "`mount.writableLimit`, unset: `(\\w+)`", cacheType, `may add in memory: .* Unset: (\w+)\.`, true},
		{"planning.md", "`free`, devices that no claim holds \\((absent) if", "../pkg/plan/report.go", `json:"free,(omitempty)"`, false},
		{
			"examples/monitoring/prometheus.yml", `(?m)app_kubernetes_io_component\], regex: (\w+)`, chart + "templates/*/*.yaml",
			`"root" \$ "component" "(kubeletplugin|controller|webhook)"`, true,
		},
		{"monitoring.md", `more than (three) times in 30 minutes`, chart + "files/rules.yaml", `reason="OverBudget"\}\[30m\]\)\) > (3)`, false},
		{"nodes.md", "`partitions.reclaimGracePeriodSeconds` \\((\\d+)\\)", chart + "values.yaml", `reclaimGracePeriodSeconds: (\d+)`, true},
		{
			"attributes.md", `bitstreamDigest == "(\w+)"`, "../cmd/fettle/testdata/script/push.txtar",
			`blobs/sha256/(\w+) \$BITSTREAMS/nlb0.gbs`, true,
		},
		{"attributes.md", "`bitstreamDigest` is `(\\w+)` in", "../api/v1alpha1/*.go", `json:"(layer)"`, true},
	} {
		t.Run(fact.page+" "+fact.says, func(t *testing.T) {
			got := matches(t, filepath.Join(documents, fact.page), fact.says)
			want := matches(t, fact.source, fact.has)
			for _, value := range got {
				if !slices.Contains(want, value) && !slices.Contains(want, sameWord[value]) {
					t.Errorf("%s says %q, the code has %q", fact.page, value, want)
				}
			}
			for _, value := range want {
				if fact.all && !slices.Contains(got, value) {
					t.Errorf("%s does not say %q, as the code has: %q", fact.page, value, got)
				}
			}
		})
	}
}

// sameWord has the code's word for what a page says in others.
var sameWord = map[string]string{"absent": "omitempty", "three": "3"}

// matches lists what the group of a regular expression finds in files, as plain words.
func matches(t *testing.T, pattern, expression string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(read(t, path), -1) {
			found = append(found, strings.NewReplacer("`", "", `"`, "", " or ", ", ").Replace(match[1]))
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s: nothing matches %s", pattern, expression)
	}
	return found
}

// TestMended: what a review found false, and no constant of the code tells, does not come back.
func TestMended(t *testing.T) {
	for _, test := range []struct{ file, says, because string }{
		{documents + "/install.md", `UUID[^.]*come from the\s+driver's library`, "the kernel tells UUID and driver version: attributes.md"},
		{chart + "values.yaml", `Ask NVIDIA's library on the host for [^.]*(UUID|version)`, "the kernel tells them"},
		{chart + "templates/NOTES.txt", `without [^.]*UUID`, "the kernel tells it"},
		{chart + "values.yaml", `Refuse wrong GPUConfigs`, "the webhook refuses every kind of configuration"},
		{chart + "values.yaml", `of nodes only the taints of PartitionPolicies\.`, "also KMM's labels"},
		{documents + "/presets.md", `every container with a GPU of Fettle`, "deviceClassNames matches the class's name"},
		{documents + "/presets.md", `\(../../demo/15-preset/README.md\) runs the same`, "the demo has another preset"},
		{documents + "/sharing.md", `DaemonSet on the nodes with GPUs`, "it runs on all nodes of the plugin"},
		{documents + "/sharing.md", `\.yaml --config any`, "a plain file has no key"},
		{documents + "/validation.md", `Two further policies`, "the chart has many more"},
	} {
		if found := regexp.MustCompile(test.says).FindString(read(t, test.file)); found != "" {
			t.Errorf("%s says %q: %s", test.file, found, test.because)
		}
	}
}

// pagesOf lists the pages for users.
func pagesOf(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(documents + "/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no documents (%v)", err)
	}
	return paths
}

// TestTablesHaveNoTwins: no table of a page about the code has two rows for one name.
func TestTablesHaveNoTwins(t *testing.T) {
	for _, path := range []string{"../docs/design/architecture.md", documents + "/install.md", documents + "/kubelet-plugin.md"} {
		for _, table := range regexp.MustCompile(`(?m)(?:^\|.*\n)+`).FindAllString(read(t, path), -1) {
			seen := map[string]bool{}
			for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(table, -1) {
				if seen[row[1]] {
					t.Errorf("%s has two rows for %s in one table", path, row[1])
				}
				seen[row[1]] = true
			}
		}
	}
}

// TestNight: the page for the night has every symptom with a command and what may be forced, names only reasons that the code has, and each
// page of alerts leads to it.
func TestNight(t *testing.T) {
	page := read(t, documents+"/night.md")
	parts := strings.Split(page, "\n## ")[1:]
	if len(parts) != 6 {
		t.Errorf("%d symptoms, want 6", len(parts))
	}
	for _, part := range parts {
		name, _, _ := strings.Cut(part, "\n")
		if strings.Count(part, "\n$ ") != 1 || strings.Count(part, "**Force:**") != 1 {
			t.Errorf("%s: want one command, and what may be forced", name)
		}
	}
	var code strings.Builder
	for _, pattern := range []string{
		"../kubeletplugin/*.go", "../kubeletplugin/*/*.go", "../controller/*/*.go", "../pkg/claim/*.go", "../pkg/device/*.go",
		"../api/v1alpha1/*.go",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			code.WriteString(read(t, path))
		}
	}
	ofKubernetes := []string{
		"Pending", "ContainerCreating", "Terminating", "False", "READY", "PROBLEMS", "Evicted", "Preempted", "TaintManagerEviction",
		"DeviceTaintManagerEviction", "NS",
	}
	for _, name := range regexp.MustCompile("`([A-Z][A-Za-z]+)`").FindAllStringSubmatch(page, -1) {
		if !slices.Contains(ofKubernetes, name[1]) && !strings.Contains(code.String(), `"`+name[1]+`"`) {
			t.Errorf("night.md names %s, which the code does not have", name[1])
		}
	}
	runbooks, err := filepath.Glob(documents + "/runbooks/*.md")
	if err != nil || len(runbooks) == 0 {
		t.Fatalf("no runbooks (%v)", err)
	}
	for _, path := range runbooks {
		if !strings.Contains(read(t, path), "](../night.md") {
			t.Errorf("%s does not lead to night.md", path)
		}
	}
}

// TestStateDirectories: kubelet-plugin.md names every directory that the plugin has below /var/lib/fettle.
func TestStateDirectories(t *testing.T) {
	_, table, _ := strings.Cut(read(t, documents+"/kubelet-plugin.md"), "\n## Files on the node\n")
	constant := `(?m)^(?:const |\t)(?:claims|owners|damaged|regions|verdicts|points|mig|xclbins)Dir += "([\w-]+)"`
	names := matches(t, "../kubeletplugin/*/*.go", constant)
	names = append(names, matches(t, "../pkg/record/store.go", constant)...)
	names = append(names, matches(t, "../kubeletplugin/plugin.go", `\.StateDir, "([\w-]+)"\)`)...)
	for _, name := range names {
		if !strings.Contains(table, "`/var/lib/fettle/"+name+"`") && !strings.Contains(table, "`"+name+"`") {
			t.Errorf("kubelet-plugin.md does not name the directory %s", name)
		}
	}
	if len(names) < 11 {
		t.Errorf("%q found; the test looks in the wrong place", names)
	}
}
