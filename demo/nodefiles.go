// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/test/harness"
)

// vendorDir is where each node has what the scenario of presets gives, vendorSource where that is in the repository.
const (
	vendorDir    = "/mnt/disks/vendor"
	vendorSource = "demo/15-preset/node"
	// layoutDir is where nodes have what differs among them, and layoutSource has that by node.
	layoutDir    = "/mnt/disks/layout"
	layoutSource = "demo/26-preset-two-layouts"
)

// vendorFiles gives a node files beside its devices, as the installation of a driver would. Placing a machine removes them.
func vendorFiles(h *harness.Harness, node string) error {
	if err := os.CopyFS(filepath.Join(h.MachineDir(node), vendorDir), os.DirFS(filepath.Join(h.Root, vendorSource))); err != nil {
		return fmt.Errorf("give %s the files of presets: %w", node, err)
	}
	layout := filepath.Join(h.Root, layoutSource, node)
	if _, err := os.Stat(layout); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.CopyFS(filepath.Join(h.MachineDir(node), layoutDir), os.DirFS(layout)); err != nil {
		return fmt.Errorf("give %s its layout of files: %w", node, err)
	}
	return nil
}

// shared is where each node has directories that all of them share, as those of a file server, and volumeGroup whom the Jobs write to them
// as.
const (
	shared      = "/srv/shared"
	volumeGroup = 65532
)

// ownSrv gives a node a /srv of its own, with the directories that all nodes share: the rest of the root is this machine's.
func ownSrv(ctx context.Context, h *harness.Harness, node string) error {
	source := filepath.Join(h.State, "shared")
	for _, name := range []string{"one", "two"} {
		dir := filepath.Join(source, name)
		err := errors.Join(os.MkdirAll(dir, 0o755), os.Chown(dir, 0, volumeGroup), os.Chmod(dir, 0o775|os.ModeSetgid))
		if err != nil {
			return fmt.Errorf("make the directories that nodes share: %w", err)
		}
	}
	_, err := h.OnNode(ctx, node, "sh", "-c", `mount -t tmpfs srv /srv && mkdir "$0" && mount --bind "$1" "$0"`, shared, source)
	return err
}
