// SPDX-License-Identifier: Apache-2.0

package xrt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/tool"
)

// Causes that callers may ask for with errors.Is.
var (
	// ErrNotLocked: a pod with the user function could program the card itself.
	ErrNotLocked = errors.New("the user function may program the card")
	// ErrVersion: xbmgmt is too old.
	ErrVersion = errors.New("version of xbmgmt")
	// ErrWrongImage: the card holds another image than the programmed one.
	ErrWrongImage = errors.New("another image")
)

// Lease holds a card that no other caller programs. It is used by one caller at a time.
type Lease struct {
	host        *Host
	card        Card
	interfaceID string
	xbmgmt      tool.Program
	lock        *os.File
}

// installed is the directory of XRT's packages, with the program and its libraries below it. XRT wraps the program in a shell script; the
// package runs the program itself.
const installed = "opt/xilinx/xrt"

// places lists the places of xbmgmt, the newer name first: while both existed, the other was an older program.
func places() []string {
	return []string{installed + "/bin/unwrapped/xbmgmt2", installed + "/bin/unwrapped/xbmgmt"}
}

// Acquire waits for the card until ctx ends. interfaceID is the id of the images that the lease will program; Acquire refuses one that the
// card does not have. A lease with an empty id programs nothing. Acquire also refuses a card whose user function may program it, a card in
// use, and an xbmgmt that is absent or too old. It removes copies of images that a killed process left.
func (h *Host) Acquire(ctx context.Context, c Card, interfaceID string) (_ *Lease, err error) {
	l := &Lease{host: h, card: c, interfaceID: interfaceID}
	if err := l.check("acquire"); err != nil {
		return nil, err
	}
	if l.lock, err = backend.Lock(ctx, c.Name, c.LockFile); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.lock.Close())
		}
	}()
	if err := l.check("acquire"); err != nil { // Checked again, since the caller may have waited for the lock.
		return nil, err
	}
	if err := l.find(ctx); err != nil {
		return nil, err
	}
	if err := l.sweep(); err != nil {
		return nil, l.failed("acquire", backend.Terminal, err, nextState)
	}
	return l, nil
}

const nextState = "check the state directory"

// check reads everything that must hold before the card is touched.
func (l *Lease) check(op string) error {
	if l.card.Management == l.card.User {
		err := fmt.Errorf("%s cannot be both functions", l.card.User)
		return l.failed(op, backend.Terminal, err, backend.NextRequest)
	}
	state, err := l.host.State(l.card)
	switch {
	case err != nil:
		return err
	case l.interfaceID != "" && (!backend.ValidID(l.interfaceID) || !slices.Contains(state.Interfaces, l.interfaceID)):
		err := fmt.Errorf("%w %q of the image, the card has %s",
			backend.ErrInterface, l.interfaceID, either(strings.Join(state.Interfaces, ", ")))
		return l.failed(op, backend.Terminal, err, "choose an image that was built for this card's shell")
	case !state.Locked:
		return l.failed(op, backend.Terminal, ErrNotLocked, NextLock(l.card.Management.String()))
	case state.Contexts > 0:
		err := fmt.Errorf("%d programs use it", state.Contexts)
		return l.failed(op, backend.Retryable, err, backend.NextRetry)
	}
	return nil
}

func either(text string) string { return cmp.Or(text, "none") }

// NextLock tells an admin how to lock a card whose user function may program it.
func NextLock(management string) string {
	return fmt.Sprintf("as root, run xbmgmt dump --device %[1]s --config --output /root/card.ini, set mailbox_channel_disable=0x%[2]x "+
		"in that file, and run xbmgmt configure --device %[1]s --input /root/card.ini; do so after each boot", management, ChannelLock)
}

// find finds xbmgmt and asks for its version.
func (l *Lease) find(ctx context.Context) (err error) {
	const patience = 20 * time.Second
	if l.xbmgmt, err = l.host.options.Tools.Find(places()...); err != nil {
		return l.failed("acquire", backend.Terminal, err, nextTools)
	}
	output, err := l.run(ctx, patience, "--version")
	if err != nil {
		kind := backend.Terminal
		if ctx.Err() != nil {
			kind = backend.Retryable
		}
		return &backend.Error{Kind: kind, Device: l.card.Name, Op: "acquire", Status: outputOf(err), Err: err, Next: nextTools}
	}
	v, err := parseVersion(output)
	if err == nil && v.before(oldest) {
		err = fmt.Errorf("%w is %s, want %s or later", ErrVersion, v, oldest)
	}
	if err != nil {
		return l.failed("acquire", backend.Terminal, err, nextTools)
	}
	return l.visible()
}

