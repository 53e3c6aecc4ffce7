// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/test/check"
)

var exampleFiles = flag.String("examples", "", "`directory` with the files of testdata/examples/list.txt, each below its source's name")

// example is a line of testdata/examples/list.txt.
type example struct {
	source               string
	files                []string
	sum                  string
	shape, class, driver string
	options              Options
}

// The results in the tables of testdata/examples/results.md.
const (
	exampleRuns      = "runs"
	exampleConverted = "runs after `fettle convert`"
	exampleWaits     = "waits"
)

// pendingShapes are those that fettle convert takes and that wait all the same, for what their note says.
func pendingShapes() []string {
	return []string{
		"alternative-gaudi", "channels", "compute-domain", "gaudi", "misspelt-pod", "model", "no-such-product", "other-class", "other-driver",
		"pod-group", "template-alone",
	}
}

func examples(t *testing.T) []example {
	t.Helper()
	text, err := os.ReadFile("testdata/examples/list.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []example
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 6 || len(f) > 7 {
			t.Fatalf("line %q has %d fields", line, len(f))
		}
		e := example{source: f[0], files: strings.Split(f[1], ","), sum: f[2], shape: f[3], class: f[4], driver: f[5]}
		if len(f) == 7 {
			name, class, _ := strings.Cut(f[6], "=")
			e.options.Classes = map[string]string{name: class}
		}
		list = append(list, e)
	}
	return list
}

// result converts an example and says what the table must say of it.
func (e example) result(in []byte) (string, Result, error) {
	out, err := IntelFPGA(in, "example.yaml", e.options)
	text := regexp.MustCompile(`(?m)#.*$`).ReplaceAllString(string(in), "")
	foreign := []string{
		`["` + e.driver, `['` + e.driver, "driver: " + e.driver, e.driver + "/", "resource.k8s.io/v1beta", "resource.k8s.io/v1alpha", "vfio.gpu",
	}
	switch {
	case err != nil || slices.Contains(pendingShapes(), e.shape):
		return exampleWaits, out, err
	case slices.ContainsFunc(foreign, func(word string) bool {
		return strings.Contains(text, word) && !strings.Contains(text, classResource)
	}):
		return exampleConverted, out, nil
	}
	return exampleRuns, out, nil
}

