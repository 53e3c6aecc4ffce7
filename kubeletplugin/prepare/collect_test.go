// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/kubeletstate"
)

// TestCollect: only what neither kubelet nor the API server says to be anybody's is given back, and only when that was seen twice.
func TestCollect(t *testing.T) {
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	tests := map[string]struct {
		happened func(s *site)
		// collected: the claim is nobody's.
		collected bool
	}{
		"kubelet has it":            {func(s *site) { s.drop(c); s.kubeletHolds("u1") }, false},
		"the API server has it":     {func(*site) {}, false},
		"gone":                      {func(s *site) { s.drop(c) }, true},
		"another claim of the name": {func(s *site) { edit(c, func(c *claimObject) { c.UID = "u2" })(s.place) }, true},
		"deallocated":               {func(s *site) { edit(c, func(c *claimObject) { c.Status.Allocation = nil })(s.place) }, true},
		"other devices":             {func(s *site) { s.put(allocated("u1", aGPU("gpu1"))) }, true},
		"fewer devices":             {func(s *site) { s.put(allocated("u1", aGPU("gpu0"))) }, true},
		"another node's devices":    {func(s *site) { s.put(allocated("u1", elsewhere(aGPU("gpu0")), elsewhere(aDisk("ssd0")))) }, true},
		"another configuration":     {func(s *site) { edit(c, func(c *claimObject) { ofClaim(c, atScratch, "ssd0") })(s.place) }, false},
		"an allocation that cannot be read": {
			func(s *site) { edit(c, func(c *claimObject) { ofClaim(c, "{", "ssd0") })(s.place) }, false,
		},
		"the API server does not answer": {
			func(s *site) { s.drop(c); s.breakAPI(apierrors.NewServiceUnavailable("")) }, false,
		},
		"the API server refuses": {
			func(s *site) {
				s.drop(c)
				s.breakAPI(apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "x", errors.New("no")))
			}, false,
		},
		"kubelet has no state":       {func(s *site) { s.drop(c); check.Must(s.t, os.Remove(s.KubeletState)) }, false},
		"kubelet's state is torn":    {func(s *site) { s.drop(c); check.Must(s.t, os.Truncate(s.KubeletState, 20)) }, false},
		"kubelet's state is empty":   {func(s *site) { s.drop(c); check.Must(s.t, os.Truncate(s.KubeletState, 0)) }, false},
		"kubelet's state is damaged": {func(s *site) { s.drop(c); s.flipKubeletState() }, false},
		"kubelet's state is of a later version": {
			func(s *site) {
				s.drop(c)
				check.Must(s.t, os.WriteFile(s.KubeletState, kubeletstate.File(s.t, "checkpoint.dra.kubelet.k8s.io/v2"), 0o600))
			}, false,
		},
		"kubelet's state is not to be read": {func(s *site) { s.drop(c); s.KubeletState = "" }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.kubeletHolds()
			s.prepare(c)
			data := s.write("ssd0")
			tt.happened(s)
			s.collect(t.Context())
			s.records("u1")
			s.reported()
			s.collect(t.Context())
			if !tt.collected {
				s.collect(t.Context())
				s.records("u1")
				s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
				s.reported()
				if !there(data) {
					t.Error("the data was taken")
				}
				return
			}
			s.records()
			s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
			s.reported("ClaimCollected u1")
			if there(data) {
				t.Error("the data is still there")
			}
			s.collect(t.Context())
			s.reported()
		})
	}
}

// elsewhere is the device of the same name on another node.
func elsewhere(r apiResult) apiResult {
	r.Pool = strings.Replace(r.Pool, testNode, "node-2", 1)
	return r
}

// flipKubeletState changes one letter of a UID.
func (s *site) flipKubeletState() {
	s.t.Helper()
	s.kubeletHolds("u0")
	data, err := os.ReadFile(s.KubeletState)
	check.Must(s.t, err)
	flipped := strings.Replace(string(data), `ClaimUID\":\"u0`, `ClaimUID\":\"u9`, 1)
	if flipped == string(data) {
		s.t.Fatalf("no UID in %s", data)
	}
	check.Must(s.t, os.WriteFile(s.KubeletState, []byte(flipped), 0o600))
}

