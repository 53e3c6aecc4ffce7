// SPDX-License-Identifier: Apache-2.0

package dfl_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// withParams is a card whose port has all parameters and runs at 312.5 MHz.
func withParams(change func(*fpgasim.Port)) fpgasim.Machine {
	m := oneCard(1)
	m.Cards[0].Ports[0].Debug = new(int32)
	if change != nil {
		change(&m.Cards[0].Ports[0])
	}
	return m
}

var allParams = []string{dfl.ParamClock, dfl.ParamClockLow, dfl.ParamLTR, dfl.ParamDebug}

func clocks(high, low int32) []dfl.Param {
	return []dfl.Param{{Name: dfl.ParamClock, Value: high}, {Name: dfl.ParamClockLow, Value: low}}
}

func (s *site) params(want map[string]int32) {
	s.t.Helper()
	got, err := s.ReadParams(s.t.Context(), s.port(0), allParams)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		s.t.Errorf("parameters %v (-want +got):\n%s", err, diff)
	}
}

// steps is what was asked without the counter and without the single accesses to the PLL, of which the clocks that came out tell.
func (s *site) steps() []string {
	s.t.Helper()
	var out []string
	for _, line := range s.asked() {
		if !strings.Contains(line, "userclk_") {
			out = append(out, line)
		}
	}
	return out
}

// commands counts the writes to the PLL's registers.
func (s *site) commands() int {
	s.t.Helper()
	return strings.Count(strings.Join(s.asked(), "\n"), "userclk_freqcmd")
}

