// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	for name, test := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"help":            {[]string{"help"}, exitOK, ""},
		"unknown command": {[]string{"fly"}, exitUsage, `unknown command "fly"`},
		"unknown flag":    {[]string{"load", "--fly"}, exitUsage, "not defined: -fly"},
		"no image":        {[]string{"load", "--state", state, "--bin", state}, exitUsage, "load needs --image"},
		"no cluster":      {[]string{"reboot", "--state", state, "--bin", state, "--node", "node1"}, exitFailed, "cluster up"},
		"nothing left":    {[]string{"verify-clean", "--state", state, "--bin", state}, exitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), test.args, &stdout, &stderr); code != test.code {
				t.Errorf("got exit code %d, want %d; stderr: %s", code, test.code, &stderr)
			}
			if !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("stderr %q lacks %q", &stderr, test.stderr)
			}
		})
	}
}
