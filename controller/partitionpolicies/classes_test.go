// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"strings"
	"testing"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/status"
)

// TestRecordClasses is what the status says of a policy's PriorityClass.
func TestRecordClasses(t *testing.T) {
	class := func(value int32, owner string) []schedulingv1.PriorityClass {
		c := schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Value: value}
		if owner != "" {
			c.OwnerReferences = []metav1.OwnerReference{{UID: "uid-" + "p", Controller: ptr.To(owner == "p")}}
		}
		return []schedulingv1.PriorityClass{c}
	}
	fault := field.ErrorList{field.Required(field.NewPath("spec"), "x")}
	for name, test := range map[string]struct {
		there  []schedulingv1.PriorityClass
		faults field.ErrorList
		off    bool
		want   string
	}{
		"there":            {class(5, "p"), nil, false, "True ClassesMade"},
		"another value":    {class(4, "p"), nil, false, "False Waiting"},
		"not there":        {nil, nil, false, "False Waiting"},
		"somebody else's":  {class(5, ""), nil, false, "False ClassTaken"},
		"another policy's": {class(5, "q"), nil, false, "False ClassTaken"},
		"not valid":        {nil, fault, false, "False NotValid"},
		"switched off":     {nil, nil, true, "False SwitchedOff"},
	} {
		p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p", Generation: generation}}
		p.Spec.Nodes = &v1alpha1.NodePartition{PriorityClasses: []v1alpha1.NodePriorityClass{{Name: "gpu", Value: 5}}}
		recordClasses(p, test.faults, test.there, !test.off, time.Now())
		c := status.Condition(p.Status.Conditions, v1alpha1.ConditionPriorityClasses)
		named := strings.Contains(c.Message, "gpu") || c.Reason != ReasonWaiting && c.Reason != ReasonClassTaken
		if got := string(c.Status) + " " + c.Reason; got != test.want || !named {
			t.Errorf("%s: %+v, want %s", name, c, test.want)
		}
		p.Spec.Nodes.PriorityClasses = nil
		if recordClasses(p, nil, nil, true, time.Now()); len(p.Status.Conditions) != 0 {
			t.Errorf("%s, without classes: %v", name, p.Status.Conditions)
		}
	}
}
