// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/status"
)

const generation = 3

// machine is a node with labels, and what it reports.
type machine struct {
	name    string
	labels  map[string]string
	reports []v1alpha1.NodePartitionPolicy
	// noPlugin: there is no AcceleratorNode. gone: there is no Node.
	noPlugin, gone bool
}

// reporting is a node in the pool that reports of the policy p.
func reporting(name string, reports ...v1alpha1.NodePartitionPolicy) machine {
	for i := range reports {
		if reports[i].Name == "" {
			reports[i].Name = "p"
		}
		if reports[i].Generation == 0 {
			reports[i].Generation = generation
		}
	}
	return machine{name: name, labels: map[string]string{"pool": "a"}, reports: reports}
}

type says = v1alpha1.NodePartitionPolicy

// TestRecord is what the status says of what nodes report.
func TestRecord(t *testing.T) {
	inPool := &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "a"}}
	fault := field.ErrorList{field.Invalid(field.NewPath("spec", "devices", "deviceSelector", "cel"), "x", "undeclared reference to 'x'")}
	var many []machine
	for i := range 40 {
		many = append(many, reporting(fmt.Sprintf("n%02d", i), says{Devices: 2, Waiting: 1, Reason: "InUse", Message: "a claim holds it"}))
	}
	var others []says
	for i := range v1alpha1.MaxNodePolicies {
		others = append(others, says{Name: fmt.Sprintf("a%02d", i), Devices: 1})
	}
	for _, test := range []struct {
		name     string
		selector *metav1.LabelSelector
		faults   field.ErrorList
		machines []machine
		// counts are nodes, devices and waiting nodes. waiting are the nodes that are listed: "NODE DEVICES REASON".
		counts  [3]int32
		waiting []string
		// conditions are "STATUS REASON"; words are parts of their messages.
		valid, applied, overruled string
		words                     []string
	}{
		{name: "no nodes", applied: "Unknown NoNodes", words: []string{"selects no node on which Fettle's plugin runs"}},
		{
			name: "all applied", machines: []machine{reporting("b", says{Devices: 8}), reporting("a", says{Devices: 1})},
			counts: [3]int32{2, 9}, applied: "True Applied", words: []string{"9 devices of 2 nodes are as the policy wants them"},
		},
		{
			name: "one device", machines: []machine{reporting("a", says{Devices: 1})},
			counts: [3]int32{1, 1}, applied: "True Applied", words: []string{"1 device of 1 node "},
		},
		{
			name: "one waits",
			machines: []machine{
				reporting("b", says{Devices: 8, Waiting: 2, Reason: "InUse", Message: "claim x/y holds gpu-1"}), reporting("a", says{Devices: 8}),
			},
			counts: [3]int32{2, 16, 1}, waiting: []string{"b 2 InUse"}, applied: "False InUse",
			words: []string{"node b, 2 devices: claim x/y holds gpu-1"},
		},
		{
			name: "the first that waits, by name",
			machines: []machine{
				reporting("c", says{Devices: 1, Waiting: 1, Reason: "Third"}), reporting("b", says{Devices: 1, Waiting: 1, Reason: "Second"}),
				reporting("d", says{Devices: 1, Waiting: 1}), reporting("a", says{Devices: 1, Generation: 2}),
			},
			counts: [3]int32{4, 4, 4}, waiting: []string{"a 1 NotSeen", "b 1 Second", "c 1 Third", "d 1 Waiting"},
			applied: "False Second", words: []string{"node b, 1 device: Second; 3 nodes more wait"},
		},
		{
			name: "another generation", machines: []machine{reporting("a", says{Devices: 4, Generation: 2}), reporting("b", says{Devices: 4})},
			counts: [3]int32{2, 8, 1}, waiting: []string{"a 4 NotSeen"}, applied: "Unknown NotSeen",
			words: []string{"node a: the node reports generation 2 of the policy, and not yet generation 3"},
		},
		{
			name: "a node that reports nothing", selector: inPool,
			machines: []machine{
				reporting("a", says{Name: "other", Devices: 4}),
				{name: "elsewhere"},
				{name: "bare", labels: map[string]string{"pool": "a"}, noPlugin: true},
				{name: "past", labels: map[string]string{"pool": "a"}, gone: true},
			},
			counts: [3]int32{0, 0, 1}, waiting: []string{"a 0 NotSeen"}, applied: "Unknown NotSeen",
			words: []string{"node a: the node does not report the policy", "earlier version"},
		},
		{
			name: "a node that reports as many others as it can", machines: []machine{reporting("a", others...)},
			counts: [3]int32{0, 0, 1}, waiting: []string{"a 0 NotSeen"}, applied: "Unknown NotSeen",
			words: []string{"node a: the node reports 32 policies, which is as many as it can"},
		},
		{
			name: "labels are newer than the report", selector: inPool,
			machines: []machine{{name: "a", reports: []says{{Name: "p", Generation: generation, Devices: 1}}}},
			counts:   [3]int32{1, 1}, applied: "True Applied",
		},
		{
			name: "no device", machines: []machine{reporting("a", says{}), reporting("b", says{Reason: "SelectorFailed", Message: "no such key"})},
			applied: "Unknown NoDevices", words: []string{"selects no whole GPU of 2 nodes; node b: no such key"},
		},
		{
			name: "a remark", machines: []machine{reporting("a", says{Devices: 1, Reason: "SelectorFailed"})},
			counts: [3]int32{1, 1}, applied: "True Applied", words: []string{"as the policy wants them; node a: SelectorFailed"},
		},
		{
			name: "all overruled", machines: []machine{reporting("a", says{Overruled: 2, By: "z"}), reporting("b", says{Overruled: 1, By: "y"})},
			applied: "Unknown NoDevices", overruled: "True Overruled",
			words: []string{"other policies hold for all devices", "3 have another policy, with a higher priority or older: y, z"},
		},
		{
			name: "some overruled", machines: []machine{reporting("a", says{Devices: 1, Overruled: 1, By: "z"}, says{Name: "z", Devices: 1})},
			counts: [3]int32{1, 1}, applied: "True Applied", overruled: "True Overruled", words: []string{"1 have another policy"},
		},
		{
			name: "not valid", faults: fault, machines: []machine{reporting("a", says{Devices: 1, Waiting: 1, Reason: "InvalidPolicy"})},
			counts: [3]int32{1, 1, 1}, waiting: []string{"a 1 InvalidPolicy"}, valid: "False Invalid", applied: "False NotValid",
			words: []string{"spec.devices.deviceSelector.cel: Invalid value", "undeclared reference"},
		},
		{
			name: "a selector that is not valid selects nothing", faults: fault, machines: []machine{reporting("a")},
			selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}},
			valid:    "False Invalid", applied: "False NotValid",
		},
		{
			name: "more nodes than are listed", machines: many, counts: [3]int32{40, 80, 40}, applied: "False InUse",
			waiting: waitingLines(many[:v1alpha1.MaxWaitingNodes]), words: []string{"node n00, 1 device: a claim holds it; 39 nodes more wait"},
		},
		{
			name: "what no plugin reports",
			machines: []machine{
				reporting("a", says{Devices: math.MaxInt32, Waiting: math.MaxInt32, Overruled: math.MaxInt32, Reason: "not a reason!"}),
				reporting("b", says{Devices: math.MaxInt32, Overruled: math.MaxInt32, By: strings.Repeat("z", 253)}),
				reporting("c", says{Devices: -5, Waiting: -5, Overruled: -5}),
			},
			counts: [3]int32{2, math.MaxInt32, 1}, waiting: []string{"a 2147483647 not a reason!"}, applied: "False Waiting",
			overruled: "True Overruled",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: generation}}
			p.Spec.NodeSelector = test.selector
			now := time.Unix(1_800_000_000, 0)
			record(p, test.faults, reportsOf(p, accelerators(test.machines), nodes(test.machines)), now)
			s := p.Status
			if got := [3]int32{s.Nodes, s.Devices, s.WaitingNodes}; got != test.counts || s.ObservedGeneration != generation {
				t.Errorf("nodes, devices and waiting nodes are %v, want %v; generation %d", got, test.counts, s.ObservedGeneration)
			}
			var waiting []string
			for _, w := range s.Waiting {
				waiting = append(waiting, fmt.Sprintf("%s %d %s", w.Node, w.Devices, w.Reason))
			}
			if diff := cmp.Diff(test.waiting, waiting); diff != "" {
				t.Errorf("waiting (-want +got):\n%s", diff)
			}
			said := ""
			for _, c := range []struct{ kind, want, else_ string }{
				{v1alpha1.ConditionValid, test.valid, "True Valid"},
				{v1alpha1.ConditionApplied, test.applied, ""},
				{v1alpha1.ConditionOverruled, test.overruled, "False NotOverruled"},
			} {
				if c.want == "" {
					c.want = c.else_
				}
				got := status.Condition(s.Conditions, c.kind)
				if string(got.Status)+" "+got.Reason != c.want || got.ObservedGeneration != generation || got.LastTransitionTime.Unix() != now.Unix() {
					t.Errorf("%s is %+v, want %s", c.kind, got, c.want)
				}
				said += got.Message + "\n"
			}
			for _, word := range test.words {
				if !strings.Contains(said, word) {
					t.Errorf("%q is not in:\n%s", word, said)
				}
			}
			again := p.DeepCopy()
			slices.Reverse(test.machines)
			record(again, test.faults, reportsOf(p, accelerators(test.machines), nodes(test.machines)), now.Add(time.Hour))
			if diff := cmp.Diff(p, again); diff != "" {
				t.Errorf("the same again is another status (-first +second):\n%s", diff)
			}
		})
	}
}

