// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"os"
	"os/exec"
	"path"
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
