// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// ownerPod returns the one pod that a claim was made for. Nil: pods may share the claim. A Prepare waits for it, so the API server's memory
// is asked first, which spares it the question to etcd. Another API server than kubelet's may be behind: a pod for which kubelet would not
// prepare the claim yet is asked for again.
func (f *Feature) ownerPod(ctx context.Context, c *resourceapi.ResourceClaim) (*corev1.Pod, error) {
	owner := metav1.GetControllerOf(c)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return nil, nil //nolint:nilnil // documented above
	}
	const fromMemory = "0"
	pods := f.Kube.CoreV1().Pods(c.Namespace)
	pod, err := pods.Get(ctx, owner.Name, metav1.GetOptions{ResourceVersion: fromMemory})
	if err != nil || !isReady(pod, owner.UID, c.Name) {
		pod, err = pods.Get(ctx, owner.Name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("read pod %s for presets: %w", owner.Name, err)
	}
	if pod.UID != owner.UID {
		return nil, fmt.Errorf("pod %s is another than the one that claim %s was made for", owner.Name, c.Name)
	}
	return pod, nil
}

// isReady reports whether a pod is the one with a UID, is bound to a node, and names all its claims, of which one has a name: before that
// kubelet does not prepare its claims.
func isReady(pod *corev1.Pod, uid types.UID, claim string) bool {
	unnamed := func(entry corev1.PodResourceClaim) bool {
		made := func(s corev1.PodResourceClaimStatus) bool { return s.Name == entry.Name }
		return entry.ResourceClaimName == nil && !slices.ContainsFunc(pod.Status.ResourceClaimStatuses, made)
	}
	return pod.UID == uid && pod.Spec.NodeName != "" && slices.Contains(preset.ClaimsOf(pod), claim) &&
		!slices.ContainsFunc(pod.Spec.ResourceClaims, unnamed)
}
