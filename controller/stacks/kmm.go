// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
)

const (
	// kmmNames is how long the namespace and the name of a Module may be together: KMM makes labels of them.
	kmmNames = 41
	// kmmPause is how often what KMM reports is read while it has not done all.
	kmmPause = 10 * time.Second
)

func moduleKind() schema.GroupVersionKind {
	return stack.KMMGroupVersion().WithKind("Module")
}

// kmmEngine brings drivers as modules of KMM, the operator Kernel Module Management.
type kmmEngine struct {
	reconciler.Services

	// namespace is that of drivers. Empty: none is run.
	namespace string
	// dropped are the stacks that have no Module, as this process knows.
	dropped map[string]bool
}

// of has KMM load the driver of a stack's nodes, and says what it reports of each.
func (k *kmmEngine) of(ctx context.Context, s *v1alpha1.AcceleratorStack, held []string, seen *stack.Observed) (engine, error) {
	name := stack.ModuleName(s.Name)
	switch {
	case k.namespace == "":
		return all(stack.DriversOff(driversOff)), nil
	case len(name)+len(k.namespace) > kmmNames:
		return all(stack.DriversOff(fmt.Sprintf("KMM cannot make labels of the namespace %s: give the chart's value drivers.namespace "+
			"at most %d characters", k.namespace, kmmNames-len(name)))), nil
	}
	delete(k.dropped, s.Name)
	refused := k.writeModule(ctx, s)
	if meta.IsNoMatchError(refused) || apierrors.IsNotFound(refused) {
		e := all(stack.Verdict{
			Reason: stack.ReasonKMMMissing,
			Message: fmt.Sprintf("KMM is not installed, or does not serve %s: install the operator Kernel Module Management",
				stack.KMMGroupVersion()),
		})
		e.again, e.away = operatorPause, true
		return e, nil
	}
	reported, others, err := k.nodeModules(ctx, name, seen)
	if err != nil {
		return engine{}, err
	}
	d, label := s.Spec.Driver.KMM, stack.KMMLabel(k.namespace, name)
	verdicts, labels := map[string]stack.Verdict{}, map[string]string{}
	e := engine{
		deliver: func(n *stack.Node) stack.Verdict { return verdicts[n.Name] },
		change: func(ctx context.Context, n *stack.Node) error { // KMM unloads the module, and then the node is labelled anew
			if value := n.Labels[label]; value == "" || value == d.Version {
				return nil
			}
			return k.labelNode(ctx, n.Name, label, "")
		},
		again: operatorPause,
	}
	if refused != nil { // by KMM's webhook that does not answer, or for good: what KMM has loaded is known all the same
		e.blocked = refused.Error()
		e.change = func(context.Context, *stack.Node) error { return nil } // KMM would unload what it then does not load
	}
	for _, node := range held {
		n, report := seen.Node(node), reported[node]
		report.Label, n.Before = n.Labels[label], others[node]
		verdicts[node], labels[node] = stack.ForModule(d, &n, report)
		if n.Accelerator != nil && verdicts[node].Status != stack.Passed {
			e.again = kmmPause
		}
	}
	e.fault = errors.Join(refused, k.labelNodes(ctx, name, labels, seen))
	return e, nil
}

// writeModule applies the Module of a stack. A taint that a Module does not tolerate, a cordon included, has KMM unload its driver under
// the pods that use it: it tolerates all.
func (k *kmmEngine) writeModule(ctx context.Context, s *v1alpha1.AcceleratorStack) error {
	d := s.Spec.Driver.KMM
	mappings := make([]any, 0, len(d.KernelMappings))
	for _, m := range d.KernelMappings {
		of := map[string]any{"containerImage": m.Image}
		if m.Literal != "" {
			of["literal"] = m.Literal
		} else {
			of["regexp"] = m.Regexp
		}
		mappings = append(mappings, of)
	}
	modprobe := map[string]any{"moduleName": d.Modprobe.ModuleName}
	for field, text := range map[string]string{"dirName": d.Modprobe.DirName, "firmwarePath": d.Modprobe.FirmwarePath} {
		if text != "" {
			modprobe[field] = text
		}
	}
	for field, words := range map[string][]string{
		"parameters": d.Modprobe.Parameters, "modulesLoadingOrder": d.Modprobe.ModulesLoadingOrder,
	} {
		if len(words) > 0 {
			modprobe[field] = anyOf(words)
		}
	}
	spec := map[string]any{
		// Of these nodes KMM takes those that have the version's label.
		"selector":    map[string]any{corev1.LabelOSStable: "linux"},
		"tolerations": []any{map[string]any{"operator": string(corev1.TolerationOpExists)}},
		"moduleLoader": map[string]any{"container": map[string]any{
			"version": d.Version, "kernelMappings": mappings, "modprobe": modprobe,
		}},
	}
	if d.PullSecret != "" {
		spec["imageRepoSecret"] = map[string]any{"name": d.PullSecret}
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(moduleKind())
	object.SetNamespace(k.namespace)
	object.SetName(stack.ModuleName(s.Name))
	object.SetLabels(map[string]string{names.ManagedByLabel: names.Controller})
	object.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindAcceleratorStack, Name: s.Name, UID: s.UID, Controller: new(true),
	}})
	err := k.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(driverOwner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("write Module %s/%s: %w", k.namespace, object.GetName(), err)
	}
	return nil
}

