// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// healthy is a node that has passed every state.
func healthy(name string) *stack.Node {
	n := &stack.Node{
		Name: name, BootID: "boot-1", KernelVersion: "6.1.0-1", OSImage: "Debian GNU/Linux 12 (bookworm)", Architecture: "amd64",
		Plugins: []stack.Pod{{UID: "pod-1", Name: "fettle-kubeletplugin-x", Ready: true}}, Delivered: stack.Host(),
		Accelerator: &v1alpha1.AcceleratorNodeStatus{
			PluginVersion: "v1", Facts: &v1alpha1.NodeFacts{BootID: "boot-1", PluginPod: "pod-1"},
			Summary: &v1alpha1.NodeSummary{Drivers: "nvidia 580.95.5"},
			Pools:   []v1alpha1.PoolStatus{{Name: name + "/gpu", Kind: "gpu", Devices: 8}, {Name: name + "/fpga", Kind: "fpga"}},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue},
				{Type: v1alpha1.ConditionPublished, Status: metav1.ConditionTrue, Message: "the API server holds what discovery found"},
				{Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionTrue, Message: "nothing is known against any device"},
			},
		},
	}
	verified(n, gpus, true, time.Now())
	return n
}

func problems(n *stack.Node, withoutDriver int32, found ...v1alpha1.NodeProblem) {
	n.Accelerator.SetProblems(found)
	n.Accelerator.Facts.WithoutDriver = withoutDriver
}

func set(n *stack.Node, kind string, value metav1.ConditionStatus, message string) {
	for i := range n.Accelerator.Conditions {
		if c := &n.Accelerator.Conditions[i]; c.Type == kind {
			c.Status, c.Message = value, message
			return
		}
	}
	n.Accelerator.Conditions = append(n.Accelerator.Conditions, metav1.Condition{Type: kind, Status: value, Message: message})
}

var missing = v1alpha1.NodeProblem{ //nolint:gochecknoglobals // a constant that Go cannot express as such
	Subject: "0000:17:00.0", Reason: "DriverNotLoaded", Message: "no kernel driver holds the GPU: load nvidia",
}

// verdicts are the reasons of all states, "+" before one that was passed and "-" before one that was failed.
func verdicts(n *stack.Node) string {
	o := stack.Judge(n)
	var out []string
	for i, v := range o.Verdicts {
		if v1alpha1.StackStates()[i] == v1alpha1.StateClaimChecked {
			continue // TestClaimChecked
		}
		out = append(out, map[stack.Status]string{stack.Passed: "+", stack.Failed: "-", stack.Unknown: "?"}[v.Status]+v.Reason)
	}
	if o.Empty {
		out = append(out, "empty")
	}
	return strings.Join(out, " ")
}

// TestStates: what each observation makes of the states Facts, Driver, DriverChecked, Published and Monitored.
func TestStates(t *testing.T) {
	const all, stale = "+Passed +Passed +Passed +Passed +Passed", " +Passed ?NotCurrent ?NotCurrent ?NotCurrent"
	for _, tc := range []struct {
		name   string
		change func(*stack.Node)
		want   string
	}{
		{"a node in order", func(*stack.Node) {}, all},
		{"no report", func(n *stack.Node) { n.Accelerator = nil }, "?NoPlugin" + stale},
		{"a plugin of an older release", func(n *stack.Node) { n.Accelerator.Facts = nil }, "?NotReported" + stale},
		{"the node started again", func(n *stack.Node) { n.BootID = "boot-2" }, "?OtherBoot" + stale},
		{"kubelet has not reported the boot", func(n *stack.Node) { n.BootID = "" }, "?OtherBoot" + stale},
		{"the plugin's pod is gone", func(n *stack.Node) { n.Plugins = nil }, "?NoPlugin" + stale},
		{"another pod of the plugin", func(n *stack.Node) { n.Plugins[0].UID = "pod-2" }, "?PluginReplaced" + stale},
		{"the plugin's pod is not ready", func(n *stack.Node) { n.Plugins[0].Ready = false }, "?PluginNotReady" + stale},
		{"an older pod beside that which reported", func(n *stack.Node) {
			n.Plugins = append([]stack.Pod{{UID: "pod-0", Name: "old"}}, n.Plugins...)
		}, all},
		{"the plugin runs outside a pod", func(n *stack.Node) { n.Accelerator.Facts.PluginPod, n.Plugins = "", nil }, all},
		{"the engine waits", func(n *stack.Node) { n.Delivered = stack.Verdict{Reason: "Loading"} }, "+Passed ?Loading +Passed +Passed +Passed"},
		{"the engine failed", func(n *stack.Node) {
			n.Delivered = stack.Verdict{Status: stack.Failed, Reason: "NoImage"}
		}, "+Passed -NoImage +Passed +Passed +Passed"},
		{"no driver on any device", func(n *stack.Node) {
			problems(n, 1, missing)
			n.Accelerator.Pools[0].Devices = 0
		}, "+Passed +Passed -DriverNotLoaded -DriverNotLoaded +Passed"},
		{"no driver on one device", func(n *stack.Node) { problems(n, 1, missing) }, "+Passed +Passed -DriverNotLoaded +Passed +Passed"},
		{"a driver's problem that is not listed", func(n *stack.Node) {
			problems(n, 1, v1alpha1.NodeProblem{Subject: "a", Reason: "Invalid"})
		}, "+Passed +Passed -DriverMissing +Passed +Passed"},
		{"set aside for virtual machines", func(n *stack.Node) {
			problems(n, 0, v1alpha1.NodeProblem{Subject: "a", Reason: "BoundToVFIO"})
		}, all},
		{"the plugin is not registered", func(n *stack.Node) {
			set(n, v1alpha1.ConditionReady, metav1.ConditionFalse, "kubelet has not registered the plugin yet")
		}, "+Passed +Passed +Passed ?NotServing +Passed"},
		{"slices are being written", func(n *stack.Node) {
			set(n, v1alpha1.ConditionPublished, metav1.ConditionFalse, "not yet")
		}, "+Passed +Passed +Passed ?NotPublished +Passed"},
		{"retired", func(n *stack.Node) {
			set(n, v1alpha1.ConditionRetired, metav1.ConditionFalse, "waits")
		}, "+Passed +Passed +Passed -Retired +Passed"},
		{"a driver is being changed, and is not there", func(n *stack.Node) {
			set(n, v1alpha1.ConditionQuiesced, metav1.ConditionTrue, "nothing uses it")
			problems(n, 1, missing)
			n.Accelerator.Pools[0].Devices = 0
		}, "+Passed +Passed ?DriverQuiesced ?DriverQuiesced +Passed"},
		{"all devices are withheld", func(n *stack.Node) {
			n.Accelerator.Pools[0].Devices, n.Accelerator.Pools[0].Withheld = 0, 8
		}, "+Passed +Passed +Passed ?Withheld +Passed"},
		{"no device", func(n *stack.Node) { n.Accelerator.Pools[0].Devices = 0 }, "+Passed +Passed +Passed -NothingPublished +Passed empty"},
		{"a device is not healthy", func(n *stack.Node) {
			set(n, v1alpha1.ConditionHealthy, metav1.ConditionFalse, "not healthy: gpu-0")
		}, all},
		{"a source of health is silent", func(n *stack.Node) {
			set(n, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, "nothing is known")
		}, "+Passed +Passed +Passed +Passed -HealthUnknown"},
		{"health is not reported", func(n *stack.Node) {
			n.Accelerator.Conditions = n.Accelerator.Conditions[:2]
		}, "+Passed +Passed +Passed +Passed ?HealthNotReported"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := healthy("a")
			tc.change(n)
			if got := verdicts(n); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			for i, v := range stack.Judge(n).Verdicts {
				if v.Reason == "" || v.Message == "" && tc.name != "the engine waits" && tc.name != "the engine failed" {
					t.Errorf("state %d has reason %q and message %q", i, v.Reason, v.Message)
				}
			}
		})
	}
}

