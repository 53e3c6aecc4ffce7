// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// TestFieldOfOnesOwn: each field that a claim may set has a source by its name, so that it says where its value is from, and the documents
// have it, see docs/design/adding.md.
func TestFieldOfOnesOwn(t *testing.T) {
	source := readAll(t, "*.go")
	user, design := readAll(t, "../../docs/user/*.md"), readAll(t, "../../docs/design/config.md")
	for _, config := range []v1alpha1.Config{
		&v1alpha1.GPUConfig{}, &v1alpha1.FPGAConfig{}, &v1alpha1.HostConfig{}, &v1alpha1.AcceleratorConfig{},
	} {
		kind, of := configKind(config)
		if of == "" {
			t.Errorf("%T is of no kind of device", config)
		}
		fields := reflect.TypeOf(config).Elem()
		for i := range fields.NumField() {
			name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "policy" {
				continue
			}
			if !regexp.MustCompile(`\bField\w+\s*= "` + name + `[."]`).MatchString(source) {
				t.Errorf("%s.%s has no constant such as FieldMountPath by which its source is told", kind, name)
			}
			if !strings.Contains(design, "`"+name+"`") || !strings.Contains(user, name) {
				t.Errorf("%s.%s is not in docs/design/config.md or not in docs/user", kind, name)
			}
		}
	}
}

// readAll reads files, but no tests.
func readAll(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	check.Must(t, err)
	var all strings.Builder
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		check.Must(t, err)
		all.Write(text)
	}
	if all.Len() == 0 {
		t.Fatalf("there is nothing in %s", pattern)
	}
	return all.String()
}