// visible checks that a confined xbmgmt sees the copies by the path that it is given.
func (l *Lease) visible() error {
	root, dir := l.host.options.Tools, l.host.options.StateDir
	if !root.Chroot || root.Dir == "/" {
		return nil
	}
	ours, err := os.Stat(dir)
	if err == nil {
		var theirs os.FileInfo
		if theirs, err = os.Stat(filepath.Join(root.Dir, dir)); err == nil && !os.SameFile(ours, theirs) {
			err = fmt.Errorf("%s is another directory below %s", dir, root.Dir)
		}
	}
	if err != nil {
		return l.failed("acquire", backend.Terminal, fmt.Errorf("xbmgmt would not see the image: %w", err),
			"mount the state directory from the host, by the same path")
	}
	return nil
}

// run runs xbmgmt. The lock stays held for as long as the program runs, even if this process is killed.
func (l *Lease) run(ctx context.Context, timeout time.Duration, args ...string) (string, error) {
	return l.xbmgmt.Run(ctx, tool.Run{
		Args: args, Timeout: timeout, Hold: []*os.File{l.lock},
		Env: []string{"XILINX_XRT=" + l.xbmgmt.Inside(installed), "LD_LIBRARY_PATH=" + l.xbmgmt.Inside(installed+"/lib")},
	})
}

func outputOf(err error) string {
	if failure, ok := errors.AsType[*tool.Error](err); ok {
		return failure.Output
	}
	return ""
}

// Release removes the copies of images and lets other callers program the card. It may be called twice.
func (l *Lease) Release() error {
	if l.lock == nil {
		return nil
	}
	err := errors.Join(l.sweep(), l.lock.Close())
	l.lock = nil
	return err
}

// prefix and suffix enclose the digest in the names of this card's copies.
func (l *Lease) prefix() string { return "xclbin-" + l.card.Management.Label() + "-" }

const suffix = ".xclbin"

// sweep removes this card's copies. The caller holds its lock.
func (l *Lease) sweep() error {
	return backend.SweepCopies(l.host.copies, ".", l.prefix(), suffix)
}

// Load is one xclbin for one card.
type Load struct {
	// Image is the whole file. The driver reads its header itself.
	Image backend.Image
	// UUID is the xclbin's uuid, 32 hexadecimal digits. The card must show it afterwards.
	UUID string
}

// Program loads an xclbin once and verifies it. It blocks until xbmgmt has ended or was killed at its deadline, even if ctx ends. ctx
// limits only the checks before and the verification after.
//
// The kind of the error says whether the card was touched. Before the call, the caller must have noted on disk that the state of the card
// is unknown.
func (l *Lease) Program(ctx context.Context, load Load) (took time.Duration, err error) {
	file, before, err := l.beforeProgram(ctx, load)
	if err != nil {
		return 0, err
	}
	// If this fails, Release tries again and reports it.
	defer func() { _ = l.host.copies.Remove(file) }()
	start := l.host.clock.Now()
	_, err = l.run(context.WithoutCancel(ctx), l.host.options.Timeout,
		"program", "--device", l.card.Management.String(), "--user", filepath.Join(l.host.options.StateDir, file))
	took = l.host.clock.Since(start)
	if err != nil {
		return took, l.refused("program", err, before)
	}
	return took, l.Verify(ctx, load.UUID)
}

