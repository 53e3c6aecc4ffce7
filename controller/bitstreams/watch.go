// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"context"
	"slices"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// holders counts the nodes that hold the file of an image.
func holders(nodes []v1alpha1.AcceleratorNode, images []v1alpha1.BitstreamImage) (n int32) {
	for i := range nodes {
		if anyOf(images, &nodes[i].Status) {
			n++
		}
	}
	return n
}

// anyOf says whether a node holds the file of any image.
func anyOf(images []v1alpha1.BitstreamImage, node *v1alpha1.AcceleratorNodeStatus) bool {
	return slices.ContainsFunc(images, func(image v1alpha1.BitstreamImage) bool { return node.HasBitstream(image.Layer) })
}

// onNodes queues the objects of a scope whose files came to a node or went from it, some time later, since many nodes fetch the same file
// at about the same time.
func (r *resolver) onNodes(scope pairs.Scope) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, before, now client.Object) {
		was, is := reconciler.NodeStatus(before), reconciler.NodeStatus(now)
		if slices.Equal(was.Bitstreams, is.Bitstreams) && rest(was.Rest) == rest(is.Rest) {
			return
		}
		all, err := pairs.Bitstreams(ctx, r.client, scope, client.UnsafeDisableDeepCopy)
		if err != nil {
			klog.FromContext(ctx).Error(err, "List the bitstreams whose nodes changed")
		}
		for _, b := range all {
			if anyOf(b.Status.Images, &was) != anyOf(b.Status.Images, &is) {
				q.AddAfter(reconcile.Request{NamespacedName: b.Key()}, reconciler.Gathering)
			}
		}
	})
}

// rest returns the files that a node reports in short.
func rest(r *v1alpha1.NodeRest) string {
	if r == nil {
		return ""
	}
	return r.Bitstreams
}

// onPolicies queues the bitstreams that a changed policy is for.
func (r *resolver) onPolicies(scope pairs.Scope) handler.EventHandler {
	return artifacts.OnPolicies(r.mirrors, func(ctx context.Context) (heads []artifacts.Head, err error) {
		all, err := pairs.Bitstreams(ctx, r.client, scope, client.UnsafeDisableDeepCopy)
		for _, b := range all {
			heads = append(heads, Head(b, r.namespace))
		}
		return heads, err
	})
}

// imagesChanged lets through updates of status.images, which the controller itself writes: a node that reported its files in the meantime
// was compared with the old images.
func imagesChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return !slices.Equal(layers(e.ObjectOld), layers(e.ObjectNew)) },
	}
}

// layers returns the digests of the files of a bitstream.
func layers(o client.Object) (out []string) {
	b, ok := o.(interface {
		Common() v1alpha1.CommonFPGABitstream
	})
	if !ok {
		return nil
	}
	for _, image := range b.Common().Status.Images {
		out = append(out, image.Layer)
	}
	return out
}
