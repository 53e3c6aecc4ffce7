// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/nodeconfig"
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
		{"kernel-caches.md", "a claim may add: (`\\w+` to `\\w+`)", cacheType, `may add in memory: (\w+ to \w+)\.`, true},
		{"kernel-caches.md", "`mount.writableLimit` \\| `(\\w+)`", cacheType, `may add in memory: .* Unset: (\w+)\.`, true},
		{"planning.md", "`free` \\| devices that no claim holds; (absent)", "../pkg/plan/report.go", `json:"free,(omitempty)"`, false},
		{
			"monitoring.md", `(?m)app_kubernetes_io_component\], regex: (\w+)`, chart + "templates/*/*.yaml",
			`"root" \$ "component" "(kubeletplugin|controller|webhook)"`, true,
		},
		{"monitoring.md", `more than (three) times in 30 minutes`, chart + "files/rules.yaml", `reason="OverBudget"\}\[30m\]\)\) > (3)`, false},
		{"nodes.md", "`partitions.reclaimGracePeriodSeconds` \\| `(\\d+)`", chart + "values.yaml", `reclaimGracePeriodSeconds: (\d+)`, true},
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

// valueRow is a row of a table of chart values: names, then defaults.
var valueRow = regexp.MustCompile("(?m)^\\| (`[a-z]\\w*\\.[\\w.]+`(?:, `[\\w.]+`)*) \\| (`[^|]*`) \\|")

// TestDefaults: the default that a page states of a value is that of the chart, and install.md has no value in two rows of one table.
func TestDefaults(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, chart+"values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, path := range pagesOf(t) {
		for _, table := range regexp.MustCompile(`(?m)^\| (?:chart )?value \| default \|.*\n(?:\|.*\n)+`).FindAllString(read(t, path), -1) {
			var seen []string
			for _, row := range valueRow.FindAllStringSubmatch(table, -1) {
				names, defaults := strings.Split(row[1], ", "), strings.Split(row[2], "`, `")
				if seen = append(seen, names...); len(names) != len(defaults) {
					continue // a default in words, or one for all
				}
				for i, name := range names {
					want, ok := valueAt(values, strings.Trim(name, "`"))
					got := strings.Trim(defaults[i], "`")
					if compared++; !ok || want != got && want != strings.Trim(got, `"`) {
						t.Errorf("%s says that %s is %s by default; the chart has %s", path, name, got, want)
					}
				}
			}
			slices.Sort(seen)
			for i := 1; i < len(seen); i++ {
				if seen[i] == seen[i-1] {
					t.Errorf("%s has two rows for %s", path, seen[i])
				}
			}
		}
	}
	if compared < 20 {
		t.Errorf("%d defaults compared; the test looks in the wrong place", compared)
	}
}

// valueAt returns a value of the chart as YAML writes it in one line.
func valueAt(values map[string]any, path string) (string, bool) {
	var at any = values
	for name := range strings.SplitSeq(path, ".") {
		fields, _ := at.(map[string]any)
		next, ok := fields[name]
		if !ok {
			return "", false
		}
		at = next
	}
	switch value := at.(type) {
	case []any:
		var items []string
		for _, item := range value {
			items = append(items, fmt.Sprint(item))
		}
		return "[" + strings.Join(items, ", ") + "]", true
	case float64:
		return fmt.Sprint(int64(value)), true
	default:
		return fmt.Sprint(at), true
	}
}

// TestConfigurationKeys: kubelet-plugin.md shows every key of the plugin's configuration, and what it shows is the default.
func TestConfigurationKeys(t *testing.T) {
	page := ""
	for _, block := range fence.FindAllStringSubmatch(read(t, documents+"/kubelet-plugin.md"), -1) {
		if strings.Contains(block[1], "\nkind: KubeletPluginConfiguration") {
			page = block[1]
		}
	}
	var shown map[string]any
	if err := yaml.Unmarshal([]byte(page), &shown); err != nil {
		t.Fatal(err)
	}
	for _, key := range missingKeys(reflect.TypeFor[nodeconfig.File](), shown, "") {
		t.Errorf("kubelet-plugin.md does not show the key %s", key)
	}
	file, err := nodeconfig.Parse([]byte("apiVersion: config.fettle.dev/v1alpha1\nkind: KubeletPluginConfiguration\n"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := json.Unmarshal(data, &defaults); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range otherValues(shown, defaults, "") {
		t.Errorf("kubelet-plugin.md: %s", wrong)
	}
}

// missingKeys lists the fields of a struct that a map of its JSON lacks, with their paths.
func missingKeys(of reflect.Type, shown map[string]any, at string) []string {
	var missing []string
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		value, ok := shown[name]
		if !ok {
			missing = append(missing, at+name)
			continue
		}
		if inner, isMap := value.(map[string]any); isMap && field.Type.Kind() == reflect.Struct {
			missing = append(missing, missingKeys(field.Type, inner, at+name+".")...)
		}
	}
	return missing
}

// otherValues lists numbers, switches and texts that differ from the defaults.
func otherValues(shown, defaults map[string]any, at string) []string {
	var wrong []string
	for key, value := range shown {
		fallback, ok := defaults[key]
		inner, isMap := value.(map[string]any)
		switch fields, _ := fallback.(map[string]any); {
		case isMap:
			wrong = append(wrong, otherValues(inner, fields, at+key+".")...)
		case ok && !reflect.ValueOf(value).Comparable():
		case ok && fmt.Sprint(value) != fmt.Sprint(fallback) && !sameDuration(fmt.Sprint(value), fmt.Sprint(fallback)):
			wrong = append(wrong, fmt.Sprintf("%s%s is %v by default, not %v", at, key, fallback, value))
		}
	}
	return wrong
}

// sameDuration compares 1m with 1m0s.
func sameDuration(a, b string) bool { return a+"0s" == b }

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
