// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryProgramIsBuilt wants all programs that users run among those that "make build-cross" builds for both architectures: all below
// cmd, and the conformance tool.
func TestEveryProgramIsBuilt(t *testing.T) {
	command := exec.Command("make", "--dry-run", "build-cross")
	command.Dir = root
	// A make above this test has its own flags.
	command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=")
	})
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	built := map[string]int{}
	for line := range strings.Lines(string(output)) {
		if strings.Contains(line, "go build ") {
			for _, word := range strings.Fields(line) {
				built[strings.TrimSuffix(word, ";")]++
			}
		}
	}
	programs := []string{"test/conformance/fettle-conformance"}
	for _, name := range files(t) {
		if dir, file := path.Split(name); file == "main.go" && strings.HasPrefix(dir, "cmd/") {
			programs = append(programs, path.Clean(dir))
		}
	}
	for _, name := range programs {
		if n := built["./"+name]; n != 2 {
			t.Errorf("%s is built %d times, want once for each of two architectures", name, n)
		}
	}
}

// testRun is a command of the Makefile that runs tests: from its name to the next such command, or to the end of its line.
var testRun = regexp.MustCompile(`(?:go test|go tool ginkgo) `)

// withoutLimit lists the commands of a Makefile that run tests and have no limit of time. What is only compiled needs none.
func withoutLimit(makefile string) []string {
	var result []string
	for line := range strings.Lines(strings.ReplaceAll(makefile, "\\\n", " ")) {
		if !strings.HasPrefix(line, "\t") {
			continue
		}
		starts := append(testRun.FindAllStringIndex(line, -1), []int{len(line)})
		for i, start := range starts[:len(starts)-1] {
			command := strings.Join(strings.Fields(line[start[0]:starts[i+1][0]]), " ")
			if !strings.Contains(command, "-timeout") && !strings.HasPrefix(command, "go test -c ") {
				result = append(result, command)
			}
		}
	}
	return result
}

// TestTestsAreLimited: what hangs must not take longer than somebody decided.
func TestTestsAreLimited(t *testing.T) {
	for _, command := range withoutLimit(read(t, "Makefile")) {
		t.Errorf("Makefile: %q has no -timeout", command)
	}
	planted := "a:\n\tgo test -timeout 1m ./a && \\\n\t\tgo test \\\n\t\t./b\n\tgo tool ginkgo ./c\n\tgo test -c ./d\n"
	want := []string{"go test ./b", "go tool ginkgo ./c"}
	if got := withoutLimit(planted); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
