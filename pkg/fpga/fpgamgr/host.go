// SPDX-License-Identifier: Apache-2.0

// Package fpgamgr programs FPGAs through the attributes that AMD's kernel adds to fpga_manager (drivers/fpga/fpga-mgr.c of linux-xlnx):
// Zynq, ZynqMP and Versal. Upstream kernels do not have them.
//
// The kernel takes an image by the name of a file on its firmware search path. It neither locks the chip nor checks whether the image fits.
// So a Lease holds a file lock for the chip, and Acquire wants the interface id that is configured for the chip. The file is a copy of a
// sealed image, its name is made of the chip and the image's digest, and it is removed afterwards. The chip does not show which image it
// holds; only the record knows.
package fpgamgr

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Options configure a host.
type Options struct {
	// Clock defaults to the real clock.
	Clock clock.Clock
	// Write writes an attribute, named relative to the root. It defaults to writing to the host's tree; a simulator answers as the kernel
	// does.
	Write func(name, value string) error
}

// Host gives access to the managers of a host and its firmware directory. It is safe for concurrent use.
type Host struct {
	root   *os.Root
	tree   *sysfs.Tree
	writer *sysfs.Writer
	write  func(name, value string) error // an attribute
	clock  clock.Clock
}

// Open opens the host tree at root. Images are copied below it, into the kernel's firmware directory, which must be writable.
func Open(root string, o Options) (_ *Host, err error) {
	h := &Host{clock: cmp.Or[clock.Clock](o.Clock, clock.RealClock{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if h.root, err = os.OpenRoot(root); err != nil {
		return nil, fmt.Errorf("open host tree: %w", err)
	}
	if h.tree, err = sysfs.Open(root); err != nil {
		return nil, err
	}
	if h.writer, err = sysfs.OpenWriter(root); err != nil {
		return nil, err
	}
	if h.write = o.Write; h.write == nil {
		h.write = h.writer.WriteAttr
	}
	return h, nil
}

// Close closes the host tree. No lease may be left.
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

// Manager names one chip or region. Its directory in sysfs is found by the name of the platform device, which comes from the device tree.
// The number in fpga0 depends on the order in which drivers were loaded.
type Manager struct {
	// Name appears in messages.
	Name string
	// Platform is the name of the platform device, such as "firmware:zynqmp-firmware:pcap".
	Platform string
	// InterfaceID is configured by the admin. The hardware does not state one.
	InterfaceID string
	// LockFile is the absolute path of the file that every process locks before it programs this chip.
	LockFile string
}

// managerName matches the names that the kernel gives to managers.
var managerName = regexp.MustCompile(`^fpga[0-9]{1,9}$`)

// ErrNoManager: the platform device does not exist, or has no manager that programs can use.
var ErrNoManager = errors.New("no fpga_manager with a firmware attribute")

// dir returns the manager's directory and its name.
func (h *Host) dir(m Manager) (dir, name string, err error) {
	names, err := h.tree.ReadDir(sysfs.ClassFPGAManager)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	for _, name := range names {
		dir := path.Join(sysfs.ClassFPGAManager, name)
		if base, err := h.tree.LinkBase(path.Join(dir, "device")); err != nil || base != m.Platform || !managerName.MatchString(name) {
			continue
		}
		if !h.tree.Exists(path.Join(dir, "firmware")) || !h.tree.Exists(path.Join(dir, "flags")) {
			return "", "", fmt.Errorf("%w: the kernel's %s has none", ErrNoManager, sysfs.HostPath(dir))
		}
		return dir, name, nil
	}
	return "", "", fmt.Errorf("%w: none belongs to %q", ErrNoManager, m.Platform)
}

// State is the state of a manager. Reading it changes nothing.
type State struct {
	// Manager is the manager's state: operating, unknown, or a phase of programming.
	Manager string
	// Status lists errors, one a line. It is empty if there are none or the manager cannot tell.
	Status string
	// Closed lists the bridges that are not enabled, by their names in sysfs.
	Closed []string
}

// operating is the state of a manager after a successful programming.
const operating = "operating"

// busy matches the states of a manager while it programs.
var busy = regexp.MustCompile(`^(firmware request|parse header|write init|write|write complete)$`)

// Operating reports whether the logic works, as far as the kernel knows. Newer kernels may add a code to the state.
func (s State) Operating() bool {
	word, code, _ := strings.Cut(s.Manager, " ")
	return word == operating && !strings.Contains(code, "error") && s.Status == "" && len(s.Closed) == 0
}

// State reads the manager's state.
func (h *Host) State(m Manager) (State, error) {
	dir, _, err := h.dir(m)
	if err != nil {
		return State{}, failed(m, "read the state of", backend.Terminal, err, nextDriver)
	}
	return h.state(m, dir)
}

func (h *Host) state(m Manager, dir string) (State, error) {
	var s State
	var errs [3]error
	s.Manager, errs[0] = h.tree.ReadString(path.Join(dir, "state"))
	s.Status, errs[1] = h.tree.ReadString(path.Join(dir, "status"))
	if errors.Is(errs[1], fs.ErrNotExist) { // a driver without error bits
		s.Status, errs[1] = "", nil
	}
	s.Closed, errs[2] = h.closedBridges()
	if err := errors.Join(errs[:]...); err != nil {
		return s, failed(m, "read the state of", backend.Terminal, err, nextDriver)
	}
	return s, nil
}

// closedBridges lists all bridges that are not enabled, except those of cards. Nothing tells which manager a bridge belongs to, and a
// machine has one fabric.
func (h *Host) closedBridges() ([]string, error) {
	names, err := h.tree.ReadDir(sysfs.ClassFPGABridge)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var closed []string
	for _, name := range names {
		dir := path.Join(sysfs.ClassFPGABridge, name)
		if base, err := h.tree.LinkBase(path.Join(dir, "device")); err == nil && strings.HasPrefix(base, "dfl-") {
			continue
		}
		state, err := h.tree.ReadString(path.Join(dir, "state"))
		if err != nil {
			return nil, err
		}
		if state != "enabled" {
			closed = append(closed, name)
		}
	}
	return closed, nil
}

// firmwareDir returns the directory that the kernel searches first: the one that its parameter names, or the usual one.
func (h *Host) firmwareDir() (string, error) {
	custom, err := h.tree.ReadString(sysfs.FirmwareSearchPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, dir := range []string{custom, sysfs.HostPath(sysfs.Firmware)} {
		name := strings.TrimPrefix(dir, "/")
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || name == "" {
			continue
		}
		if info, err := h.root.Stat(name); err == nil && info.IsDir() {
			return name, nil
		}
	}
	return "", fmt.Errorf("no directory for firmware in the host tree: want %s%s", sysfs.HostPath(sysfs.Firmware), orCustom(custom))
}

func orCustom(dir string) string {
	if dir == "" {
		return ""
	}
	return fmt.Sprintf(", or %q as the kernel's parameter says", dir)
}

const (
	nextDriver   = "check the kernel's log and the driver of the fpga_manager"
	nextAside    = "set the chip aside until it was programmed again and operates"
	nextFirmware = "mount the host's firmware directory writable"
)

func failed(m Manager, op string, kind backend.Kind, err error, next string) error {
	return &backend.Error{Kind: kind, Device: m.Name, Op: op, Err: err, Next: next}
}
