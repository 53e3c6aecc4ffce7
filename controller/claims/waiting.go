// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/waitlist"
)

// waiting names on each AcceleratorNode the claims whose pods wait for that node (KEP-5007). The work is that of what changed: it knows the
// claims by node, and never lists them.
type waiting struct {
	reconciler.Services

	mu sync.Mutex
	// byNode has the claims in the order in which they began to wait.
	byNode map[string][]types.NamespacedName
}

func newWaiting(s reconciler.Services) *waiting {
	return &waiting{Services: s, byNode: map[string][]types.NamespacedName{}}
}

func (w *waiting) queue() reconciler.Queue {
	return reconciler.Queue{
		Name: "waitingclaim", DuringUninstall: true, Reconciler: w,
		Watches: []reconciler.Watch{
			{Object: &resourceapi.ResourceClaim{}, Handler: reconciler.OnChange(w.onClaim)},
			{Object: &v1alpha1.AcceleratorNode{}, Handler: reconciler.OnChange(onNode)},
		},
	}
}

// onClaim notes on which nodes a claim waits now, and adds those where that changed.
func (w *waiting) onClaim(_ context.Context, q reconciler.RequestQueue, before, now client.Object) {
	var was, is []string
	var key types.NamespacedName
	if c, ok := before.(*resourceapi.ResourceClaim); ok {
		was, key = waitsOn(c), client.ObjectKeyFromObject(c)
	}
	if c, ok := now.(*resourceapi.ResourceClaim); ok {
		is, key = waitsOn(c), client.ObjectKeyFromObject(c)
	}
	for _, node := range reconciler.Difference(was, is) {
		w.note(node, key, slices.Contains(is, node))
		q.Add(request(node))
	}
}

// onNode adds a node whose object is new, or names other claims than before.
func onNode(_ context.Context, q reconciler.RequestQueue, before, now client.Object) {
	if now != nil && (before == nil || named(before) != named(now)) {
		q.Add(request(now.GetName()))
	}
}

func named(o client.Object) string { return o.GetAnnotations()[v1alpha1.WaitingClaimsAnnotation] }

func request(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// waitsOn returns the nodes for which a claim's pod waits.
func waitsOn(c *resourceapi.ResourceClaim) []string {
	return nodesWhere(c, func(r *resourceapi.DeviceRequestAllocationResult) bool { return waitlist.Waits(c, r) })
}

// note remembers that a claim waits for a node, or that it waits no more.
func (w *waiting) note(node string, key types.NamespacedName, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	others := slices.DeleteFunc(w.byNode[node], func(k types.NamespacedName) bool { return k == key })
	if waits {
		others = append(others, key)
	}
	if len(others) == 0 {
		delete(w.byNode, node)
		return
	}
	w.byNode[node] = others
}

// names returns the text for a node.
func (w *waiting) names(node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return waitlist.Names(w.byNode[node])
}

// Reconcile writes the names for one node.
func (w *waiting) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := &v1alpha1.AcceleratorNode{}
	if err := w.Client.Get(ctx, req.NamespacedName, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // it comes once its plugin runs
	}
	names := w.names(req.Name)
	if names == named(node) {
		return reconcile.Result{}, nil
	}
	err := annotate(ctx, w.Client, req.Name, v1alpha1.WaitingClaimsAnnotation, names)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("tell node %s which claims wait for it: %w", req.Name, err)
	}
	return reconcile.Result{}, nil
}
