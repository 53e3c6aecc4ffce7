// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// A model of a node: kubelet, the API server, an admin, the hardware and the disk do what they like, in a random order and while other
// things are under way. The invariants are those of docs/design/prepare.md:
//
//   - a thing (a directory, a slice of a card, a GPU) is used by one claim at a time, whatever it is called;
//   - a claim that kubelet was told is prepared has its things, its specs and its data until kubelet gives it back;
//   - nobody finds the data of the claim before;
//   - when all faults have ended and kubelet gave everything back, nothing is left.

// modelSteps is how many things happen in one round, each on a node of its own.
const modelSteps = 400

// TestModel plays rounds of the model. MODEL_STEPS is how many things happen in all.
func TestModel(t *testing.T) {
	steps := 4 * modelSteps
	if text := os.Getenv("MODEL_STEPS"); text != "" {
		var err error
		steps, err = strconv.Atoi(text)
		check.Must(t, err)
	}
	random := seed.New(t)
	for done := 0; done < steps && !t.Failed(); done += modelSteps {
		round := random.Uint64()
		inBubble(t, func(t *testing.T, s *site) {
			m := newModel(t, s, rand.New(rand.NewPCG(round, 0)))
			for range modelSteps {
				m.step()
			}
			m.end()
			if t.Failed() {
				t.Logf("round %d of this seed, %s", done/modelSteps, strings.Join(m.story.lines, "\n"))
			}
		})
	}
}

// model is the node and what the model knows of it.
type model struct {
	*place
	random *rand.Rand
	t      *testing.T
	hw     *hardware

	// claims are those that kubelet may ask for, by UID; next numbers them.
	claims map[string]*claimObject
	next   int
	// damaged says that a record was damaged.
	damaged bool
	story   *tale

	mu sync.Mutex
	// first is the process on the node, second the newer one of a rolling update, or nil. Kubelet calls the newer one.
	first, second *site
	// calls counts the calls of a claim; unprepared is the last of them that gives it back.
	calls, unprepared map[string]int
	// again are the claims that kubelet has to give back once more.
	again []*claimObject
	// open are the calls that are not answered, by claim.
	open map[string]*calling
	// given are the claims that kubelet was told are prepared.
	given map[string]bool
}

// tale is what happened, for whoever reads a failure.
type tale struct {
	mu    sync.Mutex
	lines []string
}

func (s *tale) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// hardware is what the steps of claims act on.
type hardware struct {
	mu     sync.Mutex
	random *rand.Rand
	t      *testing.T
	story  *tale
	// users has for each thing the claim that uses it.
	users map[string]string
	// stuck are the things whose steps fail, hung those whose steps wait until the channel is closed.
	stuck map[string]bool
	hung  map[string]chan struct{}
	// dirty are devices that hold what nobody knows of.
	dirty map[string]bool
}

const useKind = "test.use"

// use is the step of a claim that uses things.
type use struct {
	Device, UID string
	Things      []string
}

func newModel(t *testing.T, s *site, random *rand.Rand) *model {
	t.Helper()
	hw := &hardware{
		random: rand.New(rand.NewPCG(random.Uint64(), 0)), t: t, users: map[string]string{}, stuck: map[string]bool{},
		hung: map[string]chan struct{}{}, dirty: map[string]bool{}, story: new(tale),
	}
	m := &model{
		place: s.place, first: s, random: random, t: t, hw: hw, story: hw.story, claims: map[string]*claimObject{},
		open: map[string]*calling{}, calls: map[string]int{}, unprepared: map[string]int{}, given: map[string]bool{},
	}
	s.files.Quick = true
	check.Must(t, os.MkdirAll(s.disk("other"), 0o755))
	m.setMachine(modelMachine())
	m.begin(s)
	return m
}

// modelMachine is the machine as it is at first.
func modelMachine() machine {
	return machine{
		gpu("gpu0", 0), gpu("gpu1", 1), ssd("ssd0"), ssd("ssd1"),
		partOf("card", "card-half0", 10, "1"), partOf("card", "card-half1", 11, "1"), partOf("card", "card", 12, "2"),
	}
}

// things are what a device is, whatever it is called.
func things(d device.Device) []string {
	switch {
	case len(d.Edits.Mounts) > 0:
		return []string{d.Edits.Mounts[0].HostPath}
	case d.Name == "card":
		return []string{"card-half0", "card-half1"}
	}
	return []string{d.Name}
}

// begin has a process act on the hardware.
func (m *model) begin(s *site) {
	hw := m.hw
	of := func(verb string, act func(u use) error) func(context.Context, json.RawMessage) error {
		return func(_ context.Context, raw json.RawMessage) error {
			var u use
			if err := json.Unmarshal(raw, &u); err != nil {
				return err
			}
			return hw.act(s, verb, u, act)
		}
	}
	kind := step.Kind{Apply: of("apply", hw.apply), Undo: of("undo", hw.undo), Verify: of("verify", hw.verify)}
	s.kinds[useKind], s.effects.kinds[useKind] = kind, kind
	s.effects.plan = func(_ context.Context, r Request) (out Contribution, err error) {
		for i := range r.Allocation.Results {
			if dev, ok := r.Find(&r.Allocation.Results[i]); ok {
				out.Steps = append(out.Steps, using(dev, string(r.Claim.UID)))
			}
		}
		return out, nil
	}
	s.effects.leftovers = func(_ context.Context, uid string, dev device.Device) ([]step.Step, error) {
		return []step.Step{using(dev, uid)}, nil
	}
	s.effects.orphans = func() (out []Orphan) {
		hw.mu.Lock()
		defer hw.mu.Unlock()
		for _, d := range m.seen().All() {
			if hw.dirty[d.Name] {
				out = append(out, Orphan{UID: "orphan-" + d.Name, Device: d})
			}
		}
		return out
	}
}

