// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurns: one namespace does not take what others wait for, and nothing of it is left when it is done.
func TestTurns(t *testing.T) {
	t.Parallel()
	var all turns
	var back []func()
	take := func(namespace string) bool {
		_, giveBack, ok := all.take(t.Context(), namespace)
		if ok {
			back = append(back, giveBack)
		}
		return ok
	}
	for i := range turnsPerNamespace {
		if !take("a") {
			t.Fatalf("turn %d was refused", i)
		}
	}
	if take("a") {
		t.Error("a namespace got more than its turns")
	}
	if !take("b") || !take("") {
		t.Error("other namespaces got none")
	}
	back[0]()
	back = back[1:]
	if !take("a") {
		t.Error("a turn that was given back is not there")
	}
	for _, giveBack := range back {
		giveBack()
	}
	if len(all.taken) != 0 || all.all != 0 {
		t.Errorf("left: %v, %d in all", all.taken, all.all)
	}
}

// TestSlowRegistriesOfManyNamespaces: many namespaces have registries that never answer, and as many objects as they like. Another
// namespace's object has a worker within the time that the last workers give each, and its own time is not cut short unless the workers
// are taken.
func TestSlowRegistriesOfManyNamespaces(t *testing.T) {
	for _, namespaces := range []int{4, 8, 40} {
		t.Run(fmt.Sprint(namespaces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all turns
				workers := make(chan struct{}, Workers)
				free := func() bool { return len(workers) < Workers }
				// slow is the reconciliation of an object whose registry does not answer for ten minutes.
				slow := func(namespace string) {
					workers <- struct{}{}
					defer func() { <-workers }()
					turn, giveBack, ok := all.take(t.Context(), namespace)
					if !ok {
						return
					}
					defer giveBack()
					select {
					case <-turn.Done():
					case <-time.After(10 * time.Minute):
					}
				}
				for i := range namespaces {
					for range 10 {
						go slow(fmt.Sprint("mallory", i))
					}
				}
				synctest.Wait()
				begun := time.Now()
				for !free() {
					<-time.After(time.Second)
				}
				if waited, most := time.Since(begun), hurried*time.Duration(1+namespaces/reserved); waited > most {
					t.Errorf("another namespace waited %s for a worker, want at most %s", waited, most)
				}
				turn, giveBack, ok := all.take(t.Context(), "alice")
				if !ok {
					t.Fatal("another namespace has no turn")
				}
				defer giveBack()
				if _, cut := turn.Deadline(); cut != (namespaces*turnsPerNamespace > Workers-reserved) {
					t.Errorf("its time is limited: %v", cut)
				}
			})
		})
	}
}
