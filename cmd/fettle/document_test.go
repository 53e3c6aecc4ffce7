// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// examplesOf returns a page of docs/user, and its blocks of YAML.
func examplesOf(t *testing.T, name string) (page string, examples []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/user", name))
	check.Must(t, err)
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		examples = append(examples, block[1])
	}
	return string(text), examples
}

// example returns the path of a file that a page links to, below docs/user/examples.
func example(t *testing.T, page, name string) string {
	t.Helper()
	if !strings.Contains(page, "](examples/"+name+")") {
		t.Errorf("the page does not link to examples/%s", name)
	}
	return filepath.Join("../../docs/user/examples", name)
}
