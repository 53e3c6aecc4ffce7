// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/test/seed"
)

func of(namespace string, i int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}}
}

// TestRetries: what fails is tried again within a minute for as long as it fails. So what it waited for is noticed soon, faults of one node
// of a stack slow down no other, and the alert FettleReconcileErrors, which wants more than one failure in 100 seconds, goes off.
func TestRetries(t *testing.T) {
	limiter := Queue{}.options().RateLimiter
	var last time.Duration
	for range 100 {
		last = limiter.When(of("", 0))
	}
	if last > time.Minute {
		t.Errorf("what has failed 100 times is tried again after %s", last)
	}
}

// TestManyObjectsOfOneNamespace: 2,000 objects of one namespace come before one of another, and hold it up by one.
func TestManyObjectsOfOneNamespace(t *testing.T) {
	q := newQueue("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Second))
	defer q.ShutDown()
	for i := range 2000 {
		q.Add(of("mallory", i))
	}
	q.Add(of("alice", 0))
	for served := 1; ; served++ {
		next, _ := q.Get()
		if next.Namespace == "alice" {
			break
		}
		if q.Done(next); served > 1 {
			t.Fatalf("%d objects of another namespace were served before", served)
		}
		q.Add(next) // she changes it again
	}
	if q.Len() != 2000 {
		t.Errorf("%d requests are left", q.Len())
	}
}

// TestFairQueue: of requests that come in any order none is lost or doubled, those of a namespace stay in order, and no namespace is served
// twice while another waits.
func TestFairQueue(t *testing.T) {
	r := seed.New(t)
	q := &fairQueue{waiting: map[string][]reconcile.Request{}}
	pushed, popped := map[string]int{}, map[string]int{}
	// since says which namespaces were served while a namespace waits, for each that does.
	since := map[string]map[string]bool{}
	for step := range 20_000 {
		if q.Len() == 0 || step < 15_000 && r.IntN(2) == 0 {
			namespace := fmt.Sprint("n", r.IntN(1+r.IntN(20)))
			if pushed[namespace] == popped[namespace] {
				since[namespace] = map[string]bool{}
			}
			q.Push(of(namespace, pushed[namespace]))
			pushed[namespace]++
			continue
		}
		got := q.Pop()
		if want := of(got.Namespace, popped[got.Namespace]); got != want {
			t.Fatalf("step %d: %s, want %s", step, got, want)
		}
		popped[got.Namespace]++
		delete(since, got.Namespace)
		for waits, served := range since {
			if served[got.Namespace] {
				t.Fatalf("step %d: %s was served twice while %s waited", step, got.Namespace, waits)
			}
			served[got.Namespace] = true
		}
		if pushed[got.Namespace] > popped[got.Namespace] {
			since[got.Namespace] = map[string]bool{}
		}
	}
	left := 0
	for namespace, n := range pushed {
		left += n - popped[namespace]
	}
	if q.Len() != left {
		t.Errorf("%d are left, want %d", q.Len(), left)
	}
}
