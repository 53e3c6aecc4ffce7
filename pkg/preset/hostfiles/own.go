// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// allowedFor returns the copy of a path that a claim may have by a DevicePreset of a namespace. The way to the allowed directory may lead
// through what containers write to, if such directories are nested, so no link of theirs is followed there either.
func (l *lookup) allowedFor(namespace, name string, readOnly bool) (*hostmount.Copy, error) {
	dir, err := preset.AllowedFor(l.files.Allowed, namespace, name, readOnly)
	if err != nil {
		return nil, err
	}
	s, err := l.paths.locate(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return &hostmount.Copy{Below: s.dir, Path: path.Join(s.rest, strings.TrimPrefix(name, dir)), ReadOnly: readOnly}, nil
}

// checkMayRead refuses a directory of the host below which a preset may not look for files. It returns the path of the directory.
func (l *lookup) checkMayRead(namespace, name string) (string, error) {
	var c *hostmount.Copy
	if namespace == "" {
		s, err := l.paths.locate(name)
		if err != nil || s.why == "" {
			return s.path(), err
		}
		c = s.copy()
	} else {
		var err error
		if c, err = l.allowedFor(namespace, name, true); err != nil {
			return "", err
		}
	}
	directory, err := l.files.copyMounter().CheckCopy(c)
	if err == nil && !directory {
		err = fmt.Errorf("%s is no directory", name)
	}
	return c.HostPath(), err
}

// copyMounter opens paths in the same way as the step that makes the mounts.
func (f *Finder) copyMounter() *hostmount.Dir {
	if f.Mounts != nil {
		return f.Mounts
	}
	return hostmount.In("", f.Root)
}

// ownMount gives the claim a copy of a path that a DevicePreset names.
func (l *lookup) ownMount(m *preset.Mount) error {
	err := l.mountAllowed(m.From.Namespace, container.Mount{
		HostPath: m.HostPath, ContainerPath: m.ContainerPath, ReadOnly: m.ReadOnly == nil || *m.ReadOnly, NonRecursive: !m.Recursive,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return l.leaveOut(m, notHere(m))
	}
	return err
}

// mountAllowed mounts a path that a DevicePreset of a namespace may name.
func (l *lookup) mountAllowed(namespace string, m container.Mount) error {
	c, err := l.allowedFor(namespace, m.HostPath, m.ReadOnly)
	if err != nil {
		return err
	}
	return l.mountCopy(namespace, c, m)
}

// mountCopy mounts a path of the host by a copy that only the claim has. Whoever can write to the original place, the path that the runtime
// gets leads to the copy.
func (l *lookup) mountCopy(namespace string, c *hostmount.Copy, m container.Mount) error {
	if _, err := l.files.copyMounter().CheckCopy(c); err != nil {
		return err
	}
	c.Recursive, c.ReadOnly = !m.NonRecursive, m.ReadOnly
	return l.addOwn(namespace, m, hostmount.Mount{Copy: c})
}

// scratch gives the claim memory. Requests of the claim with the same scratch share it.
func (l *lookup) scratch(m *preset.Mount) error {
	if !l.files.Scratch {
		return errors.New("this driver gives no scratch directories: set the chart's presets.scratch, or use an emptyDir")
	}
	size, err := resource.ParseQuantity(m.Scratch.SizeLimit)
	if err != nil {
		return fmt.Errorf("sizeLimit: %w", err)
	}
	if most := l.files.MaxScratch; most > 0 && size.Value() > most {
		return fmt.Errorf("sizeLimit: %s is more than the %d bytes that the chart's budget.maxSizeLimit allows: lower it",
			m.Scratch.SizeLimit, most)
	}
	memory := hostmount.Mount{Scratch: &hostmount.Scratch{Bytes: size.Value()}}
	return l.addOwn(m.From.Namespace, container.Mount{HostPath: "tmpfs", ContainerPath: m.ContainerPath, NonRecursive: true}, memory)
}

// maxOwnMounts bounds the mounts of its own that a request of a claim has by presets of its namespace. By default the kernel has 100,000
// for all claims and everything else on the node (fs.mount-max).
const maxOwnMounts = 512

// addOwn adds a mount that only the claim has, by a preset of a namespace or, if that is empty, of the administrator.
func (l *lookup) addOwn(namespace string, of container.Mount, m hostmount.Mount) error {
	if namespace != "" && len(l.own.Mounts) >= maxOwnMounts {
		return fmt.Errorf("%s: presets give the request more than %d mounts of its own: name fewer files by a *, or mount their "+
			"directory", of.ContainerPath, maxOwnMounts)
	}
	l.places.mounted = append(l.places.mounted, of)
	if namespace != "" {
		l.namespaced[of.ContainerPath] = namespace
	}
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
