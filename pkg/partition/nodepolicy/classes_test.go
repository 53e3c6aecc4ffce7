// SPDX-License-Identifier: Apache-2.0

package nodepolicy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// withClasses is a policy that wants PriorityClasses.
func withClasses(name string, priority int32, classes ...v1alpha1.NodePriorityClass) v1alpha1.PartitionPolicy {
	p := policyOf(name, priority, "")
	p.Spec.Nodes.Taints = nil
	p.Spec.Nodes.PriorityClasses = classes
	return p
}

// TestClasses: of two policies that want one PriorityClass or a default, the one with the higher priority counts.
func TestClasses(t *testing.T) {
	high := v1alpha1.NodePriorityClass{Name: "gpu", Value: 1000, Default: true}
	low := v1alpha1.NodePriorityClass{Name: "gpu", Value: 10}
	other := v1alpha1.NodePriorityClass{Name: "batch", Value: -10, Default: true}
	invalid := withClasses("x", 9, v1alpha1.NodePriorityClass{Name: "system-x", Value: 1, Default: true})
	for name, test := range map[string]struct {
		policies []v1alpha1.PartitionPolicy
		want     map[string]string
		standard string
	}{
		"none":            {of(policyOf("p", 0, gpu)), map[string]string{}, ""},
		"one":             {of(withClasses("p", 0, high)), map[string]string{"gpu": "p"}, "gpu"},
		"without default": {of(withClasses("p", 0, low)), map[string]string{"gpu": "p"}, ""},
		"two": {
			of(withClasses("p", 0, high), withClasses("q", 1, low, other)), map[string]string{"gpu": "q", "batch": "q"}, "batch",
		},
		"one is not valid": {of(invalid, withClasses("p", 0, high)), map[string]string{"gpu": "p"}, "gpu"},
	} {
		got := map[string]string{}
		for class, of := range nodepolicy.Classes(test.policies) {
			got[class] = of.Policy
		}
		if diff := cmp.Diff(test.want, got); diff != "" || nodepolicy.Default(test.policies) != test.standard {
			t.Errorf("%s: default %q (-want +got):\n%s", name, nodepolicy.Default(test.policies), diff)
		}
	}
}
