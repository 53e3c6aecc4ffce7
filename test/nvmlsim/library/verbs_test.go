// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package library_test

import (
	"bytes"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/nvmlsim/library"
)

// verb is a question of the child that changes something, or looks at a GPU for a change.
type verb struct {
	args []string
	// again are the arguments after a failure, where they are others.
	again []string
	// divided says that the first GPU is in MIG mode, with an instance elsewhere. make adds to that.
	divided bool
	make    func(*testing.T, nvmlsim.Machine)
	// done is what the first GPU is like once the verb was done.
	done func(nvmlsim.Card) bool
}

const profile2g = 14 // H100's 2g.20gb, of two slices

// in says whether there is one whole instance of profile2g at the start of a card, and how many compute instances it has.
func in(c nvmlsim.Card) (there bool, compute int) {
	for _, one := range c.Instances {
		if one.Start == 0 {
			return one.Profile == profile2g, len(one.Compute)
		}
	}
	return false, 0
}

func verbs() map[string]verb {
	place := []string{"-profile", "14", "-start", "0"}
	made := func(c nvmlsim.Card) bool {
		there, compute := in(c)
		return there && compute == 1
	}
	gone := func(c nvmlsim.Card) bool {
		there, _ := in(c)
		return !there
	}
	any := func(nvmlsim.Card) bool { return true }
	foreign := func(compute ...uint32) func(*testing.T, nvmlsim.Machine) {
		return func(t *testing.T, m nvmlsim.Machine) {
			t.Helper()
			_, err := m.Foreign(0, profile2g, 0, compute...)
			check.Must(t, err)
		}
	}
	create := append([]string{"mig", "create"}, place...)
	finish := append(slices.Clone(create), "-finish")
	return map[string]verb{
		"create":          {args: create, again: finish, divided: true, done: made},
		"finish":          {args: finish, divided: true, make: foreign(), done: made},
		"destroy":         {args: append([]string{"mig", "destroy"}, place...), divided: true, make: foreign(2), done: gone},
		"list":            {args: []string{"mig", "list"}, divided: true, make: foreign(2), done: made},
		"list a place":    {args: append([]string{"mig", "list"}, place...), divided: true, make: foreign(2), done: made},
		"mode on":         {args: []string{"mig", "mode", "-on"}, done: func(c nvmlsim.Card) bool { return c.MIG }},
		"mode off":        {args: []string{"mig", "mode", "-off"}, make: switchedOn, done: func(c nvmlsim.Card) bool { return !c.MIG }},
		"compute mode":    {args: []string{"compute-mode"}, done: any},
		"set the compute": {args: []string{"compute-mode", "-set", "Prohibited"}, done: func(c nvmlsim.Card) bool { return c.ComputeMode == 2 }},
	}
}

func switchedOn(t *testing.T, m nvmlsim.Machine) {
	t.Helper()
	check.Must(t, m.SwitchOn())
}

// TestEveryCallOfAVerbMayFail has each call of each verb answer errors of the library, one at a time. The verb fails with the error's word
// and without a crash; the other GPU, and the other instance of the same one, are as before; and the verb, done again, does it.
func TestEveryCallOfAVerbMayFail(t *testing.T) {
	codes := returns(t)
	for name, v := range verbs() {
		t.Run(name, func(t *testing.T) {
			m := machine(t, nvmlsim.H100, nvmlsim.H100)
			if v.divided {
				check.Must(t, m.SwitchOn())
				_, err := m.Foreign(0, 19, 6, 1) // 1g.10gb
				check.Must(t, err)
			}
			if v.make != nil {
				v.make(t, m)
			}
			before, err := m.Look()
			check.Must(t, err)
			saved, err := os.ReadFile(m.File)
			check.Must(t, err)
			for _, call := range v.calls(t, m) {
				for _, ret := range codes {
					check.Must(t, os.WriteFile(m.File, saved, 0o600))
					v.fails(t, m, call, ret, before)
				}
			}
		})
	}
}

// on is the verb's arguments for the first GPU.
func (v verb) on(before *nvmlsim.State, args []string) []string {
	return append(slices.Clone(args), "-device", before.Cards[0].BusID, "-parent", before.Cards[0].UUID)
}

// calls are the calls that the verb makes when nothing fails.
func (v verb) calls(t *testing.T, m nvmlsim.Machine) []string {
	t.Helper()
	before, err := m.Look()
	check.Must(t, err)
	check.Must(t, m.Script())
	if status, _, complaint := run(m, v.on(before, v.args)...); status != 0 {
		t.Fatalf("without an error: exit status %d: %s", status, complaint)
	}
	after, err := m.Look()
	check.Must(t, err)
	if !v.done(*after.Cards[0]) {
		t.Fatalf("without an error: %+v", after.Cards[0])
	}
	return slices.Sorted(maps.Keys(after.Calls))
}

