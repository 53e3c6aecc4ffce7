// SPDX-License-Identifier: Apache-2.0

// Package evict asks the API server to evict pods.
package evict

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/apicall"
)

// Timeout is how long an eviction may take where many pods are evicted or asked about, one after the other: the API server has its clients
// wait while it does not know yet what a budget allows, and a webhook may hang.
const Timeout = 3 * time.Second

// Pod evicts the pod, and no other of its name. With [client.DryRunAll] the API server only says whether it would.
func Pod(ctx context.Context, c client.Client, pod *corev1.Pod, options ...client.SubResourceCreateOption) error {
	return create(ctx, c, pod, nil, options...)
}

// Within evicts the pod as [Pod] does, and gives it at most this time to end. A pod that is being deleted and would take longer is told,
// too. The time is whole seconds.
func Within(ctx context.Context, c client.Client, pod *corev1.Pod, limit time.Duration, options ...client.SubResourceCreateOption) error {
	var grace *int64
	if Grace(pod) > limit {
		grace = ptr.To(int64(limit / time.Second))
	}
	return create(ctx, c, pod, grace, options...)
}

// Grace returns the time that a pod has to end, from its deletion on.
func Grace(pod *corev1.Pod) time.Duration {
	seconds := cmp.Or(pod.DeletionGracePeriodSeconds, pod.Spec.TerminationGracePeriodSeconds)
	// More than these seconds are no time.Duration.
	return time.Duration(min(ptr.Deref(seconds, corev1.DefaultTerminationGracePeriodSeconds), math.MaxInt64/int64(time.Second))) * time.Second
}

func create(
	ctx context.Context, c client.Client, pod *corev1.Pod, grace *int64, options ...client.SubResourceCreateOption,
) error {
	eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}, GracePeriodSeconds: grace,
	}}
	return c.SubResource("eviction").Create(ctx, pod, eviction, options...)
}

// Refused says whether a PodDisruptionBudget refuses the eviction for now. An API server with too many requests has the same status, and
// refuses nothing.
func Refused(err error) bool {
	return apierrors.IsTooManyRequests(err) && apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause)
}

// Unanswered says whether the API server did not say what comes of the eviction: it is not there, or what it asks, such as a webhook, does
// not answer. A pod with two PodDisruptionBudgets is refused as an error of the server, too, which has no reason then. A call that took too
// long is none of these: the server has its clients wait while it does not know what a budget allows.
func Unanswered(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err != nil && !errors.Is(err, context.DeadlineExceeded)
	}
	return apicall.Unanswered(err)
}

// Gone says whether the pod does not exist any more, or another one has its name.
func Gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }
