// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// driverOwner is the field manager of the DaemonSets of drivers.
const driverOwner = "fettle-drivers"

// driversOff is for a cluster where the controller runs no drivers.
const driversOff = "the controller may not run drivers: set drivers.enabled in the chart's values"

// applied is a DaemonSet as it was last written: while its generation is that, nobody has changed it since.
type applied struct {
	digest     string
	uid        types.UID
	generation int64
}

// daemonSetEngine runs drivers by DaemonSets.
type daemonSetEngine struct {
	reconciler.Services

	// namespace is that of drivers. Empty: none is run.
	namespace string
	// applied are the DaemonSets as this process last wrote them, by name.
	applied map[string]applied
}

// driverObjects is what a stack has of its driver: the DaemonSets by name, and their pods by node.
type driverObjects struct {
	sets map[string]*metav1.PartialObjectMetadata
	pods map[string][]stack.DriverPod
	// others are the drivers of other engines on nodes that have none of the stack's.
	others stack.OtherDrivers
}

// of says what is known of the drivers that a stack runs, after writing its DaemonSets. A DaemonSet that cannot be written
// holds back the nodes of its platform alone.
func (d *daemonSetEngine) of(ctx context.Context, s *v1alpha1.AcceleratorStack, held []string, seen *stack.Observed) (engine, error) {
	if d.namespace == "" {
		return all(stack.DriversOff(driversOff)), nil
	}
	there, err := d.daemonSets(ctx, s)
	if err != nil {
		return engine{}, err
	}
	pods, err := d.driverPods(ctx, s)
	if err != nil {
		return engine{}, err
	}
	has := driverObjects{sets: there, pods: pods}
	if has.others, err = d.modules(ctx, s, held, seen, has); err != nil {
		return engine{}, err
	}
	sets, verdicts := plan(s, held, seen, has)
	waits := slices.ContainsFunc(slices.Collect(maps.Values(verdicts)), func(v stack.Verdict) bool { return v.Status != stack.Passed })
	fault := d.retire(ctx, s, sets, has, waits)
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		set := sets[name]
		if err := d.apply(ctx, s, set, there); err != nil {
			fault = errors.Join(fault, err)
			for _, node := range set.nodes {
				verdicts[node] = stack.Verdict{Reason: stack.ReasonDriverPending, Message: err.Error()}
			}
		}
	}
	again := operatorPause
	if len(has.others) > 0 {
		again = kmmPause
	}
	return engine{
		deliver: func(n *stack.Node) stack.Verdict { return verdicts[n.Name] }, again: again, fault: fault,
		change: func(ctx context.Context, n *stack.Node) error {
			return d.replace(ctx, n, verdicts[n.Name], pods[n.Name])
		},
	}, nil
}

// modules returns the drivers that KMM has brought, if a node of the stack has none of the stack's yet.
func (d *daemonSetEngine) modules(
	ctx context.Context, s *v1alpha1.AcceleratorStack, held []string, seen *stack.Observed, has driverObjects,
) (stack.OtherDrivers, error) {
	out := stack.OtherDrivers{}
	comes := func(node string) bool {
		return seen.Accelerators[node] != nil && len(has.pods[node]) == 0 && has.sets[seen.Has[node][s.Name]] == nil
	}
	if !slices.ContainsFunc(held, comes) {
		return out, nil
	}
	configs, err := nodeModulesConfigs(ctx, d.Live)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return out, nil // there is no KMM
	}
	for i := range configs {
		out.AddModules(&configs[i], seen.Node(configs[i].GetName()).BootID, "", "")
	}
	return out, err
}

