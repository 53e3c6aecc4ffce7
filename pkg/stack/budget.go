// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// refusal says why the API server would not evict a pod now, by its PodDisruptionBudgets as they are: the rules are those of
// pkg/registry/core/pod/storage/eviction.go in Kubernetes. Empty: it would. budgets are the names of those that refuse.
func refusal(p *corev1.Pod, all []*policyv1.PodDisruptionBudget) (budgets []string, why string) {
	switch p.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return nil, ""
	case corev1.PodRunning, corev1.PodUnknown:
	}
	if p.DeletionTimestamp != nil {
		return nil, ""
	}
	var of []*policyv1.PodDisruptionBudget
	for _, b := range all {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && b.Namespace == p.Namespace && selector.Matches(labels.Set(p.Labels)) {
			of, budgets = append(of, b), append(budgets, b.Name)
		}
	}
	switch len(of) {
	case 0:
		return nil, ""
	case 1:
		if why = refusedBy(of[0], ready(p)); why == "" {
			return nil, ""
		}
		return budgets, why
	}
	return budgets, "the API server evicts no pod that has more than one PodDisruptionBudget: " + strings.Join(budgets, ", ")
}

// refusedBy says why a budget allows no eviction of one of its pods. One that is not ready is not counted as healthy.
func refusedBy(b *policyv1.PodDisruptionBudget, ready bool) string {
	s := &b.Status
	always := b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
	switch {
	case !ready && (always || s.CurrentHealthy >= s.DesiredHealthy && s.DesiredHealthy > 0):
		return ""
	case s.ObservedGeneration < b.Generation:
		return fmt.Sprintf("PodDisruptionBudget %s was changed, and its status is not up to date yet", b.Name)
	case s.DisruptionsAllowed <= 0:
		return fmt.Sprintf("PodDisruptionBudget %s needs %d healthy pods and has %d", b.Name, s.DesiredHealthy, s.CurrentHealthy)
	}
	return ""
}
