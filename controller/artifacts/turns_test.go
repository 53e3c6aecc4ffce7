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

// TestSlowRegistriesOfManyNamespaces: many namespaces have registries that never answer, and as many objects as they like. The queue serves
// namespaces in turn. Another namespace's object has a worker within the time that the last workers give each, and its own time is not cut
// short unless the workers are taken.
func TestSlowRegistriesOfManyNamespaces(t *testing.T) {
	for _, namespaces := range []int{4, 8, 40} {
		t.Run(fmt.Sprint(namespaces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all turns
				queue, begun := make(chan string), time.Now()
				type served struct {
					after time.Duration
					cut   bool
				}
				alice := make(chan served, 1)
				for range Workers {
					go func() {
						for namespace := range queue {
							turn, giveBack, ok := all.take(t.Context(), namespace)
							if !ok {
								continue
							}
							if namespace == "alice" {
								_, cut := turn.Deadline()
								alice <- served{time.Since(begun), cut}
								giveBack()
								continue
							}
							select { // a registry that does not answer for ten minutes
							case <-turn.Done():
							case <-time.After(10 * time.Minute):
							}
							giveBack()
						}
					}()
				}
				go func() {
					defer close(queue)
					for round := range 10 {
						for i := range namespaces {
							queue <- fmt.Sprint("mallory", i)
						}
						if round == 0 {
							synctest.Wait() // a worker that has got an object takes the turn for it
							queue <- "alice"
							synctest.Wait()
						}
					}
				}()
				got := <-alice
				if most := hurried * time.Duration(1+namespaces/reserved); got.after > most {
					t.Errorf("another namespace waited %s for a worker, want at most %s", got.after, most)
				}
				if got.cut != (namespaces >= Workers-reserved) {
					t.Errorf("its time is limited: %v", got.cut)
				}
			})
		})
	}
}