// replace deletes the pods of a node's driver that are not of the image or the kernel that is wanted. Their DaemonSet makes the next.
func (d *daemonSetEngine) replace(ctx context.Context, n *stack.Node, v stack.Verdict, pods []stack.DriverPod) error {
	if v.Reason != stack.ReasonDriverOutdated {
		return nil
	}
	var errs []error
	for i := range pods {
		p := &pods[i]
		if p.Leaving {
			continue
		}
		gone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: p.Name}}
		err := d.Client.Delete(ctx, gone, client.Preconditions{UID: ptr.To(types.UID(p.UID))})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete pod %s/%s of the driver before: %w", d.namespace, p.Name, err))
			continue
		}
		klog.FromContext(ctx).Info("Deleted the pod of the driver before", "node", n.Name, "pod", p.Name, "image", p.Image, "kernel", p.Kernel)
	}
	return errors.Join(errs...)
}

// plan returns the DaemonSets that a stack needs, by their platforms, and what is known of each node's driver. A node with the pod of
// another kernel stays with that pod's DaemonSet until its upgrade has come as far. One of which it is not known which driver it is to have
// stays with what it has.
func plan(
	s *v1alpha1.AcceleratorStack, held []string, seen *stack.Observed, has driverObjects,
) (sets map[string]*driverSet, verdicts map[string]stack.Verdict) {
	sets, verdicts = map[string]*driverSet{}, map[string]stack.Verdict{}
	stays := map[string]*stack.DriverPod{}
	for _, name := range held {
		n := seen.Node(name)
		set := has.sets[seen.Has[name][s.Name]]
		n.Placed, n.Before = set != nil, has.others[name]
		image, platform, v := stack.ForDaemonSet(s.Spec.Driver.DaemonSet, &n, has.pods[name])
		verdicts[name] = v
		if image == "" {
			if old := driverOn(has.pods[name], set); old != nil {
				stays[name] = old
			}
			continue
		}
		if old := stack.Outdated(&n, has.pods[name]); old != nil && !stack.Changing(&n) {
			stays[name] = old
			continue
		}
		at(sets, platform, image).add(name)
	}
	for _, name := range slices.Sorted(maps.Keys(stays)) {
		old := stays[name]
		at(sets, stack.Platform{OS: old.OS, KernelVersion: old.Kernel, Architecture: old.Architecture}, old.Image).add(name)
	}
	return sets, verdicts
}

// driverOn returns what a node has of a stack's driver: a pod, or a DaemonSet that brings it one. Nil: nothing.
func driverOn(pods []stack.DriverPod, set *metav1.PartialObjectMetadata) *stack.DriverPod {
	at := slices.IndexFunc(pods, func(p stack.DriverPod) bool { return !p.Leaving })
	switch {
	case at >= 0:
		return &pods[at]
	case set == nil:
		return nil
	}
	of := set.Annotations
	return &stack.DriverPod{
		OS: of[stack.DriverOSAnnotation], Kernel: of[stack.DriverKernelAnnotation], Architecture: of[stack.DriverArchAnnotation],
		Image: of[stack.DriverImageAnnotation],
	}
}

// at returns the DaemonSet of a platform. If it is not there yet, it has the image.
func at(sets map[string]*driverSet, p stack.Platform, image string) *driverSet {
	key := p.OS + "\n" + p.KernelVersion + "\n" + p.Architecture
	if sets[key] == nil {
		sets[key] = &driverSet{platform: p, image: image}
	}
	return sets[key]
}

// daemonSets returns those of a stack, by name.
func (d *daemonSetEngine) daemonSets(ctx context.Context, s *v1alpha1.AcceleratorStack) (map[string]*metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSetList"))
	if err := d.Live.List(ctx, &list, client.InNamespace(d.namespace), client.HasLabels{stack.DriverLabel}); err != nil {
		return nil, fmt.Errorf("list the DaemonSets of drivers: %w", err)
	}
	out := map[string]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		if o := &list.Items[i]; o.Annotations[stack.DriverStackAnnotation] == s.Name && o.DeletionTimestamp == nil {
			out[o.Name] = o
		}
	}
	return out, nil
}

