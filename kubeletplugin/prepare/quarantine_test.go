// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// verdicts are what an engine told of devices that nobody may use, in order: "quarantine u1 gpu0 ssd0: injected", "clear u1 gpu0 ssd0".
type verdicts struct {
	mu    sync.Mutex
	lines []string
}

// listen puts down what an engine tells of devices, and wants each record to be on disk while it does: what is told of a record that is
// gone would never be taken back.
func (s *site) listen() *verdicts {
	s.t.Helper()
	v := new(verdicts)
	note := func(r *record.Record, line string) {
		if _, err := s.Store.Load(r.UID); err != nil {
			line += ", too late"
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.lines = append(v.lines, line)
	}
	s.health.quarantine = func(r *record.Record, cause error) {
		why := cause.Error()
		if errors.Is(cause, errInjected) {
			why = "injected"
		}
		if hung, ok := errors.AsType[*hungError](cause); ok {
			why = hung.activity
		}
		note(r, fmt.Sprintf("quarantine %s: %s", holding(r), why))
	}
	s.health.clear = func(r *record.Record) { note(r, "clear "+holding(r)) }
	return v
}

// holding is a claim with the devices of its record.
func holding(r *record.Record) string {
	line := r.UID
	for i := range r.Devices {
		line += " " + r.Devices[i].Name
	}
	return line
}

// are wants these lines since the last call.
func (v *verdicts) are(t *testing.T, when string, want ...string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if diff := cmp.Diff(want, v.lines); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
	v.lines = nil
}

// TestUndoFailsIntoQuarantine: wherever a step cannot be undone, the claim's devices are kept from everybody, and they are free again
// when it was undone after all.
func TestUndoFailsIntoQuarantine(t *testing.T) {
	tests := map[string]func(s *site) (next *site, v *verdicts, repair func()){
		"unprepare": func(s *site) (*site, *verdicts, func()) {
			s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
			v, repair := s.listen(), s.failing("undo", "ssd0")
			if _, err := s.Unprepare(s.t.Context(), "u1", s.now()); !errors.Is(err, errInjected) {
				s.t.Errorf("error %v, want the step's", err)
			}
			return s, v, repair
		},
		"rollback": func(s *site) (*site, *verdicts, func()) {
			v, repair := s.listen(), s.failing("undo", "ssd0")
			s.failing("apply", "ssd1")
			if _, err := s.ask(allocated("u1", aGPU("gpu0"), aDisk("ssd0"), aDisk("ssd1"))); !errors.Is(err, errInjected) {
				s.t.Errorf("error %v, want the step's", err)
			}
			return s, v, repair
		},
		"recovery": func(s *site) (*site, *verdicts, func()) {
			s.cutOff("u1")
			next := s.newEngine()
			check.Must(s.t, next.Index(s.t.Context()))
			v, repair := next.listen(), next.failing("undo", "ssd0")
			next.tidy()
			return next, v, repair
		},
		"another allocation": func(s *site) (*site, *verdicts, func()) {
			s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
			v, repair := s.listen(), s.failing("undo", "ssd0")
			if _, err := s.ask(allocated("u1", aGPU("gpu1"))); !errors.Is(err, errInjected) {
				s.t.Errorf("error %v, want the step's", err)
			}
			return s, v, repair
		},
	}
	for name, fails := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				next, v, repair := fails(s)
				held := holding(next.load("u1"))
				if !strings.HasPrefix(held, "u1 gpu0 ssd0") {
					t.Fatalf("the record holds %s", held)
				}
				v.are(t, "told when it failed", "quarantine "+held+": injected")
				repair()
				next.tidy()
				v.are(t, "told when it was undone", "clear "+held)
				next.records()
			})
		})
	}
}

// TestRollbackFailsAfterItWasOvertaken: what ended the Prepare is no excuse for the device that cannot be put in order.
func TestRollbackFailsAfterItWasOvertaken(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		v, g := s.listen(), s.guard("ssd0")
		asked := s.asking(allocated("u1", aDisk("ssd0")))
		s.at(g, "apply")
		back := s.unpreparing("u1")
		s.at(g, "undo")
		g.through <- errInjected
		if got := receive(t, asked); !errors.Is(got.err, ErrOvertaken) {
			t.Errorf("error %v, want that it was overtaken", got.err)
		}
		v.are(t, "told when it failed", "quarantine u1 ssd0: injected")
		s.at(g, "undo")
		g.open()
		check.Must(t, receive(t, back).err)
		v.are(t, "told when it was undone", "clear u1 ssd0")
	})
}

