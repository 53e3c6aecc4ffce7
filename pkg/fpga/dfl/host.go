// SPDX-License-Identifier: Apache-2.0

// Package dfl programs FPGAs whose kernel driver is DFL (Documentation/fpga/dfl.rst, include/uapi/linux/fpga-dfl.h). One FPGA management
// engine (FME) for each card programs the regions behind the card's ports.
//
// The kernel leaves the checks that make programming safe to user space, so a caller needs a Lease: the image's interface id equals that of
// the port's region, the file lock of the FME is held, and the port is open exclusively for as long as the lease lives. Afterwards only the
// port's own answer counts: Program returns nil when the accelerator's id reads back as the wanted one, never because the ioctl returned 0.
//
// A lease also sets the driver parameters of its port (SetParams): the user clocks that an accelerator was built for, and switches.
//
// The package decides nothing about claims, allowed digests or the way out of a failure. Its errors say in which state they leave the
// region (Kind).
package dfl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Options configure a host.
type Options struct {
	// PlainNodes accepts plain files as device nodes, which a simulator can serve. It is refused if the root is "/".
	PlainNodes bool
	// Nodes is the directory of the device nodes, relative to the root. It counts with PlainNodes only. Each node is found there by the last
	// element of its name. Discovery wants character devices in dev, so a simulator serves its plain files elsewhere.
	Nodes string
	// Clock defaults to the real clock.
	Clock clock.Clock
	// Settle limits the wait for the final accelerator id after programming. It defaults to 5 s.
	Settle time.Duration
}

// Host gives access to the device nodes and attributes of a host. It is safe for concurrent use.
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
	h := &Host{
		plainNodes: o.PlainNodes, nodes: o.Nodes,
		clock: cmp.Or[clock.Clock](o.Clock, clock.RealClock{}), settle: cmp.Or(o.Settle, 5*time.Second),
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

// notTheHost refuses the root directory of this process. It compares the directories, since a name may be a link or a mount.
func notTheHost(root *os.File) error {
	own, err := os.Stat("/")
	if err != nil {
		return fmt.Errorf("check the root directory: %w", err)
	}
	given, err := root.Stat()
	if err != nil {
		return fmt.Errorf("check the host tree: %w", err)
	}
	if os.SameFile(own, given) {
		return errors.New("plain files as device nodes are for simulators: the host tree is /, give one that is not")
	}
	return nil
}

// Close closes the host tree. Leases live on until they are released.
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

// Port says where a port and its parts lie. Names are relative to the host tree, as discovery found them.
type Port struct {
	// Name appears in messages, such as "dfl-port.0".
	Name string
	// Node is the device node of the port. FMENode is the device node of the engine that programs it.
	Node, FMENode string
	// ID is the port's number on its FME, from the attribute id.
	ID uint32
	// Attributes is the directory of afu_id, power_state and errors.
	Attributes string
	// Region is the directory whose compat_id is the interface id of this port's region. An FME with several ports has several.
	Region string
	// Manager is the directory of state and status of the FME's fpga_manager.
	Manager string
	// LockFile is the absolute path of the file that every process locks before it programs this FME, since one FME serves all ports of a
	// card. It is at the same place for every plugin process of the node, such as in the state directory, and is never removed.
	LockFile string
}

// node opens a device node. It checks the node before it opens it, since opening a wrong one may block or wake other hardware, and checks
// that it opened that node.
func (h *Host) node(name string, flags int) (*os.File, error) {
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

// device returns the stat of an open device node, and refuses other files.
func (h *Host) device(f *os.File) (unix.Stat_t, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return stat, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	kind := stat.Mode & unix.S_IFMT
	if kind == unix.S_IFCHR || h.plainNodes && kind == unix.S_IFREG {
		return stat, nil
	}
	return stat, fmt.Errorf("open %s: mode %#o, want a character device", f.Name(), stat.Mode)
}

// openat opens a name below the root. os.Root cannot be used: it would give the file to the runtime's poller and hide the open flags.
func (h *Host) openat(name string, flags int) (*os.File, error) {
	fd, err := rootfs.OpenIn(h.root, name, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: sysfs.HostPath(name), Err: err}
	}
	return os.NewFile(uintptr(fd), sysfs.HostPath(name)), nil
}
