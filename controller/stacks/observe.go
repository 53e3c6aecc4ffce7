// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/placement"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// placed is which nodes a DaemonSet is for, as it was last read: while its generation is that, they are the same.
type placed struct {
	uid        types.UID
	generation int64
	nodes      []string
}

// observer reads what the states of nodes are judged by.
type observer struct {
	reconciler.Services

	// drivers is the namespace of drivers. Empty: none is run.
	drivers string
	// placed are the DaemonSets of drivers and of extra states as they were last read, by name.
	placed map[string]placed
}

// observe reads what the states of nodes are judged by.
func (o *observer) observe(ctx context.Context) (*stack.Observed, error) {
	var nodes corev1.NodeList
	var accelerators v1alpha1.AcceleratorNodeList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&nodes, &accelerators} {
		if err := o.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list nodes and what they report: %w", err)
		}
	}
	if err := o.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(o.Namespace), pluginLabels()); err != nil {
		return nil, fmt.Errorf("list the plugin's pods: %w", err)
	}
	out := stack.NewObserved()
	for i := range nodes.Items {
		out.Labels[nodes.Items[i].Name] = nodes.Items[i].Labels
		out.Nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	for i := range accelerators.Items {
		out.Accelerators[accelerators.Items[i].Name] = &accelerators.Items[i]
	}
	for i := range pods.Items {
		out.AddPlugin(&pods.Items[i])
	}
	return out, nil
}

// observeOwn notes which nodes have something of the stacks. What a node has outlasts its report: a driver is not unloaded because a report
// is missing. DaemonSets count besides their pods, which may be away for a moment.
func (o *observer) observeOwn(ctx context.Context, stacks []v1alpha1.AcceleratorStack, seen *stack.Observed) error {
	if o.drivers == "" {
		return nil
	}
	var pods corev1.PodList
	if err := o.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(o.drivers)); err != nil {
		return fmt.Errorf("list the pods of drivers and extra states: %w", err)
	}
	for i := range pods.Items {
		seen.AddDriver(&pods.Items[i])
	}
	seen.AddModules(stacks, o.drivers)
	var sets metav1.PartialObjectMetadataList
	sets.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSetList"))
	if err := o.Live.List(ctx, &sets, client.InNamespace(o.drivers)); err != nil {
		return fmt.Errorf("list the DaemonSets of drivers and extra states: %w", err)
	}
	kept := map[string]placed{}
	for i := range sets.Items {
		set := &sets.Items[i]
		of := set.Annotations[stack.DriverStackAnnotation] + set.Annotations[stack.StateStackAnnotation] // it has one of them
		if of == "" || set.DeletionTimestamp != nil || !owned(set, stacks) {
			continue
		}
		p, err := o.placedBy(ctx, set)
		if err != nil {
			return err
		}
		kept[set.Name] = p
		for _, node := range p.nodes {
			seen.AddOwn(node, of, set.Labels[stack.DriverLabel])
		}
	}
	o.placed = kept
	return nil
}

// owned says whether an object is of a stack that is there, and not of an earlier one of the same name.
func owned(o metav1.Object, stacks []v1alpha1.AcceleratorStack) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && slices.ContainsFunc(stacks, func(s v1alpha1.AcceleratorStack) bool { return s.UID == owner.UID })
}

// placedBy returns the nodes that a DaemonSet is for.
func (o *observer) placedBy(ctx context.Context, of *metav1.PartialObjectMetadata) (placed, error) {
	if p, known := o.placed[of.Name]; known && p.uid == of.UID && p.generation == of.Generation && of.Generation > 0 {
		return p, nil
	}
	var set appsv1.DaemonSet
	if err := o.Live.Get(ctx, client.ObjectKeyFromObject(of), &set); client.IgnoreNotFound(err) != nil {
		return placed{}, fmt.Errorf("read DaemonSet %s/%s: %w", of.Namespace, of.Name, err)
	}
	return placed{uid: set.UID, generation: set.Generation, nodes: placement.Of(set.Spec.Template.Spec.Affinity)}, nil
}
