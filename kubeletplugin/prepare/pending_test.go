// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// answer is what a call of kubelet's was answered with.
type answer struct {
	record *record.Record
	err    error
}

// asking prepares a claim without waiting for the answer.
func (s *site) asking(c *resourceapi.ResourceClaim) <-chan answer {
	s.put(c)
	answers, arrived := make(chan answer, 1), s.now()
	go func() {
		r, err := s.insist(func() (*record.Record, error) { return s.Prepare(s.t.Context(), c, arrived) })
		answers <- answer{r, err}
	}()
	return answers
}

// unpreparing gives a claim back without waiting for the answer.
func (s *site) unpreparing(uid string) <-chan answer {
	answers, arrived := make(chan answer, 1), s.now()
	go func() {
		r, err := s.insist(func() (*record.Record, error) { return s.Unprepare(s.t.Context(), uid, arrived) })
		answers <- answer{r, err}
	}()
	return answers
}

// busy says whether work on a claim goes on.
func (s *site) busy(uid string) bool {
	s.operations.mu.Lock()
	defer s.operations.mu.Unlock()
	return s.operations.running[uid] != nil
}

// at wants the next call that stands at the gate to be this.
func (s *site) at(g *gate, want string) {
	s.t.Helper()
	if got := receive(s.t, g.at); got != want {
		s.t.Fatalf("%q stands at the gate, want %q", got, want)
	}
}

// pending wants an error to be a *PendingError that says all of these.
func (s *site) pending(err error, says ...string) {
	s.t.Helper()
	pending, ok := errors.AsType[*PendingError](err)
	if !ok {
		s.t.Fatalf("error %v, want a PendingError", err)
	}
	for _, text := range append(says, pending.UID) {
		if !strings.Contains(err.Error(), text) {
			s.t.Errorf("error %q does not say %q", err, text)
		}
	}
}

// TestPending: kubelet is answered before it gives up, the work goes on, and the next call gets its result. Claims on other devices
// take no notice.
func TestPending(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		slow := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
		_, err := s.ask(slow)
		s.pending(err, "u1", "is being prepared", "applies step host.scratch (/mnt/disks/ssd0)", "in the background")
		s.at(g, "apply")
		s.clock.Advance(3 * time.Second)
		_, err = s.ask(slow)
		s.pending(err, "3.0")
		s.inPhase("u1", record.Intended)

		s.prepare(allocated("u2", aGPU("gpu1"), aDisk("ssd1")))
		s.unprepare("u2")

		joined := s.asking(slow)
		g.open()
		got := receive(t, joined)
		check.Must(t, got.err)
		s.isWhole(got.record)
		s.inPhase("u1", record.Prepared)
		if len(g.at) > 0 {
			t.Error("the step was applied again")
		}
		s.reported()
	})
}

// TestPendingEndsAlone: nobody asks again, and the work ends all the same.
func TestPendingEndsAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		_, err := s.ask(allocated("u1", aDisk("ssd0")))
		s.pending(err)
		g.open()
		s.operations.wg.Wait()
		s.inPhase("u1", record.Prepared)
		if s.busy("u1") {
			t.Error("the operation is over and still there")
		}
	})
}

// TestCallerLeaves: kubelet that ends its call, as it does after 45 s or when it restarts, does not end what was begun.
func TestCallerLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		c := allocated("u1", aDisk("ssd0"))
		s.put(c)
		ctx, leave := context.WithCancel(t.Context())
		answers, arrived := make(chan error, 1), s.now()
		go func() {
			_, err := s.Prepare(ctx, c, arrived)
			answers <- err
		}()
		s.at(g, "apply")
		leave()
		err := receive(t, answers)
		s.pending(err)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v does not say that the caller left", err)
		}
		g.open()
		s.prepare(c)
	})
}

// TestPendingFails: what fails in the background is rolled back, and the next call begins anew.
func TestPendingFails(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		c := allocated("u1", aDisk("ssd0"))
		_, err := s.ask(c)
		s.pending(err)
		s.at(g, "apply")
		g.through <- errInjected
		s.at(g, "undo")
		g.open()
		s.operations.wg.Wait()
		s.records()
		s.prepare(c)
	})
}

// TestJoinedWorkFails: a call that waits for another's work tries for itself when that fails.
func TestJoinedWorkFails(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		c := allocated("u1", aDisk("ssd0"))
		first := s.asking(c)
		s.at(g, "apply")
		second := s.asking(c)
		synctest.Wait()
		g.through <- errInjected
		g.open()
		if got := receive(t, first); !errors.Is(got.err, errInjected) {
			t.Errorf("the first call: error %v, want the step's", got.err)
		}
		got := receive(t, second)
		check.Must(t, got.err)
		s.isWhole(got.record)
	})
}

