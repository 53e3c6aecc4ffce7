// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// maxNamed is how many nodes the condition Tainted names, and how many DaemonSets and Modules the condition Repelling.
const maxNamed = 8

// recordTaints writes to the status which nodes have the policy's taints.
func recordTaints(
	p *v1alpha1.PartitionPolicy, faults field.ErrorList, standings []nodepolicy.Standing, tainting bool, now time.Time,
) {
	p.Status.TaintedNodes = 0
	if p.Spec.Nodes == nil || len(p.Spec.Nodes.Taints) == 0 {
		meta.RemoveStatusCondition(&p.Status.Conditions, v1alpha1.ConditionTainted)
		return
	}
	var names []string
	for _, s := range standings {
		if s.Tainted() {
			names = append(names, s.Node)
		}
	}
	p.Status.TaintedNodes = number(int64(len(names)))
	c := metav1.Condition{Type: v1alpha1.ConditionTainted, Status: metav1.ConditionFalse}
	taken := slices.IndexFunc(standings, func(s nodepolicy.Standing) bool { return s.Taken != nil })
	missing := slices.IndexFunc(standings, func(s nodepolicy.Standing) bool { return s.Missing != nil })
	switch {
	case !tainting:
		c.Reason, c.Message = ReasonSwitchedOff, "no node is tainted: the chart's value partitions.nodes is false"
	case len(faults) > 0:
		c.Reason, c.Message = ReasonNotValid, "no node is tainted until the policy is corrected: the condition Valid says what is wrong"
	case len(standings) == 0:
		c.Status, c.Reason = metav1.ConditionUnknown, ReasonNoNodes
		c.Message = "spec.nodeSelector selects no node on which Fettle's plugin found a GPU or FPGA"
	case taken >= 0:
		s := standings[taken]
		c.Reason = ReasonTaintTaken
		c.Message = fmt.Sprintf("node %s has the taint %s:%s with the value %q, of another policy or of somebody else, and not with %q: "+
			"use another key, or take that taint off", s.Node, s.Taken.Key, s.Taken.Effect, s.Value, s.Taken.Value)
	case missing >= 0:
		s := standings[missing]
		c.Reason = ReasonWaiting
		c.Message = fmt.Sprintf("node %s does not have the taint %s yet: look at the log of Fettle's controller if this lasts", s.Node, s.Missing)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonTainted
		c.Message = fmt.Sprintf("%s with all taints: %s", counted(int64(len(names)), "node"), firstOf(names))
	}
	set(p, now, c)
}
