// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
)

// ueventGroup is the kernel's own multicast group of NETLINK_KOBJECT_UEVENT; udev's repeats are in another.
const ueventGroup = 1

// debounceInterval is how long events must pause before a scan: loading a driver makes hundreds of them.
const debounceInterval = 500 * time.Millisecond

// WatchUevents returns a channel that carries a value after each burst of kernel events which may concern a device. Kernel events
// only make a scan come sooner: without them, the interval remains.
func WatchUevents(ctx context.Context) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's event socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventGroup}); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to the kernel's events: %w", err), unix.Close(fd))
	}
	// A file in non-blocking mode is served by the runtime's poller, so that Close ends a Read.
	socket := os.NewFile(uintptr(fd), "uevents")
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	raw := notify.New()
	go readUevents(socket, raw)
	out := notify.New()
	go debounce(ctx, raw, out)
	return out, nil
}

func readUevents(socket *os.File, out notify.Signal) {
	buffer := make([]byte, 8<<10)
	for {
		n, err := socket.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were lost: scan in any case
		case err != nil:
			return
		case !relevant(buffer[:n]):
			continue
		}
		out.Send()
	}
}

// debounce passes a signal on after a pause without another one.
func debounce(ctx context.Context, in <-chan struct{}, out notify.Signal) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-in:
			timer.Reset(debounceInterval)
		case <-timer.C:
			out.Send()
		}
	}
}

// relevant reports whether a kernel event is about a subsystem that discovery reads. The message is NUL-separated KEY=value text
// (Documentation/ABI/testing/sysfs-uevent).
func relevant(message []byte) bool {
	for field := range bytes.SplitSeq(message, []byte{0}) {
		subsystem, ok := bytes.CutPrefix(field, []byte("SUBSYSTEM="))
		if !ok {
			continue
		}
		switch string(subsystem) {
		case "pci", "drm", "module", "misc", "nvme", "block", "fpga_region", "fpga_manager", "dfl", "accel", "kfd":
			return true
		}
	}
	return false
}
