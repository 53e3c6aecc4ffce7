// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/pkg/sysfs"
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
	answer, err := l.files.Drivers.list(seen, root)
	if errors.Is(err, nvml.ErrNoDriver) {
		return fmt.Errorf("the driver in %s: %w: install it, set the chart's nvidia.driverRoot to where it is, or say optional", hostRoot, err)
	}
	if err != nil {
		return fmt.Errorf("the driver in %s: %w", hostRoot, err)
	}
	hostPaths, err := answer.find(l.paths, root, hostRoot)
	if err != nil {
		return fmt.Errorf("the driver in %s: %w", hostRoot, err)
	}
	list := &answer.driver
	for i, f := range list.Files {
		if err := l.driverFile(from, hostPaths[i], f.ContainerPath); err != nil {
			return err
		}
	}
	for _, link := range list.Links {
		l.places.libraryLink(*from, link.Target, link.Path)
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

// find returns the paths of the host that the files of an answer are at. It follows each path again only if something on its way
// has changed, or containers write elsewhere.
func (a *driverAnswer) find(l *locator, root *rootfs.Root, hostRoot string) ([]string, error) {
	if err := l.findWritable(); err != nil {
		return nil, err
	}
	if known := a.places.Load(); known != nil && known.isFor(l, hostRoot) && known.trail.current(l.host) {
		l.located = known.located
		return known.hostPaths, nil
	}
	p := &driverPlaces{hostRoot: hostRoot, rootOwner: l.rootOwner, trees: l.trees, located: map[string]located{}}
	for _, f := range a.driver.Files {
		at, err := hostFile(root, hostRoot, f)
		if err != nil {
			return nil, err
		}
		p.hostPaths = append(p.hostPaths, at)
	}
	clear(l.known) // what is kept is of one look
	trail, whole := trailOf(l.host, p.hostPaths)
	for _, at := range p.hostPaths {
		s, err := l.locate(at)
		whole = whole && (err == nil || errors.Is(err, fs.ErrNotExist))
		p.located[at] = located{s, err}
	}
	if p.trail = trail; whole && trail.current(l.host) { // so nothing changed meanwhile
		a.places.Store(p)
	}
	l.located = p.located
	return p.hostPaths, nil
}

// driverFile mounts a file of the vendor's list. It was found in the driver's directory, which this process may have at another path alone.
func (l *lookup) driverFile(from *preset.Origin, hostPath, containerPath string) error {
	_, err := l.paths.locate(hostPath)
	if !errors.Is(err, fs.ErrNotExist) || !l.files.Drivers.isSeen(hostPath) || l.paths.isBelowWritable(hostPath) {
		_, err := l.bind(from, hostPath, containerPath)
		return err
	}
	if l.places.take(containerPath, place{from: *from, content: hostPath}) {
		l.add(fileMount(hostPath, containerPath))
	}
	return nil
}

// settled is how long ago the last change must be before an answer is kept. A file that changed while the answer was made could otherwise
// count as unchanged. File times of the kernel are a few milliseconds late.
const settled = time.Second

// Drivers knows which files NVIDIA's driver on this node consists of. It asks for the list again only when something that the list depends
// on has changed.
type Drivers struct {
	// Host is the directory of the host with the driver, for presets that name none. Seen is the path of that directory in this process. It is
	// empty if it is below the host's root like every other directory.
	Host, Seen string
	// Ask lists the files of a driver whose root this process sees. Version is the version of the kernel driver, or "".
	Ask func(ctx context.Context, root, version string) (nvml.Driver, error)
	// Version returns the version of the kernel driver, or "".
	Version func() string
	Now     func() time.Time

	mu    sync.Mutex
	known map[string]*knownDriver
}

// knownDriver is what is known of one root. A root that does not answer, as of a server, holds up only the claims that need it.
type knownDriver struct {
	mu     sync.Mutex
	answer *driverAnswer
}

// driverAnswer is a list and the state of everything that it depends on.
type driverAnswer struct {
	driver  nvml.Driver
	version string
	trail   trail
	// places are where the files are on the host, as the last claim found them. Nil: not known.
	places atomic.Pointer[driverPlaces]
}

// driverPlaces are the paths of the host that the files of a list are at, where each leads, and all that this depends on.
type driverPlaces struct {
	hostRoot  string
	hostPaths []string
	located   map[string]located
	trail     trail
	trees     map[string]file
	rootOwner uint32
}

// isFor reports whether places are for a root of the host, and for the trees that containers write to now.
func (p *driverPlaces) isFor(l *locator, hostRoot string) bool {
	return p.hostRoot == hostRoot && p.rootOwner == l.rootOwner && maps.Equal(p.trees, l.trees)
}

// NewDrivers asks the program fettle-nvml at command. It runs one at a time for each root.
func NewDrivers(hostRoot, command string, c *nodeconfig.NVML) *Drivers {
	d := &Drivers{
		Host: c.HostRoot(), Now: time.Now, Version: func() string { return kernelDriver(hostRoot) },
	}
	if !c.Disabled {
		d.Seen = c.DriverRoot
	}
	var mu sync.Mutex
	probers := map[string]*nvml.Prober{}
	prober := func(root string) *nvml.Prober {
		mu.Lock()
		defer mu.Unlock()
		if probers[root] == nil {
			probers[root] = nvml.NewProber(nvml.Command{Path: command, DriverRoot: root, Timeout: c.Timeout.Duration})
		}
		return probers[root]
	}
	d.Ask = func(ctx context.Context, root, version string) (nvml.Driver, error) {
		if command == "" {
			return nvml.Driver{}, errors.New("the plugin has no program that knows NVIDIA's list: set its --nvml-command")
		}
		return prober(root).Driver(ctx, version)
	}
	return d
}

// kernelDriver returns the version of the driver that the kernel runs, or "".
func kernelDriver(hostRoot string) string {
	tree, err := sysfs.Open(hostRoot)
	if err != nil {
		return ""
	}
	defer func() { _ = tree.Close() }() // it was only read
	return discover.NVIDIADriverVersion(tree)
}

// list returns the vendor's list for a driver whose root this process sees. It has a timeout of its own, since the answer serves other
// claims, too.
func (d *Drivers) list(seen string, root *rootfs.Root) (*driverAnswer, error) {
	k := d.of(seen)
	k.mu.Lock()
	defer k.mu.Unlock()
	defer d.forgetUnknown(seen, k)
	version := d.Version()
	if a := k.answer; a != nil && a.version == version && a.trail.current(root) {
		return a, nil
	}
	k.answer = nil
	asked, mounts := d.Now(), mountTable()
	driver, err := d.Ask(context.Background(), seen, version)
	if err != nil {
		return nil, err
	}
	a := &driverAnswer{driver: driver, version: version}
	trail, whole := trailOf(root, dependencies(&driver))
	a.trail = trail
	if whole && trail.settled(asked.Add(-settled)) && bytes.Equal(mounts, mountTable()) {
		k.answer = a
	}
	return a, nil
}

// of returns what is known of a root.
func (d *Drivers) of(seen string) *knownDriver {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[string]*knownDriver{}
	}
	if d.known[seen] == nil {
		d.known[seen] = &knownDriver{}
	}
	return d.known[seen]
}

