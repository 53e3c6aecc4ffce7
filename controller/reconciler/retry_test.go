// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestRetriesStayFrequent: what failed for an hour, as while no API server answered or a policy of admission was wrong, is tried again
// soon.
func TestRetriesStayFrequent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 1000*time.Second)
		q := newQueue("x", limiter) // as controller-runtime makes it
		defer q.ShutDown()
		item := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
		var last time.Duration
		for begin := time.Now(); time.Since(begin) < time.Hour; {
			failed := time.Now()
			q.AddRateLimited(item)
			next, _ := q.Get()
			last = time.Since(failed)
			q.Done(next)
		}
		if last < 30*time.Second || last > 2*time.Minute {
			t.Errorf("it is tried again after %s", last)
		}
		q.Forget(item)
		failed := time.Now()
		q.AddRateLimited(item)
		if _, _ = q.Get(); time.Since(failed) > time.Second {
			t.Errorf("after a success the next failure is tried again after %s", time.Since(failed))
		}
	})
}
