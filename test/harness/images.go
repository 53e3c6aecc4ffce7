// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// BuildVersion builds the images of this source under another version into dir, so that there is something to upgrade to. The
// helper binary fettle-nvml is taken from the build before.
func (h *Harness) BuildVersion(ctx context.Context, version, dir string) error {
	platform := "linux_" + runtime.GOARCH
	bin := filepath.Join(dir, "bin", platform)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("build version %s: %w", version, err)
	}
	_, err := h.run(ctx, nil, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X main.version="+version, "-o", bin+"/", "./cmd/fettle-kubeletplugin", "./cmd/fettle-hook", "./cmd/fettle-controller",
		"./cmd/fettle")
	if err != nil {
		return err
	}
	nvml, err := os.ReadFile(filepath.Join(h.Root, "dist", platform, "fettle-nvml"))
	if err != nil {
		return fmt.Errorf("build version %s: %w", version, err)
	}
	if err := os.WriteFile(filepath.Join(bin, "fettle-nvml"), nvml, 0o755); err != nil {
		return fmt.Errorf("build version %s: %w", version, err)
	}
	_, err = h.run(ctx, nil, "go", "run", "./deployments/images", "-bin", filepath.Dir(bin), "-version", version, "-arch", runtime.GOARCH,
		"-out", filepath.Join(dir, "images"))
	if err != nil {
		return err
	}
	return h.LoadImages(ctx, filepath.Join(dir, "images"))
}