// forgetUnknown keeps nothing of a root of which nothing is known: namespaces may name as many as they like.
func (d *Drivers) forgetUnknown(seen string, k *knownDriver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k.answer == nil && d.known[seen] == k {
		delete(d.known, seen)
	}
}

// dependencies lists everything that a list depends on: the cache of the loader, the files and their directories, and the paths of files
// that may appear.
func dependencies(d *nvml.Driver) []string {
	names := slices.Concat([]string{"/", "/etc/ld.so.cache"}, searched(d.Version))
	for _, f := range d.Files {
		names = append(names, f.Path, path.Dir(f.Path))
	}
	return names
}

// searched lists where NVIDIA's toolkit looks for what an installation may have or not: programs, sockets, firmware, and the files of
// graphics (pkg/nvcdi/driver-nvml.go, internal/discover/ipc.go and graphics.go). Directories of libraries are those of the files.
func searched(version string) []string {
	names := []string{
		"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
		"/run/nvidia-persistenced", "/run/nvidia-fabricmanager", "/var/run/nvidia-persistenced", "/var/run/nvidia-fabricmanager",
		"/tmp/nvidia-mps", "/etc/OpenCL/vendors",
	}
	for _, firmware := range []string{"/lib/firmware/updates", "/lib/firmware"} {
		names = append(names, path.Join(firmware, "nvidia", version))
	}
	for _, share := range []string{"/etc", "/usr/share"} {
		for _, dir := range []string{
			"glvnd/egl_vendor.d", "egl/egl_external_platform.d", "nvidia", "X11/xorg.conf.d", "vulkan/icd.d", "vulkan/implicit_layer.d",
		} {
			names = append(names, path.Join(share, dir))
		}
	}
	return names
}

// trailOf returns the trail of paths. It is not whole if one of them cannot be followed.
func trailOf(root *rootfs.Root, names []string) (t trail, whole bool) {
	t, whole = trail{}, true
	for _, name := range names {
		whole = t.add(root, name) == nil && whole
	}
	return t, whole
}

// mountTable returns the mounts that this process sees. A mount changes no time of a file, so that one which is made while a list is made
// would be missed.
func mountTable() []byte {
	table, _ := os.ReadFile("/proc/self/mountinfo") // two times nothing: proc is missing, and so are mounts
	return table
}

// isSeen reports whether a path of the host is in the driver's directory, and this process has that at another path than the host's root.
func (d *Drivers) isSeen(name string) bool {
	return d != nil && d.Seen != "" && mountpath.Within(name, d.Host)
}

// mountedRoot returns where this process sees the root of a driver on the host.
func (d *Drivers) mountedRoot(root string, files *Finder) (string, error) {
	if d.isSeen(root) {
		return path.Join(d.Seen, strings.TrimPrefix(root, d.Host)), nil
	}
	if root != "/" {
		if err := files.checkVisible(root); err != nil {
			return "", err
		}
	}
	return path.Join(files.Root, root), nil
}

// hostFile returns the path of the host that a mount of a listed file shows. The path leads through no link.
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