// TestParams: parameters are set under the lease and before the programming, and what they were is restored to the last digit.
func TestParams(t *testing.T) {
	s := start(t, withParams(nil), dfl.Options{})
	before := map[string]int32{dfl.ParamClock: 312_500, dfl.ParamClockLow: 156_250, dfl.ParamLTR: 0, dfl.ParamDebug: 0}
	s.params(before)
	if steps := s.steps(); len(steps) > 0 || s.commands() > 0 {
		t.Errorf("reading parameters did %q and %d commands", steps, s.commands())
	}
	lease := s.acquire(s.port(0))
	ltr, debug := dfl.Param{Name: dfl.ParamLTR, Value: 1}, dfl.Param{Name: dfl.ParamDebug, Value: 3}
	check.Must(t, lease.SetParams(t.Context(), append(append([]dfl.Param{ltr}, clocks(400_000, 200_000)...), debug)))
	_, err := lease.Program(t.Context(), dfl.Load{Image: s.image(shell, nlb3, 100), AFU: nlb3})
	check.Must(t, err)
	want := []string{
		"open dfl-port.0 exclusive",
		`write ltr "1"`,
		`clock dfl-port.0 "0 0"`,
		`clock dfl-port.0 "400000 200000"`,
		`write debug "3"`,
		"open dfl-fme.0", "ioctl dfl-fme.0 pr 0", "done dfl-fme.0 pr 0", `read afu_id "` + nlb3 + `"`,
	}
	if diff := cmp.Diff(want, s.steps()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	s.params(map[string]int32{dfl.ParamClock: 400_000, dfl.ParamClockLow: 200_000, dfl.ParamLTR: 1, dfl.ParamDebug: 3})
	var restore []dfl.Param
	for _, name := range allParams {
		restore = append(restore, dfl.Param{Name: name, Value: before[name]})
	}
	check.Must(t, lease.SetParams(t.Context(), restore))
	s.params(before)
}

// TestParamsHold: a value that holds is not written, whichever clock names it.
func TestParamsHold(t *testing.T) {
	s := start(t, withParams(nil), dfl.Options{})
	lease := s.acquire(s.port(0))
	for _, params := range [][]dfl.Param{
		nil, clocks(312_500, 156_250), clocks(312_500, 156_250)[:1], clocks(312_500, 156_250)[1:],
		{{Name: dfl.ParamLTR}, {Name: dfl.ParamDebug}},
	} {
		check.Must(t, lease.SetParams(t.Context(), params))
	}
	if diff := cmp.Diff([]string{"open dfl-port.0 exclusive"}, s.steps()); diff != "" || s.commands() > 0 {
		t.Errorf("%d commands, -want +got:\n%s", s.commands(), diff)
	}
	check.Must(t, lease.SetParams(t.Context(), clocks(200_000, 0)[:1]))
	commands := s.commands()
	check.Must(t, lease.SetParams(t.Context(), clocks(200_000, 100_000)))
	if again := s.commands(); again != commands || commands == 0 {
		t.Errorf("%d commands, and %d for the same again", commands, again-commands)
	}
}

// TestClocks over the whole range, with a counter that is a little off.
func TestClocks(t *testing.T) {
	s := start(t, withParams(func(p *fpgasim.Port) { p.PLL, p.ClockVersion = 5, 1 }), dfl.Options{})
	drift := int64(-10)
	s.Set(fpgasim.Set{DriftKHz: &drift})
	lease := s.acquire(s.port(0))
	for _, tc := range []struct {
		params    []dfl.Param
		high, low int32
	}{
		{clocks(25_000, 12_500), 25_000, 12_500},
		{clocks(333_000, 0)[:1], 333_000, 166_500},
		{clocks(600_000, 300_000), 600_000, 300_000},
		{clocks(0, 100_000)[1:], 200_000, 100_000},
		{clocks(0, 350_000)[1:], 0, 350_000},
		{clocks(0, 350_000), 0, 350_000},
		{clocks(0, 600_000), 0, 600_000},
		{clocks(156_250, 78_120), 156_240, 78_110}, // No whole clock: what is counted.
	} {
		check.Must(t, lease.SetParams(t.Context(), tc.params))
		got, err := s.ReadParams(s.t.Context(), s.port(0), allParams[:2])
		want := map[string]int32{dfl.ParamClock: tc.high, dfl.ParamClockLow: tc.low}
		if tc.high == 0 {
			want[dfl.ParamClock] = got[dfl.ParamClock] // What is counted of a clock that is off is the counter's affair.
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v: %v (-want +got):\n%s", tc.params, err, diff)
		}
	}
}

// TestParamsRefused: where one parameter is impossible none is written, and nothing is said to be unknown.
func TestParamsRefused(t *testing.T) {
	ltr := dfl.Param{Name: dfl.ParamLTR, Value: 1}
	revision := func(p *fpgasim.Port) { p.Revision = 1 }
	for _, tc := range []struct {
		name   string
		port   func(*fpgasim.Port)
		params []dfl.Param
		want   string
		cause  error
	}{
		{"unknown", nil, []dfl.Param{ltr, {Name: "turbo"}}, "turbo: this driver has no such parameter", backend.ErrNoParam},
		{"no debug", func(p *fpgasim.Port) { p.Debug = nil }, []dfl.Param{ltr, {Name: dfl.ParamDebug}}, "debug: this driver", backend.ErrNoParam},
		{"newer header", revision, append([]dfl.Param{ltr}, clocks(200_000, 100_000)...), "header revision above 0", backend.ErrNoParam},
		{"low is not half", nil, append([]dfl.Param{ltr}, clocks(400_000, 100_000)...), "one PLL for both", dfl.ErrClock},
		{"too fast", nil, append([]dfl.Param{ltr}, clocks(601_000, 0)[:1]...), "want a high one of 25000 to 600000", dfl.ErrClock},
		{"too fast for the low one", nil, append([]dfl.Param{ltr}, clocks(0, 600_001)[1:]...), "12500 to 600000", dfl.ErrClock},
		{"too slow", nil, append([]dfl.Param{ltr}, clocks(24_999, 0)[:1]...), "want a high one", dfl.ErrClock},
		{"off", nil, append([]dfl.Param{ltr}, clocks(0, 0)...), "want a high one", dfl.ErrClock},
		{"off below", nil, append([]dfl.Param{ltr}, clocks(0, 300_000)...), "one above 300000", dfl.ErrClock},
		{"negative", nil, append([]dfl.Param{ltr}, clocks(-1, 0)[:1]...), "want a high one", dfl.ErrClock},
		{"no switch", nil, []dfl.Param{{Name: dfl.ParamDebug, Value: 1}, {Name: dfl.ParamLTR, Value: 2}}, "ltr is 2, want 0 or 1", nil},
		{"twice", nil, []dfl.Param{ltr, ltr}, "given twice", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, withParams(tc.port), dfl.Options{})
			err := s.acquire(s.port(0)).SetParams(t.Context(), tc.params)
			cause := tc.cause == nil || errors.Is(err, tc.cause)
			if err == nil || backend.KindOf(err) != backend.Terminal || !strings.Contains(err.Error(), tc.want) || !cause {
				t.Errorf("got %v, want a terminal error with %q", err, tc.want)
			}
			if diff := cmp.Diff([]string{"open dfl-port.0 exclusive"}, s.steps()); diff != "" || s.commands() > 0 {
				t.Errorf("%d commands, -want +got:\n%s", s.commands(), diff)
			}
		})
	}
}

