// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
)

// The reasons of the conditions. They are stable. Applied has the reason of the first node, too, if that is one.
const (
	// ReasonValid: the policy can be used.
	ReasonValid = "Valid"
	// ReasonInvalid: a field is wrong, CEL does not compile, or a file of mig-parted cannot be read.
	ReasonInvalid = "Invalid"
	// ReasonNotValid: a policy that is not valid changes nothing.
	ReasonNotValid = "NotValid"
	// ReasonNoNodes: the policy selects no node on which Fettle's plugin runs.
	ReasonNoNodes = "NoNodes"
	// ReasonNotSeen: nodes did not act on this generation of the policy yet.
	ReasonNotSeen = "NotSeen"
	// ReasonNoDevices: the policy holds for no device.
	ReasonNoDevices = "NoDevices"
	// ReasonApplied: all devices are as the policy wants them.
	ReasonApplied = "Applied"
	// ReasonOverruled: another policy holds for devices that this one selects.
	ReasonOverruled = "Overruled"
	// ReasonNotOverruled: no other policy does.
	ReasonNotOverruled = "NotOverruled"
	// ReasonTainted: all nodes that the policy selects and that have devices have its taints.
	ReasonTainted = "Tainted"
	// ReasonNoExecuteNotAllowed: a taint of the policy has the effect NoExecute, and the chart does not list its key.
	ReasonNoExecuteNotAllowed = "NoExecuteNotAllowed"
	// ReasonTaintForeign: a node has a taint of the policy from somebody else, so that pods with devices do not tolerate it.
	ReasonTaintForeign = "TaintForeign"
	// ReasonTaintTaken: a node has a taint with the same key and effect and another value, of another policy or of somebody else.
	ReasonTaintTaken = "TaintTaken"
	// ReasonNoneRepelled: the policy's taints keep no DaemonSet and no Module of KMM away.
	ReasonNoneRepelled = "NoneRepelled"
	// ReasonDaemonSetsRepelled: they keep DaemonSets away.
	ReasonDaemonSetsRepelled = "DaemonSetsRepelled"
	// ReasonModulesRepelled: they have KMM unload drivers, whether DaemonSets are kept away, too, or not.
	ReasonModulesRepelled = "ModulesRepelled"
	// ReasonNotRead: DaemonSets and Modules could not be read.
	ReasonNotRead = "NotRead"
	// ReasonClassesMade: the policy's PriorityClasses are there.
	ReasonClassesMade = "ClassesMade"
	// ReasonClassTaken: somebody else, or another policy, has a PriorityClass with the same name.
	ReasonClassTaken = "ClassTaken"
	// ReasonReclaims: pods of some namespace may have others evicted.
	ReasonReclaims = "Reclaims"
	// ReasonNoReclaimNamespaces: no class names a namespace whose pods may have others evicted, so no pod is.
	ReasonNoReclaimNamespaces = "NoReclaimNamespaces"
	// ReasonSwitchedOff: the administrator has no nodes tainted and no PriorityClasses made.
	ReasonSwitchedOff = "SwitchedOff"
	// ReasonWaiting: a node does not have its taints yet. It also stands for the reason of a node that gives none.
	ReasonWaiting = "Waiting"
)

// maxWinners is how many policies the condition Overruled names.
const maxWinners = 8

// record writes to the status what is wrong with the policy and what nodes report of it.
func record(p *v1alpha1.PartitionPolicy, faults field.ErrorList, reports []report, now time.Time) {
	s := &p.Status
	s.ObservedGeneration = p.Generation
	t := count(reports, p.Generation)
	s.Nodes, s.Devices = number(t.nodes), number(t.devices)
	s.SetWaiting(t.waiting)
	conditions := []metav1.Condition{valid(faults)}
	if p.Spec.DividesDevices() || p.Spec.Nodes == nil {
		conditions = append(conditions, applied(faults, &t), overruled(&t))
	} else {
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionApplied)
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionOverruled)
	}
	set(p, now, conditions...)
}

// set writes conditions of the policy's present generation.
func set(p *v1alpha1.PartitionPolicy, now time.Time, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.ObservedGeneration, c.LastTransitionTime = p.Generation, metav1.NewTime(now)
		c.Message = message.Clip(c.Message, message.ReadableCondition)
		meta.SetStatusCondition(&p.Status.Conditions, c)
	}
}

