// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// TestLayout is the sizes of include/uapi/linux/fpga-dfl.h.
func TestLayout(t *testing.T) {
	if got := unsafe.Sizeof(portPR{}); got != 24 || unsafe.Offsetof(portPR{}.address) != 16 {
		t.Errorf("portPR has %d bytes, want 24", got)
	}
	if got := unsafe.Sizeof(portInfo{}); got != 16 {
		t.Errorf("portInfo has %d bytes, want 16", got)
	}
}

func TestFaults(t *testing.T) {
	for errno, want := range map[unix.Errno]backend.Kind{
		unix.EBUSY: backend.Retryable, unix.ENOMEM: backend.Retryable,
		unix.EINVAL: backend.Terminal, unix.EFAULT: backend.Terminal, unix.ENODEV: backend.Terminal, unix.ENOTTY: backend.Terminal,
		unix.EIO: backend.Unknown, unix.ETIMEDOUT: backend.Unknown, unix.EINTR: backend.Unknown, unix.EPROTO: backend.Unknown,
	} {
		f := faultOf(fmt.Errorf("wrapped: %w", errno))
		err := error(&backend.Error{Kind: f.kind, Device: "dfl-port.0", Op: "program", Err: errno, Next: f.next})
		if backend.KindOf(err) != want || f.next == "" || !errors.Is(err, errno) {
			t.Errorf("%s is %s (%v), want %s", unix.ErrnoName(errno), backend.KindOf(err), err, want)
		}
	}
}
