// SPDX-License-Identifier: Apache-2.0

// Package claims tells nodes about claims: of those that were deleted while they were allocated, and of those whose pods are bound only
// after the node did something. A deleted claim still holds devices while its pod runs, but the scheduler takes them for free. Nodes do
// not watch claims, so that one watch serves the whole cluster.
package claims

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/device"
)

// messenger writes an annotation to the AcceleratorNode of a node on which an allocated claim was deleted. The node itself looks which of
// its claims are gone. So a message that is lost or comes twice does no harm: nodes also look by themselves, more slowly.
type messenger struct {
	reconciler.Services
	told prometheus.Counter
}

// New returns the reconciler. Its queue has names of nodes.
func New(s reconciler.Services) reconciler.Row {
	m := &messenger{Services: s, told: metrics.Counter("deleted_claims_told_total",
		"Times that a node was told that a claim with a device of it was deleted while it was allocated.")}
	return reconciler.Row{
		Name: "deleted and waiting ResourceClaims", Metrics: []prometheus.Collector{m.told},
		Queues: []reconciler.Queue{
			{
				Name: "deletedclaim", DuringUninstall: true, Reconciler: m,
				Watches: []reconciler.Watch{{Object: &resourceapi.ResourceClaim{}, Handler: reconciler.OnChange(enqueueDeleted)}},
			},
			newWaiting(s).queue(),
		},
	}
}

// enqueueDeleted adds the nodes of an allocated claim that is gone. Kubernetes takes the allocation from a claim before it removes the
// claim's finalizer, so a claim that ends in the usual way has none. A watch that was cut tells of a claim that was deleted and made again
// as of one that changed.
func enqueueDeleted(_ context.Context, q reconciler.RequestQueue, before, now client.Object) {
	claim, ok := before.(*resourceapi.ResourceClaim)
	if !ok || now != nil && now.GetUID() == before.GetUID() {
		return
	}
	for _, node := range nodesOf(claim) {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
	}
}

// nodesOf returns the nodes with Fettle's devices of a claim. A claim without an allocation has none.
func nodesOf(c *resourceapi.ResourceClaim) []string {
	return nodesWhere(c, func(*resourceapi.DeviceRequestAllocationResult) bool { return true })
}

// nodesWhere returns the nodes of the devices of Fettle for which is returns true.
func nodesWhere(c *resourceapi.ResourceClaim, is func(*resourceapi.DeviceRequestAllocationResult) bool) (nodes []string) {
	if c.Status.Allocation == nil {
		return nil
	}
	seen := map[string]bool{}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		node, _, ok := device.SplitPool(r.Pool)
		if r.Driver == v1alpha1.DriverName && ok && !seen[node] && is(r) {
			seen[node] = true
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Reconcile tells one node.
func (m *messenger) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	err := annotate(ctx, m.Client, req.Name, v1alpha1.ClaimDeletedAnnotation, m.Clock.Now().UTC().Format(time.RFC3339Nano))
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("tell node %s of a deleted claim: %w", req.Name, err)
	}
	if err == nil {
		m.told.Inc()
		klog.FromContext(ctx).Info("A claim with a device of a node was deleted while it was allocated", "node", req.Name)
	}
	return reconcile.Result{}, nil
}

// annotate sets an annotation of a node's AcceleratorNode; an empty value removes it.
func annotate(ctx context.Context, c client.Client, node, annotation, value string) error {
	patch, err := reconciler.MetadataPatch("", nil, reconciler.Named{}.Set(annotation, value))
	if err != nil {
		return err
	}
	object := reconciler.Metadata(v1alpha1.GroupVersion.String(), "AcceleratorNode")
	object.Name = node
	return c.Patch(ctx, object, patch)
}

// Cached keeps the claims in the manager's cache to what nodesOf and waitsOn read.
func Cached(byObject map[client.Object]cache.ByObject) {
	byObject[&resourceapi.ResourceClaim{}] = cache.ByObject{Transform: trim}
}

func trim(object any) (any, error) {
	c, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return object, nil
	}
	kept := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
	}}
	nodes := nodesOf(c)
	if len(nodes) == 0 {
		return kept, nil
	}
	waits := waitsOn(c)
	kept.Status.Allocation = &resourceapi.AllocationResult{}
	for _, node := range nodes {
		one := resourceapi.DeviceRequestAllocationResult{Driver: v1alpha1.DriverName, Pool: node + "/"}
		if slices.Contains(waits, node) {
			one.BindingConditions = []string{"Ready"} // which one is not asked
		}
		kept.Status.Allocation.Devices.Results = append(kept.Status.Allocation.Devices.Results, one)
	}
	return kept, nil
}
