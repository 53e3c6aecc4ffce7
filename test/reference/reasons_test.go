// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"go/ast"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestReasons: the page of reasons has every one whose constant says what it means, by where people meet it.
func TestReasons(t *testing.T) {
	var out strings.Builder
	out.WriteString(made + "# Reasons\n\nWhat the reasons of conditions, problems and Events mean. The message beside a reason names the " +
		"object and the next step; [troubleshooting](../troubleshooting.md) has the steps that a message cannot know.\n")
	for _, section := range []struct{ title, dirs string }{
		{"A claim is refused", "pkg/claim"},
		{"A device is missing or incomplete", "pkg/discover"},
		{"A device is left to another driver", "pkg/foreign"},
		{"A GPU of a PartitionPolicy waits", "pkg/partition pkg/partition/policy kubeletplugin/partitions"},
		{"A node of a stack waits", "pkg/stack"},
		{"A driver is let go", "kubeletplugin/quiesce"},
		{"What a cluster holds cannot be told", "pkg/partition/usage"},
	} {
		fmt.Fprintf(&out, "\n## %s\n\n", section.title)
		before := out.Len()
		for dir := range strings.FieldsSeq(section.dirs) {
			for _, file := range filesOf(t, filepath.Join("../..", dir)) {
				writeReasons(&out, file)
			}
		}
		if out.Len() == before {
			t.Errorf("no reason is found in %s", section.dirs)
		}
	}
	check.Golden(t, filepath.Join(pages, "reasons.md"), out.String())
}

// writeReasons writes the constants of a file that are reasons and have a comment.
func writeReasons(out *strings.Builder, file *ast.File) {
	for _, d := range file.Decls {
		general, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range general.Specs {
			constant, ok := spec.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(constant.Names[0].Name, "Reason") {
				continue
			}
			if constant.Doc == nil && len(general.Specs) == 1 {
				constant.Doc = general.Doc
			}
			for _, v := range valuesOf(constant) {
				if v.text != "" {
					fmt.Fprintf(out, "- `%s`: %s\n", v.literal, prose(v.text))
				}
			}
		}
	}
}
