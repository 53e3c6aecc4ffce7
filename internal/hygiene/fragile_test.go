// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// fragileMark begins the comment that allows a place to depend on chance: "// fragile: REASON", at the end of its line or above it.
const fragileMark = "// fragile:"

// leastWords is how many words a reason has.
const leastWords = 4

// excuses maps lines of a file to the comments that excuse what is there.
func excuses(f goFile) map[int]*ast.Comment {
	result := map[int]*ast.Comment{}
	lines := strings.Split(f.content, "\n")
	for _, group := range f.syntax.Comments {
		for _, comment := range group.List {
			if !strings.HasPrefix(comment.Text, fragileMark) {
				continue
			}
			line := f.line(comment)
			if strings.HasPrefix(strings.TrimSpace(lines[line-1]), "//") {
				// By itself it is about what is below, and a reason may take more than one line.
				line = f.fileSet.Position(group.End()).Line + 1
			}
			result[line] = comment
		}
	}
	return result
}

// chanceIn lists the places of a file that depend on chance without an excuse, and the excuses that excuse nothing.
func chanceIn(p *typed, f goFile) []string {
	var result []string
	comments := excuses(f)
	needed := map[*ast.Comment]bool{}
	for _, found := range findChance(p, f) {
		if comment := comments[f.line(found.node)]; comment != nil {
			needed[comment] = true
			continue
		}
		result = append(result, fmt.Sprintf("%s:%d: %s", f.path, f.line(found.node), found.kind))
	}
	for _, line := range slices.Sorted(maps.Keys(comments)) {
		comment := comments[line]
		if !needed[comment] {
			result = append(result, fmt.Sprintf("%s:%d: %q excuses nothing", f.path, f.line(comment), comment.Text))
		}
		if len(strings.Fields(strings.TrimPrefix(comment.Text, fragileMark))) < leastWords {
			result = append(result, fmt.Sprintf("%s:%d: %q gives no reason", f.path, f.line(comment), comment.Text))
		}
	}
	return result
}

// TestNothingByChance refuses what makes tests fail, or pass, by chance. A place that needs it says why: see fragileMark.
func TestNothingByChance(t *testing.T) {
	all := goFiles(t)
	imports := newOwnImporter(t, all[0].fileSet, all)
	for _, files := range packagesWithTests(all) {
		p := imports.check(files)
		for _, f := range files {
			if !f.checks() {
				continue
			}
			for _, text := range chanceIn(p, f) {
				t.Error(text)
			}
		}
	}
}
