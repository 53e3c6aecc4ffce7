// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// otherKernel is the file that says that a node has another kernel. It lasts as a kernel does: restarts of kubelet do not change it.
func otherKernel(n plan.Node) string { return filepath.Join(n.Dirs.Config, "other-kernel") }

// ChooseKernel says whether a node has another kernel's release than its neighbours from its next start on.
func ChooseKernel(n plan.Node, other bool) error {
	if other {
		if err := os.WriteFile(otherKernel(n), nil, 0o644); err != nil {
			return fmt.Errorf("give the node another kernel: %w", err)
		}
		return nil
	}
	if err := os.Remove(otherKernel(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give the node its own kernel: %w", err)
	}
	return nil
}

// UnderKernel returns the command line of a component as the node's kernel has it. Under the personality UNAME26 the kernel tells a process
// and its children that its release is 2.6, and changes nothing else. kubelet takes the node's kernelVersion from there. Containers are
// children of containerd, which sees the machine's own release.
func UnderKernel(n plan.Node, component string, args []string) ([]string, error) {
	_, err := os.Stat(otherKernel(n))
	switch {
	case component != Kubelet || errors.Is(err, fs.ErrNotExist):
		return args, nil
	case err != nil:
		return nil, fmt.Errorf("look for the node's kernel: %w", err)
	}
	return append([]string{"setarch", "--uname-2.6"}, args...), nil
}
