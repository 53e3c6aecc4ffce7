// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// newQueue returns the queue of a reconciler, which serves namespaces in turn.
func newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) RequestQueue {
	type config = workqueue.TypedRateLimitingQueueConfig[reconcile.Request]
	ready := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{
		Name: name, Queue: &fairQueue{waiting: map[string][]reconcile.Request{}},
	})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Queue: ready})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, config{Name: name, DelayingQueue: delaying})
}

// fairQueue has the requests that wait for a worker. Each namespace gets one of its own served before any gets a second, so that thousands
// of objects of one namespace hold up another by one. The objects of the cluster count as one namespace.
type fairQueue struct {
	// order are the namespaces with requests, that whose turn is next first.
	order   []string
	waiting map[string][]reconcile.Request
	length  int
}

// Touch implements [workqueue.Queue].
func (*fairQueue) Touch(reconcile.Request) {}

// Push implements [workqueue.Queue].
func (q *fairQueue) Push(r reconcile.Request) {
	if len(q.waiting[r.Namespace]) == 0 {
		q.order = append(q.order, r.Namespace)
	}
	q.waiting[r.Namespace] = append(q.waiting[r.Namespace], r)
	q.length++
}

// Len implements [workqueue.Queue].
func (q *fairQueue) Len() int { return q.length }

// Pop implements [workqueue.Queue].
func (q *fairQueue) Pop() reconcile.Request {
	namespace := q.order[0]
	next, rest := q.waiting[namespace][0], q.waiting[namespace][1:]
	q.order = q.order[1:]
	q.length--
	if len(rest) == 0 {
		delete(q.waiting, namespace)
		return next
	}
	q.waiting[namespace] = rest
	q.order = append(q.order, namespace)
	return next
}
