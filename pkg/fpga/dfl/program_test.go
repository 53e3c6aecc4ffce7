// SPDX-License-Identifier: Apache-2.0

package dfl_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

func TestProgram(t *testing.T) {
	s := start(t, oneCard(2), dfl.Options{})
	lease := s.acquire(s.port(1))
	// A header that is not for the card, and a length that is no multiple of a word or a page.
	raw := fpgasim.Image(shell, nlb3, 3<<20+1)
	image := s.seal(append([]byte("a header"), raw...))
	_, err := lease.Program(t.Context(), dfl.Load{Image: image, Offset: 8, AFU: nlb3})
	check.Must(t, err)
	want := []string{
		"open dfl-port.1 exclusive",
		"open dfl-fme.0",
		"ioctl dfl-fme.0 pr 1",
		"done dfl-fme.0 pr 1",
		`read afu_id "` + nlb3 + `"`,
	}
	if diff := cmp.Diff(want, s.asked()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, e := range s.Trace() {
		if e.Op == "ioctl" && ("sha256:"+e.SHA256 != digest(raw) || e.Size != len(raw)) {
			t.Errorf("the card was given %d bytes with digest %s, want %d with %s", e.Size, e.SHA256, len(raw), digest(raw))
		}
	}
	state, err := s.State(s.port(1))
	if diff := cmp.Diff(dfl.State{Interface: shell, AFU: nlb3, Manager: "operating"}, state); diff != "" || err != nil {
		t.Errorf("state %v (-want +got):\n%s", err, diff)
	}
	if state, err := s.State(s.port(0)); state.AFU != nlb0 || err != nil {
		t.Errorf("the other port: %+v, %v", state, err)
	}
}

// TestRefused: what can be known before is refused before anything is opened.
func TestRefused(t *testing.T) {
	s := start(t, fpgasim.Machine{Cards: []fpgasim.Card{{Ports: []fpgasim.Port{
		{Interface: shell, AFU: nlb0}, {Interface: "", AFU: nlb0}, {Interface: allF, AFU: nlb0},
	}}}}, dfl.Options{})
	for _, tc := range []struct {
		name, interfaceID, want string
		port                    int
	}{
		{"another shell", otherShell, otherShell + " of the image, the region has " + shell, 0},
		{"short", shell[1:], "want 32 hexadecimal digits", 0},
		{"upper case", strings.ToUpper(shell), "want 32 hexadecimal digits", 0},
		{"region without", shell, "no such file", 1},
		{"region all f", shell, "it has no usable one", 2},
		{"both all f", allF, "not all the same", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lease, err := s.Acquire(t.Context(), s.port(tc.port), tc.interfaceID)
			if err == nil {
				check.Must(t, lease.Release())
			}
			if !errors.Is(err, backend.ErrInterface) || backend.KindOf(err) != backend.Terminal || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v; want a terminal error with %q", lease, err, tc.want)
			}
		})
	}
	if trace := s.Trace(); len(trace) > 0 {
		t.Errorf("the hardware was touched: %v", trace)
	}
}

// TestBefore: refusals under a lease never reach the FME.
func TestBefore(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{})
	image := s.image(shell, nlb3, 100)
	power := 6
	s.Set(fpgasim.Set{Power: &power})
	lease := s.acquire(s.port(0))
	_, err := lease.Program(t.Context(), dfl.Load{Image: image, AFU: nlb3})
	if !errors.Is(err, dfl.ErrPower) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("after a thermal stop: %v, want retryable", err)
	}
	power = 0
	s.Set(fpgasim.Set{Power: &power})
	for _, load := range []dfl.Load{
		{Image: image, AFU: "nlb3"}, {Image: image, AFU: allF}, {Image: image, AFU: nlb3, Size: 101}, {Image: image, AFU: nlb3, Offset: 100},
	} {
		if _, err := lease.Program(t.Context(), load); backend.KindOf(err) != backend.Terminal {
			t.Errorf("%+v: %v, want terminal", load, err)
		}
	}
	other := otherShell
	s.Set(fpgasim.Set{Interface: &other}) // Another card was put in its place.
	if _, err := lease.Program(t.Context(), dfl.Load{Image: image, AFU: nlb3}); !errors.Is(err, backend.ErrInterface) {
		t.Errorf("another interface id meanwhile: %v", err)
	}
	check.Must(t, lease.Release())
	check.Must(t, lease.Release())
	if _, err := lease.Program(t.Context(), dfl.Load{Image: image, AFU: nlb3}); backend.KindOf(err) != backend.Terminal {
		t.Errorf("a lease that was released: %v, want terminal", err)
	}
	if diff := cmp.Diff([]string{"open dfl-port.0 exclusive"}, s.asked()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	resetOnly, err := s.Acquire(t.Context(), s.port(0), "")
	check.Must(t, err)
	defer func() { check.Must(t, resetOnly.Release()) }()
	if _, err := resetOnly.Program(t.Context(), dfl.Load{Image: image, AFU: nlb3}); !errors.Is(err, backend.ErrInterface) {
		t.Errorf("a lease without an interface id: %v", err)
	}
}

