// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// onCounts queues the presets whose counts on a node changed, some time later, since claims come and go together.
func onCounts() handler.EventHandler {
	return reconciler.OnChange(func(_ context.Context, q reconciler.RequestQueue, before, now client.Object) {
		var queued []types.NamespacedName
		for _, p := range reconciler.Difference(reported(before), reported(now)) {
			key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
			if !slices.Contains(queued, key) {
				queued = append(queued, key)
				q.AddAfter(reconcile.Request{NamespacedName: key}, reconciler.Gathering)
			}
		}
	})
}

// reported returns the presets that a node reports.
func reported(object client.Object) []v1alpha1.NodePreset {
	if node, ok := object.(*v1alpha1.AcceleratorNode); ok {
		return node.Status.Presets
	}
	return nil
}

// Count adds up what nodes report of a preset.
func Count(nodes []v1alpha1.AcceleratorNode, namespace, name string) (claims, on int32) {
	for i := range nodes {
		for _, p := range nodes[i].Status.Presets {
			if p.Namespace == namespace && p.Name == name {
				claims += p.Claims
				on++
			}
		}
	}
	return claims, on
}
