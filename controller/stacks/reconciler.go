// SPDX-License-Identifier: Apache-2.0

// Package stacks writes to the status of AcceleratorStacks how far their nodes are. What a node's states are is decided by package stack,
// from what is observed here.
package stacks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/stackstates"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// judge writes the status of AcceleratorStacks. One call runs at a time.
type judge struct {
	reconciler.Services

	options Checks
	// drivers is the namespace of drivers. Empty: none is run.
	drivers string
	// applied are the DaemonSets of drivers as this process last wrote them, by name.
	applied map[string]applied
	// dropped are the stacks that have no Module, as this process knows.
	dropped map[string]bool
	// placed are the DaemonSets of drivers and of extra states as they were last read, by name.
	placed map[string]placed
	// states makes the objects of extra states.
	states *stackstates.Keeper
	status status.Writer
	nodes  *prometheus.GaugeVec
	due    *prometheus.GaugeVec
	// told is where each node of a stack was when Events were last made. A stack is absent until its first round in this process.
	told map[string]positions
	// evicted are the pods of which an Event says that they are evicted and that are still there, by the stack that evicts them.
	evicted map[string]map[types.UID]bool
	// turns are those of the pods of nodes that have more than a round evicts.
	turns turns
}

// New returns the reconciler. It follows changes of stacks, and of whatever their nodes' states are judged by. drivers is the
// namespace where it runs drivers; empty: it runs none.
func New(s reconciler.Services, checks Checks, drivers string) reconciler.Row {
	j := &judge{
		Services: s, options: checks, drivers: drivers, applied: map[string]applied{}, dropped: map[string]bool{},
		states: stackstates.New(s, drivers),
		status: s.Status(), told: map[string]positions{},
		evicted: map[string]map[types.UID]bool{}, turns: turns{},
		nodes: metrics.GaugeBy("stack_nodes", "Nodes of an AcceleratorStack that have passed or failed a state, or of which that is unknown.",
			"stack", "state", "status"),
		due: metrics.GaugeBy("stack_check_due_timestamp_seconds",
			"When the check of a claim that passed longest ago on a node of an AcceleratorStack is to be repeated.", "stack"),
	}
	return reconciler.Row{
		Name: "AcceleratorStacks", Metrics: []prometheus.Collector{j.nodes, j.due},
		Queues: []reconciler.Queue{{Name: "acceleratorstack", Reconciler: j, Watches: watches(s.Client)}},
	}
}

