// SPDX-License-Identifier: Apache-2.0

package xrt

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/tool"
	"github.com/fettle-dev/fettle/test/check"
)

func TestProgram(t *testing.T) {
	s := newSite(t, Options{})
	img := newImage("xclbin2 and logic")
	l := s.acquire()
	_, err := l.Program(t.Context(), Load{Image: img, UUID: wanted})
	check.Must(t, err)
	file := filepath.Join(s.state, "xclbin-0000-3b-00-0-"+img.digest[7:]+".xclbin")
	want := []call{{
		Args: []string{"program", "--device", "0000:3b:00.0", "--user", file},
		Env: []string{
			"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C", "XILINX_XRT=" + s.tools + "/opt/xilinx/xrt",
			"LD_LIBRARY_PATH=" + s.tools + "/opt/xilinx/xrt/lib",
		},
		File: img.digest, Mode: "-r--------", Lock: s.card.LockFile,
	}}
	if diff := cmp.Diff(want, s.calls()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	state, err := s.host.State(s.card)
	if diff := cmp.Diff(State{Interfaces: []string{fits}, Image: wanted, Locked: true}, state); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	check.Must(t, l.Release())
	check.Must(t, l.Release())
	if left := s.copies(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := l.Program(t.Context(), Load{Image: img, UUID: wanted}); !errors.Is(err, backend.ErrReleased) {
		t.Errorf("after the release: %v", err)
	}
}

func TestReset(t *testing.T) {
	s := newSite(t, Options{})
	s.script(script{Version: versions, Image: strings.Repeat("0", 32)})
	check.Must(t, s.acquire().Reset(t.Context()))
	calls := s.calls()
	if len(calls) != 1 || !cmp.Equal(calls[0].Args, []string{"--force", "reset", "--device", "0000:3b:00.0"}) {
		t.Errorf("calls %+v", calls)
	}
	s.script(script{Version: versions, Unlocked: true})
	if err := s.acquireAgain().Reset(t.Context()); !errors.Is(err, ErrNotLocked) || backend.KindOf(err) != backend.Unknown {
		t.Errorf("the lock is gone after the reset: %v", err)
	}
}

// acquireAgain is for a card that the test's first lease still holds.
func (s *site) acquireAgain() *Lease {
	s.t.Helper()
	s.card.LockFile += ".again"
	return s.acquire()
}

// TestFailures is how xbmgmt may end, and what kind of error that is.
func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name   string
		script script
		kind   backend.Kind
		cause  error
		says   string
	}{
		{name: "exit", script: script{Exit: 1, Says: "ERROR: Operation canceled"}, kind: backend.Unknown, says: "Operation canceled"},
		{name: "exit, yet the image is there", script: script{Exit: 1, Image: printed}, kind: backend.Unknown},
		{name: "busy", script: script{Exit: 1, Says: "ERROR: Device or resource busy"}, kind: backend.Retryable, says: "resource busy"},
		{name: "busy, and another image", script: script{Exit: 1, Says: "Device or resource busy", Image: printed}, kind: backend.Unknown},
		{name: "no exit, but busy", script: script{Says: "Device or resource busy"}, kind: backend.Unknown, cause: ErrWrongImage},
		{name: "hang", script: script{Hang: true}, kind: backend.Unknown, cause: context.DeadlineExceeded},
		{name: "prints without end", script: script{Endless: true}, kind: backend.Unknown, cause: tool.ErrOutput},
		{name: "success, and nothing loaded", script: script{Image: strings.Repeat("0", 32)}, kind: backend.Unknown, cause: ErrWrongImage},
		{
			name: "success, and the old image", script: script{Says: "INFO: Successfully downloaded xclbin"},
			kind: backend.Unknown, cause: ErrWrongImage,
		},
		{name: "success, and garbage", script: script{Image: "garbage"}, kind: backend.Unknown},
		{name: "success, and no lock", script: script{Image: printed, Unlocked: true}, kind: backend.Unknown, cause: ErrNotLocked},
	} {
		t.Run(tc.name, func(t *testing.T) {
			within := func(limit time.Duration) bool {
				s := newSite(t, Options{})
				tc.script.Version = versions
				l := s.acquire()
				s.script(tc.script)
				s.host.options.Timeout = limit
				_, err := l.Program(t.Context(), Load{Image: newImage("x"), UUID: wanted})
				if len(s.calls()) == 0 {
					return false // the limit was over before xbmgmt had begun
				}
				failure, ok := errors.AsType[*backend.Error](err)
				if !ok || failure.Kind != tc.kind || !strings.Contains(failure.Status, tc.says) || failure.Next == "" ||
					tc.cause != nil && !errors.Is(err, tc.cause) {
					t.Errorf("got %v (status %q), want %s", err, failure.Status, tc.kind)
				}
				if left := s.copies(); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
				return true
			}
			if tc.script.Hang {
				check.GrowingLimit(t, "xbmgmt begins", within)
			} else if !within(time.Minute) {
				t.Error("xbmgmt was not run")
			}
		})
	}
}

