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

// Lease holds a port that no other process has open, and an FME that no other caller programs. It is used by one caller at a time.
type Lease struct {
	host       *Host
	port       Port
	interfaces string // the compared interface id; empty in a lease that cannot program
	lock, node *os.File
}

// Acquire waits for the port's FME until ctx ends, and opens the port exclusively (O_EXCL). It fails while another process, such as one of
// a pod, has the port open; until Release no process can open it. interfaceID is the id of the images that the lease will program. If it is
// not the region's, Acquire refuses before it opens anything. A lease with an empty id can reset the port and clear errors, but not
// program.
//
// Acquire takes the lock before the port, so that two callers that want ports of one card wait for each other instead of failing.
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
		if f.kind == backend.Unknown { // The region was not touched yet.
			f = fault{backend.Terminal, "check the device's node"}
		}
		return nil, errors.Join(&backend.Error{Kind: f.kind, Device: p.Name, Op: "acquire", Err: err, Next: f.next}, lock.Close())
	}
	return &Lease{host: h, port: p, interfaces: interfaceID, lock: lock, node: node}, nil
}

// Release closes the port, which the kernel then resets, and lets other callers program the card. It may be called twice.
func (l *Lease) Release() error {
	if l.node == nil {
		return nil
	}
	err := l.node.Close() // Before the lock, so that the next holder of the lock can open the port.
	err = errors.Join(err, l.lock.Close())
	l.node, l.lock = nil, nil
	return err
}

// Load is one image for one port.
type Load struct {
	Image *backend.Sealed
	// Offset and Size are the part of the image that goes to the card, without a header before it. A size of 0 means up to the end.
	Offset, Size int64
	// AFU is the accelerator id that the port must show afterwards.
	AFU string
}

// Program loads an image once and verifies it. It blocks until the kernel has answered, up to about 32 s, even if ctx ends. ctx limits only
// the checks before and the verification after. Program returns nil only after the accelerator's id has read back as the wanted one. The
// result of the ioctl does not count: after a failed programming a port can stay disabled although a second one succeeds.
//
// The kind of the error says whether the region was touched. Before the call, the caller must have noted on disk that the state of the
// region is unknown.
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

// beforeProgram makes all checks that do not touch the region, and clears the errors that the last user left.
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
	// Checked again, because the card may have been bound again while the caller waited for the lock.
	if err := l.host.checkInterface(l.port, l.interfaces); err != nil {
		return err
	}
	if err := l.powered("program"); err != nil {
		return err
	}
	_, err := l.ClearErrors()
	return err
}

// powered refuses a port whose power the card has cut.
func (l *Lease) powered(op string) error {
	power, err := l.host.power(l.port)
	if err != nil {
		return l.untouched(op, err)
	}
	if power != 0 {
		return l.failed(op, backend.Retryable, fmt.Errorf("%w is %d, want 0", ErrPower, power), "let the card cool down and check its sensors")
	}
	return nil
}

// Verify compares the port with what it should hold: the accelerator id, which it waits for while the port is disabled, no errors, and no
// error from the fpga_manager. Every error is of kind Unknown.
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

// Errors reads the port's error register.
func (l *Lease) Errors() (uint64, error) {
	return l.host.tree.ReadHex(path.Join(l.port.Attributes, "errors/errors"))
}

// ClearErrors clears the error register and returns what it held. The driver wants the value of the register written back, and refuses a
// value that has changed meanwhile, so ClearErrors then reads it once more.
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
	if errors.Is(err, unix.ETIMEDOUT) { // The port did not stop, so its state is unknown.
		kind, next = backend.Unknown, nextRebind
	}
	return bits, l.failed("clear errors of", kind, fmt.Errorf("errors %#x: %w", bits, err), next)
}

// Reset resets the accelerator and keeps its logic.
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

// Info is what the port's driver states about its memory regions and messages.
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

// ReleasePort hands the port to its virtual function, after which programming it fails with ENODEV. It fails while the port is open, so it
// needs no lease.
func (h *Host) ReleasePort(ctx context.Context, p Port) error {
	return h.transfer(ctx, p, "release", fmeRelease)
}

// AssignPort takes a released port back.
func (h *Host) AssignPort(ctx context.Context, p Port) error {
	return h.transfer(ctx, p, "assign", fmeAssign)
}

func (h *Host) transfer(ctx context.Context, p Port, op string, request uintptr) error {
	lock, err := backend.Lock(ctx, p.Name, p.LockFile)
	if err != nil {
		return err
	}
	defer lock.Close()
	fme, err := h.node(p.FMENode, 0)
	if err == nil {
		defer fme.Close()
		err = transferPort(fme, request, p.ID)
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

// untouched classifies an error that happened before the region was touched.
func (l *Lease) untouched(op string, err error) error {
	f := faultOf(err)
	if f.kind == backend.Unknown {
		f = fault{backend.Terminal, "check the card and its driver"}
	}
	return l.failed(op, f.kind, err, f.next)
}
