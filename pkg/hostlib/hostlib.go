// SPDX-License-Identifier: Apache-2.0

// Package hostlib finds the libraries and tools of a host, or of a driver that is installed below a directory of its own, as that
// system's loader and shell would find them: in its ld.so.cache, the directories of its ld.so.conf and the usual ones. It only reads,
// and nothing outside the root.
package hostlib

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// LoaderCache is the file that glibc's ldconfig makes.
const LoaderCache = "/etc/ld.so.cache"

// maxPatterns bounds what one call asks for, maxFound what it finds, and maxListed the names that it looks at.
const (
	maxPatterns = 1024
	maxFound    = 4096
	maxListed   = 1 << 18
	// longestName is the longest name of a file, and longestPattern more than such a name needs.
	longestName    = 255
	longestPattern = 1024
)

// steps counts what names take that are compared with patterns: at worst the product of their lengths.
type steps int

// maxSteps takes some seconds. Names below a root that tenants write to may be made to take the most.
const maxSteps = 1 << 31

func (s *steps) add(name string, patterns int) { *s += steps(len(name) * patterns) }

func (s steps) spent() bool { return s > maxSteps }

// ErrName marks a name or a pattern that a caller may not ask for.
var ErrName = errors.New("is not the name of a file")

// Config is where an administrator wants to be looked first, before the usual places. Directories are absolute paths below the root.
type Config struct {
	LibraryDirs []string
	ToolDirs    []string
}

// Host is the system below a root.
type Host struct {
	root    *rootfs.Root
	config  Config
	machine elf.Machine
}

// Open opens a root: "/" or where a driver is installed.
func Open(root string, config Config) (*Host, error) {
	for _, dir := range slices.Concat(config.LibraryDirs, config.ToolDirs) {
		if !path.IsAbs(dir) || path.Clean(dir) != dir {
			return nil, fmt.Errorf("search directory %q: want an absolute, clean path below the root", dir)
		}
	}
	r, err := rootfs.Open(root)
	if err != nil {
		return nil, err
	}
	return &Host{root: r, config: config, machine: Machine()}, nil
}

// Close releases the root.
func (h *Host) Close() error { return h.root.Close() }

// Missing is a name or a pattern that nothing matches, and where it was looked for.
type Missing struct {
	Name   string
	Places []string
}

// Error says what to do about a name that is not optional.
func (m Missing) Error() string {
	return fmt.Sprintf("no %s on the host: looked in %s; install it, or add its directory to the search path",
		m.Name, strings.Join(m.Places, ", "))
}

// checkNames refuses what could lead out of a directory.
func checkNames(what string, names []string) error {
	if len(names) > maxPatterns {
		return fmt.Errorf("%d %ss, want at most %d", len(names), what, maxPatterns)
	}
	for _, name := range names {
		if _, err := path.Match(name, ""); err != nil || !plain(name) {
			return fmt.Errorf("%s %q %w: want one without directories", what, message.Clip(name, longestQuote), ErrName)
		}
	}
	return nil
}

// plain says whether a name is one element of a path, and fit for a message.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= longestName &&
		!strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '/' })
}

// places are directories, each once, in which names are looked up.
type places struct {
	dirs    []string
	skipped []Skipped
}

func (p *places) add(dirs ...string) {
	for _, dir := range dirs {
		if len(p.dirs) < maxDirs && !slices.Contains(p.dirs, dir) {
			p.dirs = append(p.dirs, dir)
		}
	}
}

// libraryPlaces are the loader's directories in its order. Those that its cache knows come after the configured ones: a distribution
// may build others into its ldconfig. The loader's own come in the order of Debian, which has the most.
func (h *Host) libraryPlaces(cached []string) places {
	var p places
	conf, err := ReadConf(h.root, LoaderConf)
	if err != nil {
		p.skipped = append(p.skipped, Skipped{Path: LoaderConf, Reason: err.Error()})
	}
	p.skipped = append(p.skipped, conf.Skipped...)
	p.add(h.config.LibraryDirs...)
	p.add(conf.Dirs...)
	p.add(cached...)
	p.add(SystemDirs(h.machine)...)
	return p
}

// SystemDirs are where the loaders of the usual distributions look without being told.
func SystemDirs(machine elf.Machine) []string {
	multiarch := map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu"}[machine]
	var dirs []string
	if multiarch != "" {
		dirs = append(dirs, "/lib/"+multiarch, "/usr/lib/"+multiarch)
	}
	return append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
}

// absent says that an error only means that something is not there.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Identity tells whether a file or a directory is still the one that was looked at. Two are compared with ==. An upgrade replaces
// files, which changes the inode; who writes into one changes size or time; a device node that was made anew has other numbers.
type Identity struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	Rdev  uint64 `json:"rdev,omitempty"`
	// Mtime is the time of the last change of the content, in nanoseconds since 1970.
	Mtime int64 `json:"mtime"`
	Size  int64 `json:"size"`
}

func identityOf(s *unix.Stat_t) Identity {
	return Identity{Dev: s.Dev, Inode: s.Ino, Rdev: s.Rdev, Mtime: s.Mtim.Nano(), Size: s.Size}
}

// Place is a path below the root that leads through no link, what is there, and which one.
type Place struct {
	// HostPath is below the root.
	HostPath string
	// Type is for people: "a directory".
	Type     string
	Dir      bool
	Identity Identity
}

// Identity finds what a mount of a path would show, links followed. Nothing is opened.
func (h *Host) Identity(name string) (Place, error) {
	resolved, stat, err := h.root.Resolve(name)
	if err != nil {
		return Place{}, err
	}
	return Place{
		HostPath: resolved, Type: rootfs.TypeName(stat.Mode), Dir: stat.Mode&unix.S_IFMT == unix.S_IFDIR, Identity: identityOf(&stat),
	}, nil
}