// TestJoinWantsItsOwnAllocation: work on a claim that meanwhile has other devices is no answer.
func TestJoinWantsItsOwnAllocation(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		first := s.asking(allocated("u1", aDisk("ssd0")))
		s.at(g, "apply")
		second := s.asking(allocated("u1", aDisk("ssd1")))
		synctest.Wait()
		g.open()
		receive(t, first)
		got := receive(t, second)
		check.Must(t, got.err)
		if got.record.Devices[0].Name != "ssd1" {
			t.Errorf("answered with %+v", got.record.Devices)
		}
		s.heldBy("", aDisk("ssd0"))
	})
}

// TestUnprepareWins: a claim that is given back while it is prepared is not prepared in the end, whatever its step does.
func TestUnprepareWins(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		preparing := s.asking(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
		s.at(g, "apply")
		back := s.unpreparing("u1")
		s.at(g, "undo") // the step's context ended, and the rollback begins
		g.open()
		check.Must(t, receive(t, back).err)
		if got := receive(t, preparing); !errors.Is(got.err, ErrOvertaken) {
			t.Errorf("the Prepare was answered with %+v, %v: want that it was overtaken", got.record, got.err)
		}
		if len(g.at) > 0 {
			t.Error("the rollback was cut off, too")
		}
		s.records()
		s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
		s.reported()
	})
}

// TestUnprepareWinsOverDeafStep: a step that takes no notice is finished, and then undone.
func TestUnprepareWinsOverDeafStep(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		deaf := make(chan struct{})
		kind := s.kinds["host.scratch"]
		entered := make(chan struct{})
		inner := kind.Apply
		kind.Apply = func(ctx context.Context, params json.RawMessage) error {
			close(entered)
			<-deaf
			return inner(ctx, params)
		}
		s.kinds["host.scratch"] = kind
		d := s.diary()
		preparing := s.asking(allocated("u1", aDisk("ssd0"), aDisk("ssd1")))
		receive(t, entered)
		back := s.unpreparing("u1")
		synctest.Wait()
		close(deaf)
		check.Must(t, receive(t, back).err)
		if got := receive(t, preparing); !errors.Is(got.err, ErrOvertaken) {
			t.Errorf("the Prepare was answered with %+v, %v: want that it was overtaken", got.record, got.err)
		}
		if diff := cmp.Diff([]string{"apply ssd0", "undo ssd1", "undo ssd0"}, d.take()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		s.records()
		s.heldBy("", aDisk("ssd0"))
	})
}

// TestPrepareWaitsForUnprepare: the next pod's Prepare of the same claim waits until the last one's effects are undone.
func TestPrepareWaitsForUnprepare(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		c := allocated("u1", aDisk("ssd0"))
		s.prepare(c)
		data := s.write("ssd0")
		g := s.guard("ssd0")
		back := s.unpreparing("u1")
		s.at(g, "undo")
		_, err := s.ask(c)
		s.pending(err, "is being unprepared", "undoes step host.scratch")
		next := s.asking(c)
		g.open()
		check.Must(t, receive(t, back).err)
		got := receive(t, next)
		check.Must(t, got.err)
		s.isWhole(got.record)
		if there(data) {
			t.Error("the next pod finds the last one's data")
		}
	})
}

// TestUnprepareIsPending: giving back takes long, too, and is joined.
func TestUnprepareIsPending(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("u1", aDisk("ssd0")))
		g := s.guard("ssd0")
		_, err := s.Unprepare(t.Context(), "u1", s.now())
		s.pending(err, "is being unprepared")
		s.inPhase("u1", record.Releasing)
		again := s.unpreparing("u1")
		s.at(g, "undo")
		g.open()
		check.Must(t, receive(t, again).err)
		s.records()
		if len(g.at) > 0 {
			t.Error("undone twice")
		}
	})
}

// TestLaterUnprepareCounts: a second Unprepare that joins the first is as much a promise as the first was: what arrived before it
// must not come true after it.
func TestLaterUnprepareCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		c := allocated("u1", aDisk("ssd0"))
		s.prepare(c)
		g := s.guard("ssd0")
		first := s.unpreparing("u1")
		s.at(g, "undo")
		between := s.asking(c)
		synctest.Wait()
		second := s.unpreparing("u1")
		synctest.Wait()
		g.open()
		check.Must(t, receive(t, first).err)
		check.Must(t, receive(t, second).err)
		receive(t, between)
		synctest.Wait() // the rest of the release follows the answer
		s.records()
		s.heldBy("", aDisk("ssd0"))
	})
}

