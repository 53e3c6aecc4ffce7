// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/vendors"
)

// maxRecorded bounds one recorded file. What we record is far below it.
const maxRecorded = 64 << 10

// RecordOptions say how a machine is recorded.
type RecordOptions struct {
	// KeepIDs keeps serial numbers and unique ids as they are. Otherwise each is replaced by a number of the same length, the same
	// id by the same number.
	KeepIDs bool
}

// Record reads from a host tree what discovery may ask for, and nothing else: accelerators and the bridges above them, DRM,
// KFD, FPGA and NVIDIA's driver, character device numbers and nodes, and versions of modules. It needs root to read
// everything; a file that cannot be read is recorded as unreadable. Links that lead out of the tree and names that the form
// cannot carry are left out.
func Record(root *os.Root, opts RecordOptions) (*Machine, error) {
	if _, err := root.Stat("sys"); err != nil {
		return nil, fmt.Errorf("record %s: want a host tree with sys, proc and dev: %w", root.Name(), err)
	}
	r := &recorder{root: root, found: map[string]Entry{}}
	r.files(recordedFiles...)
	r.nodes()
	r.functions()
	r.classes()
	if !opts.KeepIDs {
		redact(r.found)
	}
	return r.machine()
}

// recorder collects entries by path, so that a path that is reached twice is recorded once.
type recorder struct {
	root  *os.Root
	found map[string]Entry
}

// machine keeps directories only where nothing else makes them.
func (r *recorder) machine() (*Machine, error) {
	var entries []numbered
	for _, name := range slices.Sorted(maps.Keys(r.found)) {
		entries = append(entries, numbered{Entry: r.found[name]})
	}
	m, err := newMachine(entries)
	if err != nil {
		return nil, fmt.Errorf("record %s: it changed meanwhile, try again: %w", r.root.Name(), err)
	}
	above := map[string]bool{}
	for _, e := range m.Entries {
		for dir := path.Dir(e.Path); dir != "." && !above[dir]; dir = path.Dir(dir) {
			above[dir] = true
		}
	}
	m.Entries = slices.DeleteFunc(m.Entries, func(e Entry) bool { return e.Kind == Dir && above[e.Path] })
	return m, nil
}

// add keeps an entry that the form can carry.
func (r *recorder) add(e Entry) {
	if checkPath(e.Path) == nil && (e.Kind != Symlink || checkTarget(e.Path, e.Target) == nil) {
		r.found[e.Path] = e
	}
}

// files records the files and links that match the patterns of path.Match.
func (r *recorder) files(patterns ...string) {
	for _, pattern := range patterns {
		if !strings.ContainsAny(pattern, "*[") {
			r.file(pattern) // Glob would pass over a file that cannot be opened
			continue
		}
		for _, name := range r.glob(pattern) {
			r.file(name)
		}
	}
}

// glob lists nothing for a directory that is not there: most machines lack most of what we look for.
func (r *recorder) glob(pattern string) []string {
	names, _ := fs.Glob(r.root.FS(), pattern) // only a malformed pattern is an error
	return names
}

// file records one path as what it is. Block devices, sockets and directories are passed over.
func (r *recorder) file(name string) {
	info, err := r.root.Lstat(name)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		r.link(name)
	case info.Mode()&fs.ModeCharDevice != 0:
		r.node(name)
	case info.Mode().IsRegular():
		r.regular(name)
	}
}

func (r *recorder) link(name string) {
	target, err := r.root.Readlink(name)
	switch {
	case err != nil:
	case target == path.Base(name):
		r.add(Entry{Path: name, Kind: Unreadable})
	default:
		r.add(Entry{Path: name, Kind: Symlink, Target: target})
	}
}

// regular records what a file holds. An attribute that is listed but answers "no such file" does not apply to its device.
func (r *recorder) regular(name string) {
	data, err := r.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		r.add(Entry{Path: name, Kind: Unreadable})
	default:
		r.add(Entry{Path: name, Kind: File, Data: data})
	}
}

func (r *recorder) read(name string) (data []byte, err error) {
	// A FIFO in the place of an attribute must not hold us up.
	f, err := r.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, maxRecorded+1))
	if err == nil && len(data) > maxRecorded {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxRecorded)
	}
	return data, err
}

// node records a character device's number. The device is never opened: that could wake or change it.
func (r *recorder) node(name string) {
	info, err := r.root.Lstat(name)
	if err != nil {
		return
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return
	}
	number := Number{Major: unix.Major(stat.Rdev), Minor: unix.Minor(stat.Rdev)}
	r.add(Entry{Path: name, Kind: Char, Number: number})
}

func (r *recorder) nodes() {
	patterns := slices.Clone(recordedNodes)
	for _, v := range vendors.All() {
		for _, pattern := range v.Record.Nodes {
			patterns = append(patterns, "dev/"+pattern)
		}
	}
	for _, pattern := range patterns {
		for _, name := range r.glob(pattern) {
			r.node(name)
		}
	}
}

// text is a small file's text, or nothing.
func (r *recorder) text(name string) string {
	data, err := r.read(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// follow is the path that a link of the tree points at, read as text.
func (r *recorder) follow(link string) (string, bool) {
	target, err := r.root.Readlink(link)
	if err != nil || checkTarget(link, target) != nil {
		return "", false
	}
	return path.Join(path.Dir(link), target), true
}
