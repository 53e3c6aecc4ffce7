// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// gathering is how long changes of nodes are collected, since many nodes fetch the same file at about the same time.
const gathering = 3 * time.Second

// count writes how many nodes hold a file of the status's images.
func (r *bitstreamReconciler) count(ctx context.Context, status *v1alpha1.FPGABitstreamStatus) error {
	status.Nodes = nil
	if len(status.Images) == 0 {
		return nil
	}
	var list v1alpha1.AcceleratorNodeList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("count the nodes that hold it: %w", err)
	}
	status.Nodes = ptr.To(holders(list.Items, status.Images))
	return nil
}

func holders(nodes []v1alpha1.AcceleratorNode, images []v1alpha1.BitstreamImage) (n int32) {
	for i := range nodes {
		if anyOf(images, nodes[i].Status.Bitstreams) {
			n++
		}
	}
	return n
}

// anyOf says whether the file of an image is one of the digests.
func anyOf(images []v1alpha1.BitstreamImage, digests []string) bool {
	return slices.ContainsFunc(images, func(image v1alpha1.BitstreamImage) bool { return slices.Contains(digests, image.Layer) })
}

// onNodes has the objects of a kind counted anew whose files came to a node or went from it.
func (r *bitstreamReconciler) onNodes(kind client.Object) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	changed := func(ctx context.Context, q queue, before, now client.Object) {
		digests := difference(bitstreamsOf(before), bitstreamsOf(now))
		if len(digests) == 0 {
			return
		}
		keys, err := r.withFiles(ctx, kind, digests)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The nodes that hold a bitstream are not counted now")
		}
		for _, key := range keys {
			q.AddAfter(reconcile.Request{NamespacedName: key}, gathering)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { changed(ctx, q, nil, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { changed(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { changed(ctx, q, e.Object, nil) },
	}
}

func bitstreamsOf(object client.Object) []string {
	if node, ok := object.(*v1alpha1.AcceleratorNode); ok {
		return node.Status.Bitstreams
	}
	return nil
}

// difference is what is in one of two lists only.
func difference(a, b []string) (out []string) {
	for _, pair := range [][2][]string{{a, b}, {b, a}} {
		for _, s := range pair[0] {
			if !slices.Contains(pair[1], s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// withFiles are the objects of a kind that have an image with one of the digests.
func (r *bitstreamReconciler) withFiles(
	ctx context.Context, kind client.Object, digests []string,
) (keys []types.NamespacedName, err error) {
	add := func(object client.Object, status *v1alpha1.FPGABitstreamStatus) {
		if anyOf(status.Images, digests) {
			keys = append(keys, client.ObjectKeyFromObject(object))
		}
	}
	if _, ofCluster := kind.(*v1alpha1.ClusterFPGABitstream); ofCluster {
		var list v1alpha1.ClusterFPGABitstreamList
		err = r.client.List(ctx, &list, client.UnsafeDisableDeepCopy)
		for i := range list.Items {
			add(&list.Items[i], &list.Items[i].Status)
		}
		return keys, err
	}
	var list v1alpha1.FPGABitstreamList
	err = r.client.List(ctx, &list, client.UnsafeDisableDeepCopy)
	for i := range list.Items {
		add(&list.Items[i], &list.Items[i].Status)
	}
	return keys, err
}

// imagesChanged lets through what the controller itself wrote of an object's images: a node whose list came meanwhile was compared with
// the images before.
func imagesChanged() predicate.Predicate {
	layers := func(object client.Object) (out []string) {
		var status *v1alpha1.FPGABitstreamStatus
		switch b := object.(type) {
		case *v1alpha1.FPGABitstream:
			status = &b.Status
		case *v1alpha1.ClusterFPGABitstream:
			status = &b.Status
		default:
			return nil
		}
		for i := range status.Images {
			out = append(out, status.Images[i].Layer)
		}
		return out
	}
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return !slices.Equal(layers(e.ObjectOld), layers(e.ObjectNew)) },
	}
}

// looks remembers which objects were looked at and when each is to be again, so that what happens on nodes asks no registry.
type looks struct {
	mu    sync.Mutex
	taken map[types.NamespacedName]look
}

type look struct {
	uid        types.UID
	generation int64
	// again is zero where only a change of the object asks for another.
	again time.Time
}

// note remembers a look at an object that is to be looked at again after a while; 0: not before it changes.
func (l *looks) note(key types.NamespacedName, o client.Object, after time.Duration, now time.Time) {
	taken := look{uid: o.GetUID(), generation: o.GetGeneration()}
	if after > 0 {
		taken.again = now.Add(after)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken == nil {
		l.taken = map[types.NamespacedName]look{}
	}
	l.taken[key] = taken
}

// remaining says whether an object as it is now was looked at and need not be before some time has passed.
func (l *looks) remaining(key types.NamespacedName, o client.Object, now time.Time) (wait time.Duration, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken, ok := l.taken[key]
	if !ok || taken.uid != o.GetUID() || taken.generation != o.GetGeneration() {
		return 0, false
	}
	if taken.again.IsZero() {
		return 0, true
	}
	wait = taken.again.Sub(now)
	return wait, wait > 0
}

func (l *looks) forget(key types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.taken, key)
}

// trimmed keeps of AcceleratorNodes in memory only what is counted.
func trimmed(object any) (any, error) {
	node, ok := object.(*v1alpha1.AcceleratorNode)
	if !ok {
		return cache.TransformStripManagedFields()(object)
	}
	kept := &v1alpha1.AcceleratorNode{Status: v1alpha1.AcceleratorNodeStatus{
		Vendors: node.Status.Vendors, Bitstreams: node.Status.Bitstreams, Presets: node.Status.Presets, KernelCaches: node.Status.KernelCaches,
	}}
	for i := range node.Status.Pools {
		p := &node.Status.Pools[i]
		kept.Status.Pools = append(kept.Status.Pools, v1alpha1.PoolStatus{Name: p.Name, Kind: p.Kind, Devices: p.Devices, Withheld: p.Withheld})
	}
	kept.Name, kept.UID, kept.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	return kept, nil
}
