// SPDX-License-Identifier: Apache-2.0

package f2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/tool"
)

const (
	one = "agfi-0fedcba9876543210"
	two = "agfi-09c2a21805a8b9257"
)

// script is what Amazon's programs do here. It lies in their root.
type script struct {
	// Status, Image and Fault are what the slot holds.
	Status, Image, Fault string
	// Busy is how often it says busy first.
	Busy int
	// Exit, Hang, Wrong and Keep are how a load and a clear end: by this status, never, with Wrong in the slot, or as it was.
	Exit  int
	Hang  bool
	Wrong string
	Keep  bool
	// Garbage is what describing prints instead.
	Garbage string
}

func TestMain(m *testing.M) {
	if verb, ok := strings.CutPrefix(filepath.Base(os.Args[0]), "fpga-"); ok {
		// os.Exit would have the race detector wait a second for reports.
		syscall.Exit(fake(filepath.Join(os.Args[0], "../../.."), strings.TrimSuffix(verb, "-local-image"), os.Args[1:]))
	}
	os.Exit(m.Run())
}

func fake(root, verb string, args []string) int {
	file := filepath.Join(root, "script.json")
	s, err := read(file)
	if err == nil && verb != "describe" {
		err = note(root, append([]string{verb}, args...))
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 99
	case verb == "describe":
		describe(&s, args[1])
	case s.Hang:
		time.Sleep(time.Minute)
	case verb == "load" && !s.Keep:
		s.Status, s.Image = loaded, args[3]
	case verb == "clear" && !s.Keep:
		s.Status, s.Image = cleared, "No AFI"
	}
	if verb != "describe" && s.Wrong != "" {
		s.Image = s.Wrong
	}
	if verb != "describe" && s.Exit != 0 {
		fmt.Fprintln(os.Stderr, "Error: (5) invalid-afi-id")
	}
	if err := write(file, s); err != nil {
		return 98
	}
	if verb == "describe" {
		return 0
	}
	return s.Exit
}

func describe(s *script, slot string) {
	status, image := s.Status, s.Image
	if s.Busy > 0 {
		s.Busy--
		status, image = busy, "none"
	}
	if s.Garbage != "" {
		fmt.Print(s.Garbage)
		return
	}
	fmt.Printf("AFI          %s       %s  %s            0        %s               0       0x10212415\n", slot, image, status, s.Fault)
	fmt.Printf("AFIDEVICE    %s       0x1d0f      0x9048      0000:34:00.0\n", slot)
}

func note(root string, args []string) error {
	f, err := os.OpenFile(filepath.Join(root, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	lock, err := os.Readlink("/proc/self/fd/3")
	if err == nil && filepath.Base(lock) != "slot.lock" {
		err = fmt.Errorf("no lock is held, but %s", lock)
	}
	_, writeErr := fmt.Fprintln(f, strings.Join(args, " "))
	return errors.Join(err, writeErr, f.Close())
}

func read(file string) (s script, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

func write(file string, s script) error {
	text, err := json.Marshal(s)
	return errors.Join(err, os.WriteFile(file, text, 0o600))
}

type site struct {
	t    *testing.T
	root string
	host *Host
	slot Slot
}

func newSite(t *testing.T, s script, o Options) *site {
	t.Helper()
	if s.Status == "" {
		s.Status, s.Image = cleared, "No AFI"
	}
	if s.Fault == "" {
		s.Fault = "ok"
	}
	site := &site{t: t, root: t.TempDir()}
	site.slot = Slot{Name: "slot 3", Number: 3, LockFile: filepath.Join(site.root, "slot.lock")}
	for _, verb := range []string{"load", "clear", "describe"} {
		site.install("fpga-" + verb + "-local-image")
	}
	must(t, write(filepath.Join(site.root, "script.json"), s))
	o.Tools, o.Clock = tool.Root{Dir: site.root}, hurried{clocktesting.NewFakeClock(time.Unix(0, 0))}
	site.host = New(o)
	return site
}

// hurried is a clock on which waiting takes no time.
type hurried struct{ *clocktesting.FakeClock }

func (h hurried) NewTimer(d time.Duration) clock.Timer {
	timer := h.FakeClock.NewTimer(d)
	h.Step(d)
	return timer
}

func (s *site) install(name string) {
	s.t.Helper()
	exe, err := os.Executable()
	must(s.t, err)
	to := filepath.Join(s.root, "usr/bin", name)
	must(s.t, os.MkdirAll(filepath.Dir(to), 0o755))
	if os.Link(exe, to) == nil {
		return
	}
	from, err := os.Open(exe)
	must(s.t, err)
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	must(s.t, err)
	_, err = io.Copy(f, from)
	must(s.t, errors.Join(err, f.Close()))
}

// calls are the loads and clears so far.
func (s *site) calls() string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, "calls"))
	if !errors.Is(err, os.ErrNotExist) {
		must(s.t, err)
	}
	return string(text)
}

