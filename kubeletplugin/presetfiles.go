// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// presetFiles looks up on the node what presets name.
type presetFiles struct {
	// root is the host's tree.
	root string
}

// realise makes edits of what presets give to a request. An error names the preset, the field and what this node lacks.
func (f *presetFiles) realise(r preset.Request) (engine.Preset, error) {
	given, err := json.Marshal(r)
	if err != nil {
		return engine.Preset{}, fmt.Errorf("encode what presets give to request %s: %w", r.Request, err)
	}
	tree, err := sysfs.Open(f.root)
	if err != nil {
		return engine.Preset{}, err
	}
	defer tree.Close()
	out := engine.Preset{Given: given}
	for _, v := range r.Env {
		out.Edits.Env = append(out.Edits.Env, v.Name+"="+v.Value)
	}
	var errs []error
	for i := range r.Mounts {
		m, err := f.mount(&r.Mounts[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, mount %s: %w", r.Mounts[i].From, r.Mounts[i].ContainerPath, err))
		} else if m != nil {
			out.Edits.Mounts = append(out.Edits.Mounts, *m)
		}
	}
	for i := range r.Nodes {
		n, err := nodeOf(tree, &r.Nodes[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, device node %s: %w", r.Nodes[i].From, r.Nodes[i].Path, err))
		} else if n != nil {
			out.Edits.Nodes = append(out.Edits.Nodes, *n)
		}
	}
	return out, errors.Join(errs...)
}

// mount finds what is mounted on this node. Nil: it is not there and need not be.
func (f *presetFiles) mount(m *preset.Mount) (*device.Mount, error) {
	if m.Scratch != nil {
		return nil, errors.New("scratch directories are not made yet: use an emptyDir")
	}
	if m.From.Namespace != "" {
		return nil, fmt.Errorf("%s does not lie below one of the driver's allowedHostPaths, of which there are none: "+
			"ask an administrator to allow it, or for a ClusterDevicePreset", m.HostPath)
	}
	switch _, err := os.Stat(filepath.Join(f.root, m.HostPath)); {
	case errors.Is(err, fs.ErrNotExist) && m.Optional:
		return nil, nil //nolint:nilnil // documented above
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s is not on this node: put it there, or say optional", m.HostPath)
	case err != nil:
		return nil, fmt.Errorf("look at %s: %w", m.HostPath, err)
	}
	return &device.Mount{
		HostPath: m.HostPath, ContainerPath: m.ContainerPath, ReadOnly: m.ReadOnly == nil || *m.ReadOnly,
		Alone: !m.Recursive, Follows: m.Propagation == v1alpha1.PropagationHostToContainer,
	}, nil
}

// nodeOf finds the numbers of a device node. Nil: it is not there and need not be.
func nodeOf(tree *sysfs.Tree, n *preset.Node) (*device.Node, error) {
	major, minor, err := tree.Rdev(strings.TrimPrefix(n.Path, "/"))
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.Optional:
		return nil, nil //nolint:nilnil // documented above
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("is not on this node: load its driver, or say optional")
	case err != nil:
		return nil, err
	}
	permissions := "rw"
	if n.ReadOnly {
		permissions = "r"
	}
	return &device.Node{Path: n.Path, Major: major, Minor: minor, Permissions: permissions}, nil
}