// totals are what nodes report together. Nodes may report any number, so that sums are wider than what is reported.
type totals struct {
	// selected is how many nodes there are, nodes how many of them have a device that the policy holds for.
	selected, nodes, devices int64
	waiting                  []v1alpha1.WaitingNode
	// unseen is how many nodes wait because they did not see the policy.
	unseen int
	// overruled is how many devices others hold for, and by the names of these, sorted.
	overruled int64
	by        []string
	// remark is the first node's that reports something although nothing waits there.
	remark string
}

func count(reports []report, generation int64) totals {
	t := totals{selected: int64(len(reports))}
	for i := range reports {
		r := &reports[i]
		if r.Devices > 0 {
			t.nodes++
			t.devices += int64(r.Devices)
		}
		if w, waits := r.waiting(generation); waits {
			t.waiting = append(t.waiting, w)
			if w.Reason == ReasonNotSeen {
				t.unseen++
			}
		} else if t.remark == "" && r.Reason != "" {
			t.remark = fmt.Sprintf("; node %s: %s", r.node, explained(r.Reason, r.Message))
		}
		if r.Overruled > 0 {
			t.overruled += int64(r.Overruled)
			t.by = append(t.by, r.By)
		}
	}
	slices.Sort(t.by)
	t.by = slices.DeleteFunc(slices.Compact(t.by), func(name string) bool { return name == "" })
	return t
}

// number is a count as the API has it.
func number(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

func valid(faults field.ErrorList) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue, Reason: ReasonValid, Message: "every field can be used as it is",
	}
	if len(faults) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonInvalid, faults.ToAggregate().Error()
	}
	return c
}

func applied(faults field.ErrorList, t *totals) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionApplied, Status: metav1.ConditionUnknown}
	first := slices.IndexFunc(t.waiting, func(w v1alpha1.WaitingNode) bool { return w.Reason != ReasonNotSeen })
	switch {
	case len(faults) > 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonNotValid
		c.Message = "the policy changes nothing until it is corrected: the condition Valid says what is wrong"
	case t.selected == 0:
		c.Reason, c.Message = ReasonNoNodes, "spec.nodeSelector selects no node on which Fettle's plugin runs"
	case first >= 0:
		w := t.waiting[first]
		c.Status, c.Reason = metav1.ConditionFalse, conditionReason(w.Reason)
		c.Message = fmt.Sprintf("node %s, %s: %s%s", w.Node, counted(int64(w.Devices), "device"), explained(w.Reason, w.Message), t.others())
	case t.unseen > 0:
		c.Reason = ReasonNotSeen
		c.Message = fmt.Sprintf("node %s: %s%s", t.waiting[0].Node, t.waiting[0].Message, t.others())
	case t.devices == 0 && t.overruled > 0:
		c.Reason, c.Message = ReasonNoDevices, "other policies hold for all devices that this one selects: the condition Overruled names them"
	case t.devices == 0:
		c.Reason = ReasonNoDevices
		c.Message = fmt.Sprintf("spec.devices selects no whole GPU of %s%s", counted(t.selected, "node"), t.remark)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonApplied
		c.Message = fmt.Sprintf("%s of %s are as the policy wants them%s", counted(t.devices, "device"), counted(t.nodes, "node"), t.remark)
	}
	return c
}

// others says how many nodes wait beside the one that is named.
func (t *totals) others() string {
	if n := len(t.waiting) - 1; n > 0 {
		return fmt.Sprintf("; %s more wait", counted(int64(n), "node"))
	}
	return ""
}

func overruled(t *totals) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionOverruled, Status: metav1.ConditionFalse, Reason: ReasonNotOverruled,
		Message: "no other policy holds for a device that this one selects",
	}
	if t.overruled == 0 {
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, ReasonOverruled
	c.Message = fmt.Sprintf("of the devices that this policy selects, %d have another policy, with a higher priority or older: %s",
		t.overruled, strings.Join(t.by[:min(len(t.by), maxWinners)], ", "))
	if more := len(t.by) - maxWinners; more > 0 {
		c.Message += fmt.Sprintf(" and %d more", more)
	}
	return c
}

// explained is a reason with its message, if it has one.
func explained(reason, text string) string {
	if text == "" {
		return reason
	}
	return text
}

// counted is "1 node" or "2 nodes".
func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// conditionReason is a node's reason if a condition may have it: the API server refuses the whole status otherwise.
func conditionReason(reason string) string {
	if conditionReasonForm.MatchString(reason) {
		return reason
	}
	return ReasonWaiting
}

//nolint:gochecknoglobals // a constant that Go cannot express as such
var conditionReasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)
