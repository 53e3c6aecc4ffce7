// SPDX-License-Identifier: Apache-2.0

package dfl_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// TestErrors of the last user are cleared before a programming, by the value that was read.
func TestErrors(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{})
	left := uint64(0x25)
	s.Set(fpgasim.Set{Errors: &left})
	s.fault(fpgasim.Fault{On: fpgasim.OnClear, Errno: "EINVAL"})
	lease := s.acquire(s.port(0))
	if bits, err := lease.Errors(); bits != left || err != nil {
		t.Errorf("errors %#x, %v; want %#x", bits, err, left)
	}
	_, err := lease.Program(t.Context(), dfl.Load{Image: s.image(shell, nlb3, 100), AFU: nlb3})
	check.Must(t, err)
	want := []string{
		"open dfl-port.0 exclusive", `write errors "0x25" EINVAL`, `write errors "0x25"`,
		"open dfl-fme.0", "ioctl dfl-fme.0 pr 0", "done dfl-fme.0 pr 0", `read afu_id "` + nlb3 + `"`,
	}
	if diff := cmp.Diff(want, s.asked()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	s.Set(fpgasim.Set{Errors: &left})
	if err := lease.Verify(t.Context(), nlb3); err == nil || !strings.Contains(err.Error(), "has errors 0x25") {
		t.Errorf("verified with errors: %v", err)
	}
	for errno, kind := range map[string]backend.Kind{"EBUSY": backend.Retryable, "ETIMEDOUT": backend.Unknown} {
		s.fault(fpgasim.Fault{On: fpgasim.OnClear, Errno: errno})
		if bits, err := lease.ClearErrors(); bits != left || backend.KindOf(err) != kind || err == nil {
			t.Errorf("%s: %#x, %v; want %s", errno, bits, err, kind)
		}
	}
}

func TestResetAndInfo(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{})
	lease := s.acquire(s.port(0))
	check.Must(t, lease.Reset())
	if info, err := lease.Info(); err != nil || info != (dfl.Info{Regions: 1}) {
		t.Errorf("got %+v, %v", info, err)
	}
	s.fault(fpgasim.Fault{On: fpgasim.OnReset, Errno: "ETIMEDOUT"})
	if err := lease.Reset(); backend.KindOf(err) != backend.Unknown || !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("got %v, want unknown state", err)
	}
	want := []string{
		"open dfl-port.0 exclusive", "ioctl dfl-port.0 reset 0", "ioctl dfl-port.0 info 0", "ioctl dfl-port.0 reset 0 ETIMEDOUT",
	}
	if diff := cmp.Diff(want, s.asked()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestReleaseAndAssign: a port of a virtual function can be neither opened nor programmed here.
func TestReleaseAndAssign(t *testing.T) {
	s := start(t, oneCard(2), dfl.Options{})
	p := s.port(1)
	other := p
	other.LockFile += ".other"
	lease := s.acquire(p)
	if err := s.ReleasePort(t.Context(), other); !errors.Is(err, unix.EBUSY) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("release of an open port: %v, want a retryable EBUSY", err)
	}
	check.Must(t, lease.Release())
	check.Must(t, s.ReleasePort(t.Context(), p))
	if err := s.ReleasePort(t.Context(), p); !errors.Is(err, unix.EBUSY) {
		t.Errorf("release of a released port: %v, want EBUSY", err)
	}
	if _, err := s.Acquire(t.Context(), p, shell); !errors.Is(err, os.ErrNotExist) || backend.KindOf(err) != backend.Terminal {
		t.Errorf("acquire of a released port: %v, want a terminal ENOENT", err)
	}
	check.Must(t, s.AssignPort(t.Context(), p))
	if err := s.AssignPort(t.Context(), p); !errors.Is(err, unix.EBUSY) {
		t.Errorf("assign of an assigned port: %v, want EBUSY", err)
	}
	check.Must(t, s.acquire(p).Release())
	none := p
	none.ID = 7
	if err := s.ReleasePort(t.Context(), none); !errors.Is(err, unix.EINVAL) || backend.KindOf(err) != backend.Terminal {
		t.Errorf("release of a port that the card has not: %v, want a terminal EINVAL", err)
	}
}

// TestNodes: a port's node is a character device, except in a simulator, which is never the host itself.
func TestNodes(t *testing.T) {
	if host, err := dfl.Open("/", dfl.Options{PlainNodes: true}); err == nil {
		t.Errorf("plain files were accepted as nodes of this host: %v", host)
	}
	link := filepath.Join(t.TempDir(), "root")
	check.Must(t, os.Symlink("/", link))
	if host, err := dfl.Open(link, dfl.Options{PlainNodes: true}); err == nil {
		t.Errorf("plain files were accepted as nodes of this host by another name: %v", host)
	}
	root := t.TempDir()
	check.Must(t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	check.Must(t, os.WriteFile(filepath.Join(root, "dev/plain"), nil, 0o600))
	check.Must(t, unix.Mkfifo(filepath.Join(root, "dev/pipe"), 0o600))
	check.Must(t, os.Symlink("/dev/null", filepath.Join(root, "dev/outside")))
	for _, tc := range []struct {
		node  string
		plain bool
		want  string
	}{
		{"dev/plain", false, "want a character device"},
		{"dev/plain", true, ""},
		{"dev/pipe", true, "want a character device"},
		{"dev", true, "want a character device"},
		{"dev/outside", true, "invalid cross-device link"},
		{"../dev/null", true, "invalid cross-device link"},
		{"dev/none", true, "no such file"},
	} {
		host, err := dfl.Open(root, dfl.Options{PlainNodes: tc.plain})
		check.Must(t, err)
		lease, err := host.Acquire(t.Context(), dfl.Port{Node: tc.node, LockFile: filepath.Join(root, "lock")}, "")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s with plain files %t: %v, want %q", tc.node, tc.plain, err, tc.want)
		}
		if err == nil {
			check.Must(t, lease.Release())
		} else if backend.KindOf(err) != backend.Terminal {
			t.Errorf("%s is %s, want terminal", tc.node, backend.KindOf(err))
		}
		check.Must(t, host.Close())
	}
}

// TestLock: an FME has one user at a time, in one process as in two.
func TestLock(t *testing.T) {
	root := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(root, "node"), nil, 0o600))
	host, err := dfl.Open(root, dfl.Options{PlainNodes: true})
	check.Must(t, err)
	defer func() { check.Must(t, host.Close()) }()
	p := dfl.Port{Name: "dfl-port.0", Node: "node", LockFile: filepath.Join(root, "lock")}
	lease, err := host.Acquire(t.Context(), p, "")
	check.Must(t, err)
	if _, err := host.Acquire(check.Passed(t), p, ""); !errors.Is(err, filelock.ErrHeld) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("two leases at a time: %v", err)
	}
	check.Must(t, lease.Release())
	lease, err = host.Acquire(t.Context(), p, "")
	check.Must(t, err)
	check.Must(t, lease.Release())
	p.LockFile = filepath.Join(root, "none/lock")
	if _, err := host.Acquire(t.Context(), p, ""); backend.KindOf(err) != backend.Terminal || err == nil {
		t.Errorf("no directory for the lock: %v, want terminal", err)
	}
}
