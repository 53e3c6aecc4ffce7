// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// testStackAgreement is what TestAPI does with the specs of AcceleratorStacks.
func testStackAgreement(t *testing.T, c client.Client) {
	for _, p := range stackCases() {
		t.Run(p.name, func(t *testing.T) {
			err := c.Create(t.Context(), preset(t, v1alpha1.KindAcceleratorStack, p.spec), client.DryRunAll)
			if err != nil && !apierrors.IsInvalid(err) {
				t.Fatal(err)
			}
			faults := validateStack(t, p.spec)
			if want := p.strict != "" || len(faults) > 0 && p.lenient == ""; (err != nil) != want {
				t.Errorf("the API server says %v, Validate %v; expected to be different: %q", err, faults.ToAggregate(), p.strict+p.lenient)
			}
		})
	}
}
