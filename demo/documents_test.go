// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

const documents = "../docs/user"

// fence is a block of YAML in a Markdown file.
var fence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// object matches a block that has objects of the API, maybe below comments.
var object = regexp.MustCompile(`(?m)^apiVersion:`)

// foreign matches a block with an object of another project: of KMM (cmd/fettle-kubeletplugin, TestAPI), of NVIDIA's DRA driver
// (cmd/fettle, TestComputeDomainDocument) and of KubeVirt.
var foreign = regexp.MustCompile(`(?m)^kind: (Module|ComputeDomain|VirtualMachineInstance)$`)

// TestDocuments checks the YAML that the user's documents and the README show: objects as the API server and admission would, selectors
// by their type, configurations of the plugin, and values of the chart. Other texts are parts of these.
func TestDocuments(t *testing.T) {
	for _, path := range append(pagesOf(t), "../README.md") {
		for _, block := range fence.FindAllStringSubmatch(read(t, path), -1) {
			text := block[1]
			switch {
			case strings.Contains(text, "\nkind: KubeletPluginConfiguration"):
				if _, err := nodeconfig.Parse([]byte(text)); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			case strings.HasPrefix(text, "# values of the chart\n"):
				checkValues(t, path, text)
			case foreign.MatchString(text): // the kinds of others are compared with their own definitions elsewhere, as far as a test has them
			case object.MatchString(text):
				if err := decode(text); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				for _, finding := range findings(t, text, path) {
					t.Error(finding)
				}
			case strings.Contains(text, "- cel:"):
				checkSelectors(t, path, text)
			}
		}
	}
}

// checkValues refuses values that the chart does not have.
func checkValues(t *testing.T, path, text string) {
	t.Helper()
	var values, known map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
		t.Errorf("%s: %v in\n%s", path, err, text)
	}
	if err := yaml.Unmarshal([]byte(read(t, "../deployments/helm/fettle/values.yaml")), &known); err != nil {
		t.Fatal(err)
	}
	for _, key := range unknownKeys(values, known, "") {
		t.Errorf("%s: the chart has no value %s", path, key)
	}
}

// unknownKeys lists the keys of values that known lacks, with their paths.
func unknownKeys(values, known map[string]any, at string) []string {
	var unknown []string
	for key, value := range values {
		there, ok := known[key]
		if !ok {
			unknown = append(unknown, at+key)
		}
		inner, isMap := value.(map[string]any)
		if innerKnown, ok := there.(map[string]any); ok && isMap && len(innerKnown) > 0 {
			unknown = append(unknown, unknownKeys(inner, innerKnown, at+key+".")...)
		}
	}
	return unknown
}

// checkSelectors reads a list of selectors, with or without its key.
func checkSelectors(t *testing.T, path, text string) {
	t.Helper()
	if !strings.Contains(text, "selectors:") {
		text = "selectors:\n" + text
	}
	var spec resourceapi.DeviceClassSpec
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Errorf("%s: %v in\n%s", path, err, text)
	}
}

