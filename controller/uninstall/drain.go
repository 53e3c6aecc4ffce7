// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/evict"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// patience is how long a disruption budget may prevent the eviction of a pod before the pod is deleted, and how long a claim may be
// reserved for what does not end by itself before it is left as it is.
const patience = 30 * time.Second

// maxSilent is how many evictions may take longer than [evict.Timeout] before the other pods wait for the next look: with a webhook that
// hangs the time of the whole uninstall would be spent on them.
const maxSilent = 3

// evictions are those of a drain: when each pod was to be evicted first, and how many got no answer since the drain last looked.
type evictions struct {
	asked  map[types.UID]time.Time
	silent int
}

// drain ends the pods that hold devices and waits until their claims are released and unprepared. It deletes the classes first, and has the
// plugins publish nothing any more, since an administrator's own classes stay: so the scheduler allocates nothing to the pods by which a
// Deployment or Job replaces an evicted pod. Claims are added to left whose consumers nobody can end: pods that are gone, pods of nodes
// that cannot answer, and what is no pod and has none.
func (u Uninstall) drain(ctx context.Context, left map[types.NamespacedName]Hold) error {
	if err := u.classes(ctx); err != nil {
		return err
	}
	asked, stuck := &evictions{asked: map[types.UID]time.Time{}}, map[types.NamespacedName]time.Time{}
	warned := map[string]bool{}
	for {
		if err := u.askAll(ctx, warned); err != nil {
			return err
		}
		in, err := u.inUse(ctx, left)
		if err != nil {
			return err
		}
		if in == nil {
			return nil
		}
		asked.silent = 0
		for _, h := range in.Holds {
			ending, err := u.endAll(ctx, h, asked)
			if err != nil {
				return err
			}
			if ending {
				delete(stuck, h.Claim)
				continue
			}
			since, known := stuck[h.Claim]
			if !known {
				since = u.Clock.Now()
				stuck[h.Claim] = since
			}
			if u.Clock.Since(since) >= patience {
				klog.FromContext(ctx).Info("Not waiting for a claim whose consumers are gone or do not end", "hold", h.text())
				left[h.Claim] = h
			}
		}
		if err := u.sleep(ctx); err != nil {
			return fmt.Errorf("%w: %w", err, in)
		}
	}
}

// askAll asks every plugin to retire, as retire does.
func (u Uninstall) askAll(ctx context.Context, warned map[string]bool) error {
	f, err := u.nodes(ctx)
	if err != nil {
		return err
	}
	return u.ask(ctx, f, warned)
}

// endAll ends the pods of a claim. It says whether one of them is still going to end.
func (u Uninstall) endAll(ctx context.Context, h Hold, asked *evictions) (ending bool, err error) {
	members, err := u.members(ctx, h)
	if err != nil {
		return false, err
	}
	for _, pod := range slices.Concat(h.Pods, members) {
		one, err := u.end(ctx, h.Claim, pod, asked)
		if err != nil {
			return false, err
		}
		ending = ending || one
	}
	return ending, nil
}

// members returns the pods of groups that have a claim by their group, which the claim does not name.
func (u Uninstall) members(ctx context.Context, h Hold) (members []Consumer, err error) {
	if len(h.Others) == 0 {
		return nil, nil
	}
	begin := func() { members = nil }
	inNamespace := []client.ListOption{client.InNamespace(h.Claim.Namespace)}
	pods := reconciler.Listing{Reader: u.Client, List: &corev1.PodList{}, Options: inNamespace}
	err = pods.Read(ctx, begin, func(o runtime.Object) error {
		if pod, ok := o.(*corev1.Pod); ok && h.isMember(pod) {
			members = append(members, Consumer{Name: pod.Name, UID: pod.UID})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", h.Claim.Namespace, err)
	}
	return members, nil
}

// isMember says whether a pod has the claim by its group, and has not ended.
func (h Hold) isMember(pod *corev1.Pod) bool {
	group := pod.Spec.SchedulingGroup
	if group == nil || !slices.Contains(h.Others, "podgroups/"+ptr.Deref(group.PodGroupName, "")) || podspec.Ended(pod) {
		return false
	}
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
		name, _, err := resourceclaim.Name(pod, &r)
		return err == nil && ptr.Deref(name, "") == h.Claim.Name
	})
}

// end evicts one pod, and deletes it if it is still there after [patience], counted from the first eviction. It says whether
// the pod is going to end: not if it is gone, and not if it is being deleted and its kubelet cannot answer.
func (u Uninstall) end(
	ctx context.Context, claim types.NamespacedName, holder Consumer, of *evictions,
) (ending bool, err error) {
	var pod corev1.Pod
	err = u.Client.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: holder.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err) || err == nil && pod.UID != holder.UID:
		return false, nil // gone; the claim follows, unless nothing releases it
	case err != nil:
		return false, fmt.Errorf("read pod %s/%s: %w", claim.Namespace, holder.Name, err)
	case pod.DeletionTimestamp != nil:
		return u.answers(ctx, pod.Spec.NodeName)
	}
	since, known := of.asked[holder.UID]
	if !known {
		since = u.Clock.Now()
		of.asked[holder.UID] = since
		klog.FromContext(ctx).Info("Evicting a pod that holds devices", "pod", klog.KObj(&pod), "claim", claim)
		u.Recorder.Eventf(&pod, nil, corev1.EventTypeWarning, "Evicted", "Uninstall",
			"evicted because fettle.dev is uninstalled and claim %s holds its devices", claim.Name)
	}
	if u.Clock.Since(since) >= patience {
		klog.FromContext(ctx).Info("Deleting a pod that could not be evicted", "pod", klog.KObj(&pod))
		return true, u.remove(ctx, &pod)
	}
	return true, u.evict(ctx, &pod, of)
}

// answers says whether the kubelet of a node can end a pod. A pod without a node needs none.
func (u Uninstall) answers(ctx context.Context, name string) (bool, error) {
	if name == "" {
		return true, nil
	}
	var node corev1.Node
	if err := u.Client.Get(ctx, client.ObjectKey{Name: name}, &node); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read Node %s: %w", name, err)
	}
	return nodeReady(&node), nil // a Node that is gone is not
}

// remove deletes the pod, and no other of its name.
func (u Uninstall) remove(ctx context.Context, pod *corev1.Pod) error {
	err := u.Client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(pod.UID)})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// evict evicts the pod. It is no error if the API server refuses that, by a budget, since a pod has two of them, or by a webhook, nor if it
// does not answer in time.
func (u Uninstall) evict(ctx context.Context, pod *corev1.Pod, of *evictions) error {
	if of.silent >= maxSilent {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, evict.Timeout)
	defer cancel()
	err := evict.Pod(limited, u.Client, pod)
	if limited.Err() != nil && ctx.Err() == nil && errors.Is(err, limited.Err()) {
		of.silent++
		klog.FromContext(ctx).Info("There is no answer to the eviction of a pod", "pod", klog.KObj(pod), "after", evict.Timeout)
		return nil
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		// An eviction cannot be created in a namespace that is being deleted. The pod is deleted with its namespace anyway.
		return u.remove(ctx, pod)
	}
	if _, refused := errors.AsType[*apierrors.StatusError](err); refused {
		if !evict.Gone(err) {
			klog.FromContext(ctx).Info("A pod is not evicted", "pod", klog.KObj(pod), "reason", err.Error())
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