// TestQuarantineIsForFailures: an undoing that was cut off, by the end of the process or for an Unprepare, says nothing of the device.
func TestQuarantineIsForFailures(t *testing.T) {
	tests := map[string]struct {
		cutOff func(t *testing.T, s *site) *verdicts
		want   []string
	}{
		"Unprepare, by the end of the process": {cutOff: func(t *testing.T, s *site) *verdicts {
			s.prepare(allocated("u1", aDisk("ssd0")))
			v, g := s.listen(), s.guard("ssd0")
			back := s.unpreparing("u1")
			s.at(g, "undo")
			s.Stop()
			if got := receive(t, back); got.err == nil {
				t.Error("given back by a process that has ended")
			}
			return v
		}},
		"rollback, by the end of the process": {cutOff: func(t *testing.T, s *site) *verdicts {
			v, g := s.listen(), s.guard("ssd0")
			answers := s.asking(allocated("u1", aDisk("ssd0")))
			s.at(g, "apply")
			g.through <- errInjected
			s.at(g, "undo")
			s.Stop()
			receive(t, answers)
			return v
		}},
		"recovery, by an Unprepare": {want: []string{"clear u1 gpu0 ssd0"}, cutOff: func(t *testing.T, s *site) *verdicts {
			s.cutOff("u1")
			next := s.newEngine()
			check.Must(t, next.Index(t.Context()))
			v, g := next.listen(), next.guard("ssd0")
			next.collection.pass(t.Context(), nil)
			next.at(g, "undo")
			back := next.unpreparing("u1")
			next.at(g, "undo")
			g.open()
			check.Must(t, receive(t, back).err)
			return v
		}},
		"another allocation, by an Unprepare": {want: []string{"clear u1 ssd0"}, cutOff: func(t *testing.T, s *site) *verdicts {
			s.prepare(allocated("u1", aDisk("ssd0")))
			v, g := s.listen(), s.guard("ssd0")
			asked := s.asking(allocated("u1", aGPU("gpu1")))
			s.at(g, "undo")
			back := s.unpreparing("u1")
			s.at(g, "undo")
			g.open()
			check.Must(t, receive(t, back).err)
			receive(t, asked)
			return v
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				tt.cutOff(t, s).are(t, "told", tt.want...)
			})
		})
	}
}

// TestHangingUndoIsQuarantined: an undoing that outlasts a call may never end, so its devices are kept from everybody by then. One
// that ends after all frees them.
func TestHangingUndoIsQuarantined(t *testing.T) {
	tests := map[string]struct {
		doing string
		hang  func(t *testing.T, s *site) (*site, *verdicts, *gate)
	}{
		"Unprepare": {"is being unprepared", func(t *testing.T, s *site) (*site, *verdicts, *gate) {
			s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
			v, g := s.listen(), s.guard("ssd0")
			_, err := s.Unprepare(t.Context(), "u1", s.now())
			s.pending(err)
			return s, v, g
		}},
		"rollback": {"is being prepared", func(t *testing.T, s *site) (*site, *verdicts, *gate) {
			v, g := s.listen(), s.guard("ssd0")
			go func() {
				<-g.at
				g.through <- errInjected
			}()
			_, err := s.ask(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
			s.pending(err)
			s.at(g, "undo")
			return s, v, g
		}},
		"recovery": {"is being recovered", func(t *testing.T, s *site) (*site, *verdicts, *gate) {
			s.cutOff("u1")
			next := s.newEngine()
			check.Must(t, next.Index(t.Context()))
			v, g := next.listen(), next.guard("ssd0")
			next.collection.pass(t.Context(), nil)
			next.at(g, "undo")
			// Another claim waits for the GPU as long as a call may.
			if _, err := next.ask(allocated("u2", aGPU("gpu0"))); !errors.Is(err, record.ErrBusy) {
				t.Errorf("error %v, want ErrBusy", err)
			}
			synctest.Wait()
			return next, v, g
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				next, v, g := tt.hang(t, s)
				want := "quarantine u1 gpu0 ssd0: " + tt.doing + ": undoes step host.scratch (/mnt/disks/ssd0)"
				v.are(t, "told when the call's time was used up", want)
				g.open()
				next.operations.wg.Wait()
				v.are(t, "told when it was undone", "clear u1 gpu0 ssd0")
				next.records()
			})
		})
	}
}

