// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
)

// follow runs FollowDeleted until the test ends, and returns what requests a look.
func (s *site) follow() notify.Signal {
	requests := notify.New()
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan struct{})
	go func() {
		s.FollowDeleted(ctx, time.Minute, requests)
		close(ended)
	}()
	s.t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
	return requests
}

// deletedHold wants these devices to be held by deleted claims, each as DEVICE UID.
func (s *site) deletedHold(want ...string) {
	s.t.Helper()
	var got []string
	for key, r := range s.HeldByDeleted() {
		got = append(got, key[1]+" "+r.UID)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		s.t.Errorf("deleted claims hold %v, want %v", got, want)
	}
}

// TestDeletedUnderItsPod: what a claim that was deleted under its pod holds is known seconds after the node was told, and until the pod
// ends. Another claim that got the device is told at once why, and what to do, and not whose it was.
func TestDeletedUnderItsPod(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		hold := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
		hold.Namespace, hold.Name = "b", "hold"
		s.prepare(hold)
		s.prepare(allocated("u2", aGPU("gpu1")))
		requests := s.follow()
		s.deletedHold()
		s.drop(hold)
		requests.Send()
		time.Sleep(2 * unprepareGrace)
		synctest.Wait()
		s.deletedHold("gpu0 u1", "ssd0 u1")
		s.reported("ClaimDeleted u1")
		s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))

		_, err := s.ask(allocated("u3", aGPU("gpu0")))
		if !HeldByDeletedClaim(err) || Reason(err) != "DeviceInUse" {
			t.Fatalf("error %v, want one about a deleted claim", err)
		}
		for _, want := range []string{"another claim that was deleted while its pod runs", "delete the pod", "retried until then"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
		if strings.Contains(err.Error(), "hold") && strings.Contains(err.Error(), "b/") {
			t.Errorf("error %v names the other claim", err)
		}

		s.unprepare("u1")
		synctest.Wait()
		s.deletedHold()
		s.prepare(allocated("u3", aGPU("gpu0")))
		if got := s.Observer.(*fakeObserver).deleted.Load(); got != 2 {
			t.Errorf("the set changed %d times, want 2", got)
		}
	})
}

// TestRefusalFindsDeleted: the scheduler was quicker than the node was told. The refusal of the other claim makes the node look.
func TestRefusalFindsDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		hold := allocated("u1", aGPU("gpu0"))
		s.prepare(hold)
		s.follow()
		s.drop(hold)
		next := allocated("u2", aGPU("gpu0"))
		if _, err := s.ask(next); err == nil || HeldByDeletedClaim(err) {
			t.Fatalf("error %v", err)
		}
		time.Sleep(2 * unprepareGrace)
		synctest.Wait()
		s.deletedHold("gpu0 u1")
		if _, err := s.ask(next); !HeldByDeletedClaim(err) {
			t.Errorf("error %v, want one about a deleted claim", err)
		}
	})
}

// TestDeletedIsFound also where nobody tells the node: at the start, and within some looks every ten minutes, at a few questions each.
func TestDeletedIsFound(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		first, last := allocated("u1", aGPU("gpu0")), allocated("u4", aGPU("gpu1"))
		s.prepare(first)
		s.prepare(allocated("u2", aDisk("ssd0")))
		s.prepare(allocated("u3", aDisk("ssd1")))
		s.prepare(last)
		s.prepare(allocated("u5", asAdmin(aGPU("gpu1"))))
		s.drop(first)
		s.drop(allocated("u5"))
		s.follow()
		time.Sleep(2 * unprepareGrace)
		synctest.Wait()
		s.deletedHold("gpu0 u1")
		s.drop(last)
		before := s.questions()
		time.Sleep(8*time.Minute - 2*unprepareGrace - time.Second)
		synctest.Wait()
		if asked := s.questions() - before; asked > 8 { // of the one that is known, every minute
			t.Errorf("asked %d times in eight minutes", asked)
		}
		time.Sleep(28*time.Minute + 2*unprepareGrace)
		synctest.Wait()
		s.deletedHold("gpu0 u1", "gpu1 u4")
		if asked, most := s.questions()-before, int64(36*checksAtOnce+4*(checksAtOnce+1)); int64(asked) > most {
			t.Errorf("asked %d times in 36 minutes, want at most %d", asked, most)
		}
	})
}

// TestHeldClaimsAreAskedRarely: a node whose claims are all there asks for two of them every ten minutes, a fifth sooner or later.
func TestHeldClaimsAreAskedRarely(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		for _, one := range []apiResult{aGPU("gpu0"), aGPU("gpu1"), aDisk("ssd0")} {
			s.prepare(allocated("of-"+one.Device, one))
		}
		s.follow()
		before := s.questions()
		var gaps []time.Duration
		last := time.Now()
		for len(gaps) < 20 {
			time.Sleep(time.Second)
			synctest.Wait()
			if now := s.questions(); now > before {
				if now-before != checksAtOnce {
					t.Fatalf("asked %d times at once", now-before)
				}
				gaps, before, last = append(gaps, time.Since(last)), now, time.Now()
			}
		}
		least, most := slices.Min(gaps), slices.Max(gaps)
		if least < 8*time.Minute-time.Second || most > 12*time.Minute+time.Second || least == most {
			t.Errorf("asked after %v", gaps)
		}
	})
}

