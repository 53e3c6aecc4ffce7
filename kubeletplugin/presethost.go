// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// PresetHost is a host tree in which somebody beside the plugin looks up what presets name, to see what a node would do.
type PresetHost struct {
	// Root is the tree's directory.
	Root string
	// Hook stands for fettle-hook, whose name on a node has the version of the plugin in it.
	Hook string
	// AllowedHostPaths are the directories below which a DevicePreset may name files.
	AllowedHostPaths []preset.AllowedHostPath
}

// Edits are those that the plugin would make of what presets give to a request. On an error they lack what it is about. Of what the claim
// alone would have they show what it is made of. What vendors list of their drivers is left out: their lists are made on a node.
func (h PresetHost) Edits(r preset.Request) (container.Edits, error) {
	files := presetFiles{root: h.Root, hook: func() (string, error) { return h.Hook, nil }, allowed: h.AllowedHostPaths, scratch: true}
	made, err := files.realise("", r)
	made.Edits.Mounts = append(made.Edits.Mounts, made.Own.Mounts...)
	return made.Edits, err
}
