// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// watches are of whatever the states of nodes are judged by.
func watches(c client.Reader) []reconciler.Watch {
	all := reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, _, _ client.Object) { queueAll(ctx, c, q) })
	return []reconciler.Watch{
		{Object: &v1alpha1.AcceleratorStack{}, Handler: onStack(c), Predicates: reconciler.GenerationChanged()},
		{Object: &v1alpha1.AcceleratorNode{}, Handler: onReport(c), Predicates: changed(reportOf)},
		{Object: &corev1.Node{}, Handler: all, Predicates: changed(nodeOf)},
		{Object: &corev1.Pod{}, Handler: all, Predicates: changed(podStatus)},
	}
}

// onStack queues a stack that changed at once, and all others some time later: they may hold for other nodes now.
func onStack(c client.Reader) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, before, now client.Object) {
		if now == nil {
			now = before
		}
		q.Add(request(now.GetName()))
		queueAll(ctx, c, q)
	})
}

// onReport queues every stack, and the one that the node says changes its driver: it may be gone, and its note is left then.
func onReport(c client.Reader) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, _, now client.Object) {
		queueAll(ctx, c, q)
		if now == nil {
			return
		}
		if by := stack.UpgradedBy(now.GetAnnotations()); by != "" {
			q.AddAfter(request(by), reconciler.Gathering)
		}
	})
}

// changed lets an update through that changed what of an object is looked at.
func changed(of func(client.Object) any) []predicate.Predicate {
	return []predicate.Predicate{predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !reflect.DeepEqual(of(e.ObjectOld), of(e.ObjectNew))
	}}}
}

// reportOf returns what states look at of a report. Others of its fields change with each claim.
func reportOf(o client.Object) any {
	s := reconciler.NodeStatus(o)
	kept := v1alpha1.AcceleratorNodeStatus{
		PluginVersion: s.PluginVersion, Facts: s.Facts, Conditions: s.Conditions, Problems: stack.Problems(s.Problems),
		ProblemCount: s.ProblemCount, Checks: s.Checks,
	}
	if s.Summary != nil {
		kept.Summary = &v1alpha1.NodeSummary{Drivers: s.Summary.Drivers}
	}
	for i := range s.Pools {
		kept.Pools = append(kept.Pools, v1alpha1.PoolStatus{Kind: s.Pools[i].Kind, Devices: s.Pools[i].Devices, Withheld: s.Pools[i].Withheld})
	}
	notes := o.GetAnnotations()
	return []any{kept, notes[v1alpha1.UpgradeAnnotation], notes[v1alpha1.QuiesceAnnotation]}
}

func nodeOf(o client.Object) any {
	if n, ok := o.(*corev1.Node); ok {
		return []any{n.Status.NodeInfo, n.Labels}
	}
	return nil
}

// podStatus returns what is looked at of a pod of the plugin, of a driver or of a check.
func podStatus(o client.Object) any {
	if p, ok := o.(*corev1.Pod); ok {
		return []any{stack.PodOf(p), p.Status.Phase, p.Status.Conditions, p.Status.ContainerStatuses, p.DeletionTimestamp}
	}
	return nil
}

func pluginLabels() client.MatchingLabels {
	return client.MatchingLabels{names.ComponentLabel: names.PluginComponent}
}

// Cached has the cache keep of pods only those of the plugin in the controller's namespace, those of checks in theirs, and all in that of
// drivers, which has those of extra states too; and of these what states look at. Other pods are read from the API server.
func Cached(byObject map[client.Object]cache.ByObject, namespace string, checks Checks, drivers string) error {
	kept := map[string]cache.Config{namespace: {LabelSelector: labels.SelectorFromSet(labels.Set(pluginLabels()))}}
	if checks.Namespace != "" {
		exists, err := labels.NewRequirement(checkLabel, selection.Exists, nil)
		if err != nil {
			return fmt.Errorf("select pods with the label %s: %w", checkLabel, err)
		}
		kept[checks.Namespace] = cache.Config{LabelSelector: labels.NewSelector().Add(*exists)}
	}
	if drivers != "" {
		kept[drivers] = cache.Config{}
	}
	byObject[&corev1.Pod{}] = cache.ByObject{Namespaces: kept, Transform: trim}
	return nil
}

func trim(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
			Annotations: p.Annotations, CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: p.Spec.NodeName},
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, Message: p.Status.Message, Conditions: p.Status.Conditions, ContainerStatuses: p.Status.ContainerStatuses,
		},
	}, nil
}
