// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/apicall"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// operatorPause is how often the objects of operators are read. They may not be there, and what is not there cannot be watched.
const operatorPause = time.Minute

// engine brings a driver to nodes, or looks at what does.
type engine struct {
	// deliver says what is known of a node's driver.
	deliver func(*stack.Node) stack.Verdict
	// change changes the driver of a node that nothing uses any more, a step each time it is called. Nil: the engine changes no driver.
	change func(context.Context, *stack.Node) error
	// away says that what changes drivers does not answer now. Nodes under way stay as they are: their driver may be half changed.
	away bool
	// blocked is why no driver can be changed now, although the engine answers; empty: it can.
	blocked string
	// again is when the engine has to be asked again although nothing changed; 0: never.
	again time.Duration
	// fault is why not all could be done. Nodes are judged all the same.
	fault error
}

// all is an engine that says the same of every node.
func all(v stack.Verdict) engine {
	return engine{deliver: func(*stack.Node) stack.Verdict { return v }}
}

// engineOf has the engine of a stack bring the drivers of the nodes that it holds for, as far as it does, and reads what the engine
// knows.
func (r *stackReconciler) engineOf(ctx context.Context, s *v1alpha1.AcceleratorStack, held []string, seen *stack.Observed) (engine, error) {
	driver := &s.Spec.Driver
	byDaemonSet := driver.Engine == v1alpha1.EngineDaemonSet && driver.DaemonSet != nil
	byKMM := driver.Engine == v1alpha1.EngineKMM && driver.KMM != nil
	var left error // of another engine that the stack had, which holds up nothing
	if !byDaemonSet {
		left = r.daemonSets.drop(ctx, s)
	}
	if !byKMM {
		left = errors.Join(left, r.kmm.drop(ctx, s.Name, seen))
	}
	var e engine
	var err error
	switch {
	case byDaemonSet:
		e, err = r.daemonSets.of(ctx, s, held, seen)
	case byKMM:
		e, err = r.kmm.of(ctx, s, held, seen)
	case driver.Engine == v1alpha1.EngineExternal && driver.External != nil:
		e, err = r.external(ctx, driver.External.Operator)
	default:
		e = all(stack.Host())
	}
	e.fault = errors.Join(e.fault, left)
	return e, err
}

// external looks at what a vendor's operator says.
func (r *stackReconciler) external(ctx context.Context, kind v1alpha1.DriverOperator) (engine, error) {
	o, err := operatorOf(ctx, r.Live, kind)
	if apicall.Unanswered(err) { // of these kinds: what converts them does not answer
		e := all(stack.Verdict{Reason: stack.ReasonDriverPending, Message: "what the operator says is not known: " + err.Error()})
		e.again, e.fault = operatorPause, err
		return e, nil
	}
	if err != nil {
		return engine{}, err
	}
	return engine{deliver: func(n *stack.Node) stack.Verdict { return stack.External(n, o) }, again: operatorPause}, nil
}

// operatorOf reads the objects that configure a vendor's operator.
func operatorOf(ctx context.Context, live client.Reader, kind v1alpha1.DriverOperator) (*stack.Operator, error) {
	out := &stack.Operator{Kind: kind, Modules: map[string]stack.Module{}}
	for _, of := range objectsOf(kind) {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(of)
		err := live.List(ctx, &list)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // the operator is not installed
		}
		if err != nil {
			return nil, fmt.Errorf("list %s of %s: %w", of.Kind, of.Group, err)
		}
		out.Objects += len(list.Items)
		for i := range list.Items {
			modules(&list.Items[i], out.Modules)
		}
	}
	return out, nil
}

func objectsOf(kind v1alpha1.DriverOperator) []schema.GroupVersionKind {
	if kind == v1alpha1.OperatorAMD {
		return []schema.GroupVersionKind{{Group: "amd.com", Version: "v1alpha1", Kind: "DeviceConfigList"}}
	}
	return []schema.GroupVersionKind{
		{Group: "nvidia.com", Version: "v1", Kind: "ClusterPolicyList"}, {Group: "nvidia.com", Version: "v1alpha1", Kind: "NVIDIADriverList"},
	}
}

// modules adds what a DeviceConfig reports of nodes. Nothing of another form is a report.
func modules(object *unstructured.Unstructured, into map[string]stack.Module) {
	reported, _, err := unstructured.NestedMap(object.Object, "status", "nodeModuleStatus")
	if err != nil {
		return
	}
	for node := range reported {
		of, ok := reported[node].(map[string]any)
		if !ok {
			continue
		}
		text := func(field string) string { value, _ := of[field].(string); return value }
		into[node] = stack.Module{Image: text("containerImage"), KernelVersion: text("kernelVersion"), Status: text("status")}
	}
}
