// SPDX-License-Identifier: Apache-2.0

// Package hook changes a container's root before the container starts, so that its own loader finds the libraries that Fettle
// mounted: directories for ld.so, and links. It runs as an OCI createContainer hook, with the rights of the container runtime and a root
// that somebody else made, so it trusts nothing in there: it executes nothing of it, leaves it through no link, and does not write
// where something else is mounted.
package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// Bounds of what a runtime tells. A state is about a KiB; a config.json lists every mount of the container.
const (
	maxState  = 1 << 20
	maxConfig = 16 << 20
)

// Container is a container that is being created.
type Container struct {
	ID string
	// ReadOnly says that the container will see its root as read-only. When the hook runs it is still writable.
	ReadOnly bool
	root     *rootfs.Root
}

// Open finds the container that a runtime describes on a hook's standard input.
func Open(state io.Reader) (*Container, error) {
	s, err := readState(state)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(s.Bundle, "config.json")
	f, err := openRegular(name)
	if err != nil {
		return nil, fmt.Errorf("open the container's configuration: %w", err)
	}
	defer f.Close()
	root, err := readConfig(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !filepath.IsAbs(root.Path) {
		root.Path = filepath.Join(s.Bundle, root.Path)
	}
	r, err := rootfs.OpenOneMount(root.Path)
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	c := &Container{ID: s.ID, ReadOnly: root.Readonly, root: r}
	if err := c.notHost(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return c, nil
}

// Close releases the container's root.
func (c *Container) Close() error { return c.root.Close() }

// notHost refuses a root that is the system's own: only a mistake can name it.
func (c *Container) notHost() error {
	own, err := c.root.Stat("/")
	if err != nil {
		return err
	}
	var host unix.Stat_t
	if err := unix.Stat("/", &host); err != nil {
		return fmt.Errorf("look at the host's root: %w", err)
	}
	if own.Dev == host.Dev && own.Ino == host.Ino {
		return fmt.Errorf("the container's root %s is the host's own root, want another: nothing was changed", c.root.Path("/"))
	}
	return nil
}

// readState reads the state of runtime-spec (runtime.md#state).
func readState(r io.Reader) (*specs.State, error) {
	var s specs.State
	if err := decode(r, maxState, &s); err != nil {
		return nil, fmt.Errorf("read the container's state from standard input, where a runtime writes it: %w", err)
	}
	if !filepath.IsAbs(s.Bundle) {
		return nil, fmt.Errorf("the container's state names the bundle %q, want an absolute path", s.Bundle)
	}
	return &s, nil
}

// readConfig reads what is wanted of a bundle's config.json.
func readConfig(r io.Reader) (*specs.Root, error) {
	var config struct {
		Root *specs.Root `json:"root"`
	}
	if err := decode(r, maxConfig, &config); err != nil {
		return nil, fmt.Errorf("read the container's configuration: %w", err)
	}
	if config.Root == nil || config.Root.Path == "" {
		return nil, errors.New("the configuration names no root.path, want the directory of the container's root")
	}
	return config.Root, nil
}

// decode reads one JSON value of a bounded size.
func decode(r io.Reader, limit int64, into any) error {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return err
	}
	if int64(len(data)) > limit {
		return fmt.Errorf("it is larger than %d bytes", limit)
	}
	return json.Unmarshal(data, into)
}

// openRegular opens a regular file of the host without waiting for a pipe's other end.
func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is %s, want a regular file", name, info.Mode().Type())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