// TestDeviceIsWaitedFor: a claim waits for the device that another claim is being given, as long as its call lasts, and then says so.
func TestDeviceIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		first := s.asking(allocated("u1", aDisk("ssd0")))
		s.at(g, "apply")
		_, err := s.ask(allocated("u2", aGPU("gpu1"), aDisk("ssd0")))
		check.WantErr(t, err, record.ErrBusy, "device node-1/host/ssd0")
		synctest.Wait()
		if s.busy("u2") {
			t.Error("what was not begun goes on without its call")
		}
		s.records("u1")
		g.open()
		check.Must(t, receive(t, first).err)
		if got := receive(t, s.asking(allocated("u2", aDisk("ssd0")))); !isInUse(got.err) {
			t.Errorf("error %v, want that the device is in use", got.err)
		}
	})
}

// TestSlowFetchHoldsNothing: while a claim's files are fetched from a slow registry, the claim before gives the device back, and others get
// theirs. The fetch goes on after its call, and the next call gets the result.
func TestSlowFetchHoldsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("u0", aDisk("ssd0")))
		registry := make(chan struct{})
		s.effects.fetch = func(r *Request) func(context.Context) error {
			if r.Claim.UID != "u1" {
				return nil
			}
			return func(ctx context.Context) error {
				select {
				case <-registry:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
		c := allocated("u1", aDisk("ssd0"))
		_, err := s.ask(c)
		s.pending(err, "u1", "is being prepared", "fetches")
		_, err = s.Unprepare(t.Context(), "u0", s.now())
		check.Must(t, err)
		s.atRest("u0")
		s.prepare(allocated("u2", aDisk("ssd0")))
		s.unprepare("u2")
		close(registry)
		s.operations.wg.Wait()
		s.inPhase("u1", record.Prepared)
		s.prepare(c)
	})
}

// TestPlanAsksNoRegistry: what is missing when a claim is planned, because an object changed since it was fetched, is not fetched while
// devices are locked that others may share. It is fetched as before, some times.
func TestPlanAsksNoRegistry(t *testing.T) {
	for name, changes := range map[string]int{"once": 1, "all the time": 100} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				fetched, wanted := 0, 1
				s.effects.fetch = func(*Request) func(context.Context) error {
					return func(ctx context.Context) error {
						hold, err := s.Store.TryLockClaim("u1")
						check.Must(t, err, artifact.CheckNetwork(ctx))
						if hold == nil {
							t.Fatal("it is fetched while the claim is locked")
						}
						hold.Release()
						fetched++
						return nil
					}
				}
				s.effects.plan = func(ctx context.Context, _ Request) (Contribution, error) {
					if wanted <= changes {
						wanted++
					}
					if fetched < wanted {
						return Contribution{}, artifact.CheckNetwork(ctx)
					}
					return Contribution{}, nil
				}
				_, err := s.ask(allocated("u1", aDisk("ssd0")))
				if changes == 1 {
					check.Must(t, err)
					s.inPhase("u1", record.Prepared)
				} else {
					check.WantErr(t, err, artifact.ErrNotAsked)
					s.records()
				}
				if want := min(changes+1, tries); fetched != want {
					t.Errorf("fetched %d times, want %d", fetched, want)
				}
			})
		})
	}
}

// TestSlowRestoreHoldsNothing: a pass fetches again what a claim lost, from a slow registry. Its pod ends meanwhile.
func TestSlowRestoreHoldsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("u1", aDisk("ssd0")))
		registry := make(chan struct{})
		s.effects.restore = func(context.Context) error {
			<-registry
			return nil
		}
		s.collection.pass(t.Context(), nil)
		_, err := s.Unprepare(t.Context(), "u1", s.now())
		check.Must(t, err)
		close(registry)
		s.operations.wg.Wait()
		s.records()
		s.reported()
	})
}

