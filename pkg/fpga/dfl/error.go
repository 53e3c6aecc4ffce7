// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// Causes that callers may ask for with errors.Is, beside those of package backend.
var (
	// ErrDead: the accelerator's id reads all f, the firmware has crashed.
	ErrDead = errors.New("the port's firmware has crashed")
	// ErrNotEnabled: the port stayed disabled for as long as it was waited for.
	ErrNotEnabled = errors.New("the port is still disabled")
	// ErrWrongAFU: the port holds another accelerator than was programmed.
	ErrWrongAFU = errors.New("another accelerator")
	// ErrPower: the card has cut the port's power, as it does when it is too hot.
	ErrPower = errors.New("power state")
)

const nextRebind = "set the region aside until its PCI device is bound anew and the accelerator's id reads back"

// fault is one row of what an errno of a DFL ioctl means.
type fault struct {
	kind backend.Kind
	next string
}

// faultOf is the table of drivers/fpga/dfl-fme-pr.c, dfl-fme-mgr.c and fpga-mgr.c, read for what had happened to the region before.
func faultOf(err error) fault {
	faults := map[unix.Errno]fault{
		// The locks of region and manager are only tried; nothing comes before them.
		unix.EBUSY: {backend.Retryable, "somebody else uses the card: " + backend.NextRetry},
		// The kernel takes as much memory as the image is large, before all else.
		unix.ENOMEM: {backend.Retryable, "the kernel has no memory for the image: " + backend.NextRetry},
		unix.EINVAL: {backend.Terminal, "the driver has no such port or knows another form of the request: compare the port's id with its FME"},
		unix.EFAULT: {backend.Terminal, "the driver could not read the image: this is a defect of the program"},
		unix.ENODEV: {backend.Terminal, "the port was released to a virtual function or its device is gone: look at the card"},
		unix.ENXIO:  {backend.Terminal, "the device is gone: look at the card"},
		unix.ENOTTY: {backend.Terminal, "the node is not that of a DFL driver: look at the device's node"},
		unix.EPERM:  {backend.Terminal, "the process may not do that: look at its privileges"},
		unix.EACCES: {backend.Terminal, "the process may not do that: look at its privileges"},
		unix.ENOENT: {backend.Terminal, "there is no such node: look at the card and its driver"},
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		if f, ok := faults[errno]; ok {
			return f
		}
	}
	return fault{backend.Unknown, nextRebind} // EIO, ETIMEDOUT and what no kernel says today
}
