// SPDX-License-Identifier: Apache-2.0

package reclaims

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/evict"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/partition/reclaim"
)

const (
	// ReasonEvicted is that of the Event on a pod that is evicted.
	ReasonEvicted = "EvictedForPriority"
	// ReasonReclaimed is that of the Event on the waiting pod.
	ReasonReclaimed = "DevicesReclaimed"
	// ReasonRefused is that of the Event on the waiting pod if a PodDisruptionBudget keeps the pods that would have to go.
	ReasonRefused = "ReclaimRefused"
	// ReasonUnjudged is that of the Event on the waiting pod if it is not known whether an eviction would help it.
	ReasonUnjudged = "ReclaimUnjudged"

	action = "ReclaimDevices"
	// maxSpared is how many pods may turn out to be kept by a PodDisruptionBudget before a decision is given up.
	maxSpared = 20
)

// reclaim evicts the pods that have to make way for one. No pod is evicted unless the API server would evict all of them: those that it
// refuses are left out, and the next best set is tried.
func (r *reclaimer) reclaim(ctx context.Context, q reclaim.Question) (evicted bool, err error) {
	spared := map[types.UID]bool{}
	q.Spared = func(pod *corev1.Pod) bool { return spared[pod.UID] || r.overdue(pod) }
	for len(spared) <= maxSpared {
		d, err := decide(ctx, q)
		if err != nil {
			return false, err
		}
		if d.Outcome == reclaim.Unjudged {
			r.unjudged(q.Pod, d.Why)
			return false, nil
		}
		if d.Outcome != reclaim.Evict {
			break
		}
		refused, gone, err := r.ask(ctx, d)
		switch {
		case errors.Is(err, errUnanswered):
			r.unjudged(q.Pod, []string{err.Error()})
			return false, nil
		case err != nil:
			return false, err
		case gone:
			return false, nil // the snapshot is older than that, and the next round has another
		case refused == nil:
			return r.evictIfNeeded(ctx, q.Pod, d)
		}
		spared[refused.UID] = true
	}
	r.finish(q.Pod, len(spared))
	return false, nil
}

func decide(ctx context.Context, q reclaim.Question) (reclaim.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	return reclaim.Decide(ctx, q)
}

// finish notes that nothing can be done for a pod, and tells it if the reason is a PodDisruptionBudget.
func (r *reclaimer) finish(pod *corev1.Pod, spared int) {
	if spared == 0 {
		r.ledger.nothing(pod, r.Clock.Now())
		return
	}
	if r.ledger.refused(pod, r.Clock.Now()) {
		r.pods.WithLabelValues("refused").Add(float64(spared))
		r.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, ReasonRefused, action,
			"PodDisruptionBudgets keep %s with a lower priority that would have to make way for this one: it is tried again", counted(spared))
	}
}

// unjudged notes that it is not known whether evictions would help a pod, and tells it.
func (r *reclaimer) unjudged(pod *corev1.Pod, why []string) {
	if r.ledger.unjudged(pod, r.Clock.Now()) {
		r.pods.WithLabelValues("unjudged").Inc()
		note := fmt.Sprintf("no pods with a lower priority are evicted for this one, since it is not known whether it would run then: %s",
			strings.Join(why, "; "))
		r.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, ReasonUnjudged, action, "%s", message.EventNote(note))
	}
}

// errUnanswered says that it is not known whether pods could be evicted. It names none: they may be of another namespace.
var errUnanswered = errors.New("the API server does not say whether pods could be evicted")

// ask has the API server say whether it would evict all pods, and returns the first that it refuses, or whether one is gone. No answer is
// no refusal: pods with a higher priority would make way for it.
func (r *reclaimer) ask(ctx context.Context, d reclaim.Decision) (refused *corev1.Pod, gone bool, err error) {
	for _, pod := range d.Victims {
		err := r.wouldEvict(ctx, pod)
		switch {
		case err == nil:
		case evict.Gone(err):
			return nil, true, nil
		case ctx.Err() != nil:
			return nil, false, ctx.Err()
		case evict.Unanswered(err):
			klog.FromContext(ctx).Error(err, "Ask whether a pod would be evicted", "pod", klog.KObj(pod))
			return nil, false, errUnanswered
		default:
			// A pod with two budgets is refused in another way than one with an exhausted budget. Neither is to stop the others.
			klog.FromContext(ctx).V(2).Info("A pod is not evicted", "pod", klog.KObj(pod), "reason", err.Error())
			return pod, false, nil
		}
	}
	return nil, false, nil
}

// wouldEvict has the API server say whether it would evict a pod. While it does not know yet what a new budget allows, it has its clients
// wait for seconds: that is a refusal, too.
func (r *reclaimer) wouldEvict(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, evict.Timeout)
	defer cancel()
	return evict.Within(ctx, r.Client, pod, r.grace, client.DryRunAll)
}