// TestDocumentsComplete finds names that users meet and that no document explains.
func TestDocumentsComplete(t *testing.T) {
	for _, test := range []struct {
		document, source string
		name             *regexp.Regexp
	}{
		{"reference/attributes.md", "../pkg/device/part.go", regexp.MustCompile(`QualifiedName = "(\w+)"`)},
		{"reference/attributes.md", "../pkg/device/names.go", regexp.MustCompile(`QualifiedName = "(\w+)"`)},
		{"troubleshooting.md night.md reference/reasons.md", "../pkg/discover/discover.go", regexp.MustCompile(`Reason\w+ = "(\w+)"`)},
		{"troubleshooting.md night.md reference/reasons.md", "../pkg/partition/partition.go", regexp.MustCompile(`Reason\w+ = "(\w+)"`)},
		{"troubleshooting.md night.md reference/reasons.md", "../pkg/partition/policy/policy.go", regexp.MustCompile(`Reason\w+ = "(\w+)"`)},
		{"troubleshooting.md night.md reference/reasons.md", "../pkg/claim/refused.go", regexp.MustCompile(`Reason = "(\w+)"`)},
		{"troubleshooting.md night.md", "../kubeletplugin/partitions/run.go", regexp.MustCompile(`EventType\w+, "(\w+)"`)},
		{
			"troubleshooting.md reference/reasons.md kernel-caches.md health.md stack.md", "../kubeletplugin/*/*.go",
			regexp.MustCompile(`[rR]eason\w+\s+= "(\w+)"`),
		},
		{"troubleshooting.md night.md", "../kubeletplugin/*/*.go", regexp.MustCompile(`return "([A-Z]\w+)"`)},
		{"troubleshooting.md night.md", "../kubeletplugin/*.go", regexp.MustCompile(`return "([A-Z]\w+)"`)},
		{"reference/devicepreset.md", "../api/v1alpha1/devicepreset.go", regexp.MustCompile(`json:"(\w+),omitempty"`)},
		{"presets.md", "../controller/presets/status.go", regexp.MustCompile(`Reason\w+ = "(\w+)"`)},
		{"reference/metrics.md", "../kubeletplugin/metrics.go", regexp.MustCompile(`Name: "(\w+)"`)},
		{"reference/metrics.md", "../kubeletplugin/*/*.go", regexp.MustCompile(`Name: "(fettle_\w+)"`)},
		{"reference/kubelet-plugin-flags.md", "../cmd/fettle-kubeletplugin/options.go", regexp.MustCompile(`Var\(&\w+\.\w+, "([\w-]+)"`)},
	} {
		var source strings.Builder
		paths, err := filepath.Glob(test.source)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if !strings.HasSuffix(path, "_test.go") {
				source.WriteString(read(t, path))
			}
		}
		names := test.name.FindAllStringSubmatch(source.String(), -1)
		if len(names) == 0 {
			t.Errorf("%s: no names found; the test looks in the wrong place", test.source)
		}
		text := ""
		for document := range strings.FieldsSeq(test.document) {
			text += read(t, filepath.Join(documents, document))
		}
		for _, name := range names {
			if !regexp.MustCompile(`\b` + name[1] + `\b`).MatchString(text) {
				t.Errorf("%s does not explain %s of %s", test.document, name[1], test.source)
			}
		}
	}
}

// TestPorts: the ports that the documents name are those of the chart, and no port of the chart is left out.
func TestPorts(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "../deployments/helm/fettle/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for section, value := range values {
		fields, _ := value.(map[string]any)
		for field, value := range fields {
			if number, ok := value.(float64); ok && (field == "port" || strings.HasSuffix(field, "Port")) {
				want = append(want, fmt.Sprintf("%s.%s %d", section, field, int(number)))
			}
		}
	}
	port := regexp.MustCompile("at (\\d+) \\(`(\\w+\\.\\w+)`\\)")
	for _, match := range port.FindAllStringSubmatch(read(t, filepath.Join(documents, "install.md")), -1) {
		got = append(got, match[2]+" "+match[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports (-chart +install.md):\n%s", diff)
	}
}

// TestNVIDIAAttributes: the table says of each attribute and capacity of an NVIDIA GPU whether it takes the library, as discovery has it
// with and without.
func TestNVIDIAAttributes(t *testing.T) {
	const machine = "../pkg/discover/testdata/8xh100-sxm"
	kernel, library := described(t, machine+".golden.json"), described(t, machine+"+nvml.golden.json")
	section, _, found := strings.Cut(read(t, filepath.Join(documents, "attributes.md")), "\nThe standard attributes are ")
	if !found {
		t.Fatal("attributes.md does not say which attributes are standard")
	}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|(?: (?:string|version|int|bool) \\|)? ([^|]*) \\|")
	seen := map[string]bool{}
	for _, match := range row.FindAllStringSubmatch(section, -1) {
		name, cell := match[1], match[2]
		seen[name] = true
		switch marked := strings.HasPrefix(cell, "NVML"); {
		case marked && (kernel[name] || !library[name]):
			t.Errorf("attributes.md says that %s takes NVML: discovery has it without: %t, with: %t", name, kernel[name], library[name])
		case !marked && library[name] && !kernel[name]:
			t.Errorf("attributes.md does not say that %s takes NVML: %q", name, cell)
		case cell == "–" && library[name]:
			t.Errorf("attributes.md says that no NVIDIA GPU has %s", name)
		}
	}
	for name := range library {
		if !seen[name] && !strings.Contains(name, "/") {
			t.Errorf("attributes.md has no row for %s", name)
		}
	}
}

// described are the attributes and capacities that devices of a golden file have.
func described(t *testing.T, file string) map[string]bool {
	t.Helper()
	var inventory struct {
		Devices []struct{ Attributes, Capacity map[string]any }
	}
	if err := yaml.Unmarshal([]byte(read(t, file)), &inventory); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range inventory.Devices {
		for name := range d.Attributes {
			names[name] = true
		}
		for name := range d.Capacity {
			names[name] = true
		}
	}
	if len(names) == 0 {
		t.Fatalf("%s describes no device", file)
	}
	return names
}
