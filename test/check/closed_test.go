// SPDX-License-Identifier: Apache-2.0

package check_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

func TestClosedAddress(t *testing.T) {
	address := check.ClosedAddress(t)
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect to %s: %v, want %v", address, err, syscall.ECONNREFUSED)
	}
	if _, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen on %s: %v, want %v", address, err, syscall.EADDRINUSE)
	}
}
