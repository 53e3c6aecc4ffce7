// SPDX-License-Identifier: Apache-2.0

// Package mutants shows that the tests which are to find a whole kind of faults do find them: each mutant takes one mend out of the
// product, by the overlay of the go command, and the random test of its kind must fail with the seed that the table names.
//
// TestTable holds the table against the tree. TestMutants runs the mutants; it takes minutes, so it is asked for:
//
//	make mutants            all of them
//	make mutants KIND=owner those of one kind
package mutants

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// root is the top of the module.
const root = "../.."

// mutant is a mend that is taken out, and the test that then fails.
type mutant struct {
	// kind is the kind of faults, what says what the mended product does.
	kind, what string
	// file has the text old once. new takes its place.
	file, old, new string
	// pkg and test are what fails, with the seed.
	pkg, test, seed string
}

// TestTable: each mutant can be made, its test is there, and each kind has one.
func TestTable(t *testing.T) {
	for _, m := range table() {
		text, err := os.ReadFile(filepath.Join(root, m.file))
		check.Must(t, err)
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("%s has %d times the text %q: want it once", m.file, n, m.old)
		}
		if !hasTest(t, m.pkg, m.test) {
			t.Errorf("%s has no test %s", m.pkg, m.test)
		}
	}
	for _, kind := range kinds() {
		if !slices.ContainsFunc(table(), func(m mutant) bool { return m.kind == kind }) {
			t.Errorf("no mutant is of the kind %q", kind)
		}
	}
}

func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	check.Must(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		check.Must(t, err)
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}

// limit is the longest that one mutant may take, with the compiler.
const limit = 15 * time.Minute

// TestMutants makes each mutant and runs its test.
func TestMutants(t *testing.T) {
	kind, asked := os.LookupEnv("FETTLE_MUTANTS")
	if !asked {
		t.Skip("FETTLE_MUTANTS is not set: run make mutants")
	}
	for _, m := range table() {
		if kind != "" && m.kind != kind {
			continue
		}
		t.Run(m.kind+" "+m.test, func(t *testing.T) {
			began := time.Now()
			out, err := m.run(t)
			if err == nil {
				t.Fatalf("%s passes although this was taken out: %s", m.test, m.what)
			}
			if !regexp.MustCompile(`(?m)^--- FAIL: `+m.test+` `).MatchString(out) && !strings.Contains(out, "panic: ") {
				t.Fatalf("%s did not run: %v\n%s", m.test, err, out)
			}
			t.Logf("found after %s: %s", time.Since(began).Round(time.Second), said(out))
		})
	}
}

// run runs the test of a mutant.
func (m *mutant) run(t *testing.T) (out string, err error) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, m.file))
	check.Must(t, err)
	text, err := os.ReadFile(path)
	check.Must(t, err)
	mutated, overlay := filepath.Join(t.TempDir(), "mutant.go"), filepath.Join(t.TempDir(), "overlay.json")
	check.Must(t, os.WriteFile(mutated, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600))
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	check.Must(t, err)
	check.Must(t, os.WriteFile(overlay, replaced, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-overlay", overlay, "-run", "^"+m.test+"$", "./"+m.pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "FETTLE_SEED="+m.seed, "MODEL_STEPS=40000")
	all, err := cmd.CombinedOutput()
	return string(all), err
}

// said is the first line in which the test says what is wrong.
func said(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_test.go:") && !strings.Contains(line, "FETTLE_SEED") {
			return strings.TrimSpace(line)
		}
	}
	return "a panic"
}
