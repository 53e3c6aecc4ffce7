// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Kind is what an error leaves behind, and so what may come next.
type Kind int

const (
	// Unknown: the region may hold anything, or nothing that works. One more attempt counts only if the accelerator's id reads back;
	// else the region is set aside until the device is bound anew.
	Unknown Kind = iota
	// Retryable: nothing was touched, somebody else was there first; the same request may succeed later.
	Retryable
	// Terminal: nothing was touched, and the same request fails again.
	Terminal
)

func (k Kind) String() string {
	switch k {
	case Retryable:
		return "retryable"
	case Terminal:
		return "terminal"
	default:
		return "unknown state"
	}
}

// Error is how an operation on a port failed.
type Error struct {
	Kind Kind
	// Port is the port's name, Op what was tried, such as "program".
	Port, Op string
	// Status is what the fpga_manager says of the last programming: the cause of an EIO stands only there. It is empty where it says
	// nothing.
	Status string
	// Next is what to do about it.
	Next string
	Err  error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Op, e.Port, e.Err)
	if e.Status != "" {
		text += fmt.Sprintf(" (fpga_manager says %q)", e.Status)
	}
	if e.Next != "" {
		text += ": " + e.Next
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf is the kind of an error of this package. Any other error is Unknown.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unknown
}

// Causes that callers may ask for with errors.Is.
var (
	// ErrInterface: the image's interface id is not the region's.
	ErrInterface = errors.New("interface id")
	// ErrDead: the accelerator's id reads all f, the firmware has crashed.
	ErrDead = errors.New("the port's firmware has crashed")
	// ErrNotEnabled: the port stayed disabled for as long as it was waited for.
	ErrNotEnabled = errors.New("the port is still disabled")
	// ErrWrongAFU: the port holds another accelerator than was programmed.
	ErrWrongAFU = errors.New("another accelerator")
	// ErrPower: the card has cut the port's power, as it does when it is too hot.
	ErrPower = errors.New("power state")
)

const (
	nextRetry   = "try again later"
	nextRebind  = "set the region aside until its PCI device is bound anew and the accelerator's id reads back"
	nextRequest = "change the request"
)

// fault is one row of what an errno of a DFL ioctl means.
type fault struct {
	kind Kind
	next string
}

// faultOf is the table of drivers/fpga/dfl-fme-pr.c, dfl-fme-mgr.c and fpga-mgr.c, read for what had happened to the region before.
func faultOf(err error) fault {
	faults := map[unix.Errno]fault{
		// The locks of region and manager are only tried; nothing comes before them.
		unix.EBUSY: {Retryable, "somebody else uses the card: " + nextRetry},
		// The kernel takes as much memory as the image is large, before all else.
		unix.ENOMEM: {Retryable, "the kernel has no memory for the image: " + nextRetry},
		unix.EINVAL: {Terminal, "the driver has no such port or knows another form of the request: compare the port's id with its FME"},
		unix.EFAULT: {Terminal, "the driver could not read the image: this is a defect of the program"},
		unix.ENODEV: {Terminal, "the port was released to a virtual function or its device is gone: look at the card"},
		unix.ENXIO:  {Terminal, "the device is gone: look at the card"},
		unix.ENOTTY: {Terminal, "the node is not that of a DFL driver: look at the device's node"},
		unix.EPERM:  {Terminal, "the process may not do that: look at its privileges"},
		unix.EACCES: {Terminal, "the process may not do that: look at its privileges"},
		unix.ENOENT: {Terminal, "there is no such node: look at the card and its driver"},
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		if f, ok := faults[errno]; ok {
			return f
		}
	}
	return fault{Unknown, nextRebind} // EIO, ETIMEDOUT and what no kernel says today
}
