// SPDX-License-Identifier: Apache-2.0

// Package reclaims evicts pods that hold devices for waiting pods with a higher priority, where PartitionPolicies say so. Package reclaim
// decides which. It looks at all waiting pods at once, in rounds: a decision needs a snapshot of the cluster, which is read for a round
// and not kept, since an eviction for something that has changed meanwhile would be for nothing.
package reclaims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/evict"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/waiting"
	"github.com/fettle-dev/fettle/pkg/partition/reclaim"
	"github.com/fettle-dev/fettle/pkg/plan"
)

const (
	// interval is the time between two rounds.
	interval = 15 * time.Second
	// podsPerRound, decisionTimeout and askTimeout bound what a round costs, maxNodes of how many nodes the pods are read.
	podsPerRound    = 5
	decisionTimeout = 10 * time.Second
	askTimeout      = 3 * time.Second
	maxNodes        = 200
)

// DefaultGrace is the longest time that evicted pods have to end, where the administrator sets no other.
const DefaultGrace = 5 * time.Minute

// reclaimer evicts pods.
type reclaimer struct {
	reconciler.Services

	// grace is the longest time that pods have to end.
	grace   time.Duration
	version func() (string, error)
	ledger  ledger
	pods    *prometheus.CounterVec
}

// New returns the reconciler. Its queue has one name, which stands for all waiting pods. Grace is the longest time that evicted pods have
// to end. Version asks the API server for its version. If it is switched off, it has no queue.
func New(s reconciler.Services, enabled bool, grace time.Duration, version func() (string, error)) reconciler.Row {
	r := &reclaimer{
		Services: s, grace: grace, version: version,
		pods: metrics.CounterBy("reclaimed_pods_total", "Pods that were to make way for pods with a higher priority, by the result.", "result"),
	}
	row := reconciler.Row{Name: "devices of pods with a lower priority", Metrics: []prometheus.Collector{r.pods}}
	if !enabled {
		return row
	}
	row.Queues = []reconciler.Queue{{
		Name: "reclaims", Reconciler: r,
		// A round asks for the next as long as a policy has pods evicted.
		Watches: []reconciler.Watch{{
			Object: &v1alpha1.PartitionPolicy{}, Handler: reconciler.OnChange(enqueueRound), Predicates: reconciler.GenerationChanged(),
		}},
	}}
	return row
}

func enqueueRound(_ context.Context, q reconciler.RequestQueue, _, _ client.Object) {
	q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: "all"}})
}

// Reconcile does one round.
func (r *reclaimer) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var policies v1alpha1.PartitionPolicyList
	if err := r.Client.List(ctx, &policies, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list PartitionPolicies: %w", err)
	}
	if !reclaim.Wanted(policies.Items) {
		return reconcile.Result{}, nil // a change of a policy begins the next round
	}
	due, err := r.due(ctx, policies.Items)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(due) > 0 {
		if err := r.round(ctx, policies.Items, due); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: interval}, nil
}

// due lists the pods for which others may be evicted now, those with the highest priority first, then those that wait longest.
func (r *reclaimer) due(ctx context.Context, policies []v1alpha1.PartitionPolicy) ([]*corev1.Pod, error) {
	pods, err := waiting.Pending(ctx, r.Live)
	if err != nil {
		return nil, err
	}
	now := r.Clock.Now()
	r.ledger.retain(pods, now)
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool {
		return !reclaim.Eligible(pod, now) || !reclaim.Allowed(policies, pod) || !r.ledger.due(pod, now)
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(reclaim.Priority(b), reclaim.Priority(a)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// round decides for the pods that are due, as far as they ask for our devices. After an eviction the snapshot is no longer true, and the
// other pods have to wait for the next round.
func (r *reclaimer) round(ctx context.Context, policies []v1alpha1.PartitionPolicy, due []*corev1.Pod) error {
	s, err := r.snapshot(ctx, policies)
	if errors.Is(err, waiting.ErrTooMuch) {
		klog.FromContext(ctx).Info("No devices are reclaimed: the objects that decide are too large")
		return nil
	}
	if err != nil {
		return fmt.Errorf("read a snapshot of the cluster: %w", err)
	}
	devices := waiting.NewDevices(&s)
	due = slices.DeleteFunc(due, func(pod *corev1.Pod) bool {
		asks := devices.AskedBy(pod)
		if !asks {
			r.ledger.nothing(pod, r.Clock.Now())
		}
		return !asks
	})
	for _, pod := range r.ledger.next(due, podsPerRound) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.ledger.judged(pod, r.Clock.Now())
		evicted, err := r.reclaim(ctx, reclaim.Question{
			Snapshot: s, Policies: policies, Pod: pod, Busy: r.busy(s.Pods),
			Ending: func(pod *corev1.Pod) bool {
				return pod.DeletionTimestamp != nil && evict.Grace(pod) <= r.grace && !r.overdue(pod)
			},
		})
		if err != nil {
			return fmt.Errorf("reclaim devices for pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if evicted {
			break
		}
	}
	return nil
}

// overdue says whether a pod should have ended long ago. Nobody waits for it, and to evict it again is in vain.
func (r *reclaimer) overdue(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && r.Clock.Since(pod.DeletionTimestamp.Time) >= policyLimit
}

// busy says whether pods that were evicted for a policy are still there, or it is too soon for more.
func (r *reclaimer) busy(pods []*corev1.Pod) func(string) bool {
	now := r.Clock.Now()
	return func(policy string) bool { return r.ledger.busy(policy, pods, now) }
}

// snapshot reads what decides, with the pods of nodes that have our devices: first those of nodes where pods may be evicted. Of other nodes
// it is the pods that may keep others from a whole zone.
func (r *reclaimer) snapshot(ctx context.Context, policies []v1alpha1.PartitionPolicy) (plan.Snapshot, error) {
	version, err := r.version()
	if err != nil {
		return plan.Snapshot{}, fmt.Errorf("ask the API server for its version: %w", err)
	}
	read, err := waiting.ReadSnapshot(ctx, r.Live)
	if err != nil {
		return plan.Snapshot{}, err
	}
	read.Version = version
	nodes := nodesWithDevices(read, policies)
	nodes = nodes[:min(len(nodes), maxNodes)]
	if read.Pods, err = waiting.PodsOn(ctx, r.Live, nodes); err != nil {
		return plan.Snapshot{}, err
	}
	repelling, err := waiting.Repelling(ctx, r.Live, nodes)
	read.Pods = append(read.Pods, repelling...)
	return *read, err
}

// nodesWithDevices lists the nodes with our devices, those where pods may be evicted first.
func nodesWithDevices(s *plan.Snapshot, policies []v1alpha1.PartitionPolicy) []string {
	published := map[string]bool{}
	for _, slice := range s.Slices {
		if slice.Spec.Driver == v1alpha1.DriverName {
			published[ptr.Deref(slice.Spec.NodeName, "")] = true
		}
	}
	var first, others []string
	for _, node := range s.Nodes {
		switch {
		case !published[node.Name]:
		case reclaim.PolicyOf(policies, node.Labels) != nil:
			first = append(first, node.Name)
		default:
			others = append(others, node.Name)
		}
	}
	slices.Sort(first)
	slices.Sort(others)
	return append(first, others...)
}
