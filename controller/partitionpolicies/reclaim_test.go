// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/status"
)

// TestRecordReclaim: a policy that evicts no pod, though it says Evict, says so and what to set.
func TestRecordReclaim(t *testing.T) {
	fault := field.ErrorList{field.Required(field.NewPath("spec"), "x")}
	for name, test := range map[string]struct {
		classes []v1alpha1.NodePriorityClass
		faults  field.ErrorList
		want    string
	}{
		"no class":         {nil, nil, "False NoReclaimNamespaces"},
		"no namespace":     {[]v1alpha1.NodePriorityClass{{Name: "a"}, {Name: "b"}}, nil, "False NoReclaimNamespaces"},
		"one of two":       {[]v1alpha1.NodePriorityClass{{Name: "a"}, {Name: "b", ReclaimNamespaces: []string{"team"}}}, nil, "True Reclaims"},
		"not valid":        {nil, fault, "False NotValid"},
		"every namespace":  {[]v1alpha1.NodePriorityClass{{Name: "b", ReclaimNamespaces: []string{"*"}}}, nil, "True Reclaims"},
		"valid class only": {[]v1alpha1.NodePriorityClass{{Name: "b", ReclaimNamespaces: []string{"team"}}}, fault, "False NotValid"},
	} {
		p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: generation}}
		p.Spec.Nodes = &v1alpha1.NodePartition{Reclaim: v1alpha1.ReclaimEvict, PriorityClasses: test.classes}
		recordReclaim(p, test.faults, time.Now())
		c := status.Condition(p.Status.Conditions, v1alpha1.ConditionReclaiming)
		helps := c.Reason != ReasonNoReclaimNamespaces || strings.Contains(c.Message, "reclaimNamespaces; name there")
		if got := string(c.Status) + " " + c.Reason; got != test.want || !helps {
			t.Errorf("%s: %+v, want %s", name, c, test.want)
		}
		p.Spec.Nodes.Reclaim = v1alpha1.ReclaimNone
		if recordReclaim(p, nil, time.Now()); len(p.Status.Conditions) != 0 {
			t.Errorf("%s, without reclaim: %v", name, p.Status.Conditions)
		}
	}
}