// TestLate: the user function may go on showing the old image for a moment.
func TestLate(t *testing.T) {
	passes := clocktesting.NewFakeClock(time.Unix(0, 0))
	s := newSite(t, Options{Clock: passes, Settle: time.Minute})
	l := s.acquire()
	ended := make(chan error, 1)
	go func() { ended <- l.Verify(t.Context(), wanted) }()
	for range 3 { // pauses between two looks
		check.Eventually(t, "another image is shown still", passes.HasWaiters)
		passes.Step(time.Second)
	}
	check.Eventually(t, "another image is shown still", passes.HasWaiters)
	select {
	case err := <-ended:
		t.Errorf("verified another image: %v", err)
	default:
	}
	s.set("1/xclbinuuid", printed+"\n")
	passes.Step(time.Second)
	check.Must(t, <-ended)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Verify(ctx, loaded); !errors.Is(err, context.Canceled) || backend.KindOf(err) != backend.Unknown {
		t.Errorf("a context that is over: %v", err)
	}
}

// TestContextEnds while xbmgmt works: it is not killed, since a card that is half programmed is worse than a late one.
func TestContextEnds(t *testing.T) {
	s := newSite(t, Options{})
	l := s.acquire()
	s.script(script{Await: true, Image: printed})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := l.Program(ctx, Load{Image: newImage("x"), UUID: wanted})
		ended <- err
	}()
	check.Eventually(t, "xbmgmt is run", func() bool { return len(s.calls()) > 0 })
	cancel()
	check.Must(t, os.WriteFile(filepath.Join(s.tools, "go"), nil, 0o600))
	check.Must(t, <-ended) // it was waited for: xbmgmt, if it had been killed, would not have changed the image
}

