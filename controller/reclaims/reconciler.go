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
	// podsPerRound, decisionTimeout and evict.Timeout bound what a round costs, podsLooked is of how many pods it is looked what they ask for.
	podsPerRound    = 5
	podsLooked      = 50
	decisionTimeout = 10 * time.Second
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
	devices, err := waiting.ReadDevices(ctx, r.Live)
	if errors.Is(err, waiting.ErrTooMuch) {
		klog.FromContext(ctx).Info("No devices are reclaimed: the DeviceClasses are too large")
		return nil
	}
	if err != nil {
		return err
	}
	none := func(pod *corev1.Pod) { r.ledger.nothing(pod, r.Clock.Now()) }
	askers, err := devices.Askers(ctx, r.Live, r.ledger.next(due, podsLooked), podsLooked, none)
	if err != nil {
		return err
	}
	askers = r.chosen(askers)
	if len(askers) == 0 {
		return nil
	}
	s, err := r.snapshot(ctx, devices, askers, policies)
	if errors.Is(err, waiting.ErrTooMuch) {
		for i := range askers {
			r.unjudged(askers[i].Pod, []string{"the objects of the cluster that decide are larger than the controller keeps"})
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read a snapshot of the cluster: %w", err)
	}
	for i := range askers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if evicted, err := r.judge(ctx, s, policies, askers[i]); err != nil || evicted {
			return err
		}
	}
	return nil
}

// chosen returns the pods whose turn it is, in the order of the given ones.
func (r *reclaimer) chosen(askers []waiting.Asker) (out []waiting.Asker) {
	pods := make([]*corev1.Pod, len(askers))
	for i := range askers {
		pods[i] = askers[i].Pod
	}
	next := r.ledger.next(pods, podsPerRound)
	return slices.DeleteFunc(askers, func(a waiting.Asker) bool { return !slices.Contains(next, a.Pod) })
}

// judge decides for one pod.
func (r *reclaimer) judge(ctx context.Context, s *waiting.Snapshot, policies []v1alpha1.PartitionPolicy, a waiting.Asker) (bool, error) {
	r.ledger.judged(a.Pod, r.Clock.Now())
	if a.TooLarge {
		r.unjudged(a.Pod, []string{"its claims and their templates are larger than the controller keeps"})
		return false, nil
	}
	evicted, err := r.reclaim(ctx, reclaim.Question{
		Snapshot: s.With(a), Policies: policies, Pod: a.Pod, Busy: r.busy(s.Pods),
		Ending: func(pod *corev1.Pod) bool {
			return pod.DeletionTimestamp != nil && evict.Grace(pod) <= r.grace && !r.overdue(pod)
		},
	})
	if err != nil {
		return false, fmt.Errorf("reclaim devices for pod %s/%s: %w", a.Pod.Namespace, a.Pod.Name, err)
	}
	return evicted, nil
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
func (r *reclaimer) snapshot(
	ctx context.Context, devices *waiting.Devices, askers []waiting.Asker, policies []v1alpha1.PartitionPolicy,
) (*waiting.Snapshot, error) {
	version, err := r.version()
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its version: %w", err)
	}
	reader := waiting.Reader{Live: r.Live, Cached: r.Client}
	s, err := reader.Read(ctx, devices, askers, func(labels map[string]string) bool { return reclaim.PolicyOf(policies, labels) != nil })
	if err != nil {
		return nil, err
	}
	s.Version = version
	nodes := nodesWithDevices(&s.Snapshot)
	if s.Pods, err = waiting.PodsOn(ctx, r.Live, nodes); err != nil {
		return nil, err
	}
	repelling, err := waiting.Repelling(ctx, r.Live, nodes)
	if err != nil {
		return nil, err
	}
	s.Pods = append(s.Pods, repelling...)
	return s, reader.AddDomains(ctx, s, repelling)
}

// nodesWithDevices lists the nodes of a snapshot with our devices.
func nodesWithDevices(s *plan.Snapshot) []string {
	published := map[string]bool{}
	for _, slice := range s.Slices {
		if slice.Spec.Driver == v1alpha1.DriverName {
			published[ptr.Deref(slice.Spec.NodeName, "")] = true
		}
	}
	var out []string
	for _, node := range s.Nodes {
		if published[node.Name] {
			out = append(out, node.Name)
		}
	}
	slices.Sort(out)
	return out
}
