// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// ErrNoHistory is in the error of BuildCommit where the repository does not have the commit.
var ErrNoHistory = errors.New("the commit is not in this clone")

// BuildCommit builds the images of an earlier commit under a version of its own into dir, loads them into the cluster's nodes, and returns
// the directory of that commit's chart. Its fettle-nvml has that commit's simulator in the place of NVIDIA's library.
func (h *Harness) BuildCommit(ctx context.Context, commit, version, dir string) (chart string, err error) {
	source, images := filepath.Join(dir, "source"), filepath.Join(dir, "images")
	if err := h.checkOut(ctx, commit, source); err != nil {
		return "", fmt.Errorf("build %s: %w", commit, err)
	}
	if err := h.buildImages(ctx, source, version, filepath.Join(dir, "bin"), images); err != nil {
		return "", fmt.Errorf("build %s: %w", commit, err)
	}
	return filepath.Join(source, chartDir), h.LoadImages(ctx, images)
}

// checkOut writes the files of a commit into dir, which is emptied first. A shallow clone asks its origin for the commit.
func (h *Harness) checkOut(ctx context.Context, commit, dir string) error {
	if _, err := h.run(ctx, nil, "git", "cat-file", "-e", commit+"^{commit}"); err != nil {
		if _, err := h.run(ctx, nil, "git", "fetch", "--quiet", "--depth=1", "origin", commit); err != nil {
			return fmt.Errorf("%w, nor has its origin: clone the whole history (git fetch --unshallow): %w", ErrNoHistory, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("check out %s: %w", commit, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("check out %s: %w", commit, err)
	}
	archive := filepath.Join(dir, "source.tar")
	if _, err := h.run(ctx, nil, "git", "archive", "--output", archive, commit); err != nil {
		return err
	}
	_, err := h.run(ctx, nil, "tar", "--extract", "--file", archive, "--directory", dir)
	return err
}

// buildImages builds the programs of a source tree and assembles its images.
func (h *Harness) buildImages(ctx context.Context, source, version, bin, images string) error {
	platform := "linux_" + runtime.GOARCH
	into := filepath.Join(bin, platform)
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	_, err := h.run(ctx, nil, "env", "CGO_ENABLED=0", "go", "build", "-C", source, "-trimpath", "-buildvcs=false",
		"-ldflags", linked(version), "-o", into+"/", "./cmd/fettle-kubeletplugin", "./cmd/fettle-hook", "./cmd/fettle-claims",
		"./cmd/fettle-mps", "./cmd/fettle-controller", "./cmd/fettle")
	if err != nil {
		return err
	}
	if err := h.buildSimulatedNVML(ctx, source, filepath.Join(into, "fettle-nvml")); err != nil {
		return err
	}
	_, err = h.run(ctx, nil, "go", "run", "-C", source, "-trimpath", "./deployments/images", "-bin", bin, "-version", version,
		"-arch", runtime.GOARCH, "-out", images)
	return err
}

// buildSimulatedNVML builds the program fettle-nvml of a source tree with the simulator in the place of NVIDIA's library.
func (h *Harness) buildSimulatedNVML(ctx context.Context, source, path string) error {
	_, err := h.run(ctx, nil, "env", "CGO_ENABLED=1", "CGO_CFLAGS=-Wno-deprecated-declarations", "go", "build", "-C", source, "-trimpath",
		"-buildvcs=false", "-o", path, "./test/nvmlsim/fettle-nvml")
	return err
}
