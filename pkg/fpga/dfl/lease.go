// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// Lease is a port that nobody else has open and an FME that nobody else programs. It is used by one caller at a time.
type Lease struct {
	host       *Host
	port       Port
	interfaces string // the interface id that was compared; empty in a lease that cannot program
	lock, node *os.File
}

// Acquire waits for the port's FME until ctx ends, and opens the port exclusively (O_EXCL): that fails while anybody, such as a pod,
// has it open, and nobody can open it until Release. interfaceID is that of the images that the lease will program; one that is not
// the region's is refused before anything is opened. A lease with an empty one can reset the port and clear errors, not program.
//
// The lock is taken before the port, so that two callers that want ports of one card wait for each other instead of failing.
func (h *Host) Acquire(ctx context.Context, p Port, interfaceID string) (*Lease, error) {
	if interfaceID != "" {
		if err := h.checkInterface(p, interfaceID); err != nil {
			return nil, err
		}
	}
	lock, err := backend.Lock(ctx, p.Name, p.LockFile)
	if err != nil {
		return nil, err
	}
	node, err := h.node(p.Node, unix.O_EXCL)
	if err != nil {
		f := faultOf(err)
		if f.kind == backend.Unknown { // Nothing was done to the region yet.
			f = fault{backend.Terminal, "look at the device's node"}
		}
		return nil, errors.Join(&backend.Error{Kind: f.kind, Device: p.Name, Op: "acquire", Err: err, Next: f.next}, lock.Close())
	}
	return &Lease{host: h, port: p, interfaces: interfaceID, lock: lock, node: node}, nil
}

// Release closes the port, which the kernel then resets, and lets others program the card. It may be called twice.
func (l *Lease) Release() error {
	if l.node == nil {
		return nil
	}
	err := l.node.Close() // Before the lock, so that whoever gets the lock can open the port.
	err = errors.Join(err, l.lock.Close())
	l.node, l.lock = nil, nil
	return err
}

// Load is one image for one port.
type Load struct {
	Image *backend.Sealed
	// Offset and Size are the part of the image that goes to the card; a header before it does not. A size of 0 means up to the end.
	Offset, Size int64
	// AFU is the accelerator id that the port must show afterwards.
	AFU string
}

// Program loads an image once and verifies it. It blocks until the kernel has answered, up to about 32 s, whatever becomes of ctx,
// which bounds what comes before and the verification after. Before it returns nil the accelerator's id has read back as the wanted
// one; what the ioctl said does not count for that, because a port that a failed programming left disabled stays so under a second one
// that succeeds.
//
// The error's kind says whether the region was touched. The caller must have on disk that its state is unknown before it calls.
func (l *Lease) Program(ctx context.Context, load Load) (took time.Duration, err error) {
	if err := l.beforeProgram(ctx, &load); err != nil {
		return 0, err
	}
	part, unmap, err := load.Image.Window(load.Offset, load.Size)
	if err != nil {
		return 0, l.failed("program", backend.Terminal, err, backend.NextRequest)
	}
	defer func() { err = errors.Join(err, unmap()) }()
	fme, err := l.host.node(l.port.FMENode, 0)
	if err != nil {
		return 0, l.untouched("program", err)
	}
	defer fme.Close()
	start := l.host.clock.Now()
	err = programPort(fme, l.port.ID, part)
	took = l.host.clock.Since(start)
	if err != nil {
		f := faultOf(err)
		failure := &backend.Error{Kind: f.kind, Device: l.port.Name, Op: "program", Err: err, Next: f.next}
		if f.kind == backend.Unknown {
			failure.Status = l.host.status(l.port)
		}
		return took, failure
	}
	return took, l.Verify(ctx, load.AFU)
}

