// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// Causes that callers may ask for with errors.Is, beside those of package backend.
var (
	// ErrDead: the id of the accelerator reads all f, so its firmware has crashed.
	ErrDead = errors.New("the port's firmware has crashed")
	// ErrNotEnabled: the port was still disabled when the wait for it ended.
	ErrNotEnabled = errors.New("the port is still disabled")
	// ErrWrongAFU: the port holds another accelerator than the programmed one.
	ErrWrongAFU = errors.New("another accelerator")
	// ErrPower: the card has cut the port's power, as it does when it is too hot.
	ErrPower = errors.New("power state")
)

const nextRebind = "set the region aside until its PCI device is bound again and the accelerator's id reads back"

// fault is one row of the table of errnos of DFL ioctls.
type fault struct {
	kind backend.Kind
	next string
}

// faultOf looks an errno up in a table made from drivers/fpga/dfl-fme-pr.c, dfl-fme-mgr.c and fpga-mgr.c. It says what had happened to the
// region before the error.
func faultOf(err error) fault {
	faults := map[unix.Errno]fault{
		// The driver only tries the locks of region and manager, and does so first.
		unix.EBUSY: {backend.Retryable, "another process uses the card: " + backend.NextRetry},
		// Before all else the kernel takes as much memory as the image is large.
		unix.ENOMEM: {backend.Retryable, "the kernel has no memory for the image: " + backend.NextRetry},
		unix.EINVAL: {backend.Terminal, "the driver has no such port or knows another form of the request: compare the port's id with its FME"},
		unix.EFAULT: {backend.Terminal, "the driver could not read the image: this is a defect of the program"},
		unix.ENODEV: {backend.Terminal, "the port was released to a virtual function or its device is gone: check the card"},
		unix.ENXIO:  {backend.Terminal, "the device is gone: check the card"},
		unix.ENOTTY: {backend.Terminal, "the node is not that of a DFL driver: check the device's node"},
		unix.EPERM:  {backend.Terminal, "the process may not do that: check its privileges"},
		unix.EACCES: {backend.Terminal, "the process may not do that: check its privileges"},
		unix.ENOENT: {backend.Terminal, "there is no such node: check the card and its driver"},
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		if f, ok := faults[errno]; ok {
			return f
		}
	}
	return fault{backend.Unknown, nextRebind} // EIO, ETIMEDOUT and errnos that no kernel returns today
}
