// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// onPresetCounts has the presets counted anew of which a node says something else, some time later, since claims come and go together.
func onPresetCounts() handler.EventHandler {
	changed := func(q requestQueue, before, now client.Object) {
		for _, key := range changedPresets(presetsOn(before), presetsOn(now)) {
			q.AddAfter(reconcile.Request{NamespacedName: key}, gathering)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q requestQueue) { changed(q, nil, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requestQueue) { changed(q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requestQueue) { changed(q, e.Object, nil) },
	}
}

func presetsOn(object client.Object) []v1alpha1.NodePreset {
	if node, ok := object.(*v1alpha1.AcceleratorNode); ok {
		return node.Status.Presets
	}
	return nil
}

// changedPresets are those that one list has otherwise than the other.
func changedPresets(a, b []v1alpha1.NodePreset) (keys []types.NamespacedName) {
	for _, pair := range [][2][]v1alpha1.NodePreset{{a, b}, {b, a}} {
		for _, p := range pair[0] {
			key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
			if !slices.Contains(pair[1], p) && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// gathered looks at what changed some time later, under the given key, so that what changes together is looked at once.
func gathered[T client.Object](key func(client.Object) types.NamespacedName) handler.TypedEventHandler[T, reconcile.Request] {
	add := func(q requestQueue, o client.Object) {
		q.AddAfter(reconcile.Request{NamespacedName: key(o)}, gathering)
	}
	return handler.TypedFuncs[T, reconcile.Request]{
		CreateFunc:  func(_ context.Context, e event.TypedCreateEvent[T], q requestQueue) { add(q, e.Object) },
		UpdateFunc:  func(_ context.Context, e event.TypedUpdateEvent[T], q requestQueue) { add(q, e.ObjectNew) },
		DeleteFunc:  func(_ context.Context, e event.TypedDeleteEvent[T], q requestQueue) { add(q, e.Object) },
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[T], q requestQueue) { add(q, e.Object) },
	}
}
