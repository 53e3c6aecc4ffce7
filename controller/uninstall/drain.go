// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/evict"
)

// patience is how long a disruption budget may prevent the eviction of a pod before the pod is deleted.
const patience = 30 * time.Second

// drain ends the pods that hold devices and waits until their claims are released and unprepared. It deletes the classes first: without
// them the scheduler allocates nothing to the pods by which a Deployment or Job replaces an evicted pod.
func (u Uninstall) drain(ctx context.Context) error {
	if err := u.classes(ctx); err != nil {
		return err
	}
	asked := map[types.UID]time.Time{}
	for {
		in, err := u.inUse(ctx)
		if err != nil {
			return err
		}
		if in == nil {
			return nil
		}
		for _, h := range in.Holds {
			for _, pod := range h.Pods {
				if err := u.end(ctx, h.Claim, pod, asked); err != nil {
					return err
				}
			}
		}
		if err := u.sleep(ctx); err != nil {
			return fmt.Errorf("%w: %w", err, in)
		}
	}
}

// end evicts one pod, and deletes it if it is still there after [patience]. Asked remembers the time of the first eviction.
func (u Uninstall) end(ctx context.Context, claim types.NamespacedName, holder Consumer, asked map[types.UID]time.Time) error {
	var pod corev1.Pod
	err := u.Client.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: holder.Name}, &pod)
	if apierrors.IsNotFound(err) || err == nil && (pod.UID != holder.UID || pod.DeletionTimestamp != nil) {
		return nil // gone or terminating; the claim follows
	}
	if err != nil {
		return fmt.Errorf("read pod %s/%s: %w", claim.Namespace, holder.Name, err)
	}
	since, known := asked[holder.UID]
	if !known {
		since = u.Clock.Now()
		asked[holder.UID] = since
		klog.FromContext(ctx).Info("Evicting a pod that holds devices", "pod", klog.KObj(&pod), "claim", claim)
		u.Recorder.Eventf(&pod, nil, corev1.EventTypeWarning, "Evicted", "Uninstall",
			"evicted because fettle.dev is uninstalled and claim %s holds its devices", claim.Name)
	}
	return u.remove(ctx, &pod, u.Clock.Now().Sub(since) >= patience)
}

// remove evicts or deletes the pod. It is no error if a disruption budget refuses the eviction.
func (u Uninstall) remove(ctx context.Context, pod *corev1.Pod, byDeletion bool) error {
	if byDeletion {
		klog.FromContext(ctx).Info("Deleting a pod that could not be evicted", "pod", klog.KObj(pod))
		err := u.Client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(pod.UID)})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		return nil
	}
	err := evict.Pod(ctx, u.Client, pod)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		// An eviction cannot be created in a namespace that is being deleted. The pod is deleted with its namespace anyway.
		return u.remove(ctx, pod, true)
	}
	if err != nil && !evict.Gone(err) && !evict.Refused(err) {
		return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
