// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/apitest"
)

// This file follows the recipe "A reconciler" of docs/design/adding.md, with a reconciler that counts the pools of
// AcceleratorNodes.

// poolsAnnotation on an AcceleratorNode has the number of its pools.
const poolsAnnotation = "example.com/pools"

// counter writes the annotation.
type counter struct {
	client client.Client
	pools  *prometheus.GaugeVec
}

// newCounter returns the reconciler: a name, what it watches, and what it sets.
func newCounter(s reconciler.Services) reconciler.Row {
	c := &counter{client: s.Client, pools: metrics.GaugeBy("test_pools", "Pools of a node.", "node")}
	counted := predicate.NewPredicateFuncs(func(o client.Object) bool { return strings.HasPrefix(o.GetName(), "counted") })
	return reconciler.Row{
		Name: "counts of pools", Metrics: []prometheus.Collector{c.pools},
		Queues: []reconciler.Queue{{
			Name: "pools", Reconciler: c,
			Watches: []reconciler.Watch{{Object: &v1alpha1.AcceleratorNode{}, Predicates: []predicate.Predicate{counted}}},
		}},
	}
}

// Reconcile counts the pools of one node.
func (c *counter) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var node v1alpha1.AcceleratorNode
	if err := c.client.Get(ctx, req.NamespacedName, &node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	pools := len(node.Status.Pools)
	c.pools.WithLabelValues(node.Name).Set(float64(pools))
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, poolsAnnotation, strconv.Itoa(pools))
	err := c.client.Patch(ctx, &node, client.RawPatch(types.MergePatchType, patch))
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// withCounter is the table with one row more.
func withCounter(p controller.Parts) []reconciler.Row {
	return append(controller.Table(p), newCounter(p.Services))
}

// testCounter: a row in the table is all that a reconciler needs to run, with its watch, its metric and its place behind the CRDs.
func (c cluster) testCounter(t *testing.T, r replica) {
	c.waitCRD(t)
	c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "counted"}})
	node := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "counted"}}
	c.create(t, node)
	for _, pools := range []int{0, 2} {
		before := node.DeepCopy()
		node.Status.Pools = nil
		for i := range pools {
			node.Status.Pools = append(node.Status.Pools, v1alpha1.PoolStatus{Name: "pool-" + strconv.Itoa(i), Kind: "gpu"})
		}
		if err := c.client.Status().Patch(t.Context(), node, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		apitest.Eventually(t, func() string {
			if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
				return err.Error()
			}
			return cmp.Diff(strconv.Itoa(pools), node.Annotations[poolsAnnotation])
		})
		got := gauges(t, r.registry, "fettle_controller_test_pools")
		if diff := cmp.Diff(map[string]float64{"counted": float64(pools)}, got); diff != "" {
			t.Errorf("metric (-want +got):\n%s", diff)
		}
	}
}