// TestRefused: xbmgmt is not asked to change anything before all was checked.
func TestRefused(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	remove := func(s *site, name string) {
		check.Must(s.t, os.RemoveAll(filepath.Join(s.tools, name)))
	}
	for _, tc := range []struct {
		name    string
		prepare func(s *site)
		wants   string
		load    Load
		ctx     context.Context
		kind    backend.Kind
		cause   error
	}{
		{name: "another interface", wants: strings.Repeat("a", 32), kind: backend.Terminal, cause: backend.ErrInterface},
		{name: "interface is no id", wants: "--force", kind: backend.Terminal, cause: backend.ErrInterface},
		{
			name: "card without interface", prepare: func(s *site) { s.set("1/interface_uuids", "\n") }, kind: backend.Terminal,
			cause: backend.ErrInterface,
		},
		{name: "lease without interface", wants: "none", kind: backend.Terminal, cause: backend.ErrInterface},
		{
			name: "not locked", prepare: func(s *site) { s.set("0/config_mailbox_channel_disable", "0x20\n") },
			kind: backend.Terminal, cause: ErrNotLocked,
		},
		{name: "the user function says that it is locked", prepare: func(s *site) {
			s.set("0/config_mailbox_channel_disable", "0x0\n")
			s.set("1/config_mailbox_channel_disable", "0x120\n")
		}, kind: backend.Terminal, cause: ErrNotLocked},
		{name: "lock is unknown", prepare: func(s *site) {
			remove(s, "host/sys/bus/pci/devices/0000:3b:00.0/config_mailbox_channel_disable")
		}, kind: backend.Terminal, cause: os.ErrNotExist},
		{
			name: "in use", prepare: func(s *site) { s.set("1/kdsstat", "contexts:\t\t2\nclient pid:\n\t\t\t77\n\t\t\t78\n") },
			kind: backend.Retryable,
		},
		{name: "whether in use is garbage", prepare: func(s *site) { s.set("1/kdsstat", "unable to give xclbin id") }, kind: backend.Terminal},
		{name: "not installed", prepare: func(s *site) { remove(s, "opt") }, kind: backend.Terminal, cause: tool.ErrNotInstalled},
		{name: "others may write xbmgmt", prepare: func(s *site) {
			remove(s, places()[0]) // It is a link to this test's binary.
			check.Must(s.t, os.WriteFile(filepath.Join(s.tools, places()[0]), nil, 0o755))
			check.Must(s.t, os.Chmod(filepath.Join(s.tools, places()[0]), 0o777))
		}, kind: backend.Terminal},
		{
			name: "too old", prepare: func(s *site) { s.script(script{Version: "Version : 2.10.999\n"}) },
			kind: backend.Terminal, cause: ErrVersion,
		},
		{
			name: "much too old", prepare: func(s *site) { s.script(script{Version: "Version : 1.12.0\n"}) },
			kind: backend.Terminal, cause: ErrVersion,
		},
		{name: "no version", prepare: func(s *site) { s.script(script{Version: "garbage\n"}) }, kind: backend.Terminal},
		{name: "xbmgmt is of another machine", prepare: func(s *site) {
			remove(s, places()[0])
			check.Must(s.t, os.WriteFile(filepath.Join(s.tools, places()[0]), []byte("no program"), 0o755))
		}, kind: backend.Terminal, cause: tool.ErrNotStarted},
		{name: "one function", prepare: func(s *site) { s.card.User = s.card.Management }, kind: backend.Terminal},
		{name: "uuid is empty", load: Load{Image: newImage("x")}, kind: backend.Terminal},
		{name: "uuid is none", load: Load{Image: newImage("x"), UUID: strings.Repeat("0", 32)}, kind: backend.Terminal},
		{name: "uuid is an option", load: Load{Image: newImage("x"), UUID: "--force"}, kind: backend.Terminal},
		{
			name: "digest is a path",
			load: Load{Image: image{bytes.NewReader([]byte("x")), "sha256:../../../etc/passwd"}, UUID: wanted},
			kind: backend.Terminal,
		},
		{name: "empty image", load: Load{Image: newImage(""), UUID: wanted}, kind: backend.Terminal},
		{name: "the context is over", ctx: ended, kind: backend.Retryable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t, Options{})
			if tc.prepare != nil {
				tc.prepare(s)
			}
			if tc.load.Image == nil {
				tc.load = Load{Image: newImage("x"), UUID: wanted}
			}
			if tc.ctx == nil {
				tc.ctx = t.Context()
			}
			if tc.wants == "" {
				tc.wants = fits
			}
			l, err := s.host.Acquire(t.Context(), s.card, strings.TrimPrefix(tc.wants, "none"))
			if err == nil {
				_, err = l.Program(tc.ctx, tc.load)
				check.Must(t, l.Release())
			}
			failure, ok := errors.AsType[*backend.Error](err)
			if !ok || failure.Kind != tc.kind || failure.Next == "" || tc.cause != nil && !errors.Is(err, tc.cause) {
				t.Errorf("got %v, want %s", err, tc.kind)
			}
			if calls := s.calls(); len(calls) > 0 {
				t.Errorf("it was run: %+v", calls)
			}
			if left := s.copies(); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestUnlockedMeanwhile: what was so when the lease began is looked at again.
func TestUnlockedMeanwhile(t *testing.T) {
	s := newSite(t, Options{})
	l := s.acquire()
	s.set("0/config_mailbox_channel_disable", "0x0\n")
	if _, err := l.Program(t.Context(), Load{Image: newImage("x"), UUID: wanted}); !errors.Is(err, ErrNotLocked) || len(s.calls()) > 0 {
		t.Errorf("got %v, calls %v", err, s.calls())
	}
}

// TestOlderPlace: where the newer name is absent, the older one is taken.
func TestOlderPlace(t *testing.T) {
	s := newSite(t, Options{})
	check.Must(t, os.Rename(filepath.Join(s.tools, places()[0]), filepath.Join(s.tools, places()[1])))
	check.Must(t, s.acquire().Release())
}

// TestVersionHangs: Acquire ends with its context.
func TestVersionHangs(t *testing.T) {
	s := newSite(t, Options{})
	s.script(script{HangVersion: true})
	ctx, pass := check.Deadline(t)
	ended := make(chan error, 1)
	go func() {
		_, err := s.host.Acquire(ctx, s.card, fits)
		ended <- err
	}()
	check.Eventually(t, "xbmgmt is asked", func() bool { return len(s.runs()) > 0 })
	pass()
	if err := <-ended; backend.KindOf(err) != backend.Retryable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want retryable", err)
	}
}

// TestLock: the lock is held for as long as xbmgmt runs, also for another process that did not start it.
func TestLock(t *testing.T) {
	s := newSite(t, Options{})
	l := s.acquire()
	if _, err := s.host.Acquire(check.Passed(t), s.card, fits); !errors.Is(err, filelock.ErrHeld) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("got %v, want retryable", err)
	}
	check.Must(t, l.Release())
	check.Must(t, s.acquire().Release())
}

