// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// settled is how long ago the last change must have been for an answer to be kept: what changed while it was made could otherwise be taken
// for what it is about. The kernel's clock for files is a few milliseconds late.
const settled = time.Second

// Drivers knows of which files NVIDIA's driver on this node is made. Its list is asked for again only where something that it rests on is
// another than it was.
type Drivers struct {
	// Host is the directory of the host with the driver where a preset names none. Seen is where this process has it; empty where it has it
	// as every other directory of the host.
	Host, Seen string
	// Ask has the list made for a driver that this process has below a root. Version is the kernel's, empty where it is not known.
	Ask func(ctx context.Context, root, version string) (nvml.Driver, error)
	// Version reads it.
	Version func() string
	Now     func() time.Time

	mu    sync.Mutex
	known map[string]driverAnswer
}

// driverAnswer is a list and what it rests on.
type driverAnswer struct {
	driver  nvml.Driver
	version string
	stamps  map[string]stamp
}

// stamp says whether what is at a path is still the same. The zero value: nothing is.
type stamp struct {
	dev, inode, rdev    uint64
	mtime, ctime, bytes int64
}

// NewDrivers asks the program fettle-nvml, which is at command, one at a time for each root.
func NewDrivers(hostRoot, command string, c *nodeconfig.NVML) *Drivers {
	d := &Drivers{
		Host: c.HostRoot(), Now: time.Now, Version: func() string { return kernelDriver(hostRoot) },
	}
	if !c.Disabled {
		d.Seen = c.DriverRoot
	}
	probers := map[string]*nvml.Prober{} // guarded by d.mu
	d.Ask = func(ctx context.Context, root, version string) (nvml.Driver, error) {
		if command == "" {
			return nvml.Driver{}, errors.New("the plugin has no program that knows NVIDIA's list: set its --nvml-command")
		}
		if probers[root] == nil {
			probers[root] = nvml.NewProber(nvml.Command{Path: command, DriverRoot: root, Timeout: c.Timeout.Duration})
		}
		return probers[root].Driver(ctx, version)
	}
	return d
}

// kernelDriver is the version of the driver that the kernel runs, empty where it does not say.
func kernelDriver(hostRoot string) string {
	tree, err := sysfs.Open(hostRoot)
	if err != nil {
		return ""
	}
	defer func() { _ = tree.Close() }() // it was only read
	return discover.NVIDIADriverVersion(tree)
}

// list is the vendor's, for a driver that this process has below a root. It bounds itself: what is found out serves other claims, too.
func (d *Drivers) list(seen string, root *rootfs.Root) (nvml.Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	version := d.Version()
	if a, ok := d.known[seen]; ok && a.version == version && maps.Equal(a.stamps, stampsOf(root, &a.driver)) {
		return a.driver, nil
	}
	delete(d.known, seen)
	asked := d.Now()
	driver, err := d.Ask(context.Background(), seen, version)
	if err != nil {
		return nvml.Driver{}, err
	}
	a := driverAnswer{driver: driver, version: version, stamps: stampsOf(root, &driver)}
	if a.before(asked.Add(-settled)) {
		if d.known == nil {
			d.known = map[string]driverAnswer{}
		}
		d.known[seen] = a
	}
	return driver, nil
}

// stampsOf looks at what an answer rests on: the loader's cache, the files and their directories, and where what comes and goes would be.
func stampsOf(root *rootfs.Root, d *nvml.Driver) map[string]stamp {
	out := map[string]stamp{}
	add := func(name string) {
		if _, ok := out[name]; !ok {
			out[name] = stampOf(root, name)
		}
	}
	for _, name := range []string{"/", "/etc/ld.so.cache", "/usr/bin", "/run/nvidia-persistenced", "/run/nvidia-fabricmanager"} {
		add(name)
	}
	for _, f := range d.Files {
		add(f.Path)
		add(path.Dir(f.Path))
	}
	return out
}

func stampOf(root *rootfs.Root, name string) stamp {
	s, err := root.Stat(name)
	if err != nil {
		return stamp{}
	}
	return stamp{dev: s.Dev, inode: s.Ino, rdev: s.Rdev, mtime: s.Mtim.Nano(), ctime: s.Ctim.Nano(), bytes: s.Size}
}

// before says that nothing changed since.
func (a *driverAnswer) before(when time.Time) bool {
	for _, s := range a.stamps {
		if s.ctime >= when.UnixNano() {
			return false
		}
	}
	return true
}

// view is where this process has a driver's root of the host.
func (d *Drivers) view(root string, files *Finder) (string, error) {
	if d.Seen != "" {
		if rest, ok := strings.CutPrefix(root, strings.TrimSuffix(d.Host, "/")); ok && (rest == "" || rest[0] == '/') {
			return path.Join(d.Seen, rest), nil
		}
	}
	if root != "/" {
		if err := files.sees(root); err != nil {
			return "", err
		}
	}
	return path.Join(files.Root, root), nil
}

// hostFile is what a mount of a file of the list shows: a path of the host that leads through no link.
func hostFile(root *rootfs.Root, hostRoot string, f nvml.DriverFile) (string, error) {
	resolved, stat, err := root.Resolve(f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s is in NVIDIA's list, and gone: the driver is being changed; kubelet tries again", f.Path)
	case err != nil:
		return "", err
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFSOCK:
		return path.Join(hostRoot, resolved), nil
	default:
		return "", fmt.Errorf("%s is %s, want a file or a socket", f.Path, rootfs.TypeName(stat.Mode))
	}
}
