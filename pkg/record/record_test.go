// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// legalPhases are the changes of phase, and whether every step must be done. All others are illegal.
func legalPhases() map[[2]Phase]string {
	return map[[2]Phase]string{
		{"intended", "prepared"}:  "all done",
		{"intended", "releasing"}: "",
		{"prepared", "releasing"}: "",
		{"renewing", "prepared"}:  "all done",
		{"renewing", "releasing"}: "",
	}
}

// legalSteps are the changes of a step's state by phase. All others are illegal.
func legalSteps() map[string]bool {
	return map[string]bool{
		"intended: intended to done":    true,
		"renewing: intended to done":    true,
		"releasing: intended to undone": true,
		"releasing: done to undone":     true,
	}
}

// legal is what the tables say of a change.
func legal(r *Record, c Change) bool {
	if c.Phase != "" && c.State != "" {
		return false
	}
	if c.Phase != "" {
		need, ok := legalPhases()[[2]Phase{r.Phase, c.Phase}]
		for _, s := range r.Steps {
			ok = ok && (need == "" || s.State == "done")
		}
		return ok
	}
	return c.Step >= 0 && c.Step < len(r.Steps) && legalSteps()[fmt.Sprintf("%s: %s to %s", r.Phase, r.Steps[c.Step].State, c.State)]
}

// records are a claim of two steps, and one of none, in every phase and with every state of each step, reachable or not.
func records() []*Record {
	var all []*Record
	for _, phase := range []Phase{"", "intended", "prepared", "renewing", "releasing", "elsewhere"} {
		none := stepping("u1", 0)
		none.Phase = phase
		all = append(all, none)
		for _, first := range states() {
			for _, second := range states() {
				r := stepping("u1", 2)
				r.Phase, r.Steps[0].State, r.Steps[1].State = phase, first, second
				all = append(all, r)
			}
		}
	}
	return all
}

func states() []step.State { return []step.State{"", "intended", "done", "undone", "elsewhere"} }

func changes() []Change {
	var all []Change
	for _, phase := range []Phase{"", "intended", "prepared", "renewing", "releasing", "elsewhere"} {
		for _, state := range states() {
			for _, index := range []int{-1, 0, 1, 2} {
				all = append(all, Change{Phase: phase, Step: index, State: state})
			}
		}
	}
	return all
}

// TestTransitions tries every change on every record.
func TestTransitions(t *testing.T) {
	counts := map[bool]int{}
	for _, r := range records() {
		for _, c := range changes() {
			want := legal(r, c)
			counts[want]++
			err := r.check(c)
			if (err == nil) != want {
				t.Errorf("%s with %s, to %+v: %v, want legal %v", r.Phase, stepStates(r), c, err, want)
			}
			if err != nil && !errors.Is(err, ErrIllegal) {
				t.Errorf("%s with %s, to %+v: %v, want ErrIllegal", r.Phase, stepStates(r), c, err)
			}
		}
	}
	t.Logf("%d legal, %d illegal", counts[true], counts[false])
	if counts[true] == 0 {
		t.Error("nothing is legal")
	}
}

func stepStates(r *Record) string {
	var out []string
	for _, s := range r.Steps {
		out = append(out, string(s.State))
	}
	return strings.Join(out, ",")
}

// TestBeginnings tries every record as a new one.
func TestBeginnings(t *testing.T) {
	want := map[string]bool{
		"intended ": true, "prepared ": true, "renewing ": true, "releasing ": true,
		"intended intended,intended": true, "renewing intended,intended": true,
		// What a lost record had done to its devices is not known.
		"releasing intended,intended": true, "releasing intended,done": true, "releasing intended,undone": true,
		"releasing done,intended": true, "releasing done,done": true, "releasing done,undone": true,
		"releasing undone,intended": true, "releasing undone,done": true, "releasing undone,undone": true,
	}
	s := open(t)
	for _, r := range records() {
		what := string(r.Phase) + " " + stepStates(r)
		err := s.Create(r)
		if (err == nil) != want[what] {
			t.Errorf("%q: %v, want legal %v", what, err, want[what])
		}
		if err != nil && (!errors.Is(err, ErrIllegal) || !strings.Contains(err.Error(), "team-a/claim-u1")) {
			t.Errorf("%q: %v, want ErrIllegal with the claim's name", what, err)
		}
		if err == nil {
			same(t, what, r, load(t, s, "u1"))
		}
	}
}

