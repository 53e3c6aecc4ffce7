// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// TestCache: a version of a policy is compiled once, and a policy that is gone is forgotten.
func TestCache(t *testing.T) {
	policy := func(name, uid string, generation int64) *v1alpha1.TrustPolicy {
		p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Generation: generation}}
		p.Spec.Images, p.Spec.Mode = []string{"**"}, v1alpha1.VerificationSkip
		return p
	}
	list := func(policies ...*v1alpha1.TrustPolicy) []*v1alpha1.TrustPolicy { return policies }
	c := trust.NewCache(nil, nil)
	first := c.All(list(policy("a", "1", 1), policy("b", "2", 1)))
	if len(first) != 2 || first[0].Name() != "a" || first[1].Name() != "b" {
		t.Fatalf("policies %v", first)
	}
	if again := c.All(list(policy("a", "1", 1), policy("b", "2", 1))); !slices.Equal(first, again) {
		t.Error("policies that did not change are compiled again")
	}
	if c.One(policy("a", "1", 1)) != first[0] {
		t.Error("one policy is not that of the list")
	}
	changed := c.All(list(policy("a", "1", 2), policy("b", "2", 1)))
	if changed[0] == first[0] || changed[0].Generation() != 2 || changed[1] != first[1] {
		t.Errorf("after a change of the first: %v, before %v", changed, first)
	}
	if again := c.All(list(policy("a", "3", 2), policy("b", "2", 1))); again[0] == changed[0] {
		t.Error("a policy that was made again is taken for the earlier one")
	}
	c.All(nil)
	if again := c.One(policy("b", "2", 1)); again == first[1] {
		t.Error("a policy that is gone is remembered")
	}
}