// TestSlowRestoreOfSharer: kubelet asks again for a claim whose files the store lost, as for its next pod, and the registry is slow. Pods
// of others that share the device begin and end meanwhile.
func TestSlowRestoreOfSharer(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		sharer := func(uid string) *resourceapi.ResourceClaim {
			return ofClass(allocated(uid, share(aDisk("ssd0"), types.UID(uid))), keepContentAt("/data"))
		}
		slow := sharer("u1")
		s.prepare(slow)
		s.prepare(sharer("u2"))
		registry := make(chan struct{})
		s.effects.restore = func(ctx context.Context) error {
			select {
			case <-registry:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		_, err := s.ask(slow)
		s.pending(err, "u1", "is being prepared", "fetches")
		_, err = s.Unprepare(t.Context(), "u2", s.now())
		check.Must(t, err)
		s.prepare(sharer("u3"))
		close(registry)
		s.prepare(slow)
		s.records("u1", "u3")
	})
}

// TestFetchEndsWithUnprepare: kubelet gives a claim back whose files are being fetched. Nothing is prepared afterwards.
func TestFetchEndsWithUnprepare(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.effects.fetch = func(*Request) func(context.Context) error {
			return func(ctx context.Context) error {
				<-ctx.Done()
				return fmt.Errorf("the registry says nothing: %w", ctx.Err())
			}
		}
		asked := s.asking(allocated("u1", aDisk("ssd0")))
		synctest.Wait()
		s.unprepare("u1")
		if got := receive(t, asked); !Overtaken(got.err) {
			t.Errorf("error %v, want that an Unprepare came", got.err)
		}
		s.records()
	})
}

// TestFetchFails: what cannot be fetched refuses the claim, and nothing is held. A claim that holds its device needs no fetch.
func TestFetchFails(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aDisk("ssd0"))
	s.prepare(c)
	s.effects.fetch = func(*Request) func(context.Context) error {
		return func(context.Context) error { return errInjected }
	}
	s.prepare(c)
	_, err := s.ask(allocated("u2", aDisk("ssd1")))
	check.WantErr(t, err, errInjected)
	s.records("u1")
	s.heldBy("", aDisk("ssd1"))
	s = s.reboot()
	s.effects.fetch = func(r *Request) func(context.Context) error {
		if !r.AfterReboot {
			t.Error("the decisions of before the reboot count")
		}
		return func(context.Context) error { return errInjected }
	}
	_, err = s.ask(c)
	check.WantErr(t, err, errInjected)
	s.heldBy("u1", aDisk("ssd0"))
}

// TestFetchForOtherDevices: a claim that is given back first, since it has other devices now or was half released, is planned as a new one.
// So is what it needs fetched: before anything is locked, and by no decision of before.
func TestFetchForOtherDevices(t *testing.T) {
	for name, again := range map[string]func(s *site) *resourceapi.ResourceClaim{
		"other devices": func(*site) *resourceapi.ResourceClaim { return allocated("u1", aDisk("ssd1")) },
		"half released": func(s *site) *resourceapi.ResourceClaim {
			r, err := s.Store.Load("u1")
			check.Must(t, err)
			check.Must(t, s.Store.MarkReleasing(r))
			return allocated("u1", aDisk("ssd0"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.prepare(allocated("u1", aDisk("ssd0")))
			c := again(s)
			asked := false
			s.effects.fetch = func(r *Request) func(context.Context) error {
				if asked = true; r.AfterReboot || len(r.Earlier) > 0 {
					t.Error("asked for what the claim had before")
				}
				return nil
			}
			s.prepare(c)
			if !asked {
				t.Error("nothing was fetched")
			}
		})
	}
}

// TestStopCutsOff: the process ends in the middle of a step, and the next one undoes what was begun, since nobody was told of it.
func TestStopCutsOff(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		c := allocated("u1", aGPU("gpu0"), aDisk("ssd1"), aDisk("ssd0"))
		answers := s.asking(c)
		s.at(g, "apply")
		next := s.restart()
		if got := receive(t, answers); got.err == nil {
			t.Fatal("prepared by a process that has ended")
		}
		next.inPhase("u1", record.Intended)
		want := map[[2]string]string{
			{"node-1/gpu", "gpu0"}: "u1", {"node-1/host", "ssd0"}: "u1", {"node-1/host", "ssd1"}: "u1",
		}
		if diff := cmp.Diff(want, next.Recovering()); diff != "" {
			t.Errorf("recovering (-want +got):\n%s", diff)
		}
		next.tidy()
		next.records()
		next.heldBy("", aGPU("gpu0"), aDisk("ssd0"), aDisk("ssd1"))
		next.reported("RolledBack u1")
		for _, name := range []string{"ssd0", "ssd1"} {
			if info, err := os.Stat(s.disk(name)); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("%s: mode %v (%v)", name, info.Mode(), err)
			}
		}
		if got := next.Recovering(); len(got) > 0 {
			t.Errorf("still recovering %v", got)
		}
		next.prepare(c)
	})
}

