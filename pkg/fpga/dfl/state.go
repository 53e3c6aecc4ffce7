// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// idDigits is the length of an interface or accelerator id in hexadecimal digits.
const idDigits = 32

// State is the state of a port and its manager. Reading it changes nothing and opens no device node.
type State struct {
	// Interface is the interface id of the port's region.
	Interface string
	// AFU is the accelerator's id. It is empty while the port is disabled, and all f after its firmware has crashed.
	AFU string
	// Errors is the port's error register; 0 means no error.
	Errors uint64
	// Power is 0 in normal operation, 6 after a thermal stop.
	Power int64
	// Manager is the state of the fpga_manager. Status is its text on the last programming.
	Manager, Status string
}

// State reads the port's state.
func (h *Host) State(p Port) (State, error) {
	var s State
	var errs [6]error
	s.Interface, errs[0] = h.interfaceID(p)
	s.AFU, errs[1] = h.tree.ReadString(path.Join(p.Attributes, "afu_id"))
	if errors.Is(errs[1], unix.EBUSY) {
		s.AFU, errs[1] = "", nil
	}
	s.Errors, errs[2] = h.tree.ReadHex(path.Join(p.Attributes, "errors/errors"))
	s.Power, errs[3] = h.power(p)
	s.Manager, errs[4] = h.tree.ReadString(path.Join(p.Manager, "state"))
	s.Status, errs[5] = h.tree.ReadString(path.Join(p.Manager, "status"))
	if err := errors.Join(errs[:]...); err != nil {
		return s, &backend.Error{
			Kind: backend.Terminal, Device: p.Name, Op: "read the state of", Err: err, Next: "check the card and its driver",
		}
	}
	return s, nil
}

// interfaceID reads the compat_id of the port's region. It fails if there is none; a broken region shows all f.
func (h *Host) interfaceID(p Port) (string, error) {
	return h.tree.ReadString(path.Join(p.Region, "compat_id"))
}

// power reads power_state. It returns 0 for ports of later revisions, which have none.
func (h *Host) power(p Port) (int64, error) {
	text, err := h.tree.ReadString(path.Join(p.Attributes, "power_state"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var value int64
	if _, err := fmt.Sscanf(text, "%v", &value); err != nil {
		return 0, fmt.Errorf("read power_state of %s: %q, want a number: %w", p.Name, text, sysfs.ErrMalformed)
	}
	return value, nil
}

// checkInterface refuses an image for another region. The kernel does not check this, and such an image may crash the machine.
func (h *Host) checkInterface(p Port, want string) error {
	if !backend.ValidID(want) {
		return h.refuse(p, fmt.Errorf("%w %q of the image, want %d hexadecimal digits in lower case that are not all the same 0 or f",
			backend.ErrInterface, want, idDigits))
	}
	got, err := h.interfaceID(p)
	if err != nil {
		return h.refuse(p, fmt.Errorf("%w of the region: %w", backend.ErrInterface, err))
	}
	if !backend.ValidID(got) {
		return h.refuse(p, fmt.Errorf("%w %q of the region: it has no usable one", backend.ErrInterface, got))
	}
	if got != want {
		return h.refuse(p, fmt.Errorf("%w %s of the image, the region has %s", backend.ErrInterface, want, got))
	}
	return nil
}

func (h *Host) refuse(p Port, err error) error {
	return &backend.Error{
		Kind: backend.Terminal, Device: p.Name, Op: "acquire", Err: err, Next: "choose an image that was built for this region",
	}
}

// status reads the fpga_manager's text, for an error that already has a cause. If it cannot be read, the text says so.
func (h *Host) status(p Port) string {
	text, err := h.tree.ReadString(path.Join(p.Manager, "status"))
	if err != nil {
		return fmt.Sprintf("unreadable: %v", err)
	}
	return text
}

// readAFU waits until the port is enabled again, at most for Settle, and reads the id of the accelerator. When the time is over it reads
// once more, since this process may not have run for most of it.
func (h *Host) readAFU(ctx context.Context, p Port) (string, error) {
	const first, longest = 2 * time.Millisecond, 250 * time.Millisecond
	deadline := h.clock.Now().Add(h.settle)
	last := false
	for wait := first; ; wait = min(2*wait, longest) {
		id, err := h.tree.ReadString(path.Join(p.Attributes, "afu_id"))
		if err == nil && id != "" && strings.Trim(id, "f") == "" {
			return "", fmt.Errorf("accelerator id %s: %w", id, ErrDead)
		}
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return id, err
		}
		if last {
			return "", fmt.Errorf("%w after %s: %w", ErrNotEnabled, h.settle, err)
		}
		if last = !h.clock.Now().Before(deadline); last {
			continue
		}
		if cause := backend.Pause(ctx, h.clock, wait); cause != nil {
			return "", errors.Join(fmt.Errorf("%w: %w", ErrNotEnabled, err), cause)
		}
	}
}
