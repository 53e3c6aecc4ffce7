// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// The answer to an Unprepare comes once it is certain that nothing is held. The record and the links go right after it.

// putOff keeps what is left to do after an answer until the function that it returns is called.
func (s *site) putOff() (goOn func()) {
	gate := make(chan struct{})
	s.operations.runFollowUp = func(later func()) {
		<-gate
		later()
	}
	return func() { close(gate) }
}

// changes are the operations on the disk that were done since an earlier length of the log.
func (s *site) changes(since int) (kinds []fault.Kind, now int) {
	log := s.files.Log()
	for _, op := range log[since:] {
		if !op.Kind.Read() && op.Done {
			kinds = append(kinds, op.Kind)
		}
	}
	return kinds, len(log)
}

// TestAnswerFirst: what an Unprepare does before its answer, and after it.
func TestAnswerFirst(t *testing.T) {
	tests := map[string]struct {
		results       []apiResult
		before, after []fault.Kind
	}{
		"plain": {
			[]apiResult{aGPU("gpu0"), aGPU("gpu1")},
			[]fault.Kind{fault.Write, fault.Datasync},
			[]fault.Kind{fault.Remove, fault.Remove, fault.Remove},
		},
		"own spec": {
			[]apiResult{asAdmin(aGPU("gpu0"))},
			[]fault.Kind{fault.Write, fault.Remove, fault.Write, fault.Datasync},
			[]fault.Kind{fault.Remove},
		},
		"emptied": {
			[]apiResult{aGPU("gpu0"), aDisk("ssd0")},
			[]fault.Kind{fault.Write, fault.Datasync},
			[]fault.Kind{fault.Remove, fault.Remove, fault.Remove},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.prepare(allocated("u1", tt.results...))
			_, since := s.changes(0)
			goOn := s.putOff()
			if _, err := s.Unprepare(t.Context(), "u1", s.now()); err != nil {
				t.Error(err)
			}
			before, since := s.changes(since)
			goOn()
			s.operations.wg.Wait()
			after, _ := s.changes(since)
			if diff := cmp.Diff([][]fault.Kind{tt.before, tt.after}, [][]fault.Kind{before, after}); diff != "" {
				t.Errorf("operations before and after the answer (-want +got):\n%s", diff)
			}
			s.records()
		})
	}
}

// TestNextWaitsForTheRest: who asks for the claim or its device meanwhile is served as soon as the record is gone. What has nothing to
// make lasting is nobody's by then.
func TestNextWaitsForTheRest(t *testing.T) {
	tests := map[string]struct {
		next, held string
		devices    []apiResult
	}{
		"the same claim":                     {"u1", "", []apiResult{aGPU("gpu0"), aGPU("gpu1")}},
		"another claim":                      {"u2", "", []apiResult{aGPU("gpu0"), aGPU("gpu1")}},
		"the same claim, of what is emptied": {"u1", "u1", []apiResult{aGPU("gpu0"), aDisk("ssd0")}},
		"another claim, of what is emptied":  {"u2", "u1", []apiResult{aGPU("gpu0"), aDisk("ssd0")}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				s.prepare(allocated("u1", tt.devices...))
				goOn := s.putOff()
				if _, err := s.Unprepare(t.Context(), "u1", s.now()); err != nil {
					t.Error(err)
				}
				s.inPhase("u1", record.Releasing)
				s.heldBy(tt.held, tt.devices...)
				asked := s.asking(allocated(tt.next, tt.devices...))
				beside := s.unpreparing("u3")
				synctest.Wait()
				if len(asked) > 0 || len(beside) != 1 {
					t.Errorf("%d answers before the record is gone, and %d to a claim that has nothing to do with it", len(asked), len(beside))
				}
				goOn()
				got := receive(t, asked)
				check.Must(t, got.err)
				s.isWhole(got.record)
				s.records(tt.next)
				s.heldBy(tt.next, tt.devices...)
			})
		})
	}
}

// TestEmptiedBeforeTheAnswer: what follows it only makes it lasting.
func TestEmptiedBeforeTheAnswer(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	data := s.write("ssd0")
	goOn := s.putOff()
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); err != nil {
		t.Error(err)
	}
	if there(data) {
		t.Error("kubelet was told that the claim is given back, and its data is where it was")
	}
	goOn()
	s.operations.wg.Wait()
	s.records()
}

