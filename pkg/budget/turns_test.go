// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestTurns: callers of one namespace wait for each other, and those of another pass them.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(Limit{Node: 3, Namespace: 1})
		first, err := turns.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var got atomic.Bool
		go func() {
			second, err := turns.Take(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			got.Store(true)
			second()
		}()
		synctest.Wait()
		other, err := turns.Take(t.Context(), "b")
		if err != nil || got.Load() {
			t.Errorf("b waits: %v; a has two turns: %t", err, got.Load())
		}
		first()
		synctest.Wait()
		if !got.Load() {
			t.Error("the turn of a was given back, and a still waits")
		}
		other()
		if len(turns.taken) != 0 || turns.all != 0 {
			t.Errorf("after all turns %d are taken: %v", turns.all, turns.taken)
		}
	})
}

// TestTurnsOfTheCluster: objects of the cluster may take all turns, and no more.
func TestTurnsOfTheCluster(t *testing.T) {
	turns := NewTurns(Limit{Node: 2, Namespace: 1})
	for range 2 {
		if _, err := turns.Take(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	reason := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	if _, err := turns.Take(ctx, ""); !errors.Is(err, reason) || len(turns.waiting) != 0 {
		t.Errorf("the third: %v, with %d waiting", err, len(turns.waiting))
	}
}

// TestTurnsAreNotLost: callers that give up in the moment of their turn do not keep it.
func TestTurnsAreNotLost(t *testing.T) {
	turns := NewTurns(Limit{Node: 2, Namespace: 1})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			go cancel()
			if done, err := turns.Take(ctx, string(rune('a'+i%5))); err == nil {
				done()
			}
		})
	}
	wg.Wait()
	if turns.all != 0 || len(turns.taken) != 0 || len(turns.waiting) != 0 {
		t.Errorf("%d turns are taken: %v, %d wait", turns.all, turns.taken, len(turns.waiting))
	}
}
