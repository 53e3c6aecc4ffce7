// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

const chart = "../../deployments/helm/fettle"

// key is a line of values.yaml that has a key.
var key = regexp.MustCompile(`^( *)([A-Za-z]\w*):( *\{)?`)

// TestValues: the page of the chart's values has each of them, with its default and what values.yaml says of it.
func TestValues(t *testing.T) {
	text := read(t, filepath.Join(chart, "values.yaml"))
	var defaults map[string]any
	check.Must(t, yaml.Unmarshal([]byte(text), &defaults))
	var out strings.Builder
	out.WriteString(made + "# Values of the chart\n\nThe chart refuses unknown keys and wrong types. Set one with `--set NAME=VALUE`.\n")
	var path, comment []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		found := key.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(trimmed, "#"):
			comment = append(comment, strings.TrimPrefix(strings.TrimPrefix(trimmed, "#"), " "))
		case trimmed == "":
			comment = nil
		case found != nil && len(found[1])/2 <= len(path):
			path = append(path[:len(found[1])/2], found[2])
			if at, ok := valueAt(defaults, path); ok {
				writeValue(&out, path, at, found[3] != "", comment)
			}
			comment = nil
		}
	}
	check.Golden(t, filepath.Join(pages, "values.md"), out.String())
}

// valueAt finds the default of a value. Below lists there is none.
func valueAt(defaults map[string]any, path []string) (any, bool) {
	var at any = defaults
	for _, name := range path {
		fields, _ := at.(map[string]any)
		next, ok := fields[name]
		if !ok {
			return nil, false
		}
		at = next
	}
	return at, true
}

// writeValue writes a heading for each key at the top, and a line for each value. One that is written inline is not taken apart.
func writeValue(out *strings.Builder, path []string, at any, inline bool, comment []string) {
	name := strings.Join(path, ".")
	if len(path) == 1 {
		fmt.Fprintf(out, "\n## %s\n\n", name)
	}
	fields, section := at.(map[string]any)
	section = section && len(fields) > 0 && !inline
	text, sample := textAndSample(comment)
	switch {
	case !section:
		said, _ := json.Marshal(at)
		fmt.Fprintf(out, "%s\n%s", strings.TrimSpace(fmt.Sprintf("- **`%s`** (default `%s`). %s", name, said, text)), sample)
	case text != "" && len(path) == 1:
		fmt.Fprintf(out, "%s\n\n%s", text, sample)
	case text != "":
		fmt.Fprintf(out, "- **`%s`**. %s\n%s", name, text, sample)
	}
}

// page is how comments name pages.
var page = regexp.MustCompile(`docs/user/([\w-]+)\.md`)

// textAndSample takes the lines that show YAML from a comment.
func textAndSample(comment []string) (text, sample string) {
	var words []string
	for _, line := range comment {
		if strings.HasPrefix(line, "  ") {
			sample += "\n      " + strings.TrimPrefix(line, "  ")
			continue
		}
		words = append(words, line)
	}
	if sample != "" {
		sample += "\n"
	}
	return page.ReplaceAllString(prose(strings.Join(words, " ")), "[$1](../$1.md)"), sample
}