// TestFailures is what the hardware and the driver may answer, and what kind of error that is.
func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fault  fpgasim.Fault
		image  []byte
		kind   backend.Kind
		cause  error
		status string
	}{
		{name: "CRC", image: make([]byte, 100), kind: backend.Unknown, cause: unix.EIO, status: "reconfig CRC error"},
		{
			name: "incompatible", image: fpgasim.Image(otherShell, nlb3, 100),
			kind: backend.Unknown, cause: unix.EIO, status: "reconfig incompatible image",
		},
		{
			name: "EIO", fault: fpgasim.Fault{Errno: "EIO", Status: "reconfig fifo overflow error"},
			kind: backend.Unknown, cause: unix.EIO, status: "reconfig fifo overflow error",
		},
		{name: "hang", fault: fpgasim.Fault{Errno: "ETIMEDOUT"}, kind: backend.Unknown, cause: unix.ETIMEDOUT},
		{name: "busy", fault: fpgasim.Fault{Errno: "EBUSY"}, kind: backend.Retryable, cause: unix.EBUSY},
		{name: "no memory", fault: fpgasim.Fault{Errno: "ENOMEM"}, kind: backend.Retryable, cause: unix.ENOMEM},
		{name: "invalid", fault: fpgasim.Fault{Errno: "EINVAL"}, kind: backend.Terminal, cause: unix.EINVAL},
		{name: "unplugged", fault: fpgasim.Fault{Errno: "ENODEV"}, kind: backend.Terminal, cause: unix.ENODEV},
		{name: "all f", fault: fpgasim.Fault{AFU: allF}, kind: backend.Unknown, cause: dfl.ErrDead},
		{name: "another", fault: fpgasim.Fault{AFU: nlb0}, kind: backend.Unknown, cause: dfl.ErrWrongAFU},
		{name: "never enabled", fault: fpgasim.Fault{Busy: 1 << 30}, kind: backend.Unknown, cause: dfl.ErrNotEnabled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, oneCard(1), dfl.Options{Clock: check.Hurried()})
			tc.fault.On = fpgasim.OnPR
			s.fault(tc.fault)
			if tc.image == nil {
				tc.image = fpgasim.Image(shell, nlb3, 100)
			}
			_, err := s.acquire(s.port(0)).Program(t.Context(), dfl.Load{Image: s.seal(tc.image), AFU: nlb3})
			failure, ok := errors.AsType[*backend.Error](err)
			if !ok || failure.Kind != tc.kind || !errors.Is(err, tc.cause) || failure.Status != tc.status || failure.Next == "" {
				t.Fatalf("got %v, want %s, %v, status %q", err, tc.kind, tc.cause, tc.status)
			}
			state, err := s.State(s.port(0))
			if untouched := state.AFU == nlb0 && state.Manager == "unknown"; untouched != (tc.kind != backend.Unknown) {
				t.Errorf("an error of kind %q left %+v, %v", tc.kind, state, err)
			}
		})
	}
}

// TestEnabledLate: a port may need some time after it was programmed.
func TestEnabledLate(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{Clock: check.Hurried()})
	s.fault(fpgasim.Fault{On: fpgasim.OnPR, Busy: 5})
	_, err := s.acquire(s.port(0)).Program(t.Context(), dfl.Load{Image: s.image(shell, nlb3, 100), AFU: nlb3})
	check.Must(t, err)
	if got := strings.Count(strings.Join(s.asked(), "\n"), "read afu_id EBUSY"); got != 5 {
		t.Errorf("afu_id was busy %d times, want 5:\n%s", got, strings.Join(s.asked(), "\n"))
	}
}

