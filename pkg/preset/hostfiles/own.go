// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// allowedFor is what a claim would have of a path of a DevicePreset.
func (f *Finder) allowedFor(name string, readOnly bool) (*hostmount.Copy, error) {
	dir, err := preset.AllowedFor(f.Allowed, name, readOnly)
	if err != nil {
		return nil, err
	}
	return &hostmount.Copy{Below: dir, Path: path.Join(".", strings.TrimPrefix(name, dir)), ReadOnly: readOnly}, nil
}

// mayLook says whether a DevicePreset may look for files below a directory of the host.
func (l *lookup) mayLook(name string) error {
	c, err := l.files.allowedFor(name, true)
	if err != nil {
		return err
	}
	directory, err := l.files.looker().Look(c)
	if err == nil && !directory {
		err = fmt.Errorf("%s is no directory", name)
	}
	return err
}

// looker opens paths as whoever makes the mounts does.
func (f *Finder) looker() *hostmount.Dir {
	if f.Mounts != nil {
		return f.Mounts
	}
	return hostmount.In("", f.Root)
}

// ownMount gives the claim a copy of what a DevicePreset names.
func (l *lookup) ownMount(m *preset.Mount) error {
	err := l.copy(container.Mount{
		HostPath: m.HostPath, ContainerPath: m.ContainerPath, ReadOnly: m.ReadOnly == nil || *m.ReadOnly, Alone: !m.Recursive,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return l.lacks(m, notHere(m))
	}
	return err
}

// copy mounts something of the host by a copy that only the claim has: the path that the runtime is told of leads nowhere else, whoever
// may write where the files are.
func (l *lookup) copy(m container.Mount) error {
	c, err := l.files.allowedFor(m.HostPath, m.ReadOnly)
	if err != nil {
		return err
	}
	if _, err := l.files.looker().Look(c); err != nil {
		return err
	}
	c.Recursive = !m.Alone
	return l.mine(m, hostmount.Mount{Copy: c})
}

// scratch gives the claim memory. Its requests that are given the same have the same.
func (l *lookup) scratch(m *preset.Mount) error {
	if !l.files.Scratch {
		return errors.New("this driver gives no scratch directories: set the chart's presets.scratch, or use an emptyDir")
	}
	size, err := resource.ParseQuantity(m.Scratch.SizeLimit)
	if err != nil {
		return fmt.Errorf("sizeLimit: %w", err)
	}
	memory := hostmount.Mount{Scratch: &hostmount.Scratch{Bytes: size.Value()}}
	return l.mine(container.Mount{HostPath: "tmpfs", ContainerPath: m.ContainerPath, Alone: true}, memory)
}

// isOwn says whether what is mounted at a path of the container is the claim's own.
func (l *lookup) isOwn(containerPath string) bool {
	return slices.ContainsFunc(l.own.Mounts, func(m container.Mount) bool { return m.ContainerPath == containerPath })
}

// mine adds a mount that only the claim has.
func (l *lookup) mine(of container.Mount, m hostmount.Mount) error {
	l.mounted = append(l.mounted, of)
	if l.files.Mounts == nil {
		l.own.Mounts = append(l.own.Mounts, of)
		return nil
	}
	key := ""
	if m.Scratch != nil {
		key = of.ContainerPath
	}
	at, s, err := l.files.Mounts.Plan(l.claim, key, m)
	if err != nil {
		return err
	}
	of.HostPath = at
	l.own.Mounts = append(l.own.Mounts, of)
	l.steps = append(l.steps, s)
	return nil
}