// driverPods returns the pods of a stack's drivers by their nodes.
func (d *daemonSetEngine) driverPods(ctx context.Context, s *v1alpha1.AcceleratorStack) (map[string][]stack.DriverPod, error) {
	var pods corev1.PodList
	err := d.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(d.namespace), client.HasLabels{stack.DriverLabel})
	if err != nil {
		return nil, fmt.Errorf("list the pods of drivers: %w", err)
	}
	out := stack.DriverPods{}
	for i := range pods.Items {
		out.Add(s.Name, &pods.Items[i])
	}
	return out, nil
}

// apply writes a DaemonSet, unless it is there as it was last written.
func (d *daemonSetEngine) apply(
	ctx context.Context, s *v1alpha1.AcceleratorStack, set *driverSet, there map[string]*metav1.PartialObjectMetadata,
) error {
	wanted := daemonSet(s, set)
	wanted.Namespace = d.namespace
	text, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("encode DaemonSet %s: %w", wanted.Name, err)
	}
	now := applied{digest: stack.Digest(string(text))}
	if o := there[wanted.Name]; o != nil {
		now.uid, now.generation = o.UID, o.Generation
	}
	if now.generation > 0 && d.applied[wanted.Name] == now {
		return nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return fmt.Errorf("encode DaemonSet %s: %w", wanted.Name, err)
	}
	delete(fields, "status")
	object := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(fields, "spec", "template", "metadata", "creationTimestamp")
	err = d.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(driverOwner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("write DaemonSet %s/%s of the driver for kernel %s: %w", d.namespace, wanted.Name, set.platform.KernelVersion, err)
	}
	now.uid, now.generation = object.GetUID(), object.GetGeneration()
	d.applied[wanted.Name] = now
	klog.FromContext(ctx).V(1).Info("Wrote the DaemonSet of a driver", "stack", s.Name, "daemonSet", wanted.Name, "image", set.image,
		"kernel", set.platform.KernelVersion, "nodes", len(set.nodes))
	return nil
}

// retire takes their nodes from the DaemonSets of platforms that no node has, so that their pods leave before those of others come.
// They are deleted once they have no pod and no node of the stack waits for its driver: a node that goes back to the kernel before
// finds all in place.
func (d *daemonSetEngine) retire(
	ctx context.Context, s *v1alpha1.AcceleratorStack, wanted map[string]*driverSet, has driverObjects, waits bool,
) error {
	keep, inUse := map[string]bool{}, map[string]bool{}
	for _, set := range wanted {
		keep[setName(s, set.platform)] = true
	}
	for _, of := range has.pods {
		for _, p := range of {
			inUse[p.Set] = true
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(has.sets)) {
		o := has.sets[name]
		switch {
		case keep[name]:
		case waits || inUse[name]:
			of := o.Annotations
			errs = append(errs, d.apply(ctx, s, &driverSet{image: of[stack.DriverImageAnnotation], platform: stack.Platform{
				OS: of[stack.DriverOSAnnotation], KernelVersion: of[stack.DriverKernelAnnotation], Architecture: of[stack.DriverArchAnnotation],
			}}, has.sets))
		default:
			errs = append(errs, d.removeSet(ctx, o))
		}
	}
	return errors.Join(errs...)
}

// drop deletes the DaemonSets of a stack that has another engine now.
func (d *daemonSetEngine) drop(ctx context.Context, s *v1alpha1.AcceleratorStack) error {
	if d.namespace == "" {
		return nil
	}
	there, err := d.daemonSets(ctx, s)
	errs := []error{err}
	for _, o := range there {
		errs = append(errs, d.removeSet(ctx, o))
	}
	return errors.Join(errs...)
}

func (d *daemonSetEngine) removeSet(ctx context.Context, o *metav1.PartialObjectMetadata) error {
	delete(d.applied, o.Name)
	gone := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	err := d.Client.Delete(ctx, gone, client.Preconditions{UID: ptr.To(o.UID)}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete DaemonSet %s/%s: %w", o.Namespace, o.Name, err)
	}
	klog.FromContext(ctx).V(1).Info("Deleted the DaemonSet of a driver", "daemonSet", o.Name,
		"kernel", o.Annotations[stack.DriverKernelAnnotation])
	return nil
}