// TestEmptyBeforeReport: a node of which nothing is known yet is not taken for one without devices, or its failure would count nowhere.
func TestEmptyBeforeReport(t *testing.T) {
	n := healthy("a")
	n.Accelerator.Pools[0].Devices = 0
	for name, change := range map[string]func(){
		"another boot": func() { n.BootID = "boot-2" }, "no report": func() { n.Accelerator = nil },
	} {
		if change(); stack.Judge(n).Empty {
			t.Errorf("%s: the node is empty", name)
		}
	}
}

// TestWaits: a failed state comes before an earlier one that is not known, since only of it is it known that something has to be done.
func TestWaits(t *testing.T) {
	n := healthy("a")
	n.Delivered = stack.Verdict{Reason: "Loading", Message: "wait"}
	problems(n, 3, missing)
	o := stack.Judge(n)
	got, waits := o.Waits()
	want := v1alpha1.WaitingStackNode{
		Node: "a", State: v1alpha1.StateDriverChecked, Failed: true, Reason: "DriverNotLoaded",
		Message: "0000:17:00.0: no kernel driver holds the GPU: load nvidia; 2 more problems with drivers",
	}
	if diff := cmp.Diff(want, got); diff != "" || !waits {
		t.Errorf("waits %t (-want +got):\n%s", waits, diff)
	}
	problems(n, 0)
	o = stack.Judge(n)
	if got, _ := o.Waits(); got.State != v1alpha1.StateDriver || got.Failed || got.Reason != "Loading" {
		t.Errorf("got %+v", got)
	}
	o = stack.Judge(healthy("a"))
	if got, waits := o.Waits(); waits {
		t.Errorf("a node in order waits: %+v", got)
	}
}

// TestStatesAndRules: each state of the API has a verdict, and the status of a stack has room for all.
func TestStatesAndRules(t *testing.T) {
	if got, want := len(stack.Judge(healthy("a")).Verdicts), len(v1alpha1.StackStates()); got != want || want > 32 {
		t.Errorf("%d verdicts for %d states", got, want)
	}
}

// TestProblems keeps what verdicts are made of.
func TestProblems(t *testing.T) {
	other := v1alpha1.NodeProblem{Subject: "a", Reason: "BoundToVFIO"}
	for name, tc := range map[string]struct{ all, want []v1alpha1.NodeProblem }{
		"none":          {},
		"others":        {[]v1alpha1.NodeProblem{other, other}, []v1alpha1.NodeProblem{other}},
		"a driver's":    {[]v1alpha1.NodeProblem{missing, other, missing}, []v1alpha1.NodeProblem{missing}},
		"later":         {[]v1alpha1.NodeProblem{other, other, missing}, []v1alpha1.NodeProblem{other, missing}},
		"kept as it is": {[]v1alpha1.NodeProblem{other, missing}, []v1alpha1.NodeProblem{other, missing}},
	} {
		if diff := cmp.Diff(tc.want, stack.Problems(tc.all)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func named(count int) (out []stack.Candidate) {
	for i := range count {
		out = append(out, stack.Candidate{Name: fmt.Sprintf("n%d", i), Reported: true})
	}
	return out
}
