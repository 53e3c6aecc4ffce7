// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
	"github.com/fettle-dev/fettle/test/check"
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
		foreign   []foreignTaint
		off       bool
		faults    field.ErrorList
		effect    corev1.TaintEffect // NoSchedule by default
		listed    nodepolicy.NoExecuteKeys
		want      string
		says      string
		nodes     int32
	}{
		{
			name: "NoExecute with a key that is not listed", effect: corev1.TaintEffectNoExecute, standings: many, nodes: 10,
			want: "False NoExecuteNotAllowed",
			says: "spec.nodes.taints[0]: the controller puts the taint example.com/gpu=a:NoExecute on no node, since NoExecute ends pods: list " +
				"the key in the chart's partitions.noExecuteTaintKeys",
		},
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
			name: "NoExecute with a key that is listed", effect: corev1.TaintEffectNoExecute, listed: nodepolicy.NoExecuteKeys{"a", taint.Key},
			standings: many[:1], want: "True Tainted", says: "1 node with all taints", nodes: 1,
		},
		{
			name: "foreign", foreign: []foreignTaint{{taint, "x"}}, want: "False TaintForeign", says: "since node x has it from somebody else",
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
			p.Spec.Nodes = &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{{
				Key: taint.Key, Value: taint.Value, Effect: cmp.Or(test.effect, taint.Effect),
			}}}
			j := &judge{
				Services: reconciler.Services{Clock: clocktesting.NewFakePassiveClock(time.Now())}, tainting: !test.off, noExecute: test.listed,
			}
			record(p, test.faults, nil, time.Now())
			j.recordTaints(p, test.faults, test.standings, test.foreign)
			c := status.Condition(p.Status.Conditions, v1alpha1.ConditionTainted)
			if string(c.Status)+" "+c.Reason != test.want || !strings.Contains(c.Message, test.says) || c.ObservedGeneration != generation {
				t.Errorf("%+v, want %s: %s", c, test.want, test.says)
			}
			if p.Status.TaintedNodes != test.nodes || len(p.Status.Conditions) != 2 {
				t.Errorf("%d nodes, conditions %v", p.Status.TaintedNodes, p.Status.Conditions)
			}
			p.Spec.Nodes = nil
			j.recordTaints(p, nil, nil, nil)
			if len(p.Status.Conditions) != 1 || p.Status.TaintedNodes != 0 {
				t.Errorf("without taints: %+v", p.Status)
			}
		})
	}
}

// TestForeignTaints: a policy gives pods no toleration of a taint that somebody else put on a node, whatever nodes the policy selects.
func TestForeignTaints(t *testing.T) {
	const key = "dedicated"
	taint := v1alpha1.NodeTaint{Key: key, Value: "payments", Effect: corev1.TaintEffectNoSchedule}
	put := corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect}
	node := func(name string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node": name}}, Spec: corev1.NodeSpec{Taints: taints},
		}
	}
	gpus := node("gpus", put)
	gpus.Annotations = map[string]string{v1alpha1.TaintsAnnotation: taint.String()}
	payments := node("payments", put)
	a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}}
	a.Status.Pools = []v1alpha1.PoolStatus{{Name: "gpus/gpu", Kind: "gpu", Devices: 1}}
	b := a.DeepCopy()
	b.Name = "payments"
	for name, test := range map[string]struct {
		selects   map[string]string
		nodes     []client.Object
		shared    []string
		off       bool
		tolerated bool
		reason    string
	}{
		"selects no node, and somebody has the taint": {
			map[string]string{"node": "none"}, []client.Object{payments}, nil, false, false, ReasonTaintForeign,
		},
		"selects another node with devices": {
			map[string]string{"node": "gpus"}, []client.Object{payments, gpus}, nil, false, false, ReasonTaintForeign,
		},
		"selects the very node": {
			map[string]string{"node": "payments"}, []client.Object{payments}, nil, false, false, ReasonTaintForeign,
		},
		"selects all nodes":                            {nil, []client.Object{payments, gpus}, nil, false, false, ReasonTaintForeign},
		"the administrator shares the key":             {nil, []client.Object{payments, gpus}, []string{"a", key}, false, true, ReasonTainted},
		"the administrator shares another key":         {nil, []client.Object{payments, gpus}, []string{"a"}, false, false, ReasonTaintForeign},
		"nobody else has the taint":                    {nil, []client.Object{gpus}, nil, false, true, ReasonTainted},
		"no node yet, as with an autoscaler from zero": {nil, nil, nil, false, true, ReasonNoNodes},
		"nodes are not tainted by Fettle":              {nil, []client.Object{gpus}, nil, true, false, ReasonSwitchedOff},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: generation}}
			if test.selects != nil {
				p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: test.selects}
			}
			p.Spec.Nodes = &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{taint}}
			p.Status.ToleratedTaints = p.Spec.Nodes.Taints // by an earlier state of the nodes
			api := cluster(t, append([]client.Object{p, a.DeepCopy(), b.DeepCopy()}, test.nodes...)...)
			r := New(reconciler.Services{
				Client: api, Live: api, Recorder: events.NewFakeRecorder(100), Clock: clocktesting.NewFakePassiveClock(time.Now()),
			}, !test.off, test.shared, nil).Queues[0].Reconciler
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)}); err != nil {
				t.Fatal(err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
				t.Fatal(err)
			}
			if tolerated := len(p.Status.ToleratedTaints) > 0; tolerated != test.tolerated {
				t.Errorf("tolerated: %v", p.Status.ToleratedTaints)
			}
			if c := status.Condition(p.Status.Conditions, v1alpha1.ConditionTainted); c.Reason != test.reason {
				t.Errorf("condition %+v, want %s", c, test.reason)
			}
		})
	}
}

// TestForeignTaintIsNews: what pods tolerate is written at once, however much nodes report, also where the condition Tainted has said
// before that another taint is somebody else's: a pod that is made meanwhile would run on a node against its owner's will.
func TestForeignTaintIsNews(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	budget := status.NewBudget(clock)
	budget.Take(1e6)
	first := v1alpha1.NodeTaint{Key: "first", Effect: corev1.TaintEffectNoSchedule}
	second := v1alpha1.NodeTaint{Key: "second", Effect: corev1.TaintEffectNoSchedule}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	n.Spec.Taints = []corev1.Taint{{Key: first.Key, Effect: first.Effect}}
	p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: generation}}
	p.Spec.Nodes = &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{first, second}}
	api := cluster(t, n, p)
	r := New(reconciler.Services{
		Client: api, Live: api, Recorder: events.NewFakeRecorder(100), Clock: clock, Budget: budget,
	}, true, nil, nil).Queues[0].Reconciler
	expect := func(want ...v1alpha1.NodeTaint) {
		t.Helper()
		_, err := r.Reconcile(t.Context(), request("p"))
		check.Must(t, err)
		check.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		if !slices.Equal(p.Status.ToleratedTaints, want) {
			t.Errorf("pods tolerate %v, want %v", p.Status.ToleratedTaints, want)
		}
	}
	expect(second)
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: second.Key, Effect: second.Effect})
	check.Must(t, api.Update(t.Context(), n))
	expect()
	n.Spec.Taints = n.Spec.Taints[:1]
	check.Must(t, api.Update(t.Context(), n))
	expect(second)
}