// TestBrokenClock: what a clock that does not work leaves behind.
func TestBrokenClock(t *testing.T) {
	drift := int64(500)
	for _, tc := range []struct {
		name, stuck string
		port        func(*fpgasim.Port)
		drift       *int64
		power       int
		kind        backend.Kind
		want        string
	}{
		{name: "busy", stuck: fpgasim.StuckBusy, kind: backend.Retryable, want: "calibrates itself"},
		{name: "access", stuck: fpgasim.StuckAccess, kind: backend.Retryable, want: "access to register 0x200"},
		{name: "counter", stuck: fpgasim.StuckCount, kind: backend.Retryable, want: "another program"},
		{name: "hot", power: 6, kind: backend.Retryable, want: "power state is 6"},
		{name: "error", stuck: fpgasim.StuckError, kind: backend.Terminal, want: "error bit"},
		{name: "other PLL", port: func(p *fpgasim.Port) { p.PLL = 7 }, kind: backend.Terminal, want: "PLL is of type 7"},
		{name: "other version", port: func(p *fpgasim.Port) { p.ClockVersion = 2 }, kind: backend.Terminal, want: "of version 2"},
		{name: "on", stuck: fpgasim.StuckOn, kind: backend.Unknown, want: "want it off"},
		{name: "lock", stuck: fpgasim.StuckLock, kind: backend.Unknown, want: "does not lock to 400000 kHz"},
		{name: "drift", drift: &drift, kind: backend.Unknown, want: "the low clock is 200500 kHz, want 200000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, withParams(tc.port), dfl.Options{})
			lease := s.acquire(s.port(0))
			s.Set(fpgasim.Set{Stuck: &tc.stuck, DriftKHz: tc.drift, Power: &tc.power})
			err := lease.SetParams(t.Context(), clocks(400_000, 200_000))
			if err == nil || backend.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v (%s), want %s with %q", err, backend.KindOf(err), tc.kind, tc.want)
			}
			none, zero, cold := "", int64(0), 0
			s.Set(fpgasim.Set{Stuck: &none, DriftKHz: &zero, Power: &cold})
			if err := lease.SetParams(t.Context(), clocks(400_000, 200_000)); (err == nil) == (tc.port != nil) {
				t.Errorf("once it works again: %v", err)
			}
		})
	}
}

