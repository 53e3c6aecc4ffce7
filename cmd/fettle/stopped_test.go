// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestStoppedSnapshot: a command that is stopped writes no snapshot in which selectors mean something else.
func TestStoppedSnapshot(t *testing.T) {
	t.Chdir(t.TempDir())
	check.Must(t, os.WriteFile("cluster.yaml", []byte("apiVersion: v1\nkind: Node\nmetadata: {name: one}\n"), 0o600))
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, args := range [][]string{{"--redact"}, nil} {
		var out, errs bytes.Buffer
		status := runAs(stopped, "fettle", append([]string{"snapshot", "-f", "cluster.yaml", "-o", "saved.yaml"}, args...), &out, &errs)
		if _, err := os.Stat("saved.yaml"); status != 1 || !os.IsNotExist(err) {
			t.Errorf("%q: status %d, %v: %s", args, status, err, &errs)
		}
	}
}
