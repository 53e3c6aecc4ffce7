// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// The reasons not to wait for a node.
const (
	nodeGone     = "its Node is gone"
	nodeNotReady = "its Node is not Ready"
)

// fleet is every AcceleratorNode and, by name, why a node cannot answer.
type fleet struct {
	all    []v1alpha1.AcceleratorNode
	silent map[string]string
}

// gone returns the silent nodes that cannot come back.
func (f fleet) gone() map[string]string {
	gone := map[string]string{}
	for name, why := range f.silent {
		if why == nodeGone {
			gone[name] = why
		}
	}
	return gone
}

// nodes reads all AcceleratorNodes and the Nodes behind them. A cluster without the CRD has none.
func (u Uninstall) nodes(ctx context.Context) (fleet, error) {
	var accelerators v1alpha1.AcceleratorNodeList
	if err := ignoreUndefined(u.Client.List(ctx, &accelerators)); err != nil {
		return fleet{}, fmt.Errorf("list AcceleratorNodes: %w", err)
	}
	var nodes corev1.NodeList
	if err := u.Client.List(ctx, &nodes); err != nil {
		return fleet{}, fmt.Errorf("list Nodes: %w", err)
	}
	return newFleet(accelerators.Items, nodes.Items), nil
}

// newFleet finds the nodes that cannot answer.
func newFleet(accelerators []v1alpha1.AcceleratorNode, nodes []corev1.Node) fleet {
	ready := map[string]bool{}
	for i := range nodes {
		ready[nodes[i].Name] = nodeReady(&nodes[i])
	}
	f := fleet{all: accelerators, silent: map[string]string{}}
	for _, a := range accelerators {
		up, exists := ready[a.Name]
		switch {
		case !exists:
			f.silent[a.Name] = nodeGone
		case !up:
			f.silent[a.Name] = nodeNotReady
		}
	}
	return f
}

// unretired returns the names of the nodes that can answer and have not retired yet, sorted. The generation of the condition does not
// matter: a plugin that retired stays retired until the annotation is removed.
func (f fleet) unretired() []string {
	var names []string
	for _, a := range f.all {
		if f.silent[a.Name] == "" && !meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.ConditionRetired) {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}

// retire asks every plugin to retire and waits until all that can answer have retired.
func (u Uninstall) retire(ctx context.Context) error {
	var waiting []string
	warned := map[string]bool{}
	for {
		f, err := u.nodes(ctx)
		if err == nil {
			waiting = f.unretired()
			err = u.ask(ctx, f, warned)
		}
		switch {
		case err != nil:
		case len(waiting) == 0:
			return nil
		default:
			err = u.sleep(ctx)
		}
		if err != nil && ctx.Err() != nil && len(waiting) > 0 {
			return fmt.Errorf("plugins that have not retired: %s; look at their logs and AcceleratorNodes, or delete the Nodes"+
				" that will not come back: %w", strings.Join(waiting, ", "), err)
		}
		if err != nil {
			return err
		}
	}
}

// ask asks every plugin to retire. It logs once for each node that cannot answer why the uninstall does not wait for it.
func (u Uninstall) ask(ctx context.Context, f fleet, warned map[string]bool) error {
	for i := range f.all {
		if err := u.annotate(ctx, &f.all[i]); err != nil {
			return err
		}
		name := f.all[i].Name
		if why := f.silent[name]; why != "" && !warned[name] {
			warned[name] = true
			klog.FromContext(ctx).Info("Not waiting for a node; its files stay behind", "node", name, "reason", why)
		}
	}
	return nil
}

// annotate asks one plugin to retire. It keeps the value of an administrator, which asks for the same.
func (u Uninstall) annotate(ctx context.Context, node *v1alpha1.AcceleratorNode) error {
	switch node.Annotations[v1alpha1.RetireAnnotation] {
	case v1alpha1.RetireByUninstall, v1alpha1.RetireByAdmin:
		return nil
	}
	before := node.DeepCopy()
	meta := map[string]string{v1alpha1.RetireAnnotation: v1alpha1.RetireByUninstall}
	for k, v := range node.Annotations {
		if k != v1alpha1.RetireAnnotation {
			meta[k] = v
		}
	}
	node.Annotations = meta
	if err := u.Client.Patch(ctx, node, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotate AcceleratorNode %s: %w", node.Name, err)
	}
	klog.FromContext(ctx).Info("Asked the plugin to retire", "node", node.Name)
	return nil
}

// sleep waits until the next poll. It returns the cause if ctx ends before.
func (u Uninstall) sleep(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-u.Clock.After(poll):
		return nil
	}
}