// TestExamples converts what each of the examples asks for, compares the result with the page's table, and validates it.
func TestExamples(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/examples/shapes.txtar")
	if err != nil {
		t.Fatal(err)
	}
	table := exampleTable(t)
	list := examples(t)
	if len(list) != 67 || len(table) != len(list) {
		t.Errorf("%d examples and %d rows, want 67", len(list), len(table))
	}
	seen := map[string]bool{}
	for _, e := range list {
		t.Run(e.source+"/"+e.files[0], func(t *testing.T) {
			in := section(t, archive, e.shape+"/in.yaml")
			if in == nil {
				t.Fatalf("shapes.txtar has no %s", e.shape)
			}
			in = []byte(strings.NewReplacer("CLASS", e.class, "DRIVER", e.driver).Replace(string(in)))
			result, out, err := e.result(in)
			e.compare(t, table, result, err)
			if err == nil {
				checkExample(t, e, in, out)
			}
			if got := exampleGolden(out, err); !seen[e.shape] {
				compareGolden(t, archive, e.shape+"/want", got)
			}
			seen[e.shape] = true
		})
	}
	for _, f := range archive.Files {
		if shape, _, _ := strings.Cut(f.Name, "/"); !seen[shape] {
			t.Errorf("no example has the shape %s", shape)
		}
	}
	if check.Updating() {
		if err := os.WriteFile("testdata/examples/shapes.txtar", txtar.Format(archive), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExampleFiles does the same with the files themselves, which are not in this repository: go test ./pkg/convert -examples DIRECTORY.
func TestExampleFiles(t *testing.T) {
	if *exampleFiles == "" {
		t.Skip("the files of other projects are not in this repository: clone them and name their directory with -examples")
	}
	table := exampleTable(t)
	for _, e := range examples(t) {
		t.Run(e.source+"/"+e.files[0], func(t *testing.T) {
			var in []byte
			for _, name := range e.files {
				text, err := os.ReadFile(filepath.Join(*exampleFiles, e.source, name))
				if err != nil {
					t.Fatal(err)
				}
				in = append(append(in, bytes.TrimRight(text, "\n")...), "\n---\n"...)
			}
			if sum := sha256.Sum256(in); hex.EncodeToString(sum[:]) != e.sum {
				t.Errorf("the files are others than those in the list: SHA-256 %x", sum)
			}
			result, out, err := e.result(in)
			e.compare(t, table, result, err)
			if err == nil {
				checkExample(t, e, in, out)
			}
		})
	}
}

// compare wants the table to say the result, and a reason for what waits.
func (e example) compare(t *testing.T, table map[string][2]string, result string, err error) {
	t.Helper()
	row, ok := table[e.source+"/"+e.files[0]]
	if !ok {
		t.Fatal("testdata/examples/results.md has no row for it")
	}
	if row[0] != result || result == exampleWaits && !strings.Contains(row[1], "waits for ") {
		t.Errorf("the page says %q with the note %q, want %q: %v", row[0], row[1], result, err)
	}
}

// checkExample wants the API and the webhook to take what goes in, if it is to run as it is, and what comes out.
func checkExample(t *testing.T, e example, in []byte, out Result) {
	t.Helper()
	result, _, _ := e.result(in)
	if slices.Contains([]string{"compute-domain", "pod-group"}, e.shape) {
		return // kinds that nobody but their driver knows
	}
	if result == exampleRuns {
		findings, err := admission.ValidateYAML(bytes.NewReader(in), "in")
		if err != nil || len(findings) > 0 {
			t.Errorf("as it is: %v %v", findings, err)
		}
	}
	checkOutput(t, out.YAML, e.options)
}

// exampleGolden is what is compared: the documents with the notes, or the error.
func exampleGolden(out Result, err error) string {
	var text strings.Builder
	if err != nil {
		for line := range strings.Lines(err.Error() + "\n") {
			text.WriteString("error: " + line)
		}
		return text.String()
	}
	for _, note := range out.Notes {
		text.WriteString("# " + note + "\n")
	}
	return text.String() + string(out.YAML)
}

// compareGolden compares a file of an archive, which -update writes.
func compareGolden(t *testing.T, archive *txtar.Archive, name, got string) {
	t.Helper()
	at := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name })
	if check.Updating() {
		if at < 0 {
			before := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return path.Dir(f.Name) == path.Dir(name) })
			archive.Files = slices.Insert(archive.Files, before+1, txtar.File{Name: name})
			at = before + 1
		}
		archive.Files[at].Data = []byte(got)
	}
	if at < 0 {
		t.Fatalf("shapes.txtar has no %s", name)
	}
	if diff := cmp.Diff(string(archive.Files[at].Data), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// exampleTable reads the page's tables: the result and the note by source and first file.
func exampleTable(t *testing.T) map[string][2]string {
	t.Helper()
	page, err := os.ReadFile("testdata/examples/results.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{
		"NVIDIA": "nvidia", "AMD": "amd", "Intel": "intel", "dra-example-driver": "example", "dranet": "dranet", "Kubernetes": "docs",
	}
	below := regexp.MustCompile("below `([^`]+)`$")
	row := regexp.MustCompile("^\\| `([^`]+)`[^|]*\\| ([^|]+) \\| ?([^|]*) \\|$")
	rows := map[string][2]string{}
	source, prefix := "", ""
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "### "); ok {
			source, prefix = sources[name], ""
		}
		if m := below.FindStringSubmatch(line); m != nil {
			prefix = m[1]
		}
		if m := row.FindStringSubmatch(line); m != nil && source != "" {
			key := fmt.Sprintf("%s/%s%s", source, prefix, m[1])
			if _, twice := rows[key]; twice {
				t.Errorf("the page has %s twice", key)
			}
			rows[key] = [2]string{m[2], strings.TrimSpace(m[3])}
		}
	}
	return rows
}
