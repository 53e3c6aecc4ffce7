// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
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
