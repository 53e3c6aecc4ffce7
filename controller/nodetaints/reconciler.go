// SPDX-License-Identifier: Apache-2.0

// Package nodetaints puts the taints of PartitionPolicies on nodes and takes them off again. Package nodepolicy decides which. Which taints
// are Fettle's is noted at the node itself, in the same write, so that neither a crash nor a policy that was deleted meanwhile leaves one
// behind.
package nodetaints

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// keeper has the nodes tainted as the policies want it.
type keeper struct {
	reconciler.Services

	noExecute nodepolicy.NoExecuteKeys
}

// New returns the reconciler. It follows nodes, whether they have devices, and policies. If it is switched off, it has no queue.
func New(s reconciler.Services, enabled bool, noExecute nodepolicy.NoExecuteKeys) reconciler.Row {
	row := reconciler.Row{Name: "taints of Nodes"}
	if !enabled {
		return row
	}
	row.Queues = []reconciler.Queue{{
		Name: "nodetaint", Reconciler: &keeper{Services: s, noExecute: noExecute},
		Watches: []reconciler.Watch{
			{Object: &corev1.Node{}, Predicates: []predicate.Predicate{Changed()}},
			{Object: &v1alpha1.AcceleratorNode{}, Handler: &handler.EnqueueRequestForObject{}, Predicates: []predicate.Predicate{devicesChanged()}},
			{Object: &v1alpha1.PartitionPolicy{}, Handler: onPolicies(s.Client), Predicates: reconciler.GenerationChanged()},
		},
	}}
	return row
}

// Changed lets changes of a node through that matter for its taints: taints, labels, and the note of what is Fettle's.
func Changed() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, was := e.ObjectOld.(*corev1.Node)
		now, is := e.ObjectNew.(*corev1.Node)
		return !was || !is || !equality.Semantic.DeepEqual(before.Spec.Taints, now.Spec.Taints) ||
			!equality.Semantic.DeepEqual(before.Labels, now.Labels) ||
			before.Annotations[v1alpha1.TaintsAnnotation] != now.Annotations[v1alpha1.TaintsAnnotation]
	}}
}

// devicesChanged lets a node through that got its first device or lost its last.
func devicesChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, was := e.ObjectOld.(*v1alpha1.AcceleratorNode)
		now, is := e.ObjectNew.(*v1alpha1.AcceleratorNode)
		return !was || !is || nodepolicy.HasDevices(before, "") != nodepolicy.HasDevices(now, "")
	}}
}

// onPolicies queues all nodes: the policy may select any, or have selected it before.
func onPolicies(c client.Reader) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, _, _ client.Object) {
		var nodes corev1.NodeList
		if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
			klog.FromContext(ctx).Error(err, "List the nodes that a PartitionPolicy concerns")
		}
		for i := range nodes.Items {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: nodes.Items[i].Name}})
		}
	})
}

// Reconcile brings the taints of one node to what the policies want.
func (k *keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var node corev1.Node
	if err := k.Client.Get(ctx, req.NamespacedName, &node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	wanted, again, err := k.wanted(ctx, &node)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("taints of Node %s: %w", req.Name, err)
	}
	err = Write(ctx, k.Client, &node, wanted)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil // another change of the node came first, and the cache will have it
	}
	return reconcile.Result{RequeueAfter: again}, err
}

// publishedPause is how often slices are looked for of a tainted node without an AcceleratorNode.
const publishedPause = time.Minute

// wanted returns the taints that the policies want on a node, and after which time to look again, 0 if a change tells. A tainted node whose
// AcceleratorNode is gone keeps its taints while slices of its devices are published: whoever deletes the object does not say that the
// devices are gone, and the plugin makes it again. kubelet deletes the slices of a plugin that is gone.
func (k *keeper) wanted(ctx context.Context, node *corev1.Node) (taints []v1alpha1.NodeTaint, again time.Duration, err error) {
	accelerator := &v1alpha1.AcceleratorNode{}
	if err := k.Client.Get(ctx, client.ObjectKeyFromObject(node), accelerator); apierrors.IsNotFound(err) {
		accelerator = nil
	} else if err != nil {
		return nil, 0, err
	}
	var policies v1alpha1.PartitionPolicyList
	if err := k.Client.List(ctx, &policies, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, err
	}
	of := described(node)
	of.HasDevices = nodepolicy.HasDevices(accelerator, of.Noted)
	if accelerator == nil && of.Noted != "" {
		if of.HasDevices, err = k.published(ctx, node.Name); err != nil {
			return nil, 0, err
		}
		if of.HasDevices {
			again = publishedPause
		}
	}
	return nodepolicy.Wanted(of, policies.Items, k.noExecute), again, nil
}

// published says whether the plugin of a node publishes slices. Those without GPUs and FPGAs count as well: while a driver is changed, a
// node publishes none of its GPUs.
func (k *keeper) published(ctx context.Context, node string) (bool, error) {
	var slicesOf resourceapi.ResourceSliceList
	if err := k.Live.List(ctx, &slicesOf, client.MatchingFields{resourceapi.ResourceSliceSelectorNodeName: node}); err != nil {
		return false, fmt.Errorf("list the ResourceSlices of the node: %w", err)
	}
	return slices.ContainsFunc(slicesOf.Items, func(s resourceapi.ResourceSlice) bool {
		return s.Spec.Driver == v1alpha1.DriverName
	}), nil
}

func described(node *corev1.Node) nodepolicy.Node {
	return nodepolicy.Node{Labels: node.Labels, Taints: node.Spec.Taints, Noted: node.Annotations[v1alpha1.TaintsAnnotation]}
}

// Write gives a node the wanted taints beside those of others, and notes which are Fettle's. With none wanted it takes off all that are.
// If the node changed since it was read, the error is a conflict and nothing was written.
func Write(ctx context.Context, c client.Client, node *corev1.Node, wanted []v1alpha1.NodeTaint) error {
	was := node.Annotations[v1alpha1.TaintsAnnotation]
	taints, noted := nodepolicy.Decide(described(node), wanted)
	if noted == was && equality.Semantic.DeepEqual(taints, node.Spec.Taints) {
		return nil
	}
	patch, err := patchOf(node.ResourceVersion, taints, noted)
	if err != nil {
		return fmt.Errorf("write the taints of Node %s: %w", node.Name, err)
	}
	if err := c.Patch(ctx, node.DeepCopy(), patch, client.FieldOwner(names.Controller)); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("write the taints of Node %s: %w", node.Name, err)
	}
	klog.FromContext(ctx).Info("Wrote the taints of a Node", "node", node.Name, "ours", noted, "before", was)
	return nil
}

// patchOf returns the merge patch of taints and of the note. It names the one annotation, since the controller's copy of a Node has no
// other: a patch made by comparison would remove them all with the last one that the copy has. A list of taints is written whole, and the
// resource version keeps a taint that somebody adds meanwhile.
func patchOf(version string, taints []corev1.Taint, noted string) (client.Patch, error) {
	note := &noted
	if noted == "" {
		note = nil
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": version, "annotations": map[string]*string{v1alpha1.TaintsAnnotation: note}},
		"spec":     map[string]any{"taints": taints},
	})
	return client.RawPatch(types.MergePatchType, data), err
}