// TestStopped: an engine that was stopped begins nothing.
func TestStopped(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	s.Stop()
	if _, err := s.ask(allocated("u2", aGPU("gpu1"))); !errors.Is(err, errStopped) {
		t.Errorf("prepare: error %v, want errStopped", err)
	}
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, errStopped) {
		t.Errorf("unprepare: error %v, want errStopped", err)
	}
	s.records("u1")
}

// TestStopLeavesTheDeaf: a step that takes no notice does not keep the process from ending.
func TestStopLeavesTheDeaf(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		deaf := make(chan struct{})
		kind := s.kinds["host.scratch"]
		kind.Apply = func(context.Context, json.RawMessage) error {
			<-deaf
			return nil
		}
		s.kinds["host.scratch"] = kind
		asked := s.asking(allocated("u1", aDisk("ssd0")))
		synctest.Wait()
		before := time.Now()
		s.Stop()
		if took := time.Since(before); took > patience {
			t.Errorf("Stop took %s", took)
		}
		close(deaf)
		receive(t, asked)
	})
}

// TestStopCutsOffRollback: a rollback ends with the process, too, however long its undoing takes. The next one does it.
func TestStopCutsOffRollback(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		answers := s.asking(allocated("u1", aDisk("ssd0")))
		s.at(g, "apply")
		g.through <- errInjected
		s.at(g, "undo")
		stopped := make(chan struct{})
		go func() {
			s.Stop()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
		default:
			t.Error("Stop waits for a rollback that takes long")
			g.open()
			receive(t, stopped)
		}
		receive(t, answers)
		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		next.tidy()
		next.records()
	})
}

// TestStopCutsOffUnprepare: what was half given back is given back by the next process.
func TestStopCutsOffUnprepare(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("u1", aDisk("ssd0"), aDisk("ssd1")))
		data := s.write("ssd0")
		g := s.guard("ssd0") // the last to be undone
		back := s.unpreparing("u1")
		s.at(g, "undo")
		next := s.restart()
		if got := receive(t, back); got.err == nil {
			t.Fatal("given back by a process that has ended")
		}
		r := next.load("u1")
		if r.Phase != record.Releasing || r.Steps[0].State != step.Done || r.Steps[1].State != step.Done {
			t.Errorf("record %+v, want one that is given back, and no step noted of which it is not certain", r)
		}
		d := next.diary()
		next.tidy()
		if diff := cmp.Diff([]string{"undo ssd1", "undo ssd0"}, d.take()); diff != "" {
			t.Errorf("undone by the next process (-want +got):\n%s", diff)
		}
		next.records()
		if there(data) {
			t.Error("the data is still there")
		}
	})
}

// TestEverybodyAtOnce prepares and gives back claims that share devices, from many sides, and wants each device to have at most one
// holder at any time and none in the end.
func TestEverybodyAtOnce(t *testing.T) {
	s := newSite(t)
	const sides, rounds = 8, 10
	var wg sync.WaitGroup
	var mu sync.Mutex
	has := map[string]string{}
	for side := range sides {
		wg.Go(func() {
			for round := range rounds {
				uid := fmt.Sprintf("u%d-%d", side, round)
				d := aDisk(fmt.Sprintf("ssd%d", (side+round)%2))
				c := allocated(uid, d, asAdmin(aGPU("gpu0")))
				s.put(c)
				if _, err := s.Prepare(t.Context(), c, s.now()); err == nil {
					mu.Lock()
					if has[d.Device] != "" {
						t.Errorf("%s was given to %s and %s", d.Device, has[d.Device], uid)
					}
					has[d.Device] = uid
					mu.Unlock()
					mu.Lock()
					delete(has, d.Device)
					mu.Unlock()
				} else if !isInUse(err) {
					t.Errorf("%s: %v", uid, err)
				}
				if _, err := s.Unprepare(t.Context(), uid, s.now()); err != nil {
					t.Errorf("%s: %v", uid, err)
				}
			}
		})
	}
	wg.Wait()
	s.operations.wg.Wait()
	s.records()
	s.heldBy("", aDisk("ssd0"), aDisk("ssd1"))
	s.tidy()
	if entries, err := os.ReadDir(s.cdiDir()); err != nil || len(entries) > 6 {
		t.Errorf("files %v (%v): want those of the devices alone", entries, err)
	}
}