// evictIfNeeded evicts the pods of a decision if the waiting pod still waits, a policy still allows it, and the API server knows no field
// of the pod's spec that this program does not.
func (r *reclaimer) evictIfNeeded(ctx context.Context, waiting *corev1.Pod, d reclaim.Decision) (bool, error) {
	waits, unknown, err := r.stillWaits(ctx, waiting)
	switch {
	case err != nil || !waits:
		return false, err
	case len(unknown) > 0:
		r.unjudged(waiting, unknown)
		return false, nil
	}
	if allowed, err := r.stillAllowed(ctx, waiting, d); err != nil || !allowed {
		return false, err
	}
	return r.evict(ctx, waiting, d)
}

// stillAllowed reads the policies and the node again. A round may take minutes: what an administrator takes back meanwhile counts for it.
func (r *reclaimer) stillAllowed(ctx context.Context, waiting *corev1.Pod, d reclaim.Decision) (bool, error) {
	var policies v1alpha1.PartitionPolicyList
	if err := r.Live.List(ctx, &policies); err != nil {
		return false, fmt.Errorf("read the PartitionPolicies again: %w", err)
	}
	node := reconciler.Metadata(corev1.SchemeGroupVersion.String(), "Node")
	if err := r.Live.Get(ctx, client.ObjectKey{Name: d.Node}, node); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	p := reclaim.PolicyOf(policies.Items, node.Labels)
	return p != nil && p.Name == d.Policy && reclaim.Allowed([]v1alpha1.PartitionPolicy{*p}, waiting), nil
}

// stillWaits reads the waiting pod again as the API server has it. Unknown says which fields of its spec are not known here: a Kubernetes
// that is newer may decide by them.
func (r *reclaimer) stillWaits(ctx context.Context, pod *corev1.Pod) (waits bool, unknown []string, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := r.Live.List(ctx, list, client.InNamespace(pod.Namespace), client.MatchingFields{"metadata.name": pod.Name}); err != nil {
		return false, nil, fmt.Errorf("read pod %s/%s again: %w", pod.Namespace, pod.Name, err)
	}
	if len(list.Items) == 0 {
		return false, nil, nil
	}
	var now corev1.Pod
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(list.Items[0].Object, &now, true)
	if strict, is := runtime.AsStrictDecodingError(err); is {
		for _, e := range strict.Errors() {
			if strings.Contains(e.Error(), `"spec.`) {
				unknown = append(unknown, e.Error())
			}
		}
	} else if err != nil {
		return false, nil, fmt.Errorf("read pod %s/%s again: %w", pod.Namespace, pod.Name, err)
	}
	return now.UID == pod.UID && now.Spec.NodeName == "" && now.DeletionTimestamp == nil, unknown, nil
}

// evict evicts the pods of a decision. If a budget refuses one after the others were evicted, the next round finds what is left to do.
func (r *reclaimer) evict(ctx context.Context, waiting *corev1.Pod, d reclaim.Decision) (bool, error) {
	var done []types.UID
	var failed error
	for _, pod := range d.Victims {
		err := evict.Within(ctx, r.Client, pod, r.grace)
		if err != nil && !evict.Gone(err) {
			r.pods.WithLabelValues("refused").Inc()
			failed = fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
			break
		}
		done = append(done, pod.UID)
		if err == nil {
			r.pods.WithLabelValues("evicted").Inc()
			klog.FromContext(ctx).Info("Evicted a pod for one with a higher priority", "pod", klog.KObj(pod), "priority", reclaim.Priority(pod),
				"for", klog.KObj(waiting), "policy", d.Policy)
			r.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, ReasonEvicted, action, "%s", message.EventNote(r.evictedNote(pod, waiting, d)))
		}
	}
	if len(done) == 0 {
		if evict.Refused(failed) {
			failed = nil
		}
		r.ledger.nothing(waiting, r.Clock.Now())
		return false, failed
	}
	r.ledger.reclaimed(d.Policy, waiting, done, r.Clock.Now())
	r.Recorder.Eventf(waiting, nil, corev1.EventTypeNormal, ReasonReclaimed, action,
		"%s with a lower priority on node %s evicted, as PartitionPolicy %s has it: the devices are free when they have ended",
		counted(len(done)), d.Node, d.Policy)
	if evict.Refused(failed) {
		failed = nil
	}
	return true, failed
}

// evictedNote says why a pod is evicted. A pod of another namespace is not named.
func (r *reclaimer) evictedNote(pod, waiting *corev1.Pod, d reclaim.Decision) string {
	who := "a pod"
	if pod.Namespace == waiting.Namespace {
		who = "pod " + waiting.Name
	}
	note := fmt.Sprintf("evicted, since %s with priority %d waits for the devices of this one, which has priority %d: PartitionPolicy %s has "+
		"devices reclaimed on node %s", who, reclaim.Priority(waiting), reclaim.Priority(pod), d.Policy, d.Node)
	if own := evict.Grace(pod); own > r.grace {
		note += fmt.Sprintf("; it has %s to end and not %s", r.grace, own)
	}
	return note
}

// counted is "1 pod" or "2 pods".
func counted(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}
