// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// driver adds the files of the vendor's list. It keeps what presets name themselves, which was added before.
func (l *lookup) driver(d *preset.Driver) error {
	if l.files.Drivers == nil {
		return nil // The list is known only on the node.
	}
	err := l.vendorFiles(&d.From, cmp.Or(d.Root, l.files.Drivers.Host))
	if d.Optional && errors.Is(err, nvml.ErrNoDriver) {
		return nil
	}
	return err
}

// vendorFiles adds the files of the driver below a root of the host.
func (l *lookup) vendorFiles(from *preset.Origin, hostRoot string) error {
	seen, err := l.files.Drivers.mountedRoot(hostRoot, l.files)
	if err != nil {
		return err
	}
	root, err := rootfs.Open(seen)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is not on this node: install it there, or say optional", nvml.ErrNoDriver, hostRoot)
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // it was only read
	list, err := l.files.Drivers.list(seen, root)
	if errors.Is(err, nvml.ErrNoDriver) {
		return fmt.Errorf("the driver in %s: %w: install it, set the chart's nvidia.driverRoot to where it is, or say optional", hostRoot, err)
	}
	if err != nil {
		return fmt.Errorf("the driver in %s: %w", hostRoot, err)
	}
	hostPaths := make([]string, len(list.Files))
	for i, f := range list.Files {
		if hostPaths[i], err = hostFile(root, hostRoot, f); err != nil {
			return fmt.Errorf("the driver in %s: %w", hostRoot, err)
		}
	}
	for i, f := range list.Files {
		if _, err := l.bind(from, hostPaths[i], f.ContainerPath); err != nil {
			return err
		}
	}
	for _, link := range list.Links {
		l.links = append(l.links, link.Target+"::"+link.Path)
	}
	l.dirs = append(l.dirs, list.LibraryDirs...)
	for _, env := range list.Env {
		name, _, _ := strings.Cut(env, "=")
		if !slices.ContainsFunc(l.edits.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			l.edits.Env = append(l.edits.Env, env)
		}
	}
	return nil
}
