// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"errors"
	"fmt"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestRefused: only a PodDisruptionBudget refuses an eviction. An API server that has too much to do says the same with another cause.
func TestRefused(t *testing.T) {
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "web needs 1 healthy pod"}}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"a budget":                  {budget, true},
		"a budget, in other words":  {fmt.Errorf("evict pod a/web: %w", budget), true},
		"too many requests at once": {apierrors.NewTooManyRequests("Too many requests, please try again later.", 1), false},
		"the same from a proxy": {
			apierrors.NewGenericServerResponse(429, "create", schema.GroupResource{Resource: "pods"}, "web", "slow down", 1, true), false,
		},
		"no answer": {errors.New("connection refused"), false},
		"none":      {nil, false},
	} {
		if got := Refused(test.err); got != test.want {
			t.Errorf("%s: refused is %t", name, got)
		}
	}
}