// leaping is a clock of a process that does not run for an hour after each look at it.
type leaping struct{ *clocktesting.FakeClock }

func (l leaping) Now() time.Time {
	l.Step(time.Hour)
	return l.FakeClock.Now()
}

// TestSleptThrough: a process that did not run while the port was waited for looks at it before it says that it was in vain.
func TestSleptThrough(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{Clock: leaping{clocktesting.NewFakeClock(time.Unix(0, 0))}})
	lease := s.acquire(s.port(0))
	load := dfl.Load{Image: s.image(shell, nlb3, 100), AFU: nlb3}
	s.fault(fpgasim.Fault{On: fpgasim.OnPR, Busy: 1})
	_, err := lease.Program(t.Context(), load)
	check.Must(t, err)
	s.fault(fpgasim.Fault{On: fpgasim.OnPR, Busy: 2})
	_, err = lease.Program(t.Context(), load)
	if !errors.Is(err, dfl.ErrNotEnabled) {
		t.Errorf("got %v, want that it stayed disabled", err)
	}
}

// TestDeadPort: after a failed programming the next one returns 0, and the port is dead. Only a new binding helps.
func TestDeadPort(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{Clock: check.Hurried()})
	s.fault(fpgasim.Fault{On: fpgasim.OnPR, Errno: "EIO", Status: "reconfig CRC error"})
	lease := s.acquire(s.port(0))
	load := dfl.Load{Image: s.image(shell, nlb3, 100), AFU: nlb3}
	if _, err := lease.Program(t.Context(), load); !errors.Is(err, unix.EIO) {
		t.Fatalf("got %v, want EIO", err)
	}
	_, err := lease.Program(t.Context(), load)
	if !errors.Is(err, dfl.ErrNotEnabled) || backend.KindOf(err) != backend.Unknown {
		t.Errorf("a dead port passes for programmed: %v", err)
	}
	if last := s.Trace(); !hasEvent(last, func(e fpgasim.Event) bool { return e.Op == "done" && e.Errno == "" }) {
		t.Errorf("the second ioctl did not succeed, so this test shows nothing: %v", last)
	}
	check.Must(t, lease.Reset())
	if err := lease.Verify(t.Context(), nlb3); !errors.Is(err, dfl.ErrNotEnabled) {
		t.Errorf("after a reset: %v", err)
	}
	check.Must(t, lease.Release())
	s.Set(fpgasim.Set{Rebind: true})
	_, err = s.acquire(s.port(0)).Program(t.Context(), load)
	check.Must(t, err)
}

func hasEvent(trace []fpgasim.Event, match func(fpgasim.Event) bool) bool {
	for _, e := range trace {
		if match(e) {
			return true
		}
	}
	return false
}

func programming(e fpgasim.Event) bool { return e.Op == "ioctl" && e.Request == fpgasim.OnPR }