func using(dev device.Device, uid string) step.Step {
	raw, err := json.Marshal(use{Device: dev.Name, UID: uid, Things: things(dev)})
	if err != nil {
		panic(err) // strings always encode
	}
	return step.Step{Kind: useKind, Target: dev.Name, Params: raw}
}

// act takes a while, and may hang or fail first. What a process did not begin before it ended, it never does.
func (hw *hardware) act(s *site, verb string, u use, act func(u use) error) error {
	hw.story.note("%s: step on %s for %s", verb, u.Device, u.UID)
	hw.mu.Lock()
	hung := hw.hung[u.Device]
	pause := time.Duration(hw.random.IntN(4)) * time.Millisecond
	hw.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-s.operations.base.Done():
		}
	}
	<-time.After(pause)
	hw.mu.Lock()
	defer hw.mu.Unlock()
	if err := context.Cause(s.operations.base); err != nil {
		return err
	}
	if hw.stuck[u.Device] {
		return errInjected
	}
	hw.story.note("%s: done on %s for %s", verb, u.Device, u.UID)
	return act(u)
}

func (hw *hardware) apply(u use) error {
	for _, thing := range u.Things {
		if by := hw.users[thing]; by != "" && by != u.UID {
			hw.t.Errorf("%s is used by claim %s, and now by %s too", thing, by, u.UID)
		}
		hw.users[thing] = u.UID
	}
	delete(hw.dirty, u.Device)
	return nil
}

func (hw *hardware) undo(u use) error {
	for _, thing := range u.Things {
		if hw.users[thing] == u.UID {
			delete(hw.users, thing)
		}
	}
	delete(hw.dirty, u.Device)
	return nil
}

func (hw *hardware) verify(u use) error {
	for _, thing := range u.Things {
		if by := hw.users[thing]; by != u.UID {
			return fmt.Errorf("%s is used by %q, want %q", thing, by, u.UID)
		}
	}
	return nil
}

// node is the process that kubelet calls.
func (m *model) node() *site {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.second != nil {
		return m.second
	}
	return m.first
}

// answered is called with the answer to a Prepare, the n-th call for its claim.
func (m *model) answered(uid string, n int, r *record.Record, err error) {
	m.story.note("answer %d to the Prepare of %s: %v", n, uid, err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || n < m.unprepared[uid] {
		return
	}
	m.hw.mu.Lock()
	defer m.hw.mu.Unlock()
	for _, s := range r.Steps {
		switch s.Kind {
		case useKind:
			var u use
			check.Must(m.t, json.Unmarshal(s.Params, &u))
			if err := m.hw.verify(u); err != nil {
				m.t.Errorf("claim %s is prepared: %v", uid, err)
			}
		case hostdir.StepKind:
			m.useDirectory(s.Target, uid, !m.given[uid])
		}
	}
	m.given[uid] = true
}

// useDirectory has a container of a claim look at its directory and, the first time, write a file there.
func (m *model) useDirectory(directory, uid string, first bool) {
	path := filepath.Join(m.dir, directory)
	for _, name := range m.entries(path) {
		if data, ok := strings.CutPrefix(name, "data-"); ok && data != uid {
			m.t.Errorf("claim %s finds in %s the data of %s", uid, directory, data)
		}
	}
	if first {
		check.Must(m.t, os.WriteFile(filepath.Join(path, "data-"+uid), nil, 0o600))
	}
}

// checkData wants the data of claims that are prepared to be there.
func (m *model) checkData() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(m.given)) {
		r, err := m.first.Store.Load(uid)
		if err != nil {
			continue // damaged: kubelet's next call repairs it
		}
		for _, s := range r.Steps {
			if path := filepath.Join(m.dir, s.Target, "data-"+uid); s.Kind == hostdir.StepKind && !there(path) {
				m.t.Errorf("the data of claim %s, which is prepared, is gone from %s", uid, s.Target)
			}
		}
	}
}

// end lets all faults end, has kubelet give everything back, and wants nothing to be left.
func (m *model) end() {
	m.story.note("end")
	m.repair()
	synctest.Wait()
	m.checkData()
	for range 10 {
		for _, uid := range slices.Sorted(maps.Keys(m.claims)) {
			m.unprepareClaim(uid, true)
		}
		time.Sleep(time.Minute) // of the bubble's clock
		m.takeBack()
	}
	if m.second != nil {
		m.update()
	}
	for range missesToCollect + 3 {
		m.passes()
		time.Sleep(time.Minute)
	}
	synctest.Wait()
	m.first.records()
	m.hw.mu.Lock()
	defer m.hw.mu.Unlock()
	if len(m.hw.users) > 0 || len(m.hw.dirty) > 0 {
		m.t.Errorf("still used: %v, still dirty: %v", m.hw.users, m.hw.dirty)
	}
	if got := m.first.Recovering(); len(got) > 0 {
		m.t.Errorf("still recovering: %v", got)
	}
	for _, name := range []string{"ssd0", "ssd1", "other"} {
		for _, entry := range m.entries(m.disk(name)) {
			if strings.HasPrefix(entry, "data-") {
				m.t.Errorf("%s still has %s", name, entry)
			}
		}
	}
	for _, file := range m.entries(m.cdiDir()) {
		if strings.HasPrefix(file, "fettle.dev-claim-") {
			m.t.Errorf("left over: %s", file)
		}
	}
}
