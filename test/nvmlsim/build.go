// SPDX-License-Identifier: Apache-2.0

package nvmlsim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// Build makes the program fettle-nvml with the simulator in the place of NVIDIA's library. A test's process of its own could play it too,
// but takes a third of a second to start with the race detector.
func Build(ctx context.Context, path string) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/fettle-dev/fettle/test/nvmlsim/fettle-nvml")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-Wno-deprecated-declarations")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the simulator: %w\n%s", err, output)
	}
	return nil
}
