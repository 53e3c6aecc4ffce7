// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Preview is a host tree in which a command looks up what presets name, to see what a node would do.
type Preview struct {
	// Root is the tree's directory.
	Root string
	// Hook stands for fettle-hook, whose name on a node has the version of the plugin in it.
	Hook string
	// AllowedHostPaths are the directories below which a DevicePreset may name files.
	AllowedHostPaths []preset.AllowedHostPath
}

// Edits are those that the plugin would make of what presets give to a request. On an error they lack what it is about. Of what the claim
// alone would have they show what it is made of. The files of a vendor's driver are left out: they are listed on a node only.
func (p Preview) Edits(r preset.Request) (container.Edits, error) {
	finder := Finder{Root: p.Root, Hook: func() (string, error) { return p.Hook, nil }, Allowed: p.AllowedHostPaths, Scratch: true}
	found, err := finder.Find("", r)
	found.Shared.Mounts = append(found.Shared.Mounts, found.Own.Mounts...)
	return found.Shared, err
}
