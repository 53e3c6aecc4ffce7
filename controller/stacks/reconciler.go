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

// stackReconciler writes the status of AcceleratorStacks. One call runs at a time. It observes the nodes, lets the driver's engine do what
// is due, and then checks and changes each node as package stack decides.
type stackReconciler struct {
	reconciler.Services

	observer   *observer
	daemonSets *daemonSetEngine
	kmm        *kmmEngine
	// states makes the objects of extra states.
	states    *stackstates.Keeper
	checker   *checker
	upgrader  *upgrader
	status    status.Writer
	announcer *announcer
	nodes     *prometheus.GaugeVec
	due       *prometheus.GaugeVec
}

// New returns the reconciler. It follows changes of stacks, and of whatever their nodes' states are judged by. drivers is the
// namespace where it runs drivers; empty: it runs none.
func New(s reconciler.Services, checks Checks, drivers string) reconciler.Row {
	r := newStackReconciler(s, checks, drivers)
	return reconciler.Row{
		Name: "AcceleratorStacks", Metrics: []prometheus.Collector{r.nodes, r.due},
		Queues: []reconciler.Queue{{Name: "acceleratorstack", Reconciler: r, Watches: watches(s.Client)}},
	}
}

func newStackReconciler(s reconciler.Services, checks Checks, drivers string) *stackReconciler {
	return &stackReconciler{
		Services:   s,
		observer:   &observer{Services: s, drivers: drivers, placed: map[string]placed{}},
		daemonSets: &daemonSetEngine{Services: s, namespace: drivers, applied: map[string]applied{}},
		kmm:        &kmmEngine{Services: s, namespace: drivers, dropped: map[string]bool{}},
		states:     stackstates.New(s, drivers),
		checker:    &checker{Services: s, options: checks},
		upgrader: &upgrader{
			Services: s, evicted: map[string]map[types.UID]bool{}, turns: turns{}, own: []string{s.Namespace, drivers},
		},
		status:    s.Status(),
		announcer: &announcer{Services: s, told: map[string]positions{}},
		nodes: metrics.GaugeBy("stack_nodes", "Nodes of an AcceleratorStack that have passed or failed a state, or of which that is unknown.",
			"stack", "state", "status"),
		due: metrics.GaugeBy("stack_check_due_timestamp_seconds",
			"When the check of a claim that passed longest ago on a node of an AcceleratorStack is to be repeated.", "stack"),
	}
}