// beforeProgram makes all checks that do not touch the card, copies the image, and returns what the card holds.
func (l *Lease) beforeProgram(ctx context.Context, load Load) (file, before string, err error) {
	switch {
	case l.lock == nil:
		return "", "", l.failed("program", backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	case l.interfaceID == "":
		err := fmt.Errorf("%w: the lease was acquired without one", backend.ErrInterface)
		return "", "", l.failed("program", backend.Terminal, err, backend.NextRequest)
	case !backend.ValidID(load.UUID):
		err := fmt.Errorf("uuid %q of the image, want 32 hexadecimal digits", load.UUID)
		return "", "", l.failed("program", backend.Terminal, err, backend.NextRequest)
	case ctx.Err() != nil:
		return "", "", l.failed("program", backend.Retryable, context.Cause(ctx), backend.NextRetry)
	}
	digits, err := backend.HexDigest(load.Image.Digest())
	if err != nil {
		return "", "", l.failed("program", backend.Terminal, err, backend.NextRequest)
	}
	if err := l.check("program"); err != nil {
		return "", "", err
	}
	if before, err = l.host.image(l.card); err != nil {
		return "", "", l.failed("program", backend.Terminal, err, nextDriver)
	}
	file = l.prefix() + digits + suffix
	if err := l.sweep(); err != nil {
		return "", "", l.failed("program", backend.Terminal, err, nextState)
	}
	if err := backend.WriteCopy(l.host.copies, file, load.Image, 0, load.Image.Size()); err != nil {
		kind := backend.Terminal
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOMEM) {
			kind = backend.Retryable
		}
		return "", "", l.failed("program", kind, err, nextState)
	}
	return file, before, nil
}

// refused classifies a failed run. A program that did not start touched nothing. If the card is in use, the driver says so before it
// touches it (EBUSY). Only the text of that arrives here, and it counts only if the card still shows what it held. After any other failure
// the card may hold anything.
func (l *Lease) refused(op string, err error, before string) error {
	failure := &backend.Error{Kind: backend.Unknown, Device: l.card.Name, Op: op, Status: outputOf(err), Err: err, Next: nextAside}
	ran, ok := errors.AsType[*tool.Error](err)
	switch {
	case ok && !ran.Started:
		failure.Kind, failure.Next = backend.Terminal, nextTools
	case ok && ran.Exit > 0 && strings.Contains(strings.ToLower(ran.Output), unix.EBUSY.Error()):
		if now, err := l.host.image(l.card); err == nil && now == before {
			failure.Kind, failure.Next = backend.Retryable, "another process uses the card: "+backend.NextRetry
		}
	}
	return failure
}

// Verify waits until the card shows the image's uuid, and checks that it is still locked against its user function. Every error is of kind
// Unknown.
func (l *Lease) Verify(ctx context.Context, uuid string) error {
	const first, longest = 10 * time.Millisecond, 500 * time.Millisecond
	deadline := l.host.clock.Now().Add(l.host.options.Settle)
	for wait := first; ; wait = min(2*wait, longest) {
		got, err := l.host.image(l.card) // The user function asks the other one, and keeps the answer for a second.
		if err == nil && got == uuid {
			break
		}
		if err == nil {
			err = fmt.Errorf("%w: uuid %s, want %s", ErrWrongImage, either(got), uuid)
		}
		if !l.host.clock.Now().Before(deadline) {
			return l.failed("verify", backend.Unknown, fmt.Errorf("after %s: %w", l.host.options.Settle, err), nextAside)
		}
		if cause := backend.Pause(ctx, l.host.clock, wait); cause != nil {
			return l.failed("verify", backend.Unknown, errors.Join(err, cause), nextAside)
		}
	}
	return l.stillLocked("verify")
}

// stillLocked checks that the card is still locked, since the drivers may have been loaded again.
func (l *Lease) stillLocked(op string) error {
	locked, err := ReadLock(l.host.tree, l.card.Management)
	if err == nil && !locked {
		err = ErrNotLocked
	}
	if err != nil {
		return l.failed(op, backend.Unknown, err, NextLock(l.card.Management.String()))
	}
	return nil
}

// Reset resets the card and everything in it, which kills the programs that use it. Afterwards the card holds no image. Like Program, it
// continues even if ctx ends.
func (l *Lease) Reset(ctx context.Context) error {
	switch {
	case l.lock == nil:
		return l.failed("reset", backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	case ctx.Err() != nil:
		return l.failed("reset", backend.Retryable, context.Cause(ctx), backend.NextRetry)
	}
	if err := l.check("reset"); err != nil {
		return err
	}
	before, err := l.host.image(l.card)
	if err != nil {
		return l.failed("reset", backend.Terminal, err, nextDriver)
	}
	_, err = l.run(context.WithoutCancel(ctx), l.host.options.Timeout, "--force", "reset", "--device", l.card.Management.String())
	if err != nil {
		return l.refused("reset", err, before)
	}
	return l.stillLocked("reset")
}

func (l *Lease) failed(op string, kind backend.Kind, err error, next string) error {
	return failed(l.card, op, kind, err, next)
}
