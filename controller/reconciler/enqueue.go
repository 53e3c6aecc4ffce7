// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// Gathering is how long changes are collected that come together, as when many nodes fetch the same file.
	Gathering = 3 * time.Second
	// Jitter spreads what would otherwise come together at the end of each interval.
	Jitter = 0.2
)

// RequestQueue is the queue that handlers add names of objects to.
type RequestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// OnChange returns a handler that calls enqueue with an object before a change, nil if it is new, and after it, nil if it is gone.
func OnChange(enqueue func(ctx context.Context, q RequestQueue, before, now client.Object)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q RequestQueue) { enqueue(ctx, q, nil, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q RequestQueue) {
			enqueue(ctx, q, e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q RequestQueue) { enqueue(ctx, q, e.Object, nil) },
	}
}

// Gathered returns a handler that adds the given key some time after a change, so that changes that come together are handled once.
func Gathered[T client.Object](key func(client.Object) types.NamespacedName) handler.TypedEventHandler[T, reconcile.Request] {
	add := func(q RequestQueue, o client.Object) {
		q.AddAfter(reconcile.Request{NamespacedName: key(o)}, Gathering)
	}
	return handler.TypedFuncs[T, reconcile.Request]{
		CreateFunc:  func(_ context.Context, e event.TypedCreateEvent[T], q RequestQueue) { add(q, e.Object) },
		UpdateFunc:  func(_ context.Context, e event.TypedUpdateEvent[T], q RequestQueue) { add(q, e.ObjectNew) },
		DeleteFunc:  func(_ context.Context, e event.TypedDeleteEvent[T], q RequestQueue) { add(q, e.Object) },
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[T], q RequestQueue) { add(q, e.Object) },
	}
}

// Difference returns the elements that only one of two lists has.
func Difference[T comparable](a, b []T) (out []T) {
	for _, pair := range [][2][]T{{a, b}, {b, a}} {
		has := make(map[T]bool, len(pair[1]))
		for _, element := range pair[1] {
			has[element] = true
		}
		for _, element := range pair[0] {
			if !has[element] {
				out = append(out, element)
			}
		}
	}
	return out
}

// Sooner returns the shorter of two times, of which 0 is never.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// NodeStatus returns what a node reports. The status of anything else is empty.
func NodeStatus(object client.Object) (status v1alpha1.AcceleratorNodeStatus) {
	if node, ok := object.(*v1alpha1.AcceleratorNode); ok {
		status = node.Status
	}
	return status
}

// Initially returns a source that queues objects once at the start: one that does not exist yet sends no watch event.
func Initially[T client.Object](objects map[string]T) []source.Source {
	first := make(chan event.TypedGenericEvent[T], len(objects))
	for _, o := range objects {
		first <- event.TypedGenericEvent[T]{Object: o}
	}
	return []source.Source{source.Channel(first, &handler.TypedEnqueueRequestForObject[T]{})}
}

// GenerationChanged lets changes of a spec through.
func GenerationChanged() []predicate.Predicate {
	return []predicate.Predicate{predicate.GenerationChangedPredicate{}}
}

// ComesOrGoes lets objects through that appear and disappear.
func ComesOrGoes() []predicate.Predicate {
	return []predicate.Predicate{predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}}
}

// Metadata returns an empty object of a kind of which only metadata is read.
func Metadata(apiVersion, kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
}
