// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// MPSClient is where a simulated driver has the stand-in for a CUDA program, below a node's machine.
const MPSClient = "/usr/bin/mps-client"

// driverTools are the programs that stand in for those of NVIDIA's driver, by their names in the driver root.
func driverTools() map[string]string {
	return map[string]string{
		filepath.Base(MPSClient):  "./test/mpssim/client",
		"nvidia-smi":              "./test/nvmlsim/nvidia-smi",
		"nvidia-cuda-mps-control": "./test/mpssim/nvidia-cuda-mps-control",
	}
}

// placeTools puts the programs of the simulated driver into a node's machine.
func (s *Simulators) placeTools(ctx context.Context, tree string) error {
	into := filepath.Join(tree, "usr", "bin")
	if err := os.MkdirAll(into, 0o755); err != nil {
		return fmt.Errorf("make the simulated driver's directory of programs: %w", err)
	}
	for name, source := range driverTools() {
		_, err := s.h.run(ctx, nil, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(into, name),
			source)
		if err != nil {
			return err
		}
	}
	return nil
}
