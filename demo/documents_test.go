// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

const documents = "../docs/user"

// fence is a block of YAML in a Markdown file.
var fence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// TestDocuments checks the YAML that the user's documents and the README show: objects as the API server and admission would, selectors
// by their type, configurations of the plugin, and values of the chart. Other texts are parts of these.
func TestDocuments(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(documents, "*.md"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no documents (%v)", err)
	}
	for _, path := range append(paths, "../README.md") {
		for _, block := range fence.FindAllStringSubmatch(read(t, path), -1) {
			text := block[1]
			switch {
			case strings.Contains(text, "\nkind: KubeletPluginConfiguration"):
				if _, err := nodeconfig.Parse([]byte(text)); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			case strings.HasPrefix(text, "# values of the chart\n"):
				checkValues(t, path, text)
			case strings.HasPrefix(text, "apiVersion:"):
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
		{"attributes.md", "../pkg/device/names.go", regexp.MustCompile(`QualifiedName = "(\w+)"`)},
		{"troubleshooting.md", "../pkg/discover/discover.go", regexp.MustCompile(`Reason\w+ = "(\w+)"`)},
		{"troubleshooting.md", "../pkg/claim/refused.go", regexp.MustCompile(`Reason = "(\w+)"`)},
		{"troubleshooting.md kernel-caches.md health.md", "../kubeletplugin/*/*.go", regexp.MustCompile(`[rR]eason\w+\s+= "(\w+)"`)},
		{"troubleshooting.md", "../kubeletplugin/*/*.go", regexp.MustCompile(`return "([A-Z]\w+)"`)},
		{"troubleshooting.md", "../kubeletplugin/*.go", regexp.MustCompile(`return "([A-Z]\w+)"`)},
		{"presets.md", "../api/v1alpha1/devicepreset.go", regexp.MustCompile(`json:"(\w+),omitempty"`)},
		{"presets.md", "../controller/presets/status.go", regexp.MustCompile(`Reason\w+ = "(\w+)"`)},
		{"kubelet-plugin.md", "../kubeletplugin/metrics.go", regexp.MustCompile(`Name: "(\w+)"`)},
		{"kubelet-plugin.md", "../kubeletplugin/*/*.go", regexp.MustCompile(`Name: "(fettle_\w+)"`)},
		{"kubelet-plugin.md", "../cmd/fettle-kubeletplugin/options.go", regexp.MustCompile(`Var\(&\w+\.\w+, "([\w-]+)"`)},
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
