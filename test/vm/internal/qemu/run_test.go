// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/vm/internal/guest"
)

// TestEmulatorAborts: an emulator that aborts says nothing of the program, so the machine is booted once more, and no third time. One that
// ends in another way is not asked again.
func TestEmulatorAborts(t *testing.T) {
	for name, tc := range map[string]struct {
		aborts, boots int
		fails         bool
	}{
		"never": {0, 1, false}, "once": {1, 2, false}, "twice": {2, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m := Machine{Out: dir, CPUs: 1}
			program := fmt.Sprintf("#!/bin/sh\necho boot >>%[1]s/boots\n"+
				"[ $(wc -l <%[1]s/boots) -gt %[2]d ] || kill -ABRT $$\nprintf 7 >%[1]s/%[3]s\n", dir, tc.aborts, guest.StatusFile)
			check.Must(t, os.WriteFile(filepath.Join(dir, Program), []byte(program), 0o755))
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			var stderr bytes.Buffer
			code, err := m.Run(t.Context(), &stderr, &stderr)
			if tc.fails != (err != nil) || !tc.fails && code != 7 {
				t.Errorf("exit status %d, %v", code, err)
			}
			boots, err := os.ReadFile(filepath.Join(dir, "boots"))
			check.Must(t, err)
			if got := strings.Count(string(boots), "boot"); got != tc.boots {
				t.Errorf("booted %d times, want %d", got, tc.boots)
			}
			if told := strings.Contains(stderr.String(), "FLAKY: the emulator"); told != (tc.boots > 1) {
				t.Errorf("stderr: %s", stderr.String())
			}
		})
	}
}
