// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// A call of kubelet's and the claim that comes with it may be old by the time it is their turn. What overtook them decides.

func isStale(err error) bool {
	_, ok := errors.AsType[*record.StaleError](err)
	return ok
}

// TestTombstone: a Prepare that arrived before the claim was given back is refused whenever it runs, also by another process; the next
// pod's is not, though the claim and its UID are the same.
func TestTombstone(t *testing.T) {
	for name, held := range map[string]bool{"of a prepared claim": true, "of a claim that holds nothing": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c := allocated("u1", aGPU("gpu0"))
			s.put(c)
			if held {
				s.prepare(c)
			}
			arrived := s.now()
			s.unprepare("u1")
			refuses := func(s *site) {
				if _, err := s.Prepare(t.Context(), c, arrived); !isStale(err) || !strings.Contains(err.Error(), "u1") {
					t.Errorf("error %v, want a StaleError", err)
				}
			}
			refuses(s)
			refuses(s.neighbour())
			next := s.restart()
			refuses(next)
			next.records()
			next.prepare(c)
			next.unprepare("u1")
		})
	}
}

// TestTombstoneIsOfItsBoot: a call does not outlive the boot that it came in, and time begins anew with each.
func TestTombstoneIsOfItsBoot(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"))
	s.unprepare("u1")
	s = s.reboot()
	if s.Now().Since >= time.Minute {
		t.Fatalf("uptime %s", s.Now().Since)
	}
	s.prepare(c)
}

// TestTombstoneOnFullDisk: a full disk keeps no pod from ending, and the claim is known to be given back all the same.
func TestTombstoneOnFullDisk(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	s.prepare(c)
	data := s.write("ssd0")
	arrived := s.now()
	s.files.Set(fault.Full(1))
	s.unprepare("u1")
	s.files.Set()
	s.records()
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
	if there(data) {
		t.Error("the data is still there")
	}
	if _, err := s.Prepare(t.Context(), c, arrived); !isStale(err) {
		t.Errorf("error %v, want a StaleError", err)
	}
	s.prepare(c)
	s.unprepare("u1")
	if _, err := s.Prepare(t.Context(), c, arrived); !isStale(err) {
		t.Errorf("error %v, want a StaleError still", err)
	}
}

// TestFreshClaimIsTrusted: a claim that kubelet's helper has just read is not read again.
func TestFreshClaimIsTrusted(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	if got := s.questions(); got != 0 {
		t.Errorf("the API server was asked %d times", got)
	}
}

// TestClaimIsReadAgain: a call that waited, for its turn or on its way here, reads its claim again; and where that is not what it was,
// nothing happens.
func TestClaimIsReadAgain(t *testing.T) {
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	changed := func(err error) bool { return errors.Is(err, ErrChanged) }
	tests := map[string]struct {
		meanwhile func(p *place)
		// check says whether an error is the right one. Nil: the claim is prepared.
		check func(error) bool
	}{
		"unchanged":                 {func(*place) {}, nil},
		"reserved for another pod":  {edit(c, func(c *claimObject) { c.Status.ReservedFor = make([]consumer, 1) }), nil},
		"other devices":             {func(p *place) { p.put(allocated("u1", aGPU("gpu1"))) }, changed},
		"another configuration":     {edit(c, func(c *claimObject) { ofClaim(c, atScratch, "ssd0") }), changed},
		"deallocated":               {edit(c, func(c *claimObject) { c.Status.Allocation = nil }), changed},
		"another claim of the name": {edit(c, func(c *claimObject) { c.UID = "u2" }), changed},
		"gone":                      {func(p *place) { p.drop(c) }, apierrors.IsNotFound},
		"nobody knows":              {func(p *place) { p.breakAPI(apierrors.NewServiceUnavailable("")) }, apierrors.IsServiceUnavailable},
	}
	for name, tt := range tests {
		for how, prepare := range map[string]func(s *site, meanwhile func()) answer{
			"waits for the claim": func(s *site, meanwhile func()) answer {
				hold, err := s.Store.LockClaim(s.t.Context(), "u1")
				check.Must(s.t, err)
				return s.whileHeld(hold, c, meanwhile)
			},
			"waits for a device": func(s *site, meanwhile func()) answer {
				hold, err := s.Store.LockClaim(s.t.Context(), "another")
				check.Must(s.t, err)
				check.Must(s.t, hold.Devices(s.t.Context(), []string{"node-1/host/ssd0"}))
				return s.whileHeld(hold, c, meanwhile)
			},
			"is long on its way": func(s *site, meanwhile func()) answer {
				s.put(c)
				arrived := s.now()
				meanwhile()
				s.clock.Advance(freshFor + time.Millisecond)
				r, err := s.Prepare(s.t.Context(), c, arrived)
				return answer{r, err}
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *site) {
					got := prepare(s, func() { tt.meanwhile(s.place) })
					if tt.check == nil {
						check.Must(t, got.err)
						s.isWhole(got.record)
						return
					}
					if got.err == nil || !tt.check(got.err) || !strings.Contains(got.err.Error(), "team-a/claim-u1") {
						t.Errorf("error %v, want another one, that names the claim", got.err)
					}
					s.records()
					s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
				})
			})
		}
	}
}

type (
	claimObject = resourceapi.ResourceClaim
	consumer    = resourceapi.ResourceClaimConsumerReference
)

// edit changes a claim at the API server.
func edit(c *claimObject, change func(c *claimObject)) func(p *place) {
	return func(p *place) {
		edited := c.DeepCopy()
		change(edited)
		p.put(edited)
	}
}

// whileHeld prepares a claim while somebody holds what it needs, and lets something happen before that is given back.
func (s *site) whileHeld(hold *record.Hold, c *claimObject, meanwhile func()) answer {
	s.t.Helper()
	asked := s.asking(c)
	synctest.Wait()
	meanwhile()
	hold.Release()
	return receive(s.t, asked)
}
