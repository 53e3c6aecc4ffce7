// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package library_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// TestComputeMode: fettle-nvml reads and sets the mode, and says with its exit status what it cannot.
func TestComputeMode(t *testing.T) {
	const first, uuid = "0000:41:00.0", "GPU-00000001-0000-4000-8000-000000000000"
	mode := func(m nvmlsim.Machine, args ...string) (nvml.ComputeMode, int, string) {
		status, out, complaint := run(m, append([]string{"compute-mode", "-device", first}, args...)...)
		if status != 0 {
			return "", status, complaint
		}
		answer, err := nvml.DecodeComputeModeAnswer(strings.NewReader(out))
		check.Must(t, err)
		return answer.Mode, status, complaint
	}
	m := machine(t, nvmlsim.H100, nvmlsim.H100)
	for _, want := range append(nvml.ComputeModes(), nvml.ComputeDefault) {
		got, status, complaint := mode(m, "-parent", uuid, "-set", string(want))
		again, _, _ := mode(m)
		if got != want || again != want || status != 0 {
			t.Errorf("set %s: %s, then %s, exit %d: %s", want, got, again, status, complaint)
		}
	}
	s, err := m.Look()
	check.Must(t, err)
	if s.Cards[1].ComputeMode != 0 {
		t.Error("another card's mode was set")
	}
	for name, tc := range map[string]struct {
		args []string
		make func(*nvmlsim.State)
		want error
	}{
		"another GPU at the address": {args: []string{"-parent", "GPU-other"}, want: nvml.ErrGone},
		"absent":                     {make: func(s *nvmlsim.State) { s.Cards[0].Absent = true }, want: nvml.ErrGone},
		"lost":                       {make: func(s *nvmlsim.State) { s.Cards[0].Lost = true }, want: nvml.ErrGone},
		"in MIG mode":                {make: func(s *nvmlsim.State) { s.Cards[0].MIG = true }, want: nvml.ErrMIGOn},
		"unsupported": {args: []string{"-set", "Prohibited"}, want: nvml.ErrUnsupported, make: func(s *nvmlsim.State) {
			s.Faults = []nvmlsim.Fault{{Function: "Device.SetComputeMode", Do: nvmlsim.Fail, Return: nvmlsim.NotSupported}}
		}},
		"unreadable": {want: nvml.ErrUnsupported, make: func(s *nvmlsim.State) {
			s.Faults = []nvmlsim.Fault{{Function: "Device.GetComputeMode", Do: nvmlsim.Fail, Return: nvmlsim.NotSupported}}
		}},
		"forbidden": {args: []string{"-set", "Prohibited"}, want: nvml.ErrForbidden, make: func(s *nvmlsim.State) {
			s.Faults = []nvmlsim.Fault{{Function: "Device.SetComputeMode", Do: nvmlsim.Fail, Return: nvmlsim.NoPermission}}
		}},
		"any other": {want: errors.New("any other"), make: func(s *nvmlsim.State) {
			s.Faults = []nvmlsim.Fault{{Function: "Device.GetComputeMode", Do: nvmlsim.Fail, Return: nvmlsim.Unknown}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(t, nvmlsim.H100)
			if tc.make != nil {
				check.Must(t, m.Change(func(s *nvmlsim.State) error {
					tc.make(s)
					return nil
				}))
			}
			if _, status, complaint := mode(m, tc.args...); status != nvml.ExitStatus(tc.want) {
				t.Errorf("exit %d, want %d: %s", status, nvml.ExitStatus(tc.want), complaint)
			}
			s, err := m.Look()
			check.Must(t, err)
			if s.Cards[0].ComputeMode != 0 {
				t.Errorf("the mode is %d", s.Cards[0].ComputeMode)
			}
		})
	}
	for _, args := range [][]string{{}, {"-device", first, "-set", "Shared"}, {"-device", first, "more"}, {"-device"}} {
		if status, out, complaint := run(m, append([]string{"compute-mode"}, args...)...); status != 2 || complaint == "" {
			t.Errorf("%v: exit %d, %s%s", args, status, out, complaint)
		}
	}
	for _, bad := range []string{`{}`, `{"mode":"Shared"}`, `{"mode":"Default"}{}`, `{"mode":"Default","x":1}`} {
		if _, err := nvml.DecodeComputeModeAnswer(strings.NewReader(bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// TestComputeModeLife: the simulated card keeps processes out as its mode says, and a reset and a reboot end the mode.
func TestComputeModeLife(t *testing.T) {
	m := machine(t, nvmlsim.H100)
	set := func(mode int) {
		t.Helper()
		check.Must(t, m.Change(func(s *nvmlsim.State) error {
			if ret := s.Cards[0].SetComputeMode(mode); ret != nvmlsim.Success {
				t.Errorf("set %d: %s", mode, ret)
			}
			return nil
		}))
	}
	set(3)
	check.Must(t, m.Use(0, 1))
	if err := m.Use(0, 1); err == nil || !strings.Contains(err.Error(), "at most 1") {
		t.Errorf("a second process beside an exclusive one: %v", err)
	}
	set(0)
	check.Must(t, m.Use(0, 1))
	set(2)
	if err := m.Use(0, 1); err == nil {
		t.Error("a process while compute is prohibited")
	}
	check.Must(t, m.Use(0, -2))
	for name, end := range map[string]func() error{"reset": func() error { return m.Reset(0, 0) }, "reboot": m.Reboot} {
		set(3)
		check.Must(t, end())
		if s, err := m.Look(); err != nil || s.Cards[0].ComputeMode != 0 {
			t.Errorf("after a %s: %+v, %v", name, s.Cards[0], err)
		}
	}
}
