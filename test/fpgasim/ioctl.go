// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The requests of include/uapi/linux/fpga-dfl.h, written anew here: a simulator that takes its numbers from what it tests finds no
// wrong one.
const (
	requestReset   = 0xb640
	requestInfo    = 0xb641
	requestPR      = 0xb680
	requestRelease = 0x4004b681
	requestAssign  = 0x4004b682
	prSize         = 24
	infoSize       = 16
)

// Ioctl gets the payload of an _IOW request; for the others it is the pointer alone, into the caller's memory.
func (h *handle) Ioctl(ctx context.Context, cmd uint32, arg uint64, in, _ []byte) (int32, syscall.Errno) {
	n, pid := h.node, callerOf(ctx)
	switch {
	case n.port != nil && cmd == requestReset:
		return 0, n.model.simple(n.path, OnReset, n.port, pid, func() syscall.Errno {
			if arg != 0 {
				return unix.EINVAL
			}
			return 0 // Disabled and enabled again: the count is what it was.
		})
	case n.port != nil && cmd == requestInfo:
		return 0, n.model.simple(n.path, OnInfo, n.port, pid, func() syscall.Errno { return info(pid, arg) })
	case n.port == nil && cmd == requestPR:
		return 0, n.program(pid, arg)
	case n.port == nil && (cmd == requestRelease || cmd == requestAssign):
		return 0, n.hand(pid, cmd == requestRelease, in) //nolint:contextcheck // What it makes outlives the request.
	}
	return 0, unix.ENOTTY
}

func info(pid int, arg uint64) syscall.Errno {
	head := make([]byte, infoSize)
	if !remote(unix.ProcessVMReadv, pid, arg, head) {
		return unix.EFAULT
	}
	if binary.NativeEndian.Uint32(head) < infoSize {
		return unix.EINVAL
	}
	for i, value := range []uint32{infoSize, 0, 1, 0} { // one region, no messages
		binary.NativeEndian.PutUint32(head[4*i:], value)
	}
	if !remote(unix.ProcessVMWritev, pid, arg, head) {
		return unix.EFAULT
	}
	return 0
}

// program copies the whole image before it looks at the card, as the driver does.
func (n *node) program(pid int, arg uint64) syscall.Errno {
	head := make([]byte, prSize)
	if !remote(unix.ProcessVMReadv, pid, arg, head) {
		return unix.EFAULT
	}
	number := func(at int) uint32 { return binary.NativeEndian.Uint32(head[at:]) }
	if number(0) < prSize || number(4) != 0 {
		return unix.EINVAL
	}
	if int(number(8)) >= len(n.card.ports) {
		return unix.EINVAL
	}
	image := make([]byte, number(12))
	if len(image) == 0 {
		return unix.EINVAL
	}
	if !remote(unix.ProcessVMReadv, pid, binary.NativeEndian.Uint64(head[16:]), image) {
		return unix.EFAULT
	}
	return n.model.program(n.card, number(8), image, pid)
}

func (n *node) hand(pid int, released bool, in []byte) syscall.Errno {
	if len(in) != 4 {
		return unix.EFAULT
	}
	id := int(int32(binary.NativeEndian.Uint32(in)))
	if id < 0 || id >= len(n.card.ports) {
		return unix.EINVAL
	}
	request := OnAssign
	if released {
		request = OnRelease
	}
	p := n.card.ports[id]
	return n.model.simple(n.path, request, p, pid, func() syscall.Errno { return n.model.hand(p, released) })
}

// copier is ProcessVMReadv or ProcessVMWritev.
type copier func(pid int, local []unix.Iovec, remote []unix.RemoteIovec, flags uint) (int, error)

// remote copies all of local from or to the caller's memory. One call moves at most 2 GiB less a page.
func remote(move copier, pid int, address uint64, local []byte) bool {
	for done := 0; done < len(local); {
		part := local[done:]
		n, err := move(pid,
			[]unix.Iovec{{Base: &part[0], Len: uint64(len(part))}},
			[]unix.RemoteIovec{{Base: uintptr(address) + uintptr(done), Len: len(part)}}, 0)
		if err != nil || n == 0 {
			return false
		}
		done += n
	}
	return true
}

// exclusive says whether the open that a thread is in has O_EXCL, from the system call's arguments (proc(5), /proc/tid/syscall). What
// cannot be looked at counts as exclusive, which can only make a test fail.
func exclusive(tid int) bool {
	flags, ok := openFlags(tid)
	return !ok || flags&unix.O_EXCL != 0
}

func openFlags(tid int) (flags uint64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", tid))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 4 {
		return 0, false
	}
	argument, err := strconv.ParseUint(fields[3], 0, 64)
	if err != nil {
		return 0, false
	}
	switch fields[0] {
	case strconv.Itoa(unix.SYS_OPENAT):
		return argument, true
	case strconv.Itoa(unix.SYS_OPENAT2): // The flags come first in struct open_how.
		how := make([]byte, 8)
		ok := remote(unix.ProcessVMReadv, tid, argument, how)
		return binary.NativeEndian.Uint64(how), ok
	default:
		return 0, false
	}
}
