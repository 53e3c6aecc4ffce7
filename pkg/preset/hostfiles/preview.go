// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Preview finds what presets name in a host tree, so that a command can show what a node would do.
type Preview struct {
	// Root is the directory of the tree.
	Root string
	// Hook stands for fettle-hook. On a node its name contains the version of the plugin.
	Hook string
	// AllowedHostPaths lists the directories below which a DevicePreset may name files.
	AllowedHostPaths []preset.AllowedHostPath
}

// Edits returns the edits that the plugin would make for a request. After an error they lack the part that failed. Mounts that only one
// claim has are shown with their original paths. The files of a vendor's driver are left out, since only a node can list them.
func (p Preview) Edits(r preset.Request) (container.Edits, error) {
	finder := Finder{
		Root: p.Root, Hook: func() (string, error) { return p.Hook, nil }, Allowed: p.AllowedHostPaths, Scratch: true, Copies: true,
	}
	found, err := finder.Find("", r)
	found.Shared.Mounts = append(found.Shared.Mounts, found.Own.Mounts...)
	return found.Shared, err
}