// TestLastingFails: nobody gets a directory of which it is not certain that it stays empty. That is told as what a process left halfway
// is, and to who asks again.
func TestLastingFails(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
	v, repair := s.listen(), s.failing("finish", "ssd0")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); err != nil {
		t.Error(err)
	}
	s.operations.wg.Wait()
	s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	s.reported(ReasonRecoveryFailed + " u1")
	v.are(t, "told", "quarantine u1 gpu0 ssd0: injected")
	if _, err := s.ask(allocated("u2", aDisk("ssd0"))); !isInUse(err) || !strings.Contains(err.Error(), "tried again in the background") {
		t.Errorf("the next claim: error %v, want that the device is in use, and until when", err)
	}
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, errInjected) {
		t.Errorf("unprepared again: error %v, want what it is about", err)
	}
	repair()
	s.tidy()
	s.records()
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
	v.are(t, "told", "quarantine u1 gpu0 ssd0: injected", "clear u1 gpu0 ssd0")
	s.prepare(allocated("u2", aDisk("ssd0")))
}

// TestLastingHangs: no call waits for it, so it is told when one would have been given up.
func TestLastingHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("u1", aDisk("ssd0")))
		v, goOn := s.listen(), make(chan struct{})
		kind := s.kinds[hostdir.StepKind]
		finish := kind.Finish
		kind.Finish = func(ctx context.Context, params json.RawMessage) error {
			<-goOn
			return finish(ctx, params)
		}
		s.kinds[hostdir.StepKind] = kind
		s.unpreparing("u1")
		synctest.Wait()
		if _, err := s.ask(allocated("u2", aDisk("ssd0"))); !errors.Is(err, record.ErrBusy) {
			t.Errorf("the next claim: error %v, want ErrBusy", err)
		}
		synctest.Wait()
		s.reported(ReasonRecoveryFailed + " u1")
		v.are(t, "told", "quarantine u1 ssd0: is being unprepared: undoes step host.scratch (/mnt/disks/ssd0)")
		close(goOn)
		s.operations.wg.Wait()
		v.are(t, "told", "clear u1 ssd0")
		s.records()
	})
}

// TestNoPromiseOnAFullDisk: where it cannot be noted that the claim is given back, the answer waits until it is.
func TestNoPromiseOnAFullDisk(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	goOn := s.putOff()
	s.files.Set(fault.Full(1))
	_, err := s.Unprepare(t.Context(), "u1", s.now())
	s.files.Set()
	check.Must(t, err)
	s.heldBy("", aDisk("ssd0"))
	goOn()
	s.operations.wg.Wait()
	s.records()
}

// left is a claim whose process ended between the answer to its Unprepare and what follows it.
func (s *site) left(uid string, results ...apiResult) {
	s.t.Helper()
	s.prepare(allocated(uid, results...))
	check.Must(s.t, s.Store.Advance(s.load(uid), record.Change{Phase: record.Releasing}))
	s.heldBy("", results...)
	s.reasons()
}

// TestReleasedIsNone: a record that was left so counts as none, and goes at the next start or when anybody meets it. Nobody is told, for
// nothing happened to the claim.
func TestReleasedIsNone(t *testing.T) {
	c := allocated("u1", aGPU("gpu0"))
	tests := map[string]struct {
		do   func(s *site)
		want []string // who has a record and the device in the end
	}{
		"the next start":    {func(s *site) { s.neighbour() }, nil},
		"a round":           {func(s *site) { s.tidy() }, nil},
		"unprepared again":  {func(s *site) { s.unprepare("u1") }, nil},
		"prepared again":    {func(s *site) { s.prepare(c) }, []string{"u1"}},
		"another claim":     {func(s *site) { s.prepare(allocated("u2", aGPU("gpu0"))) }, []string{"u2"}},
		"for other devices": {func(s *site) { s.prepare(allocated("u1", aGPU("gpu1"))); s.unprepare("u1") }, nil},
		"a reboot":          {func(s *site) { s.reboot() }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.left("u1", aGPU("gpu0"))
			if s.HasRecord("u1") {
				t.Error("the claim is known")
			}
			tt.do(s)
			s.records(tt.want...)
			held := ""
			if len(tt.want) > 0 {
				held = tt.want[0]
			}
			s.heldBy(held, aGPU("gpu0"))
			s.reported()
			if links := s.entries(s.statePath("owners", "node-1_gpu_gpu0")); !cmp.Equal(links, append([]string{}, tt.want...)) {
				t.Errorf("links %v, want %v", links, tt.want)
			}
		})
	}
}
