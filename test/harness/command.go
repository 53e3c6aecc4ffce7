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
func (c Config) run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	stdout, _, err := c.runBoth(ctx, stdin, args...)
	return stdout, err
}

func (c Config) runBoth(ctx context.Context, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Stdin = c.Root, stdin
	// A grandchild that keeps the pipe open must not outlast the deadline.
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "FETTLE_CACHE="+c.Cache)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), errOut.String(), &CommandError{Args: args, Output: out.String() + errOut.String(), Err: err}
	}
	return out.String(), errOut.String(), nil
}

// cluster runs the cluster's program. Flags must come before a "--".
func (c Config) cluster(ctx context.Context, command string, args ...string) (string, error) {
	return c.run(ctx, nil, append([]string{c.binary("cluster"), command, "--state", c.State, "--name", c.Name}, args...)...)
}
