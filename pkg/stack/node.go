// SPDX-License-Identifier: Apache-2.0

// Package stack says how far a node of an AcceleratorStack is: from its hardware to claims that work. Each state is a function of values
// that were observed, so that the same observations give the same answer after a restart of the controller, and on the command line.
//
// What is not observed is not known. Every observation belongs to one boot of the node and one pod of the plugin, and counts for no other.
// A state looks at its own evidence and not at the states before it: one that was passed stays passed while an earlier one is in doubt.
package stack

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/discover"
)

// Node is what was observed of a node.
type Node struct {
	Name   string
	Labels map[string]string
	// BootID, KernelVersion, OSImage and Architecture are the Node's own, of its status.nodeInfo.
	BootID, KernelVersion, OSImage, Architecture string
	// Accelerator is what the plugin reports. Nil: there is no report.
	Accelerator *v1alpha1.AcceleratorNodeStatus
	// Annotations are the AcceleratorNode's, which say that its driver is being changed.
	Annotations map[string]string
	// Plugins are the plugin's pods on the node. While a new version replaces an old one there are two.
	Plugins []Pod
	// Placed says that a DaemonSet is to bring it its driver: the pod may be away for a moment.
	Placed bool
	// Before is a driver that another stack or another engine has brought, and that is still there. Empty: there is none.
	Before string
	// Delivered is what the engine knows of the node's driver.
	Delivered Verdict
	// Checks are what is known of the checks of its claims. Results are in the report.
	Checks Checks
	// Extras are what is known of the stack's extra states, in their order.
	Extras []Extra
}

// Pod is a pod as far as states look at it.
type Pod struct {
	UID, Name string
	Ready     bool
}

// Verdict says whether a state was passed.
type Verdict struct {
	// Status is Unknown until there is an observation of this boot.
	Status Status
	// Reason is why, in CamelCase. Message says what was expected and what to do next.
	Reason, Message string
}

// Status is whether a state was passed. The zero value is Unknown.
type Status int

// The statuses.
const (
	Unknown Status = iota
	Passed
	Failed
)

func passed(message string, args ...any) Verdict {
	return Verdict{Status: Passed, Reason: ReasonPassed, Message: fmt.Sprintf(message, args...)}
}

func failed(reason, message string, args ...any) Verdict {
	return Verdict{Status: Failed, Reason: reason, Message: fmt.Sprintf(message, args...)}
}

func unknown(reason, message string, args ...any) Verdict {
	return Verdict{Reason: reason, Message: fmt.Sprintf(message, args...)}
}

// The reasons of verdicts. They are stable. DriverChecked and Published have the reason of the first problem that the node reports, too.
const (
	// ReasonPassed: the state was passed.
	ReasonPassed = "Passed"
	// ReasonNoPlugin: no plugin reports the node.
	ReasonNoPlugin = "NoPlugin"
	// ReasonNotReported: the plugin has not reported since the node started, or is of a release that does not report what is needed.
	ReasonNotReported = "NotReported"
	// ReasonOtherBoot: the report is from before the node's last start.
	ReasonOtherBoot = "OtherBoot"
	// ReasonPluginReplaced: the report is by a pod of the plugin that is gone.
	ReasonPluginReplaced = "PluginReplaced"
	// ReasonPluginNotReady: the pod that reported is not ready.
	ReasonPluginNotReady = "PluginNotReady"
	// ReasonNotCurrent: the state Facts says why what the plugin reports is not known to hold.
	ReasonNotCurrent = "NotCurrent"
	// ReasonDriverMissing: a device has no working driver, and the report does not list which.
	ReasonDriverMissing = "DriverMissing"
	// ReasonNotServing: the plugin cannot serve claims.
	ReasonNotServing = "NotServing"
	// ReasonNotPublished: the API server does not have the node's devices yet.
	ReasonNotPublished = "NotPublished"
	// ReasonRetired: the node was asked to give up its devices.
	ReasonRetired = "Retired"
	// ReasonQuiesced: the plugin lets go of devices while their driver is changed.
	ReasonQuiesced = "DriverQuiesced"
	// ReasonWithheld: every device is withheld for now.
	ReasonWithheld = "Withheld"
	// ReasonNothingPublished: none of the node's devices is published.
	ReasonNothingPublished = "NothingPublished"
	// ReasonHealthUnknown: a source of health is silent.
	ReasonHealthUnknown = "HealthUnknown"
	// ReasonHealthNotReported: the plugin does not report the devices' health.
	ReasonHealthNotReported = "HealthNotReported"
)

