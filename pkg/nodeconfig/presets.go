// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"fmt"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// Presets is what presets may give of a node.
type Presets struct {
	// HostDirectories are the directories of the host that the plugin's container has below HostRoot, so that files of presets can be
	// looked for there. They count where HostRoot is not /.
	HostDirectories []string `json:"hostDirectories,omitempty"`
	// AllowedHostPaths are the directories of the host below which DevicePresets, those of namespaces, may name files. The plugin's container
	// has them, and StateDir with Bidirectional propagation.
	AllowedHostPaths []preset.AllowedHostPath `json:"allowedHostPaths,omitempty"`
	// Scratch lets presets give claims directories in memory. StateDir must be mounted with Bidirectional propagation.
	Scratch bool `json:"scratch,omitempty"`
}

func (c Presets) validate() (errs []error) {
	for i, dir := range c.HostDirectories {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
			errs = append(errs, fmt.Errorf("presets.hostDirectories[%d]: must be absolute and clean, and not /, is %q", i, dir))
		}
	}
	for i, allowed := range c.AllowedHostPaths {
		if err := allowed.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("presets.allowedHostPaths[%d]: %w", i, err))
		}
	}
	return errs
}