// Reconcile judges the nodes of one stack.
func (r *stackReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var stacks v1alpha1.AcceleratorStackList
	if err := r.Client.List(ctx, &stacks, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list AcceleratorStacks: %w", err)
	}
	at := slices.IndexFunc(stacks.Items, func(s v1alpha1.AcceleratorStack) bool { return s.Name == req.Name })
	seen, err := r.observer.observe(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("AcceleratorStack %s: %w", req.Name, err)
	}
	if at < 0 || stacks.Items[at].DeletionTimestamp != nil {
		return reconcile.Result{}, r.forget(ctx, req.Name, seen)
	}
	if err := r.observer.observeOwn(ctx, stacks.Items, seen); err != nil {
		return reconcile.Result{}, fmt.Errorf("AcceleratorStack %s: %w", req.Name, err)
	}
	s := stacks.Items[at].DeepCopy()
	before := s.DeepCopy()
	selection := stack.Select(s.Name, stacks.Items, seen.Candidates())
	driver, err := r.engineOf(ctx, s, selection.Nodes, seen)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("driver of AcceleratorStack %s: %w", req.Name, err)
	}
	nodes := r.nodesOf(s, selection.Nodes, seen, driver)
	extras, err := r.states.Keep(ctx, s, nodes)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("extra states of AcceleratorStack %s: %w", req.Name, err)
	}
	outcomes, next, failed := r.round(ctx, &round{stack: s, nodes: nodes, seen: seen, driver: driver, extras: extras})
	failed = errors.Join(failed, r.upgrader.release(ctx, seen, func(node, by string) bool {
		return by == s.Name && !slices.Contains(selection.Nodes, node)
	}))
	stack.Record(s, selection, outcomes, r.Clock.Now())
	written, err := r.status.Patch(ctx, before, s)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("write the status of AcceleratorStack %s: %w", req.Name, err)
	}
	if written {
		r.announcer.conditions(ctx, before, s)
	}
	r.announcer.nodes(ctx, before, s, outcomes, seen)
	r.count(before, s, outcomes)
	failed = errors.Join(failed, driver.fault, extras.Fault)
	if failed != nil {
		return reconcile.Result{}, fmt.Errorf("AcceleratorStack %s: %w", req.Name, failed)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// nodesOf returns a stack's nodes with all that is known of them but extra states.
func (r *stackReconciler) nodesOf(s *v1alpha1.AcceleratorStack, names []string, seen *stack.Observed, driver engine) []stack.Node {
	nodes := make([]stack.Node, 0, len(names))
	for _, name := range names {
		n := seen.Node(name)
		n.Delivered, n.Checks = driver.deliver(&n), r.checker.checksOf(s)
		nodes = append(nodes, n)
	}
	return nodes
}

// forget ends what is left of a stack that is gone. What it owns goes with it.
func (r *stackReconciler) forget(ctx context.Context, name string, seen *stack.Observed) error {
	r.announcer.forget(name)
	r.states.Forget(name)
	r.nodes.DeletePartialMatch(prometheus.Labels{"stack": name})
	r.due.DeleteLabelValues(name)
	return errors.Join(r.kmm.forget(ctx, name, seen), r.upgrader.forget(ctx, name, seen))
}

// round is what a round of checks and changes goes by.
type round struct {
	stack *v1alpha1.AcceleratorStack
	// nodes are those that the stack holds for.
	nodes  []stack.Node
	seen   *stack.Observed
	driver engine
	extras stackstates.Result
}

// round ends checks that are over, begins those that are due, and judges the nodes. It returns when something is due by itself. A fault
// with one node keeps it from no other.
func (r *stackReconciler) round(ctx context.Context, of *round) (outcomes []stack.Outcome, next time.Duration, err error) {
	pods, err := r.checker.pods(ctx, of.stack)
	errs := []error{err}
	next = reconciler.Sooner(of.driver.again, of.extras.Again)
	room := maxChecks
	for _, checks := range pods {
		for _, p := range checks {
			if stack.Occupies(p, r.Clock.Now()) {
				room--
			}
		}
	}
	var nodes []stack.UpgradeNode
	for _, n := range of.nodes {
		n.Extras = of.extras.Extras[n.Name]
		over, err := r.checker.settle(ctx, &n, pods[n.Name])
		if err == nil {
			err = r.checker.remove(ctx, over)
		}
		delete(pods, n.Name)
		due, wait := stack.Due(&n, r.Clock.Now())
		errs = append(errs, err, r.checker.begin(ctx, of.stack, &n, due, &room))
		if len(n.Checks.Running) > 0 {
			wait = min(n.Checks.Timeout, checkPause)
		}
		next = reconciler.Sooner(next, wait)
		outcomes = append(outcomes, stack.Judge(&n))
		nodes = append(nodes, stack.UpgradeNode{Node: &n, Outcome: outcomes[len(outcomes)-1]})
	}
	runs, err := r.upgrader.upgrade(ctx, of, nodes, outcomes)
	errs = append(errs, err)
	if runs && (next == 0 || upgradePause < next) {
		next = upgradePause
	}
	for _, left := range pods { // of nodes that the stack does not hold for any more
		errs = append(errs, r.checker.remove(ctx, left))
	}
	return outcomes, next, errors.Join(errs...)
}

// count sets the metrics of a stack. Those of extra states that it had before are dropped.
func (r *stackReconciler) count(before, s *v1alpha1.AcceleratorStack, outcomes []stack.Outcome) {
	for _, old := range before.Status.States {
		if !slices.ContainsFunc(s.Status.States, func(c v1alpha1.StackStateCount) bool { return c.Name == old.Name }) {
			r.nodes.DeletePartialMatch(prometheus.Labels{"stack": s.Name, "state": string(old.Name)})
		}
	}
	for _, c := range s.Status.States {
		for status, count := range map[string]int32{"passed": c.Passed, "failed": c.Failed, "unknown": c.Unknown} {
			r.nodes.WithLabelValues(s.Name, string(c.Name), status).Set(float64(count))
		}
	}
	var oldest time.Time
	for i := range outcomes {
		if due := outcomes[i].CheckDue; !due.IsZero() && (oldest.IsZero() || due.Before(oldest)) {
			oldest = due
		}
	}
	if oldest.IsZero() {
		r.due.DeleteLabelValues(s.Name)
		return
	}
	r.due.WithLabelValues(s.Name).Set(float64(oldest.Unix()))
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