// rule is a state and how it is judged.
type rule struct {
	state v1alpha1.StackState
	judge func(*Node) Verdict
	// beforeChecks says that no claim is checked before the state is passed.
	beforeChecks bool
}

// rules are Fettle's states in their order.
func rules() []rule {
	return []rule{
		{v1alpha1.StateFacts, facts, true},
		{v1alpha1.StateDriver, func(n *Node) Verdict { return n.Delivered }, true},
		{v1alpha1.StateDriverChecked, driverChecked, true},
		{v1alpha1.StatePublished, published, true},
		{v1alpha1.StateClaimChecked, claimChecked, false},
		{v1alpha1.StateMonitored, monitored, false},
	}
}

// Outcome is how far a node is.
type Outcome struct {
	Node string
	// States are the states in their order, those of an administrator's own included. Verdicts are theirs.
	States   []v1alpha1.StackState
	Verdicts []Verdict
	// Empty says that a current report has neither a device nor a problem: the node is none for a stack.
	Empty bool
	// CheckDue is when the check of a claim that passed longest ago is to be repeated. Zero: none has passed, or none is run.
	CheckDue time.Time
	// UpgradeRuns says that the node's driver is being changed.
	UpgradeRuns bool
}

// Judge says how far a node is.
func Judge(n *Node) Outcome {
	out := Outcome{Node: n.Name, Empty: isEmpty(n), CheckDue: checkDue(n)}
	for _, r := range n.rules() {
		out.States, out.Verdicts = append(out.States, r.state), append(out.Verdicts, r.judge(n))
	}
	return out
}

// Waits returns the first state that the node has failed, or else the first that is not known; false: the node has passed all.
func (o *Outcome) Waits() (v1alpha1.WaitingStackNode, bool) {
	at := slices.IndexFunc(o.Verdicts, func(v Verdict) bool { return v.Status == Failed })
	if at < 0 {
		at = slices.IndexFunc(o.Verdicts, func(v Verdict) bool { return v.Status == Unknown })
	}
	if at < 0 {
		return v1alpha1.WaitingStackNode{}, false
	}
	v := o.Verdicts[at]
	return v1alpha1.WaitingStackNode{
		Node: o.Node, State: o.States[at], Failed: v.Status == Failed, Reason: v.Reason, Message: v.Message,
	}, true
}

// current says whether the report is of this boot and by a pod of the plugin that runs.
func current(n *Node) bool { return facts(n).Status == Passed }

func facts(n *Node) Verdict {
	switch {
	case n.Accelerator == nil:
		return unknown(ReasonNoPlugin, "no plugin reports this node: look whether the DaemonSet fettle-kubeletplugin has a pod there")
	case n.Accelerator.Facts == nil:
		return unknown(ReasonNotReported, "the node's plugin, version %q, does not report its boot yet: look at its pod",
			n.Accelerator.PluginVersion)
	case n.BootID == "" || n.Accelerator.Facts.BootID != n.BootID:
		return unknown(ReasonOtherBoot, "the plugin has not reported since the node started: look at the plugin's pod there")
	case n.Accelerator.Facts.PluginPod == "": // outside a pod, as a developer runs it
		return passed("the plugin reports, outside a pod")
	}
	at := slices.IndexFunc(n.Plugins, func(p Pod) bool { return p.UID == n.Accelerator.Facts.PluginPod })
	switch {
	case at < 0 && len(n.Plugins) == 0:
		return unknown(ReasonNoPlugin, "the plugin's pod is gone: look at the DaemonSet fettle-kubeletplugin")
	case at < 0:
		return unknown(ReasonPluginReplaced, "pod %s of the plugin has not reported yet", n.Plugins[0].Name)
	case !n.Plugins[at].Ready:
		return unknown(ReasonPluginNotReady, "pod %s of the plugin is not ready: look at its log", n.Plugins[at].Name)
	}
	return passed("the plugin's pod %s reports, kernel %s", n.Plugins[at].Name, n.KernelVersion)
}

func notCurrent() Verdict {
	return unknown(ReasonNotCurrent, "the plugin's report is not known to hold: the state Facts says why")
}

