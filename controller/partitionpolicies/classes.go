// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"fmt"
	"slices"
	"strings"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// recordClasses writes to the status whether the policy's PriorityClasses are there.
func recordClasses(
	p *v1alpha1.PartitionPolicy, faults field.ErrorList, there []schedulingv1.PriorityClass, switchedOn bool, now time.Time,
) {
	if p.Spec.Nodes == nil || len(p.Spec.Nodes.PriorityClasses) == 0 {
		meta.RemoveStatusCondition(&p.Status.Conditions, v1alpha1.ConditionPriorityClasses)
		return
	}
	c := metav1.Condition{Type: v1alpha1.ConditionPriorityClasses, Status: metav1.ConditionFalse}
	missing, taken := classesOf(p, there)
	switch {
	case !switchedOn:
		c.Reason, c.Message = ReasonSwitchedOff, "no PriorityClass is made: the chart's value partitions.nodes is false"
	case len(faults) > 0:
		c.Reason, c.Message = ReasonNotValid, "no PriorityClass is made until the policy is corrected: the condition Valid says what is wrong"
	case len(taken) > 0:
		c.Reason = ReasonClassTaken
		c.Message = fmt.Sprintf("of another policy, or made by somebody else: %s; use other names, or delete these classes",
			strings.Join(taken, ", "))
	case len(missing) > 0:
		c.Reason = ReasonWaiting
		c.Message = fmt.Sprintf("not made yet: %s; look at the log of Fettle's controller if this lasts", strings.Join(missing, ", "))
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonClassesMade, "all PriorityClasses are there with their values"
	}
	set(p, now, c)
}

// classesOf returns the names of the policy's PriorityClasses that are not there with their values, and of those that are not its own.
func classesOf(p *v1alpha1.PartitionPolicy, there []schedulingv1.PriorityClass) (missing, taken []string) {
	for _, want := range p.Spec.Nodes.PriorityClasses {
		at := slices.IndexFunc(there, func(c schedulingv1.PriorityClass) bool { return c.Name == want.Name })
		switch {
		case at >= 0 && !metav1.IsControlledBy(&there[at], p):
			taken = append(taken, want.Name)
		case at < 0 || there[at].Value != want.Value:
			missing = append(missing, want.Name)
		}
	}
	return missing, taken
}
