// SPDX-License-Identifier: Apache-2.0

// Package waiting posts to pods that wait for devices of Fettle why they do, as an Event. It looks at all waiting pods at once, in rounds:
// explaining one needs a snapshot of the cluster, which serves all of them.
package waiting

import (
	"context"
	"errors"
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
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

const (
	// interval is the time between two rounds.
	interval = 20 * time.Second
	// snapshotAge is how long a snapshot is used.
	snapshotAge = time.Minute
	// podTimeout bounds one explanation, podsPerRound how many there are in a round.
	podTimeout   = 3 * time.Second
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

	ledger ledger
	batch  batch
	// expressions are compiled for the features of version.
	expressions *judge.Expressions
	version     string

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
	e.batch.expire(e.Clock.Now())
	e.count()
	return reconcile.Result{RequeueAfter: interval}, nil
}

// batch is a snapshot, and the pods for which it was read.
type batch struct {
	taken    time.Time
	snapshot *Snapshot
	// pods were not explained yet.
	pods []Asker
}

// expire forgets a snapshot that is too old, and pods that no round came to.
func (b *batch) expire(now time.Time) {
	if now.Sub(b.taken) >= snapshotAge {
		*b = batch{}
	}
}

// round explains pods that are due, as far as they wait for our devices.
func (e *explainer) round(ctx context.Context, due []*corev1.Pod, now time.Time) error {
	if e.batch.expire(now); e.batch.snapshot == nil {
		if err := e.begin(ctx, due, now); err != nil {
			return fmt.Errorf("read a snapshot of the cluster: %w", err)
		}
	} else if e.batch.snapshot.Whole() {
		if err := e.admit(ctx, due, now); err != nil {
			return err
		}
	}
	e.batch.pods = slices.DeleteFunc(e.batch.pods, func(a Asker) bool { // those that wait no more
		return !slices.ContainsFunc(due, func(pod *corev1.Pod) bool { return pod.UID == a.Pod.UID })
	})
	pods := e.batch.pods[:min(len(e.batch.pods), podsPerRound)]
	e.batch.pods = e.batch.pods[len(pods):]
	var cluster *plan.Cluster
	for i := range pods {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if pods[i].TooLarge {
			e.unjudged(pods[i].Pod, "its claims and their templates", askerBytes, now)
			continue
		}
		var err error
		if cluster == nil {
			if cluster, _, err = plan.NewCluster(e.batch.snapshot.With(pods...)); err != nil {
				return fmt.Errorf("make a plan: %w", err)
			}
		}
		explanation := e.explain(ctx, cluster, pods[i].Pod)
		if explanation.Reason == explain.Fits {
			cluster = nil // it has the pod's devices as allocated now
		}
		e.ledger.explained(pods[i].Pod, explanation.Reason, now)
		e.post(pods[i].Pod, explanation, now)
	}
	return nil
}

// begin reads a snapshot for pods that are due, if any of the first asks for our devices. Where it is too large, the pods learn it.
func (e *explainer) begin(ctx context.Context, due []*corev1.Pod, now time.Time) error {
	devices, err := ReadDevices(ctx, e.Live)
	if errors.Is(err, ErrTooMuch) {
		klog.FromContext(ctx).Info("Waiting pods are not explained: the DeviceClasses are too large", "limitBytes", snapshotBytes)
		return nil
	}
	if err != nil {
		return err
	}
	e.batch.snapshot = &Snapshot{Devices: devices}
	if err := e.admit(ctx, due, now); err != nil || len(e.batch.pods) == 0 {
		e.batch = batch{}
		return err
	}
	read, err := Reader{Live: e.Live, Cached: e.Client}.Read(ctx, devices, e.batch.pods, nil)
	if errors.Is(err, ErrTooMuch) {
		for i := range e.batch.pods {
			e.unjudged(e.batch.pods[i].Pod, "the objects of the cluster that decide about devices", snapshotBytes, now)
		}
		e.batch = batch{taken: now, snapshot: &Snapshot{AllNodes: -1}}
		return nil
	}
	if err == nil {
		read.Version, err = e.compiled()
	}
	if err != nil {
		e.batch = batch{}
		return err
	}
	e.batch.taken, e.batch.snapshot = now, read
	return nil
}

// admit adds pods that are due and ask for our devices, as many as are explained until the snapshot is too old.
func (e *explainer) admit(ctx context.Context, due []*corev1.Pod, now time.Time) error {
	most := int(snapshotAge/interval)*podsPerRound - len(e.batch.pods)
	due = slices.DeleteFunc(slices.Clone(due), func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(e.batch.pods, func(a Asker) bool { return a.Pod.UID == pod.UID })
	})
	askers, err := e.batch.snapshot.Devices.Askers(ctx, e.Live, turns(due, looked), most, func(pod *corev1.Pod) {
		e.ledger.explained(pod, "", now)
	})
	e.batch.pods = append(e.batch.pods, askers...)
	return err
}

// compiled returns the version of the API server, and makes the expressions for it.
func (e *explainer) compiled() (string, error) {
	version, err := e.Version()
	if err != nil {
		return "", fmt.Errorf("ask the API server for its version: %w", err)
	}
	if e.expressions == nil || e.version != version {
		set, _, err := gates.For(version, nil)
		if err != nil {
			return "", err
		}
		e.expressions, e.version = judge.NewExpressions(set.Features()), version
	}
	return version, nil
}

// unjudged notes that a pod cannot be explained, and tells it.
func (e *explainer) unjudged(pod *corev1.Pod, what string, limit int, now time.Time) {
	e.ledger.explained(pod, explain.Unjudged, now)
	e.post(pod, explain.Explanation{Reason: explain.Unjudged, First: fmt.Sprintf(
		"it is not known why the pod waits for devices: %s take more than the %d KiB that the controller keeps. `fettle explain pod %s -n %s` "+
			"tells it", what, limit>>10, pod.Name, pod.Namespace)}, now)
}

// explain explains one pod to those who may read it.
func (e *explainer) explain(ctx context.Context, c *plan.Cluster, pod *corev1.Pod) explain.Explanation {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	x := explain.Pod(ctx, c, pod, explain.Options{
		Sees: func(namespace string) bool { return namespace == pod.Namespace }, MaxNodes: maxNodes, Expressions: e.expressions,
	})
	if s := e.batch.snapshot; !s.Whole() {
		x.First = fmt.Sprintf("of %d nodes %d were looked at: %s", s.AllNodes, len(s.Nodes), x.First)
	}
	return x
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