// driverChecked is what the plugin finds, whatever the engine says.
func driverChecked(n *Node) Verdict {
	if !current(n) {
		return notCurrent()
	}
	a := n.Accelerator
	if quiesced(a) {
		return beingChanged(n)
	}
	if count := a.Facts.WithoutDriver; count > 0 {
		if at := slices.IndexFunc(a.Problems, ofDriver); at >= 0 {
			p := a.Problems[at]
			return failed(p.Reason, "%s: %s%s", p.Subject, p.Message, others(int(count)-1))
		}
		return failed(ReasonDriverMissing, "%d problems with drivers: see status.problems of the AcceleratorNode", count)
	}
	if a.Summary == nil || a.Summary.Drivers == "" {
		return passed("every device has a driver")
	}
	return passed("drivers %s", a.Summary.Drivers)
}

// quiesced says that a driver is about to be changed. What is found meanwhile is neither a failure nor a success.
func quiesced(a *v1alpha1.AcceleratorNodeStatus) bool {
	return meta.FindStatusCondition(a.Conditions, v1alpha1.ConditionQuiesced) != nil
}

func beingChanged(n *Node) Verdict {
	return unknown(ReasonQuiesced, "a driver of the node is being changed: kubectl annotate acceleratornode %s %s- ends that",
		n.Name, v1alpha1.QuiesceAnnotation)
}

func ofDriver(p v1alpha1.NodeProblem) bool { return discover.OfDriver(p.Reason) }

// Problems returns those of a node's problems that states look at: the first, and the first that is about a driver.
func Problems(problems []v1alpha1.NodeProblem) []v1alpha1.NodeProblem {
	if len(problems) == 0 {
		return nil
	}
	if at := slices.IndexFunc(problems, ofDriver); at > 0 {
		return []v1alpha1.NodeProblem{problems[0], problems[at]}
	}
	return problems[:1]
}

// Host is what the engine Host knows: nothing. The operating system brings the driver, and the state DriverChecked finds it.
func Host() Verdict { return passed("the node's operating system brings the driver") }

func others(count int) string {
	if count <= 0 {
		return ""
	}
	return fmt.Sprintf("; %d more problems with drivers", count)
}

func published(n *Node) Verdict {
	if !current(n) {
		return notCurrent()
	}
	a := n.Accelerator
	serving, held := condition(a, v1alpha1.ConditionReady), condition(a, v1alpha1.ConditionPublished)
	devices, withheld := devicesOf(a)
	switch {
	case meta.FindStatusCondition(a.Conditions, v1alpha1.ConditionRetired) != nil:
		return failed(ReasonRetired, "the node was asked to give up its devices: kubectl annotate acceleratornode %s %s- takes that back",
			n.Name, v1alpha1.RetireAnnotation)
	case quiesced(a):
		return beingChanged(n)
	case serving.Status != metav1.ConditionTrue:
		return unknown(ReasonNotServing, "the plugin cannot serve claims: %s", serving.Message)
	case held.Status != metav1.ConditionTrue:
		return unknown(ReasonNotPublished, "%s", held.Message)
	case devices > 0:
		return passed("%d devices are published", devices)
	case withheld > 0:
		return unknown(ReasonWithheld, "all %d devices are withheld for now, as while they are divided or emptied", withheld)
	case len(a.Problems) > 0:
		p := a.Problems[0]
		return failed(p.Reason, "no device is published: %s: %s", p.Subject, p.Message)
	}
	return failed(ReasonNothingPublished, "no device is published: see the log of the node's plugin")
}

// monitored asks whether health is watched, not whether it is good: what is unhealthy has its own condition, taints and metrics.
func monitored(n *Node) Verdict {
	if !current(n) {
		return notCurrent()
	}
	health := condition(n.Accelerator, v1alpha1.ConditionHealthy)
	switch health.Status {
	case metav1.ConditionTrue, metav1.ConditionFalse:
		return passed("health is watched: %s", health.Message)
	case metav1.ConditionUnknown:
		return failed(ReasonHealthUnknown, "%s: see status.problems of the AcceleratorNode", health.Message)
	}
	return unknown(ReasonHealthNotReported, "the plugin does not report the devices' health yet")
}

// isEmpty says that a current report shows no device and nothing that could become one.
func isEmpty(n *Node) bool {
	if !current(n) || n.Accelerator.ProblemCount > 0 || quiesced(n.Accelerator) {
		return false
	}
	devices, withheld := devicesOf(n.Accelerator)
	return devices == 0 && withheld == 0
}

func devicesOf(a *v1alpha1.AcceleratorNodeStatus) (devices, withheld int64) {
	for i := range a.Pools {
		devices += int64(a.Pools[i].Devices)
		withheld += int64(a.Pools[i].Withheld)
	}
	return devices, withheld
}

func condition(a *v1alpha1.AcceleratorNodeStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(a.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}