// Reconcile judges the nodes of one stack.
func (j *judge) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var stacks v1alpha1.AcceleratorStackList
	if err := j.Client.List(ctx, &stacks, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list AcceleratorStacks: %w", err)
	}
	at := slices.IndexFunc(stacks.Items, func(s v1alpha1.AcceleratorStack) bool { return s.Name == req.Name })
	seen, err := j.observe(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("AcceleratorStack %s: %w", req.Name, err)
	}
	if at < 0 || stacks.Items[at].DeletionTimestamp != nil {
		return reconcile.Result{}, j.forget(ctx, req.Name, seen)
	}
	if err := j.observeOwn(ctx, stacks.Items, seen); err != nil {
		return reconcile.Result{}, fmt.Errorf("AcceleratorStack %s: %w", req.Name, err)
	}
	s := stacks.Items[at].DeepCopy()
	before := s.DeepCopy()
	selection := stack.Select(s.Name, stacks.Items, seen.Candidates())
	driver, err := j.engineOf(ctx, s, selection.Nodes, seen)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("driver of AcceleratorStack %s: %w", req.Name, err)
	}
	nodes := j.nodesOf(s, selection.Nodes, seen, driver)
	extras, err := j.states.Keep(ctx, s, nodes)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("extra states of AcceleratorStack %s: %w", req.Name, err)
	}
	outcomes, next, failed := j.round(ctx, s, nodes, seen, driver, extras)
	failed = errors.Join(failed, j.release(ctx, seen, func(node, by string) bool {
		return by == s.Name && !slices.Contains(selection.Nodes, node)
	}))
	stack.Record(s, selection, outcomes, j.Clock.Now())
	written, err := j.status.Patch(ctx, before, s)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("write the status of AcceleratorStack %s: %w", req.Name, err)
	}
	if written {
		j.announce(ctx, before, s)
	}
	j.announceNodes(ctx, before, s, outcomes, seen)
	j.count(before, s, outcomes)
	failed = errors.Join(failed, driver.fault, extras.Fault)
	if failed != nil {
		return reconcile.Result{}, fmt.Errorf("AcceleratorStack %s: %w", req.Name, failed)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// forget ends what is left of a stack that is gone. What it owns goes with it.
func (j *judge) forget(ctx context.Context, name string, seen *stack.Observed) error {
	delete(j.told, name)
	delete(j.evicted, name)
	j.states.Forget(name)
	j.nodes.DeletePartialMatch(prometheus.Labels{"stack": name})
	j.due.DeleteLabelValues(name)
	delete(j.dropped, name)
	err := j.dropModule(ctx, name, seen)
	delete(j.dropped, name)
	return errors.Join(err, j.release(ctx, seen, func(_, by string) bool { return by == name }))
}

// round ends checks that are over, begins those that are due, and judges the nodes. It returns when something is due by itself. A fault
// with one node keeps it from no other.
func (j *judge) round(
	ctx context.Context, s *v1alpha1.AcceleratorStack, known []stack.Node, seen *stack.Observed, driver engine, extras stackstates.Result,
) (outcomes []stack.Outcome, next time.Duration, err error) {
	pods, err := j.checkPods(ctx, s)
	errs := []error{err}
	next = reconciler.Sooner(driver.again, extras.Again)
	room := maxChecks
	for _, of := range pods {
		for _, p := range of {
			if !stack.WaitsForRoom(p) {
				room--
			}
		}
	}
	var nodes []stack.UpgradeNode
	for _, n := range known {
		n.Extras = extras.Extras[n.Name]
		over, err := j.settle(ctx, &n, pods[n.Name])
		if err == nil {
			err = j.remove(ctx, over)
		}
		delete(pods, n.Name)
		due, wait := stack.Due(&n, j.Clock.Now())
		errs = append(errs, err, j.begin(ctx, s, &n, due, &room))
		if len(n.Checks.Running) > 0 {
			wait = min(n.Checks.Timeout, checkPause)
		}
		next = reconciler.Sooner(next, wait)
		outcomes = append(outcomes, stack.Judge(&n))
		nodes = append(nodes, stack.UpgradeNode{Node: &n, Outcome: outcomes[len(outcomes)-1]})
	}
	runs, err := j.upgrade(ctx, s, nodes, outcomes, driver, seen)
	errs = append(errs, err)
	if runs && (next == 0 || upgradePause < next) {
		next = upgradePause
	}
	for _, left := range pods { // of nodes that the stack does not hold for any more
		errs = append(errs, j.remove(ctx, left))
	}
	return outcomes, next, errors.Join(errs...)
}

// count sets the metrics of a stack. Those of extra states that it had before are dropped.
func (j *judge) count(before, s *v1alpha1.AcceleratorStack, outcomes []stack.Outcome) {
	for _, old := range before.Status.States {
		if !slices.ContainsFunc(s.Status.States, func(c v1alpha1.StackStateCount) bool { return c.Name == old.Name }) {
			j.nodes.DeletePartialMatch(prometheus.Labels{"stack": s.Name, "state": string(old.Name)})
		}
	}
	for _, c := range s.Status.States {
		for status, count := range map[string]int32{"passed": c.Passed, "failed": c.Failed, "unknown": c.Unknown} {
			j.nodes.WithLabelValues(s.Name, string(c.Name), status).Set(float64(count))
		}
	}
	var oldest time.Time
	for i := range outcomes {
		if due := outcomes[i].CheckDue; !due.IsZero() && (oldest.IsZero() || due.Before(oldest)) {
			oldest = due
		}
	}
	if oldest.IsZero() {
		j.due.DeleteLabelValues(s.Name)
		return
	}
	j.due.WithLabelValues(s.Name).Set(float64(oldest.Unix()))
}

// observe reads what the states of nodes are judged by.
func (j *judge) observe(ctx context.Context) (*stack.Observed, error) {
	var nodes corev1.NodeList
	var accelerators v1alpha1.AcceleratorNodeList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&nodes, &accelerators} {
		if err := j.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list nodes and what they report: %w", err)
		}
	}
	if err := j.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(j.Namespace), pluginLabels()); err != nil {
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

// queueAll queues every stack some time later: nodes change together, and a stack without an own change concerns others only as it holds
// for nodes.
func queueAll(ctx context.Context, c client.Reader, q reconciler.RequestQueue) {
	var list v1alpha1.AcceleratorStackList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "List the AcceleratorStacks that a change of a node concerns")
	}
	for i := range list.Items {
		q.AddAfter(request(list.Items[i].Name), reconciler.Gathering)
	}
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
