// SPDX-License-Identifier: Apache-2.0

// Package waiting posts to pods that wait for devices of Fettle why they do, as an Event. It looks at all waiting pods at once, in rounds:
// explaining one needs a snapshot of the cluster, which serves all of them.
package waiting

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
)

const (
	// interval is the time between two rounds.
	interval = 20 * time.Second
	// snapshotAge is how long a snapshot is used.
	snapshotAge = time.Minute
	// podTimeout and nodesPerPod bound one explanation, podsPerRound how many there are in a round.
	podTimeout   = 3 * time.Second
	nodesPerPod  = 100
	podsPerRound = 10

	// EventReason is that of the Events.
	EventReason = "WaitingForDevices"
	eventAction = "ExplainWaiting"
	// unexplained is the reason of pods that no round has come to yet.
	unexplained = "unexplained"
)

// Options are about what the reconciler cannot know from objects.
type Options struct {
	// Enabled has waiting pods explained.
	Enabled bool
	// Version returns the version of the API server, "1.37".
	Version func() (string, error)
}

// explainer explains waiting pods.
type explainer struct {
	reconciler.Services
	Options

	ledger   ledger
	snapshot cached

	waiting *prometheus.GaugeVec
	posted  *prometheus.CounterVec
}

// New returns the reconciler. Its queue has one name, which stands for all waiting pods.
func New(s reconciler.Services, o Options) reconciler.Row {
	e := &explainer{
		Services: s, Options: o,
		waiting: metrics.GaugeBy("waiting_pods", "Pods that wait for devices of Fettle, by the reason.", "reason"),
		posted:  metrics.CounterBy("waiting_pod_events_total", "Events posted to pods that wait for devices, by the reason.", "reason"),
	}
	row := reconciler.Row{Name: "waiting pods", Metrics: []prometheus.Collector{e.waiting, e.posted}}
	if !o.Enabled {
		return row
	}
	row.Queues = []reconciler.Queue{{
		Name: "waitingpods", Reconciler: e,
		// There is a class wherever there is Fettle, so that the first round begins. Each round asks for the next.
		Watches: []reconciler.Watch{{Object: &resourceapi.DeviceClass{}, Handler: reconciler.OnChange(enqueueRound)}},
	}}
	return row
}

func enqueueRound(_ context.Context, q reconciler.RequestQueue, before, _ client.Object) {
	if before == nil {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: "all"}})
	}
}

// Reconcile does one round.
func (e *explainer) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	pods, err := Pending(ctx, e.Live)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := e.Clock.Now()
	e.ledger.retain(pods)
	if due := e.ledger.due(pods, now); len(due) > 0 {
		if err := e.round(ctx, due, now); err != nil {
			return reconcile.Result{}, err
		}
	}
	e.snapshot.expire(e.Clock.Now())
	e.count()
	return reconcile.Result{RequeueAfter: interval}, nil
}

// round explains pods that are due, as far as they wait for our devices.
func (e *explainer) round(ctx context.Context, due []*corev1.Pod, now time.Time) error {
	snapshot, err := e.snapshot.read(ctx, e, now)
	if err != nil {
		return fmt.Errorf("read a snapshot of the cluster: %w", err)
	}
	if snapshot == nil {
		klog.FromContext(ctx).Info("Waiting pods are not explained: the objects that decide are too large", "limitBytes", snapshotBytes)
		return nil
	}
	due = slices.DeleteFunc(due, func(pod *corev1.Pod) bool {
		asks := e.snapshot.devices.AskedBy(pod)
		if !asks {
			e.ledger.explained(pod, "", now)
		}
		return !asks
	})
	var cluster *plan.Cluster
	for _, pod := range turns(due, podsPerRound) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if cluster == nil {
			if cluster, _, err = plan.NewCluster(*snapshot); err != nil {
				return fmt.Errorf("make a plan: %w", err)
			}
		}
		explanation := e.explain(ctx, cluster, pod)
		if explanation.Reason == explain.Fits {
			cluster = nil // it has the pod's devices as allocated now
		}
		e.ledger.explained(pod, explanation.Reason, now)
		e.post(pod, explanation, now)
	}
	return nil
}

// explain explains one pod to those who may read it.
func (e *explainer) explain(ctx context.Context, c *plan.Cluster, pod *corev1.Pod) explain.Explanation {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	return explain.Pod(ctx, c, pod, explain.Options{
		Sees: func(namespace string) bool { return namespace == pod.Namespace }, MaxNodes: nodesPerPod,
		Expressions: e.snapshot.expressions,
	})
}

// post makes an Event if the reason is new to the pod, and the budgets allow it.
func (e *explainer) post(pod *corev1.Pod, x explain.Explanation, now time.Time) {
	if x.Reason == explain.Fits || x.Reason == explain.Placed || !e.ledger.mayPost(pod, x.Reason, now) {
		return
	}
	e.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, EventReason, eventAction+string(x.Reason), "%s", message.EventNote(x.First))
	e.posted.WithLabelValues(string(x.Reason)).Inc()
}

// count sets the metric for every reason.
func (e *explainer) count() {
	counts := e.ledger.counts()
	for _, reason := range append(explain.Reasons(), unexplained) {
		e.waiting.WithLabelValues(string(reason)).Set(float64(counts[reason]))
	}
}
