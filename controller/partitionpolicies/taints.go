// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// maxNamed is how many nodes the condition Tainted names, and how many DaemonSets and Modules the condition Repelling.
const maxNamed = 8

// foreignTaint is a taint that a node has from somebody else.
type foreignTaint struct {
	taint v1alpha1.NodeTaint
	node  string
}

// tolerable returns the taints of a policy that pods with devices tolerate, and the foreign ones, which some node has from somebody else.
// Pods that tolerated a foreign taint would run on that node, against its owner's will. For keys in shared the administrator wants that.
func tolerable(
	p *v1alpha1.PartitionPolicy, nodes []corev1.Node, shared []string,
) (tolerated []v1alpha1.NodeTaint, foreign []foreignTaint) {
	for _, t := range p.Spec.Nodes.Taints {
		node := nodepolicy.Foreign(t, nodes)
		if node == "" || slices.Contains(shared, t.Key) {
			tolerated = append(tolerated, t)
		} else {
			foreign = append(foreign, foreignTaint{t, node})
		}
	}
	return tolerated, foreign
}

// recordTaints writes to the status which nodes have the policy's taints. Foreign are the taints that pods do not tolerate for it.
func (j *judge) recordTaints(
	p *v1alpha1.PartitionPolicy, faults field.ErrorList, standings []nodepolicy.Standing, foreign []foreignTaint,
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
	refused := slices.IndexFunc(p.Spec.Nodes.Taints, func(t v1alpha1.NodeTaint) bool { return !j.noExecute.Allow(t) })
	switch {
	case !j.tainting:
		c.Reason, c.Message = ReasonSwitchedOff, "no node is tainted: the chart's value partitions.nodes is false"
	case len(faults) > 0:
		c.Reason, c.Message = ReasonNotValid, "no node is tainted until the policy is corrected: the condition Valid says what is wrong"
	case refused >= 0:
		c.Reason = ReasonNoExecuteNotAllowed
		c.Message = fmt.Sprintf("spec.nodes.taints[%d]: the controller puts the taint %s on no node, since NoExecute ends pods: list the key in "+
			"the chart's partitions.noExecuteTaintKeys, or use NoSchedule; nodes that have the taint keep it until the policy changes",
			refused, p.Spec.Nodes.Taints[refused])
	case len(foreign) > 0:
		f := foreign[0]
		c.Reason = ReasonTaintForeign
		c.Message = fmt.Sprintf("pods with devices do not tolerate the taint %s, since node %s has it from somebody else: use another key or "+
			"value, take it off there, or list its key in the chart's partitions.sharedTaintKeys", f.taint, f.node)
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
		c.Message = fmt.Sprintf("%s with all taints: %s", counted(int64(len(names)), "node"), firstOf(names, len(names)))
	}
	set(p, j.Clock.Now(), c)
}