// TestCollectWantsTwoInARow: a claim that was somebody's in between is nobody's for the first time again.
func TestCollectWantsTwoInARow(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"))
	s.prepare(c)
	for range 3 {
		s.kubeletHolds()
		s.drop(c)
		s.collect(t.Context())
		s.kubeletHolds("u1")
		s.collect(t.Context())
	}
	s.records("u1")
}

// TestCollectAfterUnread: a pass in which kubelet's state cannot be read is not between two in a row.
func TestCollectAfterUnread(t *testing.T) {
	s := newSite(t)
	s.kubeletHolds()
	c := allocated("u1", aGPU("gpu0"))
	s.prepare(c)
	s.drop(c)
	s.collect(t.Context())
	check.Must(t, os.Truncate(s.KubeletState, 0))
	s.collect(t.Context())
	s.kubeletHolds()
	s.collect(t.Context())
	s.records("u1")
	s.collect(t.Context())
	s.records()
	s.reported("ClaimCollected u1")
}

// TestCollectInEveryState: whatever state a lost claim is in, it is not lost for good.
func TestCollectInEveryState(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.kubeletHolds()
		c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
		s.prepare(c)
		s = s.reboot()
		s.drop(c)
		s.tidy()
		s.records("u1") // of an earlier boot
		repair := s.failing("undo", "ssd0")
		for range missesToCollect {
			s.collect(t.Context())
		}
		s.inPhase("u1", record.Releasing)
		s.reported("RecoveryFailed u1")
		repair()
		s.collect(t.Context())
		s.records()
		s.reported("ClaimCollected u1")
	})
}

// TestCollectedClaimIsPreparedMeanwhile: a claim that was gone in the pass before is created and prepared again while the next pass looks
// for it. Its pod keeps what it got.
func TestCollectedClaimIsPreparedMeanwhile(t *testing.T) {
	for _, back := range []string{"kubelet", "the API server"} {
		t.Run(back, func(t *testing.T) {
			s := newSite(t)
			s.kubeletHolds()
			c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
			s.prepare(c)
			data := s.write("ssd0")
			s.drop(c)
			s.collect(t.Context())
			get := s.Claim
			s.Claim = func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
				s.Claim = get
				answer, err := get(ctx, namespace, name)
				s.put(c)
				_, prepareErr := s.Prepare(ctx, c, s.now())
				check.Must(t, prepareErr)
				if back == "kubelet" {
					s.kubeletHolds("u1")
					s.drop(c)
				}
				return answer, err
			}
			s.collect(t.Context())
			s.records("u1")
			s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
			s.reported()
			if !there(data) {
				t.Error("the data was taken")
			}
		})
	}
}

// TestCollectWhileNobodyAnswers: while the API server hangs nothing is collected, and files are looked for as often as ever.
func TestCollectWhileNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.kubeletHolds()
		c := allocated("u1", aGPU("gpu0"))
		s.prepare(c)
		s.Claim = func(ctx context.Context, _, _ string) (*resourceapi.ResourceClaim, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		begun := time.Now()
		for range missesToCollect {
			s.collect(t.Context())
		}
		if waited := time.Since(begun); waited > missesToCollect*fileInterval {
			t.Errorf("%d passes took %s", missesToCollect, waited)
		}
		s.records("u1")
	})
}

// TestCollectInDoubt: a claim whose record was set aside is collected when kubelet does not know it.
func TestCollectInDoubt(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	s.prepare(c)
	data := s.write("ssd0")
	s.damage("u1")
	s = s.restart()
	s.reasons()
	s.kubeletHolds("u1")
	for range missesToCollect + 1 {
		s.collect(t.Context())
	}
	s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	s.kubeletHolds()
	for range missesToCollect {
		s.collect(t.Context())
	}
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
	s.reported("ClaimCollected u1")
	if there(data) {
		t.Error("the data is still there")
	}
}

// TestCollectedClaimComesBack: what was collected by mistake is prepared again when kubelet asks.
func TestCollectedClaimComesBack(t *testing.T) {
	s := newSite(t)
	s.kubeletHolds()
	c := allocated("u1", aGPU("gpu0"))
	s.prepare(c)
	s.drop(c)
	for range missesToCollect {
		s.collect(t.Context())
	}
	s.records()
	s.prepare(c)
}

func TestKubeletStateIsADirectory(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	s.drop(allocated("u1"))
	check.Must(t, os.MkdirAll(filepath.Join(s.KubeletState, "x"), 0o700))
	for range missesToCollect + 1 {
		s.collect(t.Context())
	}
	s.records("u1")
}
