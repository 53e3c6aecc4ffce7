// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// fence is a block of YAML in a Markdown file.
var fence = regexp.MustCompile("(?ms)^```ya?ml\n(.*?)^```")

// link is a Markdown link; its first group is the target without a title.
var link = regexp.MustCompile(`\]\(([^)\s]+)[^)]*\)`)

// yamlTexts collects the YAML of the project by where it stands: files, and blocks in Markdown. Helm's templates are not YAML until
// they are rendered, which the chart's own tests do; test data may be wrong on purpose.
func yamlTexts(t *testing.T) map[string]string {
	t.Helper()
	result := map[string]string{}
	for _, name := range files(t) {
		switch path.Ext(name) {
		case ".yaml", ".yml":
			if !strings.Contains(name, "/templates/") && !strings.Contains(name, "/testdata/") {
				result[name] = read(t, name)
			}
		case ".md":
			var blocks []string
			for _, match := range fence.FindAllStringSubmatch(read(t, name), -1) {
				blocks = append(blocks, match[1])
			}
			if len(blocks) > 0 {
				result[name] = strings.Join(blocks, "\n---\n")
			}
		}
	}
	return result
}

// checkDocument parses one YAML document, refusing duplicate keys, and for a kind of Kubernetes itself unknown fields too.
func checkDocument(decoder runtime.Decoder, document []byte) error {
	var value any
	if err := yaml.UnmarshalStrict(document, &value); err != nil {
		return err
	}
	object, ok := value.(map[string]any)
	if !ok || object["kind"] == nil || object["apiVersion"] == nil {
		return nil
	}
	_, _, err := decoder.Decode(document, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return nil
	}
	return err
}

func TestYAML(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for name, text := range yamlTexts(t) {
		reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
		for {
			document, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil && len(bytes.TrimSpace(document)) > 0 {
				err = checkDocument(decoder, document)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}

func TestLinksResolve(t *testing.T) {
	for _, name := range files(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, match := range link.FindAllStringSubmatch(read(t, name), -1) {
			target, _, _ := strings.Cut(match[1], "#")
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, path.Dir(name), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, target)
			}
		}
	}
}

// anchors lists the anchors of a page's headings as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		heading := regexp.MustCompile(`^#+ +(.*?)\s*$`).FindStringSubmatch(line)
		if fenced || heading == nil {
			continue
		}
		title := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading[1], "$1")
		slug := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(title), "")
		slug = strings.ReplaceAll(slug, " ", "-")
		for name, n := slug, 1; ; n++ {
			if !found[name] {
				found[name] = true
				break
			}
			name = fmt.Sprintf("%s-%d", slug, n)
		}
	}
	return found
}

// TestAnchorsResolve: a link to a part of a page names a heading that is there.
func TestAnchorsResolve(t *testing.T) {
	for _, name := range files(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, match := range link.FindAllStringSubmatch(read(t, name), -1) {
			target, anchor, ok := strings.Cut(match[1], "#")
			if !ok || strings.Contains(match[1], "://") || target != "" && path.Ext(target) != ".md" {
				continue
			}
			page := name
			if target != "" {
				page = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, page)); err == nil && !anchors(read(t, page))[anchor] {
				t.Errorf("%s links to %s, which has no heading for it", name, match[1])
			}
		}
	}
}

// pageNames matches what code and messages say of pages for users.
var pageNames = regexp.MustCompile(`docs/(?:user|design)/[\w/.-]+\.md(?:#[\w-]+)?`)

// TestNamedPagesExist: code, messages and the chart name pages and parts that are there.
func TestNamedPagesExist(t *testing.T) {
	for _, name := range files(t) {
		if !slices.Contains([]string{".go", ".yaml", ".txt", ".tpl"}, path.Ext(name)) || strings.Contains(name, "/testdata/") {
			continue
		}
		for _, match := range pageNames.FindAllString(read(t, name), -1) {
			page, anchor, _ := strings.Cut(match, "#")
			if _, err := os.Stat(filepath.Join(root, page)); err != nil {
				t.Errorf("%s names %s, which is not there", name, page)
			} else if anchor != "" && !anchors(read(t, page))[anchor] {
				t.Errorf("%s names %s, which has no heading for it", name, match)
			}
		}
	}
}

// TestTableRows: a row of a table in the users' documents is short enough to read. What it says beyond that belongs below the table. The
// targets of links do not count.
func TestTableRows(t *testing.T) {
	const longest = 300
	target := regexp.MustCompile(`\]\([^)]*\)`)
	for _, name := range files(t) {
		if path.Ext(name) != ".md" || !strings.HasPrefix(name, "docs/user/") && name != "README.md" && name != "demo/README.md" {
			continue
		}
		number, fenced := 0, false
		for line := range strings.Lines(read(t, name)) {
			number++
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			}
			if shown := len([]rune(target.ReplaceAllString(line, "]"))); !fenced && strings.HasPrefix(line, "|") && shown > longest {
				t.Errorf("%s:%d: a row of %d characters, want at most %d: put what explains it below the table", name, number, shown, longest)
			}
		}
	}
}

// TestShell checks the syntax of every shell script, which it finds by suffix or first line.
func TestShell(t *testing.T) {
	for _, name := range files(t) {
		script := slices.Contains([]string{".sh", ".bash"}, path.Ext(name))
		if !script && path.Ext(name) == "" {
			script = strings.HasPrefix(read(t, name), "#!") && strings.Contains(strings.SplitN(read(t, name), "\n", 2)[0], "sh")
		}
		if !script {
			continue
		}
		if output, err := exec.Command("bash", "-n", filepath.Join(root, name)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
	}
}

// crio matches the name of a runtime that no test here runs.
var crio = regexp.MustCompile(`(?i)\bcri-?o\b`)

// TestUntriedRuntimes wants every paragraph or row of a document that names CRI-O to say that it was not tried.
func TestUntriedRuntimes(t *testing.T) {
	named := 0
	for _, name := range files(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, part := range regexp.MustCompile(`\n\s*\n|\n\s*[-*|] ?`).Split(read(t, name), -1) {
			if !crio.MatchString(part) {
				continue
			}
			named++
			if !strings.Contains(strings.Join(strings.Fields(part), " "), "not tried") {
				t.Errorf("%s names CRI-O and does not say that it was not tried: %q", name, part)
			}
		}
	}
	if named == 0 {
		t.Error("no document names CRI-O: a reader who has it learns nothing")
	}
}
