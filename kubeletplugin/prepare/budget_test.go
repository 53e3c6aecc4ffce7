// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// thrifty is an engine on a node with eight regions, where each claim on a region needs one of what the limits say.
func thrifty(p *place, l *lab, node, namespace int64) *site {
	s := p.newEngine().effectsOf(l)
	kind := s.kinds[effectKind]
	kind.Needs = func(json.RawMessage) ([]budget.Need, error) {
		return []budget.Need{{Resource: budget.Memory, Amount: 1}}, nil
	}
	s.kinds[effectKind] = kind
	s.Limits = budget.Limits{budget.Memory: {Node: node, Namespace: namespace}}
	return s
}

func eightChips(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	var m machine
	for i := range 8 {
		m = append(m, chip(fmt.Sprint("r", i), fmt.Sprint("card-", i)))
	}
	p.setMachine(append(m, gpu("gpu0", 0)))
	return p
}

// isOverBudget reports whether a claim waits for the node's budget.
func isOverBudget(err error) bool {
	_, ok := errors.AsType[*budget.ExceededError](err)
	return ok && Reason(err) == reasonOverBudget
}

// TestBudgetOfConcurrentPrepares: of claims that are prepared at once no more get what is limited than there is, and each engine of the
// node counts what the other one promised. Claims that need nothing of it are served.
func TestBudgetOfConcurrentPrepares(t *testing.T) {
	p := eightChips(t)
	engines := []*site{thrifty(p, &lab{}, 3, 3), thrifty(p, &lab{}, 3, 3)}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		c := allocated(fmt.Sprint("u", i), aChip(fmt.Sprint("r", i)))
		p.put(c)
		wg.Go(func() { _, errs[i] = engines[i%2].Prepare(t.Context(), c, engines[i%2].Now()) })
	}
	wg.Wait()
	got := 0
	for i, err := range errs {
		switch {
		case err == nil:
			got++
		case !isOverBudget(err):
			t.Errorf("claim u%d: %v", i, err)
		case engines[0].HasRecord(fmt.Sprint("u", i)):
			t.Errorf("claim u%d was refused and has a record", i)
		}
	}
	if got != 3 {
		t.Errorf("%d claims were prepared, want 3", got)
	}
	engines[0].prepare(allocated("u8", result("gpu0", device.KindGPU, "gpu0")))
}

// TestBudgetLasts: what claims hold counts for the next process too, and no longer than they hold it.
func TestBudgetLasts(t *testing.T) {
	p, l := eightChips(t), &lab{}
	s := thrifty(p, l, 0, 1)
	s.prepare(allocated("u0", aChip("r0")))
	s.prepare(allocated("u0", aChip("r0"))) // again, for a container that was restarted
	waits := allocated("u1", aChip("r1"))
	if _, err := s.ask(waits); !isOverBudget(err) {
		t.Fatalf("error %v, want that it waits", err)
	}
	s.Stop()
	s = thrifty(p, l, 0, 1)
	_, err := s.ask(waits)
	if !isOverBudget(err) {
		t.Fatalf("by the next process: error %v, want that it waits", err)
	}
	if strings.Contains(err.Error(), "u0") {
		t.Errorf("the error names another claim: %v", err)
	}
	other := allocated("u2", aChip("r2"))
	other.Namespace = "team-z"
	s.prepare(other)
	s.unprepare("u0")
	s.prepare(waits)
}

// TestBudgetOfAHalfUndoneClaim: a claim that could not be undone still holds what its steps need.
func TestBudgetOfAHalfUndoneClaim(t *testing.T) {
	l := &lab{failing: map[string]error{"undo load r0 for u0": errors.New("it is stuck")}}
	s := thrifty(eightChips(t), l, 1, 0)
	s.prepare(allocated("u0", aChip("r0")))
	if _, err := s.Unprepare(t.Context(), "u0", s.Now()); err == nil {
		t.Fatal("a claim with a stuck step was released")
	}
	if _, err := s.ask(allocated("u1", aChip("r1"))); !isOverBudget(err) {
		t.Errorf("error %v, want that it waits", err)
	}
	l.failing = nil
	s.unprepare("u0")
	s.prepare(allocated("u1", aChip("r1")))
}

// TestNeedsOfABrokenStep: a claim is refused whose needs are not known.
func TestNeedsOfABrokenStep(t *testing.T) {
	s := thrifty(eightChips(t), &lab{}, 1, 0)
	kind := s.kinds[effectKind]
	kind.Needs = func(json.RawMessage) ([]budget.Need, error) { return nil, errors.New("no idea") }
	s.kinds[effectKind] = kind
	if _, err := s.ask(allocated("u0", aChip("r0"))); err == nil || !strings.Contains(err.Error(), "no idea") || s.HasRecord("u0") {
		t.Errorf("error %v", err)
	}
	var none step.Kinds
	if needs, err := none.Needs(step.Step{Kind: "unknown"}); err != nil || len(needs) > 0 {
		t.Errorf("a step of an unknown kind needs %v, %v", needs, err)
	}
}

// TestNeedsBesideUnreadableStep: one step whose needs cannot be read does not hide those of the claim's other steps.
func TestNeedsBesideUnreadableStep(t *testing.T) {
	s := newSite(t)
	needs := func(params json.RawMessage) ([]budget.Need, error) {
		var amount int64
		err := json.Unmarshal(params, &amount)
		return []budget.Need{{Resource: budget.Memory, Amount: amount}}, err
	}
	kinds := step.Kinds{"known": {Needs: needs}}
	h := holdings{store: s.Store, kinds: kinds}
	r := &record.Record{Namespace: "a", Name: "b", UID: "u1", BootID: s.BootID, Phase: record.Intended, Devices: []record.Device{}}
	for target, params := range map[string]string{"x": "7", "y": `"newer"`} {
		addStep(r, step.Step{Kind: "known", Target: target, Params: json.RawMessage(params)})
	}
	check.Must(t, s.Store.Create(r))
	held, err := h.ofOthers("u2")
	check.Must(t, err)
	if len(held) != 1 || len(held[0].Needs) != 1 || held[0].Needs[0].Amount != 7 {
		t.Errorf("held is %+v, want the 7 of the step that can be read", held)
	}
}
