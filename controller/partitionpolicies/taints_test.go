// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// TestRecordTaints is what the status says of the nodes of a policy about nodes alone.
func TestRecordTaints(t *testing.T) {
	taint := v1alpha1.NodeTaint{Key: "example.com/gpu", Value: "a", Effect: corev1.TaintEffectNoSchedule}
	var many []nodepolicy.Standing
	for i := range 10 {
		many = append(many, nodepolicy.Standing{Node: fmt.Sprintf("n%d", i)})
	}
	for _, test := range []struct {
		name      string
		standings []nodepolicy.Standing
		off       bool
		faults    field.ErrorList
		want      string
		says      string
		nodes     int32
	}{
		{name: "no nodes", want: "Unknown NoNodes", says: "found a GPU or FPGA"},
		{name: "off", off: true, standings: many, want: "False SwitchedOff", says: "partitions.nodes", nodes: 10},
		{
			name: "not valid", faults: field.ErrorList{field.Required(field.NewPath("spec"), "x")}, standings: many, want: "False NotValid",
			says: "Valid", nodes: 10,
		},
		{
			name: "all", standings: many, want: "True Tainted", nodes: 10,
			says: "10 nodes with all taints: n0, n1, n2, n3, n4, n5, n6, n7 and 2 more",
		},
		{
			name: "one waits", standings: append(many[:2:2], nodepolicy.Standing{Node: "x", Missing: &taint}), want: "False Waiting",
			says: "node x does not have the taint example.com/gpu=a:NoSchedule yet", nodes: 2,
		},
		{
			name: "one is taken", want: "False TaintTaken", says: `node y has the taint example.com/gpu:NoSchedule with the value "b"`, nodes: 1,
			standings: append(many[:1:1], nodepolicy.Standing{Node: "x", Missing: &taint},
				nodepolicy.Standing{Node: "y", Taken: &taint, Value: "b"}),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: generation}}
			p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionApplied}, {Type: v1alpha1.ConditionOverruled}}
			p.Spec.Nodes = &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{taint}}
			record(p, test.faults, nil, time.Now())
			recordTaints(p, test.faults, test.standings, !test.off, time.Now())
			c := status.Condition(p.Status.Conditions, v1alpha1.ConditionTainted)
			if string(c.Status)+" "+c.Reason != test.want || !strings.Contains(c.Message, test.says) || c.ObservedGeneration != generation {
				t.Errorf("%+v, want %s: %s", c, test.want, test.says)
			}
			if p.Status.TaintedNodes != test.nodes || len(p.Status.Conditions) != 2 {
				t.Errorf("%d nodes, conditions %v", p.Status.TaintedNodes, p.Status.Conditions)
			}
			p.Spec.Nodes = nil
			recordTaints(p, nil, nil, true, time.Now())
			if len(p.Status.Conditions) != 1 || p.Status.TaintedNodes != 0 {
				t.Errorf("without taints: %+v", p.Status)
			}
		})
	}
}
