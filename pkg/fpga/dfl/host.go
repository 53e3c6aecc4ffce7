// SPDX-License-Identifier: Apache-2.0

// Package dfl programs FPGAs whose kernel driver is DFL (Documentation/fpga/dfl.rst, include/uapi/linux/fpga-dfl.h): one FPGA
// management engine (FME) a card programs the regions behind the card's ports.
//
// The kernel leaves to user space what makes programming safe, so a Lease is the only way to it: the image's interface id equals
// that of this port's region, the FME's file lock is held, and the port is open exclusively for as long as the lease lives. After
// that only what the port itself says counts: Program returns nil when the accelerator's id reads back as the wanted one, never
// because the ioctl returned 0.
//
// A lease also sets the driver parameters of its port: user clocks, which an accelerator was built for, and switches (SetParams).
//
// The package decides nothing about claims, digests that are allowed, or what comes after a failure; its errors say what they leave
// behind (Kind).
package dfl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Options are what a host needs beside its root.
type Options struct {
	// PlainNodes accepts plain files as device nodes, which is what a simulator can serve. It is refused where the root is "/".
	PlainNodes bool
	// Nodes is the directory of the device nodes, relative to the root, with PlainNodes only: each is looked for there by the last
	// element of its name. Discovery wants character devices in dev, so a simulator that both read serves its plain files elsewhere.
	Nodes string
	// Clock is the real one where it is nil.
	Clock clock.Clock
	// Settle is how long a port may take to say a final accelerator id after programming; 5 s where it is 0.
	Settle time.Duration
}

// Host is a host's device nodes and attributes. It is safe for concurrent use.
type Host struct {
	root       *os.File
	tree       *sysfs.Tree
	writer     *sysfs.Writer
	plainNodes bool
	nodes      string
	clock      clock.Clock
	settle     time.Duration
	counting   sync.Mutex // a port has one counter for both its clocks
}

// Open opens the host tree at root.
func Open(root string, o Options) (_ *Host, err error) {
	h := &Host{plainNodes: o.PlainNodes, nodes: o.Nodes, clock: o.Clock, settle: o.Settle}
	if h.clock == nil {
		h.clock = clock.RealClock{}
	}
	if h.settle == 0 {
		h.settle = 5 * time.Second
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if h.root, err = os.OpenFile(root, os.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return nil, fmt.Errorf("open host tree: %w", err)
	}
	if o.Nodes != "" && !o.PlainNodes {
		return nil, errors.New("another directory of device nodes is for simulators: accept plain files too, or leave it out")
	}
	if o.PlainNodes {
		if err := notTheHost(h.root); err != nil {
			return nil, err
		}
	}
	if h.tree, err = sysfs.Open(root); err != nil {
		return nil, err
	}
	h.writer, err = sysfs.OpenWriter(root)
	return h, err
}

// notTheHost looks at the directory, not at its name, which may be a link or a mount.
func notTheHost(root *os.File) error {
	own, err := os.Stat("/")
	if err != nil {
		return fmt.Errorf("look at /: %w", err)
	}
	given, err := root.Stat()
	if err != nil {
		return fmt.Errorf("look at host tree: %w", err)
	}
	if os.SameFile(own, given) {
		return errors.New("plain files as device nodes are for simulators: the host tree is /, give one that is not")
	}
	return nil
}

// Close releases the host tree. Leases live on until they are released.
func (h *Host) Close() error {
	var errs []error
	if h.root != nil {
		errs = append(errs, h.root.Close())
	}
	if h.tree != nil {
		errs = append(errs, h.tree.Close())
	}
	if h.writer != nil {
		errs = append(errs, h.writer.Close())
	}
	return errors.Join(errs...)
}

// Port is where one port and what belongs to it lie. Names are relative to the host tree, as discovery found them.
type Port struct {
	// Name is what messages call it, such as "dfl-port.0".
	Name string
	// Node is the device node of the port, FMENode that of the engine that programs it.
	Node, FMENode string
	// ID is the port's number on its FME: the attribute id.
	ID uint32
	// Attributes is the directory of afu_id, power_state and errors.
	Attributes string
	// Region is the directory whose compat_id is the interface id of this port's region. An FME with several ports has several.
	Region string
	// Manager is the directory of state and status of the FME's fpga_manager.
	Manager string
	// LockFile is the absolute path of the file that everybody who programs this FME locks: one FME serves all ports of a card. It lies
	// where every plugin process of the node sees the same file, such as the state directory, and is never removed.
	LockFile string
}

// node opens a device node. It is looked at before it is opened, since to open a wrong one may block or wake other hardware, and
// what was opened is what was looked at.
func (h *Host) node(name string, flags uint64) (*os.File, error) {
	if h.nodes != "" {
		name = path.Join(h.nodes, path.Base(name))
	}
	seen, err := h.openat(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer seen.Close()
	before, err := h.device(seen)
	if err != nil {
		return nil, err
	}
	f, err := h.openat(name, unix.O_RDWR|flags)
	if err != nil {
		return nil, err
	}
	after, err := h.device(f)
	if err == nil && (before.Rdev != after.Rdev || before.Dev != after.Dev || before.Ino != after.Ino) {
		err = fmt.Errorf("open %s: another file took its place meanwhile", sysfs.HostPath(name))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// device describes an open node, or refuses what is none.
func (h *Host) device(f *os.File) (unix.Stat_t, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return stat, &fs.PathError{Op: "look at", Path: f.Name(), Err: err}
	}
	kind := stat.Mode & unix.S_IFMT
	if kind == unix.S_IFCHR || h.plainNodes && kind == unix.S_IFREG {
		return stat, nil
	}
	return stat, fmt.Errorf("open %s: mode %#o, want a character device", f.Name(), stat.Mode)
}

// openat opens a name below the root. os.Root would give the file to the runtime's poller, and open flags are what this is about.
func (h *Host) openat(name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(int(h.root.Fd()), name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: sysfs.HostPath(name), Err: err}
		}
		return os.NewFile(uintptr(fd), sysfs.HostPath(name)), nil
	}
}