// TestNotDeleted: a claim that ends in the usual way is gone a moment before or after its Unprepare, and a claim that cannot be looked up
// is not gone.
func TestNotDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		ends, stays := allocated("u1", aGPU("gpu0")), allocated("u2", aGPU("gpu1"))
		s.prepare(ends)
		s.prepare(stays)
		requests := s.follow()
		s.drop(ends)
		requests.Send()
		time.Sleep(unprepareGrace / 2)
		s.unprepare("u1")
		time.Sleep(time.Minute)
		s.drop(stays)
		s.breakAPI(apierrors.NewServiceUnavailable(""))
		requests.Send()
		time.Sleep(time.Minute)
		synctest.Wait()
		s.deletedHold()
		s.reported()
		if got := s.Observer.(*fakeObserver).deleted.Load(); got != 0 {
			t.Errorf("the set changed %d times", got)
		}
	})
}

// TestAllocatedAgain: a claim that had lost its devices for a moment, and has them again for another pod, keeps nobody away.
func TestAllocatedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		hold := allocated("u1", aGPU("gpu0"))
		s.prepare(hold)
		s.drop(hold)
		s.follow()
		time.Sleep(2 * unprepareGrace)
		s.deletedHold("gpu0 u1")
		s.breakAPI(apierrors.NewServiceUnavailable(""))
		time.Sleep(2 * time.Minute)
		s.deletedHold("gpu0 u1")
		s.breakAPI(nil)
		s.put(hold)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s.deletedHold()
	})
}

// TestDeletedReleasedElsewhere: the other process of a rolling update releases the claim.
func TestDeletedReleasedElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		hold := allocated("u1", aGPU("gpu0"))
		s.prepare(hold)
		s.drop(hold)
		s.follow()
		time.Sleep(2 * unprepareGrace)
		s.deletedHold("gpu0 u1")
		s.neighbour().unprepare("u1")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s.deletedHold()
	})
}

// TestDeletedMovedElsewhere: the other process of a rolling update gives the claim another device, and the claim is deleted again. The
// device that it holds then is told of.
func TestDeletedMovedElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		hold := allocated("u1", aGPU("gpu0"))
		s.prepare(hold)
		s.drop(hold)
		s.deleted.check(t.Context(), []string{"u1"})
		s.deletedHold("gpu0 u1")
		moved := allocated("u1", aGPU("gpu1"))
		s.neighbour().prepare(moved)
		s.drop(moved)
		s.deleted.check(t.Context(), []string{"u1"})
		s.deletedHold("gpu1 u1")
		if got := s.Observer.(*fakeObserver).deleted.Load(); got != 2 {
			t.Errorf("told of %d changes, want 2", got)
		}
	})
}

func TestFollowing(t *testing.T) {
	all := []string{"a", "b", "c"}
	for _, tt := range []struct {
		last string
		n    int
		want string
	}{{"", 2, "a b"}, {"b", 2, "c a"}, {"bb", 1, "c"}, {"c", 2, "a b"}, {"a", 9, "b c a"}} {
		if got := strings.Join(following(all, tt.last, tt.n), " "); got != tt.want {
			t.Errorf("%d after %q: %s, want %s", tt.n, tt.last, got, tt.want)
		}
	}
	if got := following(nil, "a", 2); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestAllocatedWhileLooking: a claim that lost its devices, and was prepared with others before the second look, holds what it has.
func TestAllocatedWhileLooking(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		hold := allocated("u1", aGPU("gpu0"))
		s.prepare(hold)
		requests := s.follow()
		s.put(allocated("u1", aGPU("gpu1")))
		requests.Send()
		time.Sleep(unprepareGrace / 2)
		s.unprepare("u1")
		s.prepare(allocated("u1", aGPU("gpu1")))
		time.Sleep(2 * unprepareGrace)
		synctest.Wait()
		s.deletedHold()
		s.reported()
	})
}

// TestAllocatedElsewhereUnresolved: a claim that got other devices does not hold the old ones, whatever its new configuration is worth.
func TestAllocatedElsewhereUnresolved(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.kubeletHolds()
		s.prepare(allocated("u1", aGPU("gpu0")))
		elsewhere := aGPU("gpu0")
		elsewhere.Pool = "node-2/gpu"
		const onlyTeamB = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowedNamespaces":["team-b"]}}`
		s.put(ofClass(allocated("u1", elsewhere), onlyTeamB))
		for range missesToCollect {
			s.collect(t.Context())
		}
		s.reported("ClaimCollected u1")
		s.heldBy("", aGPU("gpu0"))
	})
}

// TestHeldIsTold: a claim that holds its devices is told of at the start, so that what a process did not come to write of it is written.
// One that is deleted or was released is not.
func TestHeldIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		gone := allocated("u1", aGPU("gpu0"))
		s.prepare(gone)
		s.prepare(allocated("u2", aGPU("gpu1")))
		s.prepare(allocated("u3", aDisk("ssd0")))
		s.unprepare("u3")
		s.drop(gone)
		s.follow()
		time.Sleep(2 * unprepareGrace)
		synctest.Wait()
		if got := s.Observer.(*fakeObserver).held.Load(); got != 1 {
			t.Errorf("%d claims were told of, want one", got)
		}
	})
}