// TestWaitingIsNoQuarantine: a call that ends for another reason than its own time, or while something else than an undoing takes long,
// says nothing of the devices.
func TestWaitingIsNoQuarantine(t *testing.T) {
	t.Run("the step is applied", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *site) {
			v, g := s.listen(), s.guard("ssd0")
			_, err := s.ask(allocated("u1", aDisk("ssd0")))
			s.pending(err, "applies step")
			g.open()
			s.operations.wg.Wait()
			v.are(t, "told")
		})
	})
	t.Run("kubelet leaves", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *site) {
			s.prepare(allocated("u1", aDisk("ssd0")))
			v, g := s.listen(), s.guard("ssd0")
			ctx, leave := context.WithCancel(t.Context())
			answers, arrived := make(chan error, 1), s.now()
			go func() {
				_, err := s.Unprepare(ctx, "u1", arrived)
				answers <- err
			}()
			s.at(g, "undo")
			leave()
			s.pending(receive(t, answers))
			v.are(t, "told")
		})
	})
	t.Run("the undoing is over", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *site) {
			s.prepare(allocated("u1", aDisk("ssd0")))
			v, g := s.listen(), s.guard("ssd1")
			_, err := s.ask(allocated("u1", aDisk("ssd1")))
			s.pending(err, "applies step")
			v.are(t, "told", "clear u1 ssd0")
			g.open()
			s.operations.wg.Wait()
			v.are(t, "told in the end")
		})
	})
}

// TestClear: whatever a claim's devices were kept back for is over before its record goes. That a record has no step does not say that
// it never had one: it may have been made anew from links.
func TestClear(t *testing.T) {
	tests := map[string]struct {
		results []apiResult
		want    []string
	}{
		"a step":   {[]apiResult{aGPU("gpu0"), aDisk("ssd0")}, []string{"clear u1 gpu0 ssd0"}},
		"a look":   {[]apiResult{asAdmin(aGPU("gpu0"))}, []string{"clear u1 gpu0"}}, // its own spec is a step
		"no steps": {[]apiResult{aGPU("gpu0"), aGPU("gpu1")}, []string{"clear u1 gpu0 gpu1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			v := s.listen()
			s.prepare(allocated("u1", tt.results...))
			s.unprepare("u1")
			s.unprepare("u1")
			v.are(t, "told", tt.want...)
		})
	}
}

// TestClearOutlivesTheProcess: a process that ended between the last step and the record leaves it to the next one to free the devices,
// which has nothing to undo any more.
func TestClearOutlivesTheProcess(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	r := s.load("u1")
	check.Must(t, s.Store.Advance(r, record.Change{Phase: record.Releasing}))
	check.Must(t, s.Store.Advance(r, record.Change{Step: 0, State: step.Undone}))
	s.Stop()
	s = s.newEngine()
	v, d := s.listen(), s.diary()
	check.Must(t, s.Index(t.Context()))
	v.are(t, "told", "clear u1 ssd0")
	s.tidy()
	if lines := d.take(); len(lines) > 0 {
		t.Errorf("undone again: %v", lines)
	}
	s.records()
}

// TestQuarantineBeforeClear: an undoing that ends in the very moment in which its call's time is used up must not leave its devices in
// quarantine: nobody would come back to clear them.
func TestQuarantineBeforeClear(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("u1", aDisk("ssd0")))
		v, g := s.listen(), s.guard("ssd0")
		inner := s.health.quarantine
		s.health.quarantine = func(r *record.Record, cause error) {
			g.open()
			// What the end of the undoing brings about may come first now. It must wait for a lock, which counts for synctest as going on,
			// so no time passes here, and synctest.Wait would not return.
			for yields := 0; there(s.recordFile("u1")) && yields < 100_000; yields++ {
				runtime.Gosched()
			}
			inner(r, cause)
		}
		_, err := s.Unprepare(t.Context(), "u1", s.now())
		s.pending(err)
		s.operations.wg.Wait()
		v.mu.Lock()
		defer v.mu.Unlock()
		want := []string{"quarantine u1 ssd0: is being unprepared: undoes step host.scratch (/mnt/disks/ssd0)", "clear u1 ssd0"}
		if diff := cmp.Diff(want, v.lines); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}
