// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// CommandError is a command that ended with an error, with what it printed.
type CommandError struct {
	Args   []string
	Output string
	Err    error
}

// Error shows the command, its status and the end of its output.
func (e *CommandError) Error() string {
	const most = 4000
	output := strings.TrimSpace(e.Output)
	if len(output) > most {
		output = "…" + output[len(output)-most:]
	}
	return fmt.Sprintf("%s: %v: %s", strings.Join(append([]string{filepath.Base(e.Args[0])}, e.Args[1:]...), " "), e.Err, output)
}

// Unwrap is the *exec.ExitError, where the command ran.
func (e *CommandError) Unwrap() error { return e.Err }

// run runs a program in the repository and returns what it wrote to standard output.
func (h *Harness) run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the harness exists to run programs
	cmd.Dir, cmd.Stdin = h.Root, stdin
	// A grandchild that keeps the pipe open must not outlast the deadline.
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.Kubeconfig(), "FETTLE_CACHE="+h.Cache)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), &CommandError{Args: args, Output: stdout.String() + stderr.String(), Err: err}
	}
	return stdout.String(), nil
}

// cluster runs the cluster's program. Flags must come before a "--".
func (h *Harness) cluster(ctx context.Context, command string, args ...string) (string, error) {
	return h.run(ctx, nil, append([]string{h.binary("cluster"), command, "--state", h.State, "--name", h.Name}, args...)...)
}
