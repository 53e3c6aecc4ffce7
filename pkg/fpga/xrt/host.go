// SPDX-License-Identifier: Apache-2.0

// Package xrt programs Alveo and similar cards through XRT's own program xbmgmt, and reads from sysfs what came of it.
//
// A card has two functions: the management function (xclmgmt), which programs, and the user function (xocl), which pods are given.
// The drivers have an ioctl for programming, whose number moved with releases and is announced for removal, so the vendor's program is
// run: one of a list of places, of a version that is known, with arguments made of a PCI address and the path of our own copy.
//
// The user function can ask the management function to program, over a mailbox. Unless the host forbids that, a pod could load what it
// likes, so a Lease is refused on such a card.
package xrt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/tool"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Options are what a host needs beside its root.
type Options struct {
	// Tools is where XRT is installed.
	Tools tool.Root
	// StateDir is an absolute directory that only the plugin can write, for copies of images. Under a Tools.Dir that programs are
	// confined to, it must be found by the same path.
	StateDir string
	// Clock is the real one where it is nil.
	Clock clock.Clock
	// Settle is how long a card may take to show a new image; 10 s where it is 0.
	Settle time.Duration
	// Timeout is how long programming or a reset may take; 2 minutes where it is 0.
	Timeout time.Duration
}

// Host is a host's cards and XRT. It is safe for concurrent use.
type Host struct {
	tree    *sysfs.Tree
	copies  *os.Root
	options Options
	clock   clock.Clock
}

// Open opens the host tree at root.
func Open(root string, o Options) (_ *Host, err error) {
	if o.Settle == 0 {
		o.Settle = 10 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	h := &Host{options: o, clock: o.Clock}
	if h.clock == nil {
		h.clock = clock.RealClock{}
	}
	for what, dir := range map[string]string{"state directory": o.StateDir, "driver root": o.Tools.Dir} {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return nil, fmt.Errorf("%s %q: want a clean absolute path", what, dir)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if h.tree, err = sysfs.Open(root); err != nil {
		return nil, err
	}
	if h.copies, err = os.OpenRoot(o.StateDir); err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	return h, nil
}

// Close releases the host tree, once there is no lease any more.
func (h *Host) Close() error {
	var errs []error
	if h.tree != nil {
		errs = append(errs, h.tree.Close())
	}
	if h.copies != nil {
		errs = append(errs, h.copies.Close())
	}
	return errors.Join(errs...)
}

// Card is the two functions of one card.
type Card struct {
	// Name is what messages call it.
	Name string
	// Management is the function of xclmgmt, User that of xocl.
	Management, User pci.Address
	// LockFile is the absolute path of the file that everybody who programs this card locks.
	LockFile string
}

// State is what a card's functions say. Reading it changes nothing.
type State struct {
	// Interfaces are the interface ids that an image may be built for, canonical and sorted.
	Interfaces []string
	// Image is the uuid of the xclbin that is loaded, canonical; empty if there is none.
	Image string
	// Locked says that the user function cannot program or reset the card.
	Locked bool
	// Contexts is how many programs use the card now.
	Contexts int
}

// The user function's requests that must be forbidden (mailbox_proto.h: the request's number is the bit's), as discovery asks too.
const (
	channelHotReset   = 1 << 5
	channelLoadXCLBIN = 1 << 8
	// ChannelLock is what config_mailbox_channel_disable must have at least.
	ChannelLock = channelHotReset | channelLoadXCLBIN
)

// State reads the card's state.
func (h *Host) State(c Card) (State, error) {
	var s State
	var errs [4]error
	s.Interfaces, errs[0] = ReadInterfaces(h.tree, c.User)
	s.Image, errs[1] = h.image(c)
	s.Locked, errs[2] = ReadLock(h.tree, c.Management)
	s.Contexts, errs[3] = h.contexts(c)
	if err := errors.Join(errs[:]...); err != nil {
		return s, failed(c, "read the state of", backend.Terminal, err, nextDriver)
	}
	return s, nil
}

func dir(a pci.Address) string { return sysfs.PCIDevice(a.String()) }

// ReadInterfaces reads the interface ids of a user function, canonical, each once and sorted. A card without any gives none.
func ReadInterfaces(tree *sysfs.Tree, user pci.Address) ([]string, error) {
	name := path.Join(dir(user), "interface_uuids")
	text, err := tree.ReadString(name)
	if err != nil {
		return nil, err
	}
	var ids []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.Trim(line, "0-") == "" {
			continue
		}
		id := backend.CanonicalID(line)
		if id == "" {
			return nil, fmt.Errorf("read %s: %w: %.40q, want a uuid a line", sysfs.HostPath(name), sysfs.ErrMalformed, line)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// ReadLock says whether a management function refuses to program and to reset for its user function.
func ReadLock(tree *sysfs.Tree, management pci.Address) (bool, error) {
	bits, err := tree.ReadHex(path.Join(dir(management), "config_mailbox_channel_disable"))
	return bits&ChannelLock == ChannelLock, err
}

// ReadImage is the uuid of what is loaded, canonical; empty if there is none.
func ReadImage(tree *sysfs.Tree, user pci.Address) (string, error) {
	name := path.Join(dir(user), "xclbinuuid")
	text, err := tree.ReadString(name)
	if err != nil || strings.Trim(text, "0-") == "" {
		return "", err
	}
	id := backend.CanonicalID(text)
	if id == "" {
		return "", fmt.Errorf("read %s: %w: %.40q, want a uuid", sysfs.HostPath(name), sysfs.ErrMalformed, text)
	}
	return id, nil
}

func (h *Host) image(c Card) (string, error) { return ReadImage(h.tree, c.User) }

// contexts is 0 where the driver does not tell.
func (h *Host) contexts(c Card) (int, error) {
	name := path.Join(dir(c.User), "kdsstat")
	text, err := h.tree.ReadString(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := parseContexts(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", sysfs.HostPath(name), err)
	}
	return n, nil
}

const (
	nextDriver = "look at the card and the kernel's log of xocl and xclmgmt"
	nextAside  = "set the card aside until it was reset and the loaded image reads back"
	nextTools  = "install XRT on the host, of version 2.11 or later"
)

func failed(c Card, op string, kind backend.Kind, err error, next string) error {
	return &backend.Error{Kind: kind, Device: c.Name, Op: op, Err: err, Next: next}
}
