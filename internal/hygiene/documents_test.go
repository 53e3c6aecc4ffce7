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

// linkTo is a link of a page. target is a file beside the page, or empty for the page itself.
type linkTo struct{ page, text, target, anchor string }

// links lists the links of all pages, without those to other sites.
func links(t *testing.T) []linkTo {
	t.Helper()
	var found []linkTo
	for _, name := range files(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, match := range link.FindAllStringSubmatch(read(t, name), -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			target, anchor, _ := strings.Cut(match[1], "#")
			found = append(found, linkTo{name, match[1], target, anchor})
		}
	}
	return found
}

func TestLinksResolve(t *testing.T) {
	for _, l := range links(t) {
		if l.target == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, path.Dir(l.page), l.target)); err != nil {
			t.Errorf("%s links to %s, which is not there", l.page, l.target)
		}
	}
}

// Parts of a heading, and what its anchor has not.
var (
	headingLine = regexp.MustCompile(`^#+ +(.*?)\s*$`)
	headingLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	noAnchor    = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors lists the anchors of a page's headings as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		heading := headingLine.FindStringSubmatch(line)
		if fenced || heading == nil {
			continue
		}
		title := headingLink.ReplaceAllString(heading[1], "$1")
		slug := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		name := slug
		for n := 1; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", slug, n)
		}
		found[name] = true
	}
	return found
}

// pages knows the anchors of pages that were read.
type pages map[string]map[string]bool

// has reports whether a page has an anchor. Of a page that is not there, another test tells.
func (p pages) has(t *testing.T, page, anchor string) bool {
	t.Helper()
	if p[page] == nil {
		if _, err := os.Stat(filepath.Join(root, page)); err != nil {
			return true
		}
		p[page] = anchors(read(t, page))
	}
	return p[page][anchor]
}

// TestAnchorsResolve: a link to a part of a page names a heading that is there.
func TestAnchorsResolve(t *testing.T) {
	known := pages{}
	for _, l := range links(t) {
		if !strings.Contains(l.text, "#") || l.target != "" && path.Ext(l.target) != ".md" {
			continue
		}
		page := l.page
		if l.target != "" {
			page = path.Join(path.Dir(l.page), l.target)
		}
		if !known.has(t, page, l.anchor) {
			t.Errorf("%s links to %s, which has no heading for it", l.page, l.text)
		}
	}
}

// pageNames matches what code and messages say of pages for users.
var pageNames = regexp.MustCompile(`docs/(?:user|design)/[\w/.-]+\.md(?:#[\w-]+)?`)

// TestNamedPagesExist: code, messages and the chart name pages and parts that are there.
func TestNamedPagesExist(t *testing.T) {
	known := pages{}
	for _, name := range files(t) {
		if !slices.Contains([]string{".go", ".yaml", ".txt", ".tpl"}, path.Ext(name)) || strings.Contains(name, "/testdata/") {
			continue
		}
		for _, match := range pageNames.FindAllString(read(t, name), -1) {
			page, anchor, _ := strings.Cut(match, "#")
			if _, err := os.Stat(filepath.Join(root, page)); err != nil {
				t.Errorf("%s names %s, which is not there", name, page)
			} else if anchor != "" && !known.has(t, page, anchor) {
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
