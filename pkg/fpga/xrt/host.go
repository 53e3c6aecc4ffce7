// SPDX-License-Identifier: Apache-2.0

// Package xrt programs Alveo and similar cards through XRT's own program xbmgmt, and reads the result from sysfs.
//
// A card has two functions: the management function (xclmgmt), which programs, and the user function (xocl), which pods get. The drivers
// have an ioctl for programming, but its number changed with releases and it is to be removed. So the package runs the vendor's program:
// one of a list of places, in a known version, with arguments made of a PCI address and the path of a copy of the image.
//
// The user function can ask the management function over a mailbox to program. Unless the host forbids that, a pod could load any image, so
// Acquire refuses such a card.
package xrt

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/tool"
)

// Options configure a host.
type Options struct {
	// Tools is the directory in which XRT is installed.
	Tools tool.Root
	// StateDir is an absolute directory for copies of images that only the plugin can write. If programs are confined to Tools.Dir, they must
	// find it by the same path.
	StateDir string
	// Clock defaults to the real clock.
	Clock clock.Clock
	// Settle limits the wait until a card shows a new image. It defaults to 10 s.
	Settle time.Duration
	// Timeout limits programming and resets. It defaults to 2 minutes.
	Timeout time.Duration
}

// Host gives access to the cards of a host and its XRT. It is safe for concurrent use.
type Host struct {
	tree    *sysfs.Tree
	copies  *os.Root
	options Options
	clock   clock.Clock
}

// Open opens the host tree at root.
func Open(root string, o Options) (_ *Host, err error) {
	o.Settle = cmp.Or(o.Settle, 10*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 2*time.Minute)
	h := &Host{options: o, clock: cmp.Or[clock.Clock](o.Clock, clock.RealClock{})}
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

// Close closes the host tree. No lease may be left.
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

// Card names the two functions of one card.
type Card struct {
	// Name appears in messages.
	Name string
	// Management is the function of xclmgmt. User is the function of xocl.
	Management, User pci.Address
	// LockFile is the absolute path of the file that every process locks before it programs this card.
	LockFile string
}

// State is what the functions of a card show. Reading it changes nothing.
type State struct {
	// Interfaces lists the interface ids that an image may be built for, canonical and sorted.
	Interfaces []string
	// Image is the uuid of the loaded xclbin, canonical, or "".
	Image string
	// Locked says that the user function cannot program or reset the card.
	Locked bool
	// Contexts is the number of programs that use the card now.
	Contexts int
}

// The user function's requests that must be forbidden (mailbox_proto.h: the request's number is the bit's). Discovery checks them, too.
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

// ReadInterfaces reads the interface ids of a user function, canonical and sorted, each once. A card without any returns none.
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

// ReadLock reports whether a management function refuses to program and to reset on request of its user function.
func ReadLock(tree *sysfs.Tree, management pci.Address) (bool, error) {
	bits, err := tree.ReadHex(path.Join(dir(management), "config_mailbox_channel_disable"))
	return bits&ChannelLock == ChannelLock, err
}

// ReadImage returns the uuid of the loaded xclbin, canonical, or "".
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

// contexts returns the number of open contexts, or 0 if the driver does not show it.
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
	nextDriver = "check the card and the kernel's log of xocl and xclmgmt"
	nextAside  = "set the card aside until it was reset and the loaded image reads back"
	nextTools  = "install XRT on the host, of version 2.11 or later"
)

func failed(c Card, op string, kind backend.Kind, err error, next string) error {
	return &backend.Error{Kind: kind, Device: c.Name, Op: op, Err: err, Next: next}
}

// version is a version of XRT.
type version struct{ major, minor int }

// oldest is the first release whose xbmgmt has the needed command lines.
var oldest = version{2, 11}

func (v version) before(w version) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

var versionLine = regexp.MustCompile(`^\s*Version\s*:\s*([0-9]{1,4})\.([0-9]{1,6})(\.[0-9]{1,6})?\s*$`)

// parseVersion reads the output of xbmgmt --version: a line for XRT's version, and others for its source and drivers.
func parseVersion(output string) (version, error) {
	for line := range strings.Lines(output) {
		match := versionLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if match == nil {
			continue
		}
		major, _ := strconv.Atoi(match[1]) // The pattern has only digits.
		minor, _ := strconv.Atoi(match[2])
		return version{major, minor}, nil
	}
	return version{}, fmt.Errorf("%w: no line %q in what it prints: %.60q", sysfs.ErrMalformed, "Version : 2.14.354", output)
}

var contextsLine = regexp.MustCompile(`(?m)^contexts:\s*([0-9]{1,9})\s*$`)

// parseContexts reads the number of open contexts from the attribute kdsstat.
func parseContexts(text string) (int, error) {
	match := contextsLine.FindStringSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("%w: no line of contexts in %.60q", sysfs.ErrMalformed, text)
	}
	return strconv.Atoi(match[1])
}
