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
	"github.com/fettle-dev/fettle/pkg/stack"
)

// placed is which nodes a DaemonSet is for, as it was last read: while its generation is that, they are the same.
type placed struct {
	uid        types.UID
	generation int64
	nodes      []string
}

// observeOwn notes which nodes have something of the stacks. What a node has outlasts its report: a driver is not unloaded because a report
// is missing. DaemonSets count besides their pods, which may be away for a moment.
func (j *judge) observeOwn(ctx context.Context, stacks []v1alpha1.AcceleratorStack, seen *stack.Observed) error {
	if j.drivers == "" {
		return nil
	}
	var pods corev1.PodList
	if err := j.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(j.drivers)); err != nil {
		return fmt.Errorf("list the pods of drivers and extra states: %w", err)
	}
	for i := range pods.Items {
		seen.AddDriver(&pods.Items[i])
	}
	seen.AddModules(stacks, j.drivers)
	var sets metav1.PartialObjectMetadataList
	sets.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSetList"))
	if err := j.Live.List(ctx, &sets, client.InNamespace(j.drivers)); err != nil {
		return fmt.Errorf("list the DaemonSets of drivers and extra states: %w", err)
	}
	kept := map[string]placed{}
	for i := range sets.Items {
		o := &sets.Items[i]
		of := o.Annotations[stack.DriverStackAnnotation] + o.Annotations[stack.StateStackAnnotation] // it has one of them
		if of == "" || o.DeletionTimestamp != nil || !owned(o, stacks) {
			continue
		}
		p, err := j.placedBy(ctx, o)
		if err != nil {
			return err
		}
		kept[o.Name] = p
		for _, node := range p.nodes {
			seen.AddOwn(node, of, o.Labels[stack.DriverLabel])
		}
	}
	j.placed = kept
	return nil
}

// owned says whether an object is of a stack that is there, and not of an earlier one of the same name.
func owned(o metav1.Object, stacks []v1alpha1.AcceleratorStack) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && slices.ContainsFunc(stacks, func(s v1alpha1.AcceleratorStack) bool { return s.UID == owner.UID })
}

// placedBy returns the nodes that a DaemonSet is for.
func (j *judge) placedBy(ctx context.Context, o *metav1.PartialObjectMetadata) (placed, error) {
	if p, known := j.placed[o.Name]; known && p.uid == o.UID && p.generation == o.Generation && o.Generation > 0 {
		return p, nil
	}
	var set appsv1.DaemonSet
	if err := j.Live.Get(ctx, client.ObjectKeyFromObject(o), &set); client.IgnoreNotFound(err) != nil {
		return placed{}, fmt.Errorf("read DaemonSet %s/%s: %w", o.Namespace, o.Name, err)
	}
	return placed{uid: set.UID, generation: set.Generation, nodes: placement.Of(set.Spec.Template.Spec.Affinity)}, nil
}