// TestWinners: a message names some policies, and counts the rest.
func TestWinners(t *testing.T) {
	var reports []report
	for i := range 20 {
		name := fmt.Sprintf("w%02d", i%12)
		reports = append(reports, report{node: "n", seen: true, NodePartitionPolicy: says{Name: "p", Overruled: 1, By: name}})
	}
	got := count(reports, generation)
	if c := overruled(&got); !strings.HasSuffix(c.Message, "20 have another policy, with a higher priority or older: "+
		"w00, w01, w02, w03, w04, w05, w06, w07 and 4 more") {
		t.Errorf("it says %q", c.Message)
	}
}

func waitingLines(machines []machine) (out []string) {
	for _, m := range machines {
		out = append(out, m.name+" 1 InUse")
	}
	return out
}

func accelerators(machines []machine) (out []v1alpha1.AcceleratorNode) {
	for _, m := range machines {
		if m.noPlugin {
			continue
		}
		a := v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
		a.Status.PartitionPolicies = m.reports
		out = append(out, a)
	}
	return out
}

func nodes(machines []machine) (out []corev1.Node) {
	for _, m := range machines {
		if !m.gone {
			out = append(out, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, Labels: m.labels}})
		}
	}
	return out
}

// TestWeight: a condition that follows from what nodes report is written within the budget, since thousands of nodes may change it every
// few seconds. What the spec or its check says is written at once.
func TestWeight(t *testing.T) {
	cond := func(kind, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason}
	}
	before := &v1alpha1.PartitionPolicy{}
	before.Status.Conditions = []metav1.Condition{cond(v1alpha1.ConditionValid, "A"), cond(v1alpha1.ConditionApplied, "A")}
	for name, test := range map[string]struct {
		now  []metav1.Condition
		want status.Weight
	}{
		"counts":           {before.Status.Conditions, status.Counts},
		"a node waits":     {[]metav1.Condition{cond(v1alpha1.ConditionValid, "A"), cond(v1alpha1.ConditionApplied, "B")}, status.Turn},
		"not valid":        {[]metav1.Condition{cond(v1alpha1.ConditionValid, "B"), cond(v1alpha1.ConditionApplied, "A")}, status.News},
		"both":             {[]metav1.Condition{cond(v1alpha1.ConditionValid, "B"), cond(v1alpha1.ConditionApplied, "B")}, status.News},
		"no taints so far": {append(before.DeepCopy().Status.Conditions, cond(v1alpha1.ConditionTainted, "A")), status.Turn},
	} {
		now := before.DeepCopy()
		now.Status.Conditions = test.now
		if got := weigh(before, now); got != test.want {
			t.Errorf("%s: weight %d, want %d", name, got, test.want)
		}
	}
}