// TestParamsFail by the kernel's word.
func TestParamsFail(t *testing.T) {
	s := start(t, withParams(nil), dfl.Options{})
	lease := s.acquire(s.port(0))
	for _, tc := range []struct {
		on, errno string
		params    []dfl.Param
		kind      backend.Kind
	}{
		{fpgasim.OnLTR, "EINVAL", []dfl.Param{{Name: dfl.ParamLTR, Value: 1}}, backend.Terminal},
		{fpgasim.OnDebug, "EBUSY", []dfl.Param{{Name: dfl.ParamDebug, Value: 1}}, backend.Retryable},
		{fpgasim.OnClock, "ENODEV", clocks(100_000, 50_000), backend.Terminal},
		{fpgasim.OnCounter, "EINVAL", clocks(100_000, 50_000), backend.Terminal},
	} {
		s.fault(fpgasim.Fault{On: tc.on, Errno: tc.errno})
		if err := lease.SetParams(t.Context(), tc.params); err == nil || backend.KindOf(err) != tc.kind {
			t.Errorf("%s on %s: %v, want %s", tc.errno, tc.on, err, tc.kind)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	ltr := []dfl.Param{{Name: dfl.ParamLTR, Value: 1}}
	if err := lease.SetParams(ended, ltr); backend.KindOf(err) != backend.Retryable || !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is over: %v, want retryable", err)
	}
	check.Must(t, lease.Release())
	if err := lease.SetParams(t.Context(), nil); backend.KindOf(err) != backend.Terminal || err == nil {
		t.Errorf("a lease that was released: %v, want terminal", err)
	}
	_, err := s.ReadParams(t.Context(), s.port(0), []string{dfl.ParamLTR, "turbo"})
	if !errors.Is(err, backend.ErrNoParam) || backend.KindOf(err) != backend.Terminal {
		t.Errorf("an unknown parameter: %v, want terminal", err)
	}
}

// TestParamsElsewhere: while a pod has the port open nothing is written.
func TestParamsElsewhere(t *testing.T) {
	s := start(t, withParams(nil), dfl.Options{})
	pod, err := os.OpenFile(filepath.Join(s.Root, s.port(0).Node), os.O_RDWR, 0)
	check.Must(t, err)
	defer pod.Close()
	lease, err := s.Acquire(t.Context(), s.port(0), shell)
	if err == nil {
		err = lease.SetParams(t.Context(), clocks(400_000, 200_000))
	}
	if !errors.Is(err, unix.EBUSY) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("a port that is open: %v, want a retryable EBUSY", err)
	}
	if diff := cmp.Diff([]string{"open dfl-port.0", "open dfl-port.0 exclusive EBUSY"}, s.asked()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestReadTogether: two readers of one counter do not get the other's clock.
func TestReadTogether(t *testing.T) {
	s := start(t, withParams(nil), dfl.Options{})
	want := map[string]int32{dfl.ParamClock: 312_500, dfl.ParamClockLow: 156_250}
	ended := make(chan error)
	for _, name := range allParams[:2] {
		go func() {
			var errs []error
			for range 5 {
				got, err := s.ReadParams(s.t.Context(), s.port(0), []string{name})
				if got[name] != want[name] {
					err = errors.Join(err, errors.New(name+" is another clock"))
				}
				errs = append(errs, err)
			}
			ended <- errors.Join(errs...)
		}()
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestParamOf(t *testing.T) {
	for _, tc := range []struct {
		name  string
		value int32
		want  dfl.Param
		fails bool
	}{
		{"clockMHz", 400, dfl.Param{Name: dfl.ParamClock, Value: 400_000}, false},
		{"clockLowMHz", 200, dfl.Param{Name: dfl.ParamClockLow, Value: 200_000}, false},
		{"ltr", 1, dfl.Param{Name: dfl.ParamLTR, Value: 1}, false},
		{"debug", 7, dfl.Param{Name: dfl.ParamDebug, Value: 7}, false},
		{"clockMHz", 1 << 22, dfl.Param{}, true},
		{"clockMHz", -1, dfl.Param{}, true},
		{"clockKHz", 1, dfl.Param{}, true},
	} {
		if got, err := dfl.ParamOf(tc.name, tc.value); got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s %d: %v, %v", tc.name, tc.value, got, err)
		}
	}
}

// TestCommands: the commands of the PLL are those of its registers in 64 bits, and no two accesses after one another have one sequence.
func TestCommands(t *testing.T) {
	s := start(t, withParams(nil), dfl.Options{})
	check.Must(t, s.acquire(s.port(0)).SetParams(t.Context(), clocks(400_000, 200_000)))
	form := regexp.MustCompile(`^write userclk_freqcmd "0x([0-9a-f]{16})"$`)
	var commands []string
	for _, line := range s.asked() {
		if strings.Contains(line, "userclk_freqcmd") {
			match := form.FindStringSubmatch(line)
			if match == nil {
				t.Fatalf("a command of another form: %s", line)
			}
			commands = append(commands, match[1])
		}
	}
	// Reset and running, the type, the power off, and the reference.
	head := []string{
		"0100000000000000", "0010000000000000", "0011020000000000",
		"001202e000000000", "001312e000000003", "001002e000000000", "001002e000000000",
	}
	if len(commands) < len(head) || !cmp.Equal(head, commands[:len(head)]) {
		t.Errorf("the commands begin with %q, want %q", commands[:min(len(commands), len(head))], head)
	}
	if want := 2 + 1 + 3 + 1 + 14*3 + 6 + 3; len(commands) != want {
		t.Errorf("%d commands, want %d", len(commands), want)
	}
}