// TestTwoPorts of one FME wait for each other; those of another card do not.
func TestTwoPorts(t *testing.T) {
	m := oneCard(2)
	m.Cards = append(m.Cards, oneCard(1).Cards...)
	s := start(t, m, dfl.Options{})
	s.fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	var all sync.WaitGroup
	run := func(p dfl.Port) {
		lease, err := s.Acquire(t.Context(), p, shell)
		if err == nil {
			_, err = lease.Program(t.Context(), dfl.Load{Image: s.image(shell, nlb3, 100), AFU: nlb3})
			err = errors.Join(err, lease.Release())
		}
		if err != nil {
			t.Error(err)
		}
	}
	all.Go(func() { run(s.port(0)) })
	s.Await(1, programming)
	run(s.portOf(1, 0))
	_, err := s.Acquire(check.Passed(t), s.port(1), shell)
	if backend.KindOf(err) != backend.Retryable || !errors.Is(err, filelock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the card is in use: %v, want retryable", err)
	}
	if strings.Contains(strings.Join(s.asked(), "\n"), "open dfl-port.1") {
		t.Errorf("the port was opened before the lock was there:\n%s", strings.Join(s.asked(), "\n"))
	}
	all.Go(func() { run(s.port(1)) })
	s.Go()
	all.Wait()
	var got []string
	for _, e := range s.Trace() {
		if e.Request == fpgasim.OnPR && e.Path == s.port(0).FMENode {
			got = append(got, e.String())
		}
	}
	want := []string{"ioctl dev/dfl-fme.0 pr 0", "done dev/dfl-fme.0 pr 0", "ioctl dev/dfl-fme.0 pr 1", "done dev/dfl-fme.0 pr 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestExclusive: nobody else has the port open during a lease, and there is no lease while somebody has.
func TestExclusive(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{})
	name := filepath.Join(s.Root, s.port(0).Node)
	busy := func(why string) {
		t.Helper()
		if _, err := s.Acquire(t.Context(), s.port(0), shell); !errors.Is(err, unix.EBUSY) || backend.KindOf(err) != backend.Retryable {
			t.Errorf("%s: %v, want a retryable EBUSY", why, err)
		}
	}
	yes, no := true, false
	s.Set(fpgasim.Set{User: &yes})
	busy("another user")
	s.Set(fpgasim.Set{User: &no})
	pod, err := os.OpenFile(name, os.O_RDWR, 0)
	check.Must(t, err)
	busy("an open file")
	check.Must(t, pod.Close())
	lease := s.acquire(s.port(0))
	if _, err := os.OpenFile(name, os.O_RDWR, 0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("opened during a lease: %v", err)
	}
	check.Must(t, lease.Release())
	again, err := os.OpenFile(name, os.O_RDWR, 0)
	check.Must(t, err)
	check.Must(t, again.Close())
	if hasEvent(s.Trace(), programming) {
		t.Error("something was programmed")
	}
}

// TestContextEnds while the hardware works: the answer is waited for, and it is the right one.
func TestContextEnds(t *testing.T) {
	s := start(t, oneCard(1), dfl.Options{})
	s.fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	lease := s.acquire(s.port(0))
	image := s.image(shell, nlb3, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := lease.Program(ctx, dfl.Load{Image: image, AFU: nlb3})
		ended <- err
	}()
	s.Await(1, programming)
	cancel()
	s.Go()
	check.Must(t, <-ended)
	if _, err := lease.Program(ctx, dfl.Load{Image: image, AFU: nlb3}); backend.KindOf(err) != backend.Retryable {
		t.Errorf("a context that is over: %v, want retryable", err)
	}
}

// TestKilled: the card goes on without the process that asked, and until it is done nobody else gets anywhere.
func TestKilled(t *testing.T) {
	s := start(t, oneCard(2), dfl.Options{})
	s.fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	text, err := json.Marshal(job{s.Root, s.port(0)})
	check.Must(t, err)
	exe, err := os.Executable()
	check.Must(t, err)
	command := exec.CommandContext(t.Context(), exe)
	command.Env = append(os.Environ(), clientVariable+"="+string(text))
	command.Stderr = os.Stderr
	check.Must(t, command.Start())
	s.Await(1, programming)
	check.Must(t, command.Process.Kill())

	if _, err := s.Acquire(check.Passed(t), s.port(1), shell); !errors.Is(err, filelock.ErrHeld) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("the card works: %v, want retryable", err)
	}
	elsewhere := s.port(0)
	elsewhere.LockFile += ".other"
	if held, err := s.Acquire(t.Context(), elsewhere, shell); err == nil {
		t.Error("the port was open, and was acquired")
		check.Must(t, held.Release())
	} else if !errors.Is(err, unix.EBUSY) {
		t.Errorf("the port is still open: %v, want EBUSY", err)
	}
	elsewhere = s.port(1)
	elsewhere.LockFile += ".other"
	lease := s.acquire(elsewhere)
	load := dfl.Load{Image: s.image(shell, nlb3, 100), AFU: nlb3}
	if _, err := lease.Program(t.Context(), load); !errors.Is(err, unix.EBUSY) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("past the lock: %v, want a retryable EBUSY", err)
	}
	s.Go()
	exit, ok := errors.AsType[*exec.ExitError](command.Wait())
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the client ended with %v, want killed", exit)
	}
	check.Must(t, lease.Release())
	check.Must(t, s.acquire(s.port(0)).Verify(t.Context(), nlb3))
}
