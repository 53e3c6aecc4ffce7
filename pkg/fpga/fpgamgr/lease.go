// SPDX-License-Identifier: Apache-2.0

package fpgamgr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// Lease holds a manager that no other caller programs. It is used by one caller at a time.
type Lease struct {
	host      *Host
	manager   Manager
	programs  bool
	lock      *os.File
	dir, name string
	firmware  string // the directory of images
}

// Acquire waits for the manager until ctx ends. interfaceID is the id of the images that the lease will program; Acquire refuses one that
// is not the manager's. A lease with an empty id programs nothing. If the manager is being programmed by hand, the error is Retryable.
// Acquire removes copies of images that a killed process left.
func (h *Host) Acquire(ctx context.Context, m Manager, interfaceID string) (_ *Lease, err error) {
	if interfaceID != "" && (!backend.ValidID(interfaceID) || interfaceID != m.InterfaceID) {
		err := fmt.Errorf("%w %q of the image, the region's is configured as %q", backend.ErrInterface, interfaceID, m.InterfaceID)
		return nil, failed(m, "acquire", backend.Terminal, err, "choose an image that was built for this region")
	}
	lock, err := backend.Lock(ctx, m.Name, m.LockFile)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	l := &Lease{host: h, manager: m, lock: lock, programs: interfaceID != ""}
	if l.dir, l.name, err = h.dir(m); err != nil {
		return nil, l.failed("acquire", backend.Terminal, err, nextDriver)
	}
	if l.firmware, err = h.firmwareDir(); err != nil {
		return nil, l.failed("acquire", backend.Terminal, err, nextFirmware)
	}
	state, err := h.state(m, l.dir)
	if err != nil {
		return nil, err
	}
	if busy.MatchString(state.Manager) {
		err := fmt.Errorf("another process programs it, it is in state %q", state.Manager)
		return nil, l.failed("acquire", backend.Retryable, err, backend.NextRetry)
	}
	if err := l.sweep(); err != nil {
		return nil, l.failed("acquire", backend.Terminal, err, nextFirmware)
	}
	return l, nil
}

// Release removes the copies of images and lets other callers program the chip. It may be called twice.
func (l *Lease) Release() error {
	if l.lock == nil {
		return nil
	}
	err := errors.Join(l.sweep(), l.lock.Close())
	l.lock = nil
	return err
}

// prefix begins the names of this manager's copies. It has no character that is special to a shell or the kernel.
func (l *Lease) prefix() string { return "fettle-" + l.name + "-" }

const suffix = ".bin"

// sweep removes this manager's copies. The caller holds its lock.
func (l *Lease) sweep() error {
	return backend.SweepCopies(l.host.root, l.firmware, l.prefix(), suffix)
}

// Load is one image for one chip or region.
type Load struct {
	Image backend.Image
	// Offset and Size are the part of the image that goes to the chip. A size of 0 means up to the end.
	Offset, Size int64
	// Partial says that the image is for a region of a chip whose other parts keep running.
	Partial bool
}

// The bits of the attribute flags, which is hexadecimal (include/linux/fpga/fpga-mgr.h).
const (
	flagsFull    = "0"
	flagsPartial = "1"
)

// Program loads an image once and verifies it as far as the kernel can: the state is operating, there are no errors, and all bridges are
// open. It blocks until the kernel has answered, even if ctx ends.
//
// The kind of the error says whether the chip was touched. Before the call, the caller must have noted on disk that the state of the chip
// is unknown.
func (l *Lease) Program(ctx context.Context, load Load) (took time.Duration, err error) {
	if load.Size == 0 {
		load.Size = load.Image.Size() - load.Offset
	}
	file, err := l.beforeProgram(ctx, load)
	if err != nil {
		return 0, err
	}
	// If this fails, Release tries again and reports it.
	defer func() { _ = l.host.root.Remove(path.Join(l.firmware, file)) }()
	if err := l.setFlags(load.Partial); err != nil {
		return 0, err
	}
	start := l.host.clock.Now()
	err = l.host.write(path.Join(l.dir, "firmware"), file)
	took = l.host.clock.Since(start)
	if err != nil {
		return took, l.refused(err)
	}
	return took, l.Verify(ctx)
}

