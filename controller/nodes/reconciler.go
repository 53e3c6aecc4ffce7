// SPDX-License-Identifier: Apache-2.0

// Package nodes looks after the AcceleratorNodes of Nodes that are gone or were asked to retire. All else in an AcceleratorNode is its
// plugin's.
package nodes

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// keeper deletes the AcceleratorNodes of Nodes that are gone and takes back the retirement that an uninstall left behind when it gave up.
// It reads metadata of AcceleratorNodes only, so its memory does not grow with what the nodes report.
type keeper struct {
	reconciler.Services

	pruned prometheus.Counter
	// absent is by AcceleratorNode name. Only Reconcile uses it, and one call runs at a time.
	absent map[string]absence
}

// New returns the reconciler.
func New(s reconciler.Services) reconciler.Row {
	k := &keeper{
		Services: s, absent: map[string]absence{},
		pruned: metrics.Counter("pruned_nodes_total", "AcceleratorNode objects deleted because their Node is gone."),
	}
	deleted := predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	return reconciler.Row{
		Name: "AcceleratorNodes", Metrics: []prometheus.Collector{k.pruned},
		Queues: []reconciler.Queue{{
			Name: "acceleratornode", DuringUninstall: true, Reconciler: k,
			Watches: []reconciler.Watch{
				{Object: accelerator()},
				{Object: &corev1.Node{}, Handler: &handler.EnqueueRequestForObject{}, Predicates: []predicate.Predicate{deleted}},
			},
		}},
	}
}

// Reconcile prunes or keeps one AcceleratorNode, which has the name of its Node.
func (k *keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := accelerator()
	if err := k.Client.Get(ctx, req.NamespacedName, node); err != nil {
		delete(k.absent, req.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	missing, err := k.missing(ctx, node.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	step := k.unretire
	if missing {
		step = k.prune
	}
	wait, err := step(ctx, node)
	return reconcile.Result{RequeueAfter: wait}, err
}

// missing reports whether the Node is gone. One that the cache lacks is asked for: a late watch must not cost a node its object. Of one
// that the cache still has, the watch will tell. If the Node exists, its earlier absence is forgotten.
func (k *keeper) missing(ctx context.Context, name string) (bool, error) {
	err := k.Client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
	if apierrors.IsNotFound(err) {
		if err = k.Live.Get(ctx, client.ObjectKey{Name: name}, reconciler.Metadata("v1", "Node")); apierrors.IsNotFound(err) {
			return true, nil
		}
	}
	delete(k.absent, name)
	if err != nil {
		return false, fmt.Errorf("look for Node %s: %w", name, err)
	}
	return false, nil
}

// prune deletes the object once its Node has been missing for the grace period. Before that it returns when to check again.
func (k *keeper) prune(ctx context.Context, node *metav1.PartialObjectMetadata) (time.Duration, error) {
	now := k.Clock.Now()
	seen := k.absent[node.Name].observe(now)
	k.absent[node.Name] = seen
	if wait := seen.wait(now); wait > 0 {
		return wait, nil
	}
	err := k.Client.Delete(ctx, node, client.Preconditions{UID: ptr.To(node.UID)})
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("prune AcceleratorNode %s: %w", node.Name, err)
	}
	delete(k.absent, node.Name)
	k.pruned.Inc()
	klog.FromContext(ctx).Info("Pruned the AcceleratorNode of a Node that is gone", "node", node.Name, "missingSince", seen.since)
	return 0, nil
}

// unretire removes the retirement that an uninstall set. If a controller runs and no uninstall does, Fettle is installed: again, or
// because the uninstall failed. The retirement of an administrator has another value and stays.
func (k *keeper) unretire(ctx context.Context, node *metav1.PartialObjectMetadata) (time.Duration, error) {
	if node.Annotations[v1alpha1.RetireAnnotation] != v1alpha1.RetireByUninstall || node.DeletionTimestamp != nil {
		return 0, nil
	}
	if wait, err := k.Pause(ctx); err != nil || wait > 0 {
		return wait, err
	}
	before := node.DeepCopy()
	delete(node.Annotations, v1alpha1.RetireAnnotation)
	err := k.Client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("take back the retirement of AcceleratorNode %s: %w", node.Name, err)
	}
	klog.FromContext(ctx).Info("Took back the retirement that an uninstall had set", "node", node.Name)
	return 0, nil
}

func accelerator() *metav1.PartialObjectMetadata {
	return reconciler.Metadata(v1alpha1.GroupVersion.String(), "AcceleratorNode")
}

// Trim keeps of AcceleratorNodes in the manager's cache only the fields that a reconciler reads, and of tenants' bitstreams and kernel
// caches those that have a bound. Of other objects it drops the managed fields.
func Trim(object any) (any, error) {
	switch o := object.(type) {
	case *v1alpha1.FPGABitstream:
		o.ObjectMeta = v1alpha1.KeptMeta(&o.ObjectMeta)
	case *v1alpha1.GPUKernelCache:
		o.ObjectMeta = v1alpha1.KeptMeta(&o.ObjectMeta)
		if o.Spec.PodTemplate != nil {
			o.Spec.PodTemplate = &v1alpha1.CachePodTemplate{LeftOut: true}
		}
	}
	node, ok := object.(*v1alpha1.AcceleratorNode)
	if !ok {
		return cache.TransformStripManagedFields()(object)
	}
	kept := &v1alpha1.AcceleratorNode{Status: v1alpha1.AcceleratorNodeStatus{
		Vendors: node.Status.Vendors, Bitstreams: node.Status.Bitstreams, Presets: node.Status.Presets, KernelCaches: node.Status.KernelCaches,
		PartitionPolicies: node.Status.PartitionPolicies, Rest: node.Status.Rest,
		PluginVersion: node.Status.PluginVersion, Facts: node.Status.Facts, Conditions: node.Status.Conditions,
		Checks:   node.Status.Checks,
		Problems: stack.Problems(node.Status.Problems), ProblemCount: node.Status.ProblemCount,
	}}
	if node.Status.Summary != nil {
		kept.Status.Summary = &v1alpha1.NodeSummary{Drivers: node.Status.Summary.Drivers, Models: node.Status.Summary.Models}
	}
	for i := range node.Status.Pools {
		p := &node.Status.Pools[i]
		kept.Status.Pools = append(kept.Status.Pools, v1alpha1.PoolStatus{Name: p.Name, Kind: p.Kind, Devices: p.Devices, Withheld: p.Withheld})
	}
	kept.Name, kept.UID, kept.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	for _, key := range []string{v1alpha1.UpgradeAnnotation, v1alpha1.QuiesceAnnotation, v1alpha1.WaitingClaimsAnnotation} {
		if value, there := node.Annotations[key]; there {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value)
		}
	}
	return kept, nil
}
