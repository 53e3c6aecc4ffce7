// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// ClosedAddress returns a TCP address that refuses every connection until the test ends: the test has it and does not listen, so nothing
// else can.
func ClosedAddress(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("make a socket: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("bind a socket: %v", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatalf("read the address of a socket: %v", err)
	}
	address, ok := name.(*unix.SockaddrInet4)
	if !ok {
		t.Fatalf("a socket of IPv4 has the address %v", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", address.Port)
}