// beforeProgram makes all checks that do not touch the chip, and copies the image to where the kernel finds it.
func (l *Lease) beforeProgram(ctx context.Context, load Load) (file string, err error) {
	if l.lock == nil {
		return "", l.failed("program", backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	}
	if !l.programs {
		err := fmt.Errorf("%w: the lease was acquired without one", backend.ErrInterface)
		return "", l.failed("program", backend.Terminal, err, backend.NextRequest)
	}
	if ctx.Err() != nil {
		return "", l.failed("program", backend.Retryable, context.Cause(ctx), backend.NextRetry)
	}
	digits, err := backend.HexDigest(load.Image.Digest())
	if err != nil {
		return "", l.failed("program", backend.Terminal, err, backend.NextRequest)
	}
	// Checked again, because the driver may have been bound again while the lease was held. The number would be another one then.
	if dir, _, err := l.host.dir(l.manager); err != nil || dir != l.dir {
		return "", l.failed("program", backend.Terminal, errors.Join(errors.New("the fpga_manager was bound again"), err), backend.NextAcquire)
	}
	state, err := l.host.state(l.manager, l.dir)
	if err != nil {
		return "", err
	}
	if len(state.Closed) > 0 {
		err := fmt.Errorf("the bridges %s are closed, so that what is programmed could not be reached", strings.Join(state.Closed, ", "))
		return "", l.failed("program", backend.Terminal, err, "open them, or remove the overlay that closed them")
	}
	file = l.prefix() + digits + suffix
	if err := l.sweep(); err != nil {
		return "", l.failed("program", backend.Terminal, err, nextFirmware)
	}
	if err := backend.WriteCopy(l.host.root, path.Join(l.firmware, file), load.Image, load.Offset, load.Size); err != nil {
		kind := backend.Terminal
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOMEM) {
			kind = backend.Retryable
		}
		return "", l.failed("program", kind, err, nextFirmware)
	}
	return file, nil
}

// setFlags writes the flags and reads them back. An image for a region that is loaded as one for the whole chip stops everything in the
// chip.
func (l *Lease) setFlags(partial bool) error {
	flags := flagsFull
	if partial {
		flags = flagsPartial
	}
	name := path.Join(l.dir, "flags")
	err := l.host.write(name, flags)
	if err == nil {
		var got uint64
		if got, err = l.host.tree.ReadHex(name); err == nil && fmt.Sprintf("%x", got) != flags {
			err = fmt.Errorf("flags %x, want %s", got, flags)
		}
	}
	if err != nil {
		return l.failed("program", backend.Terminal, err, nextDriver)
	}
	return nil
}

// refused classifies an error of writing the image's name. The kernel looks for the file before it touches the chip, and shows that in the
// manager's state.
func (l *Lease) refused(err error) error {
	failure := &backend.Error{Kind: backend.Unknown, Device: l.manager.Name, Op: "program", Err: err, Next: nextAside}
	state, stateErr := l.host.state(l.manager, l.dir)
	if stateErr != nil {
		failure.Err = errors.Join(err, stateErr)
		return failure
	}
	failure.Status = strings.TrimSpace(state.Manager + "\n" + state.Status)
	switch {
	case strings.HasPrefix(state.Manager, "firmware request error"):
		failure.Kind, failure.Next = backend.Terminal, nextFirmware+": the kernel did not find the image there"
	case strings.Contains(state.Manager, "error"): // An old error looks the same.
	case errors.Is(err, unix.EBUSY):
		failure.Kind, failure.Next = backend.Retryable, backend.NextRetry
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		failure.Kind, failure.Next = backend.Terminal, "check the process's privileges and the mount of sysfs"
	}
	return failure
}

// Verify fails unless the chip operates, without errors and with open bridges. It cannot tell which image the chip holds. Every error is of
// kind Unknown.
func (l *Lease) Verify(context.Context) error {
	state, err := l.host.state(l.manager, l.dir)
	if err != nil {
		return l.failed("verify", backend.Unknown, err, nextAside)
	}
	if state.Operating() {
		return nil
	}
	err = fmt.Errorf("state %q, want %q", state.Manager, operating)
	switch {
	case len(state.Closed) > 0:
		err = fmt.Errorf("the bridges %s are closed", strings.Join(state.Closed, ", "))
	case state.Status != "":
		err = errors.New("the fpga_manager reports an error, want none")
	}
	return &backend.Error{
		Kind: backend.Unknown, Device: l.manager.Name, Op: "verify", Err: err,
		Status: strings.TrimSpace(state.Manager + "\n" + state.Status), Next: nextAside,
	}
}

// Reset fails: there is no attribute for it. Only programming a blank image removes logic.
func (l *Lease) Reset(context.Context) error {
	return l.failed("reset", backend.Terminal, errors.ErrUnsupported, "program a blank image instead")
}

func (l *Lease) failed(op string, kind backend.Kind, err error, next string) error {
	return failed(l.manager, op, kind, err, next)
}