// TestReachable walks every record that legal changes lead to: what is on disk is what is in memory, however long the file is, and
// a rewritten file says the same.
func TestReachable(t *testing.T) {
	s := open(t)
	seen := map[string]bool{}
	var walk func(begin *Record, done []Change)
	walk = func(begin *Record, done []Change) {
		r := begin.Clone()
		check.Must(t, s.Create(r))
		advance(t, s, r, done...)
		what := string(r.Phase) + " " + stepStates(r)
		got := load(t, s, "u1")
		same(t, what, r, got)
		data, err := rewrite(got)
		check.Must(t, err)
		again, err := decode(data, "u1")
		if err != nil {
			t.Errorf("%s rewritten: %v", what, err)
		} else {
			same(t, what+" rewritten", r, again)
		}
		if seen[what] {
			return
		}
		seen[what] = true
		for _, c := range changes() {
			if legal(r, c) {
				walk(begin, append(done[:len(done):len(done)], c))
			}
		}
	}
	for _, phase := range []Phase{Intended, Renewing, Releasing} {
		begin := stepping("u1", 2)
		begin.Phase = phase
		walk(begin, nil)
	}
	begin := stepping("u1", 0)
	begin.Phase = Prepared
	walk(begin, nil)
	if want := 4 + 1 + 4 + 9 + 2; len(seen) != want {
		// Intended and renewing with each step done or not, prepared, releasing with each step in any state, and without steps.
		t.Errorf("reached %d, want %d: %v", len(seen), want, seen)
	}
}

// TestIllegalChange: what the tables refuse is neither made nor written.
func TestIllegalChange(t *testing.T) {
	s, r := open(t), stepping("u1", 1)
	check.Must(t, s.Create(r))
	before, err := os.ReadFile(path(s, "u1"))
	check.Must(t, err)
	for _, c := range []Change{{}, {Phase: Prepared}, {Phase: Renewing}, {Step: 1, State: step.Done}, {State: step.Undone}} {
		if err := s.Advance(r, c); !errors.Is(err, ErrIllegal) || !strings.Contains(err.Error(), "team-a/claim-u1") {
			t.Errorf("%+v: %v, want ErrIllegal with the claim's name", c, err)
		}
	}
	// One of several is enough, whichever it is.
	for _, several := range [][]Change{{{}, {State: step.Done}}, {{State: step.Done}, {State: step.Done}}} {
		if err := s.Advance(r, several...); !errors.Is(err, ErrIllegal) {
			t.Errorf("%+v: %v, want ErrIllegal", several, err)
		}
	}
	same(t, "in memory", stepping("u1", 1), r)
	after, err := os.ReadFile(path(s, "u1"))
	if err != nil || string(after) != string(before) {
		t.Errorf("the file was changed: %s (%v)", after, err)
	}
}

func TestHolds(t *testing.T) {
	r := holding("u1", "gpu-0")
	r.Devices = append(r.Devices, looking("u1", "gpu-1").Devices...)
	r.Devices = append(r.Devices, sharing("a", "u1", "gpu-2").Devices...)
	for name, want := range map[string]bool{"gpu-0": true, "gpu-1": false, "gpu-2": true, "gpu-3": false} {
		if got := r.Holds(pool, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if r.Holds("node-2/gpu", "gpu-0") {
		t.Error("holds a device of another pool")
	}
}