func (v verb) fails(t *testing.T, m nvmlsim.Machine, call string, ret gonvml.Return, before *nvmlsim.State) {
	t.Helper()
	check.Must(t, m.Script(nvmlsim.Fault{Function: call, Nth: 1, Do: nvmlsim.Fail, Return: nvmlsim.Return(ret)}))
	status, _, complaint := run(m, v.on(before, v.args)...)
	switch {
	case strings.Contains(complaint, "panic") || status == 2:
		t.Errorf("%s, %v: exit status %d: %s", call, ret, status, complaint)
	case status == 0:
		if !slices.Contains(row(t, call).Absent, ret) {
			t.Errorf("%s, %v: no failure", call, ret)
		}
	case words()[ret] != nil && status != statusOf(ret), !strings.Contains(complaint, ret.Error()) && status == 1:
		t.Errorf("%s, %v: exit status %d: %s", call, ret, status, complaint)
	}
	after, err := m.Look()
	check.Must(t, err)
	if diff := cmp.Diff(before.Cards[1], after.Cards[1]); diff != "" {
		t.Errorf("%s, %v: the other GPU (-before +after)\n%s", call, ret, diff)
	}
	if diff := cmp.Diff(elsewhere(before), elsewhere(after)); diff != "" {
		t.Errorf("%s, %v: the other instance (-before +after)\n%s", call, ret, diff)
	}
	if there, compute := in(*after.Cards[0]); v.again != nil && status != 0 && there && compute == 0 {
		t.Errorf("%s, %v: a part without a compute instance stays", call, ret)
	}
	check.Must(t, m.Script())
	args := v.args
	if v.again != nil {
		args = v.again
	}
	status, _, complaint = run(m, v.on(before, args)...)
	after, err = m.Look()
	check.Must(t, err)
	if status != 0 || !v.done(*after.Cards[0]) {
		t.Errorf("%s, %v: again: exit status %d: %s\n%+v", call, ret, status, complaint, after.Cards[0])
	}
}

// elsewhere are the instances of the first GPU that no verb is about.
func elsewhere(s *nvmlsim.State) []*nvmlsim.Instance {
	return slices.DeleteFunc(slices.Clone(s.Cards[0].Instances), func(one *nvmlsim.Instance) bool { return one.Start == 0 })
}

// TestEveryCallOfWatchingMayFail has each call of a program that watches answer errors, one at a time: the program ends with the error's
// word, or its next states are whole again.
func TestEveryCallOfWatchingMayFail(t *testing.T) {
	m := machine(t, nvmlsim.H100, nvmlsim.H100)
	check.Must(t, m.Script())
	status, whole, _ := watched(t, m, 2)
	if status != 1 || len(whole) != 2 {
		t.Fatalf("exit status %d after %+v, want two states and the end that nobody reads more", status, whole)
	}
	state, err := m.Look()
	check.Must(t, err)
	for _, call := range slices.Sorted(maps.Keys(state.Calls)) {
		t.Run(call, func(t *testing.T) {
			for _, ret := range returns(t) {
				check.Must(t, m.Script(nvmlsim.Fault{Function: call, Nth: 1, Do: nvmlsim.Fail, Return: nvmlsim.Return(ret)}))
				status, states, complaint := watched(t, m, 2)
				if strings.Contains(complaint, "panic") {
					t.Fatalf("%v: %s", ret, complaint)
				}
				if len(states) == 2 {
					if diff := cmp.Diff(whole[1], states[1]); diff != "" {
						t.Errorf("%v: the second state (-without the error +with it)\n%s", ret, diff)
					}
					continue
				}
				if fatal := row(t, call); status != statusOf(ret) || !strings.Contains(complaint, ret.Error()) || fatal.Field != "" {
					t.Errorf("%v: exit status %d after %d states: %s", ret, status, len(states), complaint)
				}
			}
		})
	}
}

// watched runs the child until it wrote some states, and returns them.
func watched(t *testing.T, m nvmlsim.Machine, n int) (status int, states []nvml.State, complaint string) {
	t.Helper()
	var out few
	var errs bytes.Buffer
	out.left = n
	status = child.Run([]string{"-library", m.File, "watch", "-interval", "10ms"}, &out, &errs, library.Open)
	for line := range bytes.Lines(out.data.Bytes()) {
		message, err := nvml.DecodeMessage(bytes.TrimSpace(line))
		check.Must(t, err)
		states = append(states, *message.State)
	}
	return status, states, errs.String()
}

// few takes a number of writes and refuses the next.
type few struct {
	left int
	data bytes.Buffer
}

func (f *few) Write(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.ErrClosedPipe
	}
	f.left--
	return f.data.Write(p)
}

// TestTableIsWhole: a row of the child's table that no test has fail, and a call without a row, are missing here.
func TestTableIsWhole(t *testing.T) {
	m := machine(t, nvmlsim.H100, nvmlsim.H100)
	check.Must(t, m.SwitchOn())
	_, err := m.Foreign(0, 19, 6, 1)
	check.Must(t, err)
	check.Must(t, m.Script())
	report(t, m)
	watched(t, m, 1)
	called := map[string]bool{}
	add := func(m nvmlsim.Machine) {
		state, err := m.Look()
		check.Must(t, err)
		for call := range state.Calls {
			called[call] = true
		}
	}
	add(m)
	for _, v := range verbs() {
		m := machine(t, nvmlsim.H100, nvmlsim.H100)
		if v.divided {
			check.Must(t, m.SwitchOn())
		}
		if v.make != nil {
			v.make(t, m)
		}
		for _, call := range v.calls(t, m) {
			called[call] = true
		}
	}
	var rows []string
	for _, c := range child.Calls() {
		rows = append(rows, c.Name)
		if c.Use == "" || c.Failure == "" {
			t.Errorf("%s: the table does not say what it is for, or what its failure means", c.Name)
		}
	}
	slices.Sort(rows)
	if diff := cmp.Diff(rows, slices.Sorted(maps.Keys(called))); diff != "" {
		t.Errorf("calls (-table +made)\n%s", diff)
	}
}