func anyOf(words []string) []any {
	out := make([]any, 0, len(words))
	for _, w := range words {
		out = append(out, w)
	}
	return out
}

// nodeModules returns what KMM has of a Module, by node, and the drivers of others.
func (k *kmmEngine) nodeModules(
	ctx context.Context, module string, seen *stack.Observed,
) (out map[string]stack.KMM, others stack.OtherDrivers, err error) {
	configs, err := nodeModulesConfigs(ctx, k.Live)
	if err != nil {
		return nil, nil, err
	}
	out, others = map[string]stack.KMM{}, stack.OtherDrivers{}
	for i := range configs {
		o := &configs[i]
		out[o.GetName()] = stack.KMMReport(o, k.namespace, module)
		others.AddModules(o, seen.Node(o.GetName()).BootID, k.namespace, module)
	}
	var pods corev1.PodList
	err = k.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(k.namespace), client.HasLabels{stack.DriverLabel})
	if err != nil {
		return nil, nil, fmt.Errorf("list the pods of drivers: %w", err)
	}
	for i := range pods.Items {
		others.AddPod(&pods.Items[i])
	}
	return out, others, nil
}

// nodeModulesConfigs lists what KMM has of all Modules: an object for each node.
func nodeModulesConfigs(ctx context.Context, live client.Reader) ([]unstructured.Unstructured, error) {
	var list unstructured.UnstructuredList
	kind := moduleKind()
	kind.Kind = "NodeModulesConfigList"
	list.SetGroupVersionKind(kind)
	if err := live.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list NodeModulesConfigs: %w", err)
	}
	return list.Items, nil
}

// labelNodes has nodes have these values of the label of a Module, and no others have it. Labels for a namespace of drivers that values of
// the chart named before are taken off.
func (k *kmmEngine) labelNodes(ctx context.Context, module string, values map[string]string, seen *stack.Observed) error {
	label := stack.KMMLabel(k.namespace, module)
	var errs []error
	for _, node := range slices.Sorted(maps.Keys(seen.Labels)) {
		if seen.Labels[node][label] != values[node] {
			errs = append(errs, k.labelNode(ctx, node, label, values[node]))
		}
		for _, other := range labelsOf(seen.Labels[node], module) {
			if other != label {
				errs = append(errs, k.labelNode(ctx, node, other, ""))
			}
		}
	}
	return errors.Join(errs...)
}

// labelsOf returns the names of those labels that are of a Module, in whatever namespace.
func labelsOf(labels map[string]string, module string) (out []string) {
	for label := range labels {
		if stack.LabelledModule(label) == module {
			out = append(out, label)
		}
	}
	slices.Sort(out)
	return out
}

// labelNode has a node have a value of a label; empty: no such label.
func (k *kmmEngine) labelNode(ctx context.Context, node, label, want string) error {
	patch, err := reconciler.MetadataPatch("", reconciler.Named{}.Set(label, want), nil)
	if err != nil {
		return err
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := k.Client.Patch(ctx, object, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("label node %s with the version of the driver: %w", node, err)
	}
	klog.FromContext(ctx).V(1).Info("Labelled a node for KMM", "node", node, "label", label, "version", want)
	return nil
}

// forget deletes the Module of a stack that is gone.
func (k *kmmEngine) forget(ctx context.Context, stackName string, seen *stack.Observed) error {
	delete(k.dropped, stackName)
	err := k.drop(ctx, stackName, seen)
	delete(k.dropped, stackName)
	return err
}

// drop deletes the Module of a stack that has another engine or is gone, and takes its label off all nodes. KMM unloads the module.
// A process that has found neither asks no more until the stack has a Module again.
func (k *kmmEngine) drop(ctx context.Context, stackName string, seen *stack.Observed) error {
	name := stack.ModuleName(stackName)
	labelled := slices.ContainsFunc(slices.Collect(maps.Values(seen.Labels)), func(l map[string]string) bool {
		return len(labelsOf(l, name)) > 0
	})
	if k.namespace == "" || k.dropped[stackName] && !labelled {
		return nil
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(moduleKind())
	object.SetNamespace(k.namespace)
	object.SetName(name)
	err := k.Client.Delete(ctx, object)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("delete Module %s/%s: %w", k.namespace, name, err)
	}
	k.dropped[stackName] = err == nil
	return errors.Join(err, k.labelNodes(ctx, name, nil, seen))
}