// beforeProgram refuses what can be known without touching the region, and clears what errors the last user left.
func (l *Lease) beforeProgram(ctx context.Context, load *Load) error {
	if load.Size == 0 {
		load.Size = load.Image.Size() - load.Offset
	}
	switch {
	case l.node == nil:
		return l.failed("program", backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	case l.interfaces == "":
		err := fmt.Errorf("%w: the lease was acquired without one", backend.ErrInterface)
		return l.failed("program", backend.Terminal, err, backend.NextRequest)
	case !backend.ValidID(load.AFU):
		err := fmt.Errorf("accelerator id %q, want %d hexadecimal digits", load.AFU, idDigits)
		return l.failed("program", backend.Terminal, err, backend.NextRequest)
	case ctx.Err() != nil:
		return l.failed("program", backend.Retryable, context.Cause(ctx), backend.NextRetry)
	}
	// Again, because a card that was bound anew while the lock was waited for may be another.
	if err := l.host.checkInterface(l.port, l.interfaces); err != nil {
		return err
	}
	if err := l.powered("program"); err != nil {
		return err
	}
	_, err := l.ClearErrors()
	return err
}

// powered refuses a port that the card has cut the power of.
func (l *Lease) powered(op string) error {
	power, err := l.host.power(l.port)
	if err != nil {
		return l.untouched(op, err)
	}
	if power != 0 {
		return l.failed(op, backend.Retryable, fmt.Errorf("%w is %d, want 0", ErrPower, power), "let the card cool down and look at its sensors")
	}
	return nil
}

// Verify compares what the port says with what it should hold: the accelerator's id, which is waited for while the port is disabled,
// no errors, and no word from the fpga_manager. Every error is of kind Unknown.
func (l *Lease) Verify(ctx context.Context, afu string) error {
	got, err := l.host.readAFU(ctx, l.port)
	if err == nil && got != afu {
		err = fmt.Errorf("%w: id %s, want %s", ErrWrongAFU, got, afu)
	}
	if err == nil {
		var bits uint64
		if bits, err = l.Errors(); err == nil && bits != 0 {
			err = fmt.Errorf("the port has errors %#x, want none", bits)
		}
	}
	status := l.host.status(l.port)
	if err == nil && status != "" {
		err = errors.New("the fpga_manager reports an error, want none")
	}
	if err == nil {
		return nil
	}
	return &backend.Error{Kind: backend.Unknown, Device: l.port.Name, Op: "verify", Err: err, Status: status, Next: nextRebind}
}

// Errors is the port's error register.
func (l *Lease) Errors() (uint64, error) {
	return l.host.tree.ReadHex(path.Join(l.port.Attributes, "errors/errors"))
}

// ClearErrors writes back what the error register holds, which is how the driver takes it, and returns what that was. The driver
// refuses a value that has changed meanwhile, so it is read once more then.
func (l *Lease) ClearErrors() (bits uint64, err error) {
	const attempts = 3
	for range attempts {
		if bits, err = l.Errors(); err != nil {
			return bits, l.untouched("clear errors of", err)
		}
		if bits == 0 {
			return 0, nil
		}
		err = l.host.writer.WriteAttr(path.Join(l.port.Attributes, "errors/errors"), fmt.Sprintf("%#x", bits))
		if err == nil {
			return bits, nil
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	kind, next := backend.Retryable, backend.NextRetry
	if errors.Is(err, unix.ETIMEDOUT) { // The port did not stop, so it cannot be said what it does.
		kind, next = backend.Unknown, nextRebind
	}
	return bits, l.failed("clear errors of", kind, fmt.Errorf("errors %#x: %w", bits, err), next)
}

// Reset resets the accelerator. Its logic stays.
func (l *Lease) Reset() error {
	if l.node == nil {
		return l.failed("reset", backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	}
	if err := resetPort(l.node); err != nil {
		f := faultOf(err)
		return l.failed("reset", f.kind, err, f.next)
	}
	return nil
}

// Info is what the port's driver says of its memory regions and messages.
type Info struct{ Regions, UserMessages uint32 }

// Info asks the port's driver.
func (l *Lease) Info() (Info, error) {
	if l.node == nil {
		return Info{}, l.failed("ask", backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	}
	info, err := readInfo(l.node)
	if err != nil {
		return Info{}, l.untouched("ask", err)
	}
	return info, nil
}

// ReleasePort hands the port to its virtual function: it is no longer this function's, and programming it fails with ENODEV. It fails
// while the port is open, so it needs no lease.
func (h *Host) ReleasePort(ctx context.Context, p Port) error {
	return h.hand(ctx, p, "release", fmeRelease)
}

// AssignPort takes back a port that was released.
func (h *Host) AssignPort(ctx context.Context, p Port) error {
	return h.hand(ctx, p, "assign", fmeAssign)
}

func (h *Host) hand(ctx context.Context, p Port, op string, request uintptr) error {
	lock, err := backend.Lock(ctx, p.Name, p.LockFile)
	if err != nil {
		return err
	}
	defer lock.Close()
	fme, err := h.node(p.FMENode, 0)
	if err == nil {
		defer fme.Close()
		err = handPort(fme, request, p.ID)
	}
	if err == nil {
		return nil
	}
	f := faultOf(err)
	return &backend.Error{Kind: f.kind, Device: p.Name, Op: op, Err: err, Next: f.next}
}

func (l *Lease) failed(op string, kind backend.Kind, err error, next string) error {
	return &backend.Error{Kind: kind, Device: l.port.Name, Op: op, Err: err, Next: next}
}

// untouched classifies an error from before anything was done to the region.
func (l *Lease) untouched(op string, err error) error {
	f := faultOf(err)
	if f.kind == backend.Unknown {
		f = fault{backend.Terminal, "look at the card and its driver"}
	}
	return l.failed(op, f.kind, err, f.next)
}