func (s *site) acquire() *Lease {
	s.t.Helper()
	l, err := s.host.Acquire(s.t.Context(), s.slot)
	must(s.t, err)
	s.t.Cleanup(func() { _ = l.Release() })
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestProgramAndClear(t *testing.T) {
	s := newSite(t, script{}, Options{})
	l := s.acquire()
	_, err := l.Program(t.Context(), one)
	must(t, err)
	must(t, l.Verify(t.Context(), one))
	if err := l.Verify(t.Context(), two); backend.KindOf(err) != backend.Unknown || err == nil {
		t.Errorf("another image is verified: %v", err)
	}
	must(t, l.Clear(t.Context()))
	state, err := l.State(t.Context())
	if diff := cmp.Diff(State{Status: cleared, Shell: "0x10212415"}, state); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if diff := cmp.Diff("load -S 3 -I "+one+"\nclear -S 3\n", s.calls()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	must(t, l.Release())
	must(t, l.Release())
	if _, err := l.Program(t.Context(), one); !errors.Is(err, backend.ErrReleased) {
		t.Errorf("after the release: %v", err)
	}
	if _, err := l.State(t.Context()); !errors.Is(err, backend.ErrReleased) {
		t.Errorf("after the release: %v", err)
	}
}

// TestBusy: a slot is busy for a while after a load, and not for ever.
func TestBusy(t *testing.T) {
	s := newSite(t, script{}, Options{})
	l := s.acquire()
	set := func(busy int) {
		t.Helper()
		script, err := read(filepath.Join(s.root, "script.json"))
		must(t, err)
		script.Busy = busy
		must(t, write(filepath.Join(s.root, "script.json"), script))
	}
	set(3)
	_, err := l.Program(t.Context(), one)
	must(t, err)
	set(1000)
	if err := l.Verify(t.Context(), one); backend.KindOf(err) != backend.Unknown || !strings.Contains(fmt.Sprint(err), busy) {
		t.Errorf("busy for ever: %v", err)
	}
	must(t, l.Release())
	if _, err := s.host.Acquire(t.Context(), s.slot); backend.KindOf(err) != backend.Retryable {
		t.Errorf("got %v, want retryable", err)
	}
}

func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name   string
		script script
		kind   backend.Kind
		cause  error
		says   string
	}{
		{name: "exit", script: script{Exit: 1, Keep: true}, kind: backend.Unknown, says: "invalid-afi-id"},
		{name: "exit, yet the image is there", script: script{Exit: 1}, kind: backend.Unknown},
		{name: "hang", script: script{Hang: true}, kind: backend.Unknown, cause: context.DeadlineExceeded},
		{name: "success, and nothing loaded", script: script{Keep: true}, kind: backend.Unknown},
		{name: "success, and another image", script: script{Wrong: two}, kind: backend.Unknown},
		{
			name: "load failed", script: script{Status: "load-failed", Image: "none", Fault: "afi-power-violation", Keep: true},
			kind: backend.Unknown, says: "afi-power-violation",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := Options{}
			if tc.script.Hang {
				o.Timeout = 300 * time.Millisecond
			}
			s := newSite(t, tc.script, o)
			_, err := s.acquire().Program(t.Context(), one)
			failure, ok := errors.AsType[*backend.Error](err)
			if !ok || failure.Kind != tc.kind || !strings.Contains(failure.Status, tc.says) || failure.Next == "" ||
				tc.cause != nil && !errors.Is(err, tc.cause) {
				t.Errorf("got %v, want %s", err, tc.kind)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tc := range []struct {
		name   string
		script script
		number int
		image  string
		remove string
		ctx    context.Context
		kind   backend.Kind
		cause  error
	}{
		{name: "image is regional", image: "afi-0fedcba9876543210", kind: backend.Terminal},
		{name: "image is short", image: one[:20], kind: backend.Terminal},
		{name: "image in upper case", image: strings.ToUpper(one), kind: backend.Terminal},
		{name: "image is an option", image: "-A", kind: backend.Terminal},
		{name: "image has a line more", image: one + "\n", kind: backend.Terminal},
		{name: "image has an option more", image: one + " -A", kind: backend.Terminal},
		{name: "image is a path", image: "../" + one, kind: backend.Terminal},
		{name: "slot is negative", number: -1, kind: backend.Terminal},
		{name: "slot is too high", number: 8, kind: backend.Terminal},
		{name: "garbage", script: script{Garbage: "Error: (1) failed\n"}, kind: backend.Terminal},
		{name: "of another slot", script: script{Garbage: "AFI 4 none cleared 1 ok 0 0x1\n"}, kind: backend.Terminal},
		{name: "no program to load", remove: "fpga-load-local-image", kind: backend.Terminal, cause: tool.ErrNotInstalled},
		{name: "no program to clear", remove: "fpga-clear-local-image", kind: backend.Terminal, cause: tool.ErrNotInstalled},
		{name: "the context is over", ctx: ended, kind: backend.Retryable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t, tc.script, Options{})
			if tc.number != 0 {
				s.slot.Number = tc.number
			}
			if tc.image == "" {
				tc.image = one
			}
			if tc.remove != "" {
				must(t, os.Remove(filepath.Join(s.root, "usr/bin", tc.remove)))
			}
			if tc.ctx == nil {
				tc.ctx = t.Context()
			}
			l, err := s.host.Acquire(t.Context(), s.slot)
			if err == nil {
				_, err = l.Program(tc.ctx, tc.image)
				must(t, l.Release())
			}
			failure, ok := errors.AsType[*backend.Error](err)
			if !ok || failure.Kind != tc.kind || failure.Next == "" || tc.cause != nil && !errors.Is(err, tc.cause) {
				t.Errorf("got %v, want %s", err, tc.kind)
			}
			if calls := s.calls(); calls != "" {
				t.Errorf("it was run: %s", calls)
			}
		})
	}
}

func TestLock(t *testing.T) {
	s := newSite(t, script{}, Options{})
	l := s.acquire()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.host.Acquire(ctx, s.slot); backend.KindOf(err) != backend.Retryable {
		t.Errorf("got %v, want retryable", err)
	}
	must(t, l.Release())
	must(t, s.acquire().Release())
}

func TestParse(t *testing.T) {
	const header = "Type  FpgaImageSlot  FpgaImageId             StatusName    StatusCode   ErrorName    ErrorCode   ShVersion\n"
	for _, tc := range []struct {
		text string
		want State
	}{
		{text: header + "AFI          3       No AFI                  cleared           1        ok               0       0x10212415\n" +
			"AFIDEVICE    3       0x1d0f      0x9048      0000:34:00.0\n", want: State{Status: cleared, Shell: "0x10212415"}},
		{text: "AFI 3 none not-programmed 3 ok 0 0x1\r\n", want: State{Status: "not-programmed", Shell: "0x1"}},
		{
			text: "AFI 3 none load-failed 7 afi-power-violation 17 0x071417d3",
			want: State{Status: "load-failed", Fault: "afi-power-violation", Shell: "0x071417d3"},
		},
		{text: "AFI 3 " + one + " loaded 0 ok 0 0x1", want: State{Status: loaded, Image: one, Shell: "0x1"}},
		{text: ""},
		{text: "AFI 2 none cleared 1 ok 0 0x1"},
		{text: "AFI 3 none loaded 0 ok 0 0x1"},
		{text: "AFI 3 agfi-x loaded 0 ok 0 0x1"},
		{text: "AFI 3 " + one + " loaded 0 ok 0 0x1 more"},
		{text: " AFI 3 " + one + " loaded 0 ok 0 0x1"},
		{text: "AFI 3 none cleared 1 ok 0 0x1\nAFI 3 " + one + " loaded 0 ok 0 0x1\n"},
	} {
		got, err := parse(tc.text, 3)
		if diff := cmp.Diff(tc.want, got); diff != "" || (err == nil) != (tc.want != State{}) {
			t.Errorf("%q: %v, -want +got:\n%s", tc.text, err, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("AFI 3 none cleared 1 ok 0 0x1\n")
	f.Add("AFI 3 " + one + " loaded 0 ok 0 0x1\nAFIDEVICE 3 0x1d0f 0x9048 0000:34:00.0\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text, 3)
		if err != nil {
			return
		}
		if s.Status == "" || s.Image != "" && !ValidImage(s.Image) || s.Status == loaded && s.Image == "" || len(s.Fault) > 60 {
			t.Errorf("%q is %+v", text, s)
		}
	})
}