// TestSweep removes what a killed process left, of this card and nobody else's.
func TestSweep(t *testing.T) {
	s := newSite(t, Options{})
	digits := strings.Repeat("a", 64)
	ours, other := filepath.Join(s.state, "xclbin-0000-3b-00-0-"+digits+suffix), filepath.Join(s.state, "xclbin-0000-3c-00-0-"+digits+suffix)
	for _, name := range []string{ours, other} {
		check.Must(t, os.WriteFile(name, nil, 0o400))
	}
	check.Must(t, s.acquire().Release())
	if diff := cmp.Diff([]string{other}, s.copies()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestConfined: a confined xbmgmt must see the image where this process sees it.
func TestConfined(t *testing.T) {
	s := newSite(t, Options{})
	s.host.options.Tools.Chroot = true
	l := &Lease{host: s.host, card: s.card}
	if err := l.visible(); !errors.Is(err, os.ErrNotExist) || backend.KindOf(err) != backend.Terminal {
		t.Errorf("without the directory: %v", err)
	}
	there := filepath.Join(s.tools, s.state)
	check.Must(t, os.MkdirAll(there, 0o755))
	if err := l.visible(); err == nil {
		t.Error("another directory passes for ours")
	}
	check.Must(t, os.Remove(there))
	check.Must(t, os.Symlink(s.state, there))
	check.Must(t, l.visible())
}

func TestOpenRefuses(t *testing.T) {
	for _, o := range []Options{
		{StateDir: "state", Tools: tool.Root{Dir: "/"}},
		{StateDir: "/tmp/../tmp", Tools: tool.Root{Dir: "/"}},
		{StateDir: "/nowhere", Tools: tool.Root{Dir: "/"}},
		{StateDir: t.TempDir(), Tools: tool.Root{Dir: ""}},
	} {
		if h, err := Open(t.TempDir(), o); err == nil {
			t.Errorf("%+v is opened", o)
			check.Must(t, h.Close())
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]version{
		versions: {2, 16}, "\n  Version : 2.8.743 \n": {2, 8}, "Version: 10.2\n": {10, 2},
		"": {}, "XOCL Version : 2.16.1": {}, "Version : 2": {}, "Version : -2.16.1": {}, "Version : 2.16.1; x": {},
		"Version : 2.99999999999999999999": {},
	} {
		if got, err := parseVersion(text); got != want || (err == nil) != (want != version{}) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]int{"contexts:\t\t0\n": 0, "a\ncontexts:\t3\nclient pid:\n": 3} {
		if got, err := parseContexts(text); got != want || err != nil {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "contexts:", "contexts: -1", "x contexts: 1", "contexts: 99999999999"} {
		if got, err := parseContexts(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(versions)
	f.Add("contexts:\t\t2\nclient pid:\n")
	f.Add("Version : 9999.999999.1")
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := parseVersion(text); err == nil && (v.major < 0 || v.major > 9999 || v.minor < 0 || v.minor > 999999) {
			t.Errorf("%q is %v", text, v)
		}
		if n, err := parseContexts(text); err == nil && (n < 0 || n > 999999999) {
			t.Errorf("%q is %d", text, n)
		}
	})
}
