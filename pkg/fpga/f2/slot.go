// SPDX-License-Identifier: Apache-2.0

// Package f2 loads images into the FPGAs of AWS F2 instances through Amazon's own programs fpga-load-local-image,
// fpga-clear-local-image and fpga-describe-local-image. An image is a name that Amazon knows (AGFI); its bytes are never on the node, and
// Amazon checks that the account may load it. The programs must not run twice at once for one FPGA, so a Lease holds a lock.
//
// Discovery finds no such FPGAs yet: the instance does not tell which slot is which PCI function, and a bitstream is a file for all that
// Fettle knows of. So the node's plugin does not use this package.
package f2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/tool"
)

// Options are what a host needs.
type Options struct {
	// Tools is where Amazon's programs are installed.
	Tools tool.Root
	// Clock is the real one where it is nil.
	Clock clock.Clock
	// Settle is how long a slot may be busy after a load; 30 s where it is 0.
	Settle time.Duration
	// Timeout is how long a load may take; 2 minutes where it is 0.
	Timeout time.Duration
}

// Host is an instance with its programs. It is safe for concurrent use.
type Host struct {
	options Options
	clock   clock.Clock
}

// New is a host with these options.
func New(o Options) *Host {
	if o.Settle == 0 {
		o.Settle = 30 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	h := &Host{options: o, clock: o.Clock}
	if h.clock == nil {
		h.clock = clock.RealClock{}
	}
	return h
}

// maxSlot is the last FPGA of the largest instance.
const maxSlot = 7

// agfi is the form of Amazon's global names of images.
var agfi = regexp.MustCompile(`^agfi-[0-9a-f]{17}$`)

// ValidImage says whether a text is the name of an image.
func ValidImage(image string) bool { return agfi.MatchString(image) }

// Slot is one FPGA of the instance.
type Slot struct {
	// Name is what messages call it.
	Name string
	// Number is 0 to 7.
	Number int
	// LockFile is the absolute path of the file that everybody who loads into this slot locks.
	LockFile string
}

// Lease is a slot that nobody else loads into. It is used by one caller at a time.
type Lease struct {
	host                  *Host
	slot                  Slot
	load, clear, describe tool.Program
	lock                  *os.File
}

// Acquire waits for the slot until ctx ends. A slot that is busy with what another program asked of it is a Retryable error.
func (h *Host) Acquire(ctx context.Context, s Slot) (_ *Lease, err error) {
	l := &Lease{host: h, slot: s}
	if s.Number < 0 || s.Number > maxSlot {
		return nil, l.failed("acquire", backend.Terminal, fmt.Errorf("slot %d, want 0 to %d", s.Number, maxSlot), backend.NextRequest)
	}
	for name, program := range map[string]*tool.Program{"load": &l.load, "clear": &l.clear, "describe": &l.describe} {
		file := "fpga-" + name + "-local-image"
		if *program, err = h.options.Tools.Find("usr/bin/"+file, "usr/local/bin/"+file); err != nil {
			return nil, l.failed("acquire", backend.Terminal, err, nextTools)
		}
	}
	if l.lock, err = backend.Lock(ctx, s.Name, s.LockFile); err != nil {
		return nil, err
	}
	state, err := l.State(ctx)
	if err == nil && state.Status == busy {
		err = l.failed("acquire", backend.Retryable, errors.New("the slot is busy"), backend.NextRetry)
	}
	if err != nil {
		return nil, errors.Join(err, l.lock.Close())
	}
	return l, nil
}

const (
	nextTools = "install the FPGA management tools of aws-fpga on the host"
	nextAside = "set the slot aside until it was cleared"
)

// Release lets others load into the slot. It may be called twice.
func (l *Lease) Release() error {
	if l.lock == nil {
		return nil
	}
	err := l.lock.Close()
	l.lock = nil
	return err
}

// State asks what the slot holds.
func (l *Lease) State(ctx context.Context) (State, error) {
	const patience = 20 * time.Second
	output, err := l.run(ctx, l.describe, patience)
	if err == nil {
		var state State
		if state, err = parse(output, l.slot.Number); err == nil {
			return state, nil
		}
		err = fmt.Errorf("%s: %w", l.describe.Path(), err)
	}
	kind, next := backend.Terminal, nextTools
	if ctx.Err() != nil {
		kind, next = backend.Retryable, backend.NextRetry
	}
	return State{}, &backend.Error{Kind: kind, Device: l.slot.Name, Op: "describe", Status: outputOf(err), Err: err, Next: next}
}

// Program loads an image and verifies that the slot says so. Like Clear, it goes on whatever becomes of ctx.
//
// The error's kind says whether the slot was touched. The caller must have on disk that its state is unknown before it calls.
func (l *Lease) Program(ctx context.Context, image string) (took time.Duration, err error) {
	if !ValidImage(image) {
		err := fmt.Errorf("image %q, want agfi- and 17 hexadecimal digits", image)
		return 0, l.failed("program", backend.Terminal, err, backend.NextRequest)
	}
	took, err = l.change(ctx, "program", l.load, "-I", image)
	if err != nil {
		return took, err
	}
	return took, l.Verify(ctx, image)
}

// Clear removes the slot's logic and what is in its memories, inside the chip and beside it.
func (l *Lease) Clear(ctx context.Context) error {
	if _, err := l.change(ctx, "clear", l.clear); err != nil {
		return err
	}
	return l.verify(ctx, State{Status: cleared})
}

// Verify waits while the slot is busy, and wants it to hold the image. Every error is of kind Unknown.
func (l *Lease) Verify(ctx context.Context, image string) error {
	return l.verify(ctx, State{Status: loaded, Image: image})
}

// change runs a program that changes the slot.
func (l *Lease) change(ctx context.Context, op string, program tool.Program, args ...string) (took time.Duration, err error) {
	switch {
	case l.lock == nil:
		return 0, l.failed(op, backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	case ctx.Err() != nil:
		return 0, l.failed(op, backend.Retryable, context.Cause(ctx), backend.NextRetry)
	}
	start := l.host.clock.Now()
	_, err = l.run(context.WithoutCancel(ctx), program, l.host.options.Timeout, args...)
	took = l.host.clock.Since(start)
	if err == nil {
		return took, nil
	}
	failure := &backend.Error{Kind: backend.Unknown, Device: l.slot.Name, Op: op, Status: outputOf(err), Err: err, Next: nextAside}
	if ran, ok := errors.AsType[*tool.Error](err); ok && !ran.Started {
		failure.Kind, failure.Next = backend.Terminal, nextTools
	}
	return took, failure
}

func (l *Lease) verify(ctx context.Context, want State) error {
	const first, longest = 100 * time.Millisecond, 2 * time.Second
	deadline := l.host.clock.Now().Add(l.host.options.Settle)
	for wait := first; ; wait = min(2*wait, longest) {
		got, err := l.State(ctx)
		switch {
		case err != nil:
			return l.failed("verify", backend.Unknown, err, nextAside)
		case got.Status == want.Status && got.Image == want.Image:
			return nil
		case got.Status != busy || !l.host.clock.Now().Before(deadline):
			err := fmt.Errorf("the slot is %s, want %s", got, want)
			return &backend.Error{Kind: backend.Unknown, Device: l.slot.Name, Op: "verify", Status: got.Fault, Err: err, Next: nextAside}
		}
		if err := backend.Pause(ctx, l.host.clock, wait); err != nil {
			return l.failed("verify", backend.Unknown, err, nextAside)
		}
	}
}

// run runs a program for the slot. The lock stays held for as long as it runs, even if this process is killed.
func (l *Lease) run(ctx context.Context, program tool.Program, timeout time.Duration, args ...string) (string, error) {
	if l.lock == nil {
		return "", backend.ErrReleased
	}
	return program.Run(ctx, tool.Run{
		Args: append([]string{"-S", strconv.Itoa(l.slot.Number)}, args...), Timeout: timeout, Hold: []*os.File{l.lock},
	})
}

func outputOf(err error) string {
	if failure, ok := errors.AsType[*tool.Error](err); ok {
		return failure.Output
	}
	return ""
}

func (l *Lease) failed(op string, kind backend.Kind, err error, next string) error {
	return &backend.Error{Kind: kind, Device: l.slot.Name, Op: op, Err: err, Next: next}
}
