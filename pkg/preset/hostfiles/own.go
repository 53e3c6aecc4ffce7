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

// allowedFor returns the copy of a path that a claim may have by a DevicePreset of a namespace.
func (f *Finder) allowedFor(namespace, name string, readOnly bool) (*hostmount.Copy, error) {
	dir, err := preset.AllowedFor(f.Allowed, namespace, name, readOnly)
	if err != nil {
		return nil, err
	}
	return &hostmount.Copy{Below: dir, Path: path.Join(".", strings.TrimPrefix(name, dir)), ReadOnly: readOnly}, nil
}

// checkMayRead refuses a directory of the host below which a DevicePreset may not look for files.
func (l *lookup) checkMayRead(namespace, name string) error {
	c, err := l.files.allowedFor(namespace, name, true)
	if err != nil {
		return err
	}
	directory, err := l.files.copyMounter().CheckCopy(c)
	if err == nil && !directory {
		err = fmt.Errorf("%s is no directory", name)
	}
	return err
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
	err := l.mountCopy(m.From.Namespace, container.Mount{
		HostPath: m.HostPath, ContainerPath: m.ContainerPath, ReadOnly: m.ReadOnly == nil || *m.ReadOnly, NonRecursive: !m.Recursive,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return l.leaveOut(m, notHere(m))
	}
	return err
}

// mountCopy mounts a path of the host by a copy that only the claim has. Whoever can write to the original place, the path that the runtime
// gets leads to the copy.
func (l *lookup) mountCopy(namespace string, m container.Mount) error {
	c, err := l.files.allowedFor(namespace, m.HostPath, m.ReadOnly)
	if err != nil {
		return err
	}
	if _, err := l.files.copyMounter().CheckCopy(c); err != nil {
		return err
	}
	c.Recursive, l.namespace = !m.NonRecursive, namespace
	return l.addOwn(m, hostmount.Mount{Copy: c})
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
	return l.addOwn(container.Mount{HostPath: "tmpfs", ContainerPath: m.ContainerPath, NonRecursive: true}, memory)
}

// isOwn reports whether the mount at a path of the container belongs to the claim alone.
func (l *lookup) isOwn(containerPath string) bool {
	return slices.ContainsFunc(l.own.Mounts, func(m container.Mount) bool { return m.ContainerPath == containerPath })
}

// addOwn adds a mount that only the claim has.
func (l *lookup) addOwn(of container.Mount, m hostmount.Mount) error {
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
