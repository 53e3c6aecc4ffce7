// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

func made(name string, day int, selector map[string]string) v1alpha1.AcceleratorStack {
	s := v1alpha1.AcceleratorStack{ObjectMeta: metav1.ObjectMeta{
		Name: name, CreationTimestamp: metav1.Date(2026, 1, day, 0, 0, 0, 0, time.UTC), Generation: 3,
	}}
	if selector != nil {
		s.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: selector}
	}
	return s
}

// TestSelect: for each node the oldest stack holds, whatever the order in which stacks are listed.
func TestSelect(t *testing.T) {
	nodes := named(3)
	nodes[0].Labels = map[string]string{"pool": "a"}
	nodes[1].Labels, nodes[1].Reported = map[string]string{"pool": "a"}, false
	inA, all := map[string]string{"pool": "a"}, map[string]string(nil)
	gone := made("gone", 1, inA)
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	broken := made("broken", 1, nil)
	broken.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	for _, tc := range []struct {
		name   string
		stacks []v1alpha1.AcceleratorStack
		want   stack.Selection
	}{
		{"alone", []v1alpha1.AcceleratorStack{made("s", 2, inA)}, stack.Selection{Nodes: []string{"n0", "n1"}}},
		{"without a selector: those that report", []v1alpha1.AcceleratorStack{made("s", 2, all)}, stack.Selection{Nodes: []string{"n0", "n2"}}},
		{"a younger one", []v1alpha1.AcceleratorStack{made("s", 2, all), made("y", 3, inA)}, stack.Selection{Nodes: []string{"n0", "n2"}}},
		{
			"an older one",
			[]v1alpha1.AcceleratorStack{made("s", 2, all), made("o", 1, inA)},
			stack.Selection{Nodes: []string{"n2"}, Overruled: 1, By: []string{"o"}},
		},
		{
			"two of one age",
			[]v1alpha1.AcceleratorStack{made("s", 2, inA), made("r", 2, inA)},
			stack.Selection{Overruled: 2, By: []string{"r"}},
		},
		{"one that is being deleted", []v1alpha1.AcceleratorStack{made("s", 2, inA), gone}, stack.Selection{Nodes: []string{"n0", "n1"}}},
		{"one whose selector is none", []v1alpha1.AcceleratorStack{made("s", 2, inA), broken}, stack.Selection{Nodes: []string{"n0", "n1"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 2 {
				if diff := cmp.Diff(tc.want, stack.Select("s", tc.stacks, nodes)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				slices.Reverse(tc.stacks)
			}
		})
	}
}

func conditions(s *v1alpha1.AcceleratorStack) (out []string) {
	for _, kind := range []string{
		v1alpha1.ConditionAvailable, v1alpha1.ConditionProgressing, v1alpha1.ConditionDegraded, v1alpha1.ConditionOverruled,
	} {
		c := meta.FindStatusCondition(s.Status.Conditions, kind)
		if c == nil || c.ObservedGeneration != s.Generation || c.Message == "" {
			return append(out, fmt.Sprintf("%s is %+v", kind, c))
		}
		out = append(out, string(c.Status)+" "+c.Reason)
	}
	return out
}

// TestRecord: conditions and counts of a stack. A node that failed is named first, and holds back no other.
func TestRecord(t *testing.T) {
	good, waits, fails, empty := healthy("good"), healthy("a-waits"), healthy("z-fails"), healthy("empty")
	waits.BootID = "boot-2"
	problems(fails, 1, missing)
	empty.Accelerator.Pools[0].Devices = 0
	for _, tc := range []struct {
		name      string
		nodes     []*stack.Node
		selection stack.Selection
		want      []string
		counts    [4]int32 // nodes, ready, failed, empty
	}{
		{"none", nil, stack.Selection{}, []string{"Unknown NoNodes", "False Settled", "False NoNodeFailed", "False NotOverruled"}, [4]int32{}},
		{
			"only empty ones",
			[]*stack.Node{empty},
			stack.Selection{},
			[]string{"Unknown NoNodes", "False Settled", "False NoNodeFailed", "False NotOverruled"},
			[4]int32{0, 0, 0, 1},
		},
		{
			"all belong to another", nil,
			stack.Selection{Overruled: 2, By: []string{"o"}},
			[]string{"Unknown NoNodes", "False Settled", "False NoNodeFailed", "True Overruled"},
			[4]int32{},
		},
		{
			"in order",
			[]*stack.Node{good, empty},
			stack.Selection{},
			[]string{"True AllNodesReady", "False Settled", "False NoNodeFailed", "False NotOverruled"},
			[4]int32{1, 1, 0, 1},
		},
		{
			"one waits",
			[]*stack.Node{good, waits},
			stack.Selection{},
			[]string{"False OtherBoot", "True OtherBoot", "False NoNodeFailed", "False NotOverruled"},
			[4]int32{2, 1, 0, 0},
		},
		{
			"one waits, one failed",
			[]*stack.Node{waits, good, fails},
			stack.Selection{},
			[]string{"False DriverNotLoaded", "True OtherBoot", "True DriverNotLoaded", "False NotOverruled"},
			[4]int32{3, 1, 1, 0},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := made("s", 1, nil)
			var outcomes []stack.Outcome
			for _, n := range tc.nodes {
				outcomes = append(outcomes, stack.Judge(n))
			}
			stack.Record(&s, tc.selection, outcomes, time.Now())
			if diff := cmp.Diff(tc.want, conditions(&s)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			st := &s.Status
			if got := [4]int32{st.Nodes, st.ReadyNodes, st.FailedNodes, st.EmptyNodes}; got != tc.counts || st.ObservedGeneration != 3 {
				t.Errorf("counts %v, want %v", got, tc.counts)
			}
			for _, c := range st.States {
				if c.Passed+c.Failed+c.Unknown != st.Nodes {
					t.Errorf("state %s counts %+v of %d nodes", c.Name, c, st.Nodes)
				}
			}
			again := s.DeepCopy()
			stack.Record(again, tc.selection, outcomes, time.Now().Add(time.Hour))
			if diff := cmp.Diff(s.Status, again.Status); diff != "" {
				t.Errorf("an hour later, with no change (-before +after):\n%s", diff)
			}
		})
	}
}

// TestRecordNames: the first to be named are those that have failed, and a condition has no reason that the API server refuses.
func TestRecordNames(t *testing.T) {
	var outcomes []stack.Outcome
	for i := range v1alpha1.MaxWaitingStackNodes + 4 {
		n := healthy(fmt.Sprintf("n%02d", i))
		n.BootID = "boot-2"
		outcomes = append(outcomes, stack.Judge(n))
	}
	bad := healthy("z")
	bad.Delivered = stack.Verdict{Status: stack.Failed, Reason: "not a reason!", Message: "why"}
	s := made("s", 1, nil)
	waiting := stack.Record(&s, stack.Selection{}, append(outcomes, stack.Judge(bad)), time.Now())
	if len(waiting) != len(outcomes)+1 || len(s.Status.Waiting) != v1alpha1.MaxWaitingStackNodes || s.Status.Waiting[0].Node != "z" {
		t.Errorf("%d wait, %d are named, first %+v", len(waiting), len(s.Status.Waiting), s.Status.Waiting[0])
	}
	want := []string{"False Waiting", "True OtherBoot", "True Waiting", "False NotOverruled"}
	if diff := cmp.Diff(want, conditions(&s)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}
