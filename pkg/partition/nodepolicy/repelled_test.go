// SPDX-License-Identifier: Apache-2.0

package nodepolicy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// onlyOn is an affinity to nodes with a value of the label disk.
func onlyOn(values ...string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: values,
		}}}},
	}}}
}

func tolerating(all ...corev1.Toleration) corev1.PodSpec { return corev1.PodSpec{Tolerations: all} }

// TestRepelled: the taints of a policy repel a program that does not tolerate them, if it would run on a node otherwise.
func TestRepelled(t *testing.T) {
	var (
		exactly    = corev1.Toleration{Key: "example.com/gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
		anyEffect  = corev1.Toleration{Key: "example.com/gpu", Operator: corev1.TolerationOpExists}
		otherValue = corev1.Toleration{Key: "example.com/gpu", Value: "no"}
		everything = corev1.Toleration{Operator: corev1.TolerationOpExists}
	)
	for _, test := range []struct {
		name string
		// wants are the policy's taints; has and noted are those of the node.
		wants, has, noted string
		spec              corev1.PodSpec
		want              bool
	}{
		{name: "tolerates nothing", wants: gpu, want: true},
		{name: "the taint is there already", wants: gpu, has: gpu, noted: gpu, want: true},
		{name: "the node was registered with the taint", wants: gpu, has: gpu, want: true},
		{name: "tolerates the taint", wants: gpu, spec: tolerating(exactly)},
		{name: "tolerates all taints of the key", wants: gpu + " " + execute, spec: tolerating(anyEffect)},
		{name: "tolerates everything", wants: gpu + " " + execute, spec: tolerating(everything)},
		{name: "tolerates another value", wants: gpu, spec: tolerating(otherValue), want: true},
		{name: "tolerates one of two", wants: gpu + " " + execute, spec: tolerating(exactly), want: true},
		{name: "a taint with NoExecute that may not be put there", wants: unlisted},
		{name: "a taint with NoExecute that may not be put there any more", wants: unlisted, has: unlisted, noted: unlisted, want: true},
		{name: "a taint that keeps no pod away", wants: "example.com/gpu=yes:PreferNoSchedule"},
		{name: "selects another node", wants: gpu, spec: corev1.PodSpec{NodeSelector: map[string]string{"disk": "slow"}}},
		{name: "selects the node", wants: gpu, spec: corev1.PodSpec{NodeSelector: map[string]string{"disk": "fast"}}, want: true},
		{name: "has an affinity to another node", wants: gpu, spec: corev1.PodSpec{Affinity: onlyOn("slow", "none")}},
		{name: "has an affinity to the node", wants: gpu, spec: corev1.PodSpec{Affinity: onlyOn("slow", "fast")}, want: true},
		{name: "names another node", wants: gpu, spec: corev1.PodSpec{NodeName: "m"}},
		{name: "names the node", wants: gpu, spec: corev1.PodSpec{NodeName: "n"}, want: true},
		{name: "another taint keeps it away", wants: gpu, has: foreign},
		{name: "another taint of the same key keeps it away", wants: gpu, has: "example.com/gpu=yes:NoExecute"},
		{
			name: "tolerates the other taint", wants: gpu, has: foreign, spec: tolerating(corev1.Toleration{Key: "team", Value: "b"}), want: true,
		},
		{name: "another taint that keeps no pod away", wants: gpu, has: "team=b:PreferNoSchedule", want: true},
		{name: "another policy's taint keeps it away, which says so itself", wants: gpu, has: foreign, noted: foreign, want: true},
		{name: "the node is cordoned", wants: gpu, has: "node.kubernetes.io/unschedulable=:NoSchedule", want: true},
		{name: "the node is not ready", wants: gpu, has: "node.kubernetes.io/not-ready=:NoExecute", want: true},
		{name: "a control plane", wants: gpu, has: "node-role.kubernetes.io/control-plane=:NoSchedule"},
		{name: "another value is there, and is tolerated", wants: gpu, has: other, spec: tolerating(otherValue)},
		{name: "another value is there, and keeps it away", wants: gpu, has: other},
		{name: "the value from before the policy changed is there", wants: gpu, has: other, noted: other, want: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: "n", Labels: map[string]string{"disk": "fast"}, Annotations: map[string]string{v1alpha1.TaintsAnnotation: test.noted},
			}}
			node.Spec.Taints = parse(test.has)
			gate := nodepolicy.NewGate(policyOf("p", 0, test.wants).Spec.Nodes.Taints, []*corev1.Node{node}, listed())
			if got := gate.Repels(new(nodepolicy.NewProgram("a/b", false, &test.spec))); got != test.want {
				t.Errorf("repelled: %t, want %t", got, test.want)
			}
		})
	}
}

// TestRepelledFromOne: one node is enough.
func TestRepelledFromOne(t *testing.T) {
	var nodes []*corev1.Node
	for _, disk := range []string{"slow", "fast", "fast"} {
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: disk, Labels: map[string]string{"disk": disk}}})
	}
	nodes[0].Spec.Taints = parse(foreign)
	gate := nodepolicy.NewGate(policyOf("p", 0, gpu).Spec.Nodes.Taints, nodes, nil)
	for _, test := range []struct {
		disks string
		want  bool
	}{{"fast", true}, {"slow", false}, {"slow fast", true}, {"none", false}} {
		p := nodepolicy.NewProgram("a/b", false, &corev1.PodSpec{Affinity: onlyOn(strings.Fields(test.disks)...)})
		if got := gate.Repels(&p); got != test.want {
			t.Errorf("on nodes with %s: repelled: %t, want %t", test.disks, got, test.want)
		}
		if none := nodepolicy.NewGate(nil, nodes, nil); none.Repels(&p) {
			t.Errorf("on nodes with %s: repelled without taints", test.disks)
		}
	}
}

// TestLargeProgram: a program whose tolerations or selectors of nodes are large is not compared with all nodes, unless it tolerates
// everything.
func TestLargeProgram(t *testing.T) {
	var many []string
	for i := range 2000 {
		many = append(many, fmt.Sprintf("disk-%d", i))
	}
	var tolerations []corev1.Toleration
	for _, name := range many {
		tolerations = append(tolerations, corev1.Toleration{Key: name})
	}
	gate := nodepolicy.NewGate(policyOf("p", 0, gpu).Spec.Nodes.Taints, []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}, nil)
	everything := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	for _, test := range []struct {
		name  string
		spec  corev1.PodSpec
		large bool
	}{
		{"affinity", corev1.PodSpec{Affinity: onlyOn(many...)}, true},
		{"tolerations", corev1.PodSpec{Tolerations: tolerations}, true},
		{"selector", corev1.PodSpec{NodeSelector: map[string]string{"a": strings.Repeat("a", 20<<10)}}, true},
		{"large, and tolerates everything", corev1.PodSpec{Affinity: onlyOn(many...), Tolerations: everything}, false},
		{"other fields", corev1.PodSpec{Containers: []corev1.Container{{Args: many}}, Tolerations: everything}, false},
	} {
		p := nodepolicy.NewProgram("a/b", false, &test.spec)
		if p.TooLarge != test.large || gate.Repels(&p) {
			t.Errorf("%s: too large %t, repelled %t; want %t, false", test.name, p.TooLarge, gate.Repels(&p), test.large)
		}
	}
}

// TestFingerprint: it changes with what decides where programs run, and not with the taints of policies and those of Kubernetes.
func TestFingerprint(t *testing.T) {
	node := func(label, taints, noted string) []*corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "n", Labels: map[string]string{"disk": label, "pool": "a"}, Annotations: map[string]string{v1alpha1.TaintsAnnotation: noted},
		}}
		n.Spec.Taints = parse(taints)
		return []*corev1.Node{n}
	}
	before := nodepolicy.Fingerprint(node("fast", foreign, ""))
	for name, test := range map[string]struct {
		nodes []*corev1.Node
		same  bool
	}{
		"the same":           {node("fast", foreign, ""), true},
		"a policy's taint":   {node("fast", foreign+" "+gpu, gpu), true},
		"a cordon":           {node("fast", foreign+" node.kubernetes.io/unschedulable=:NoSchedule", ""), true},
		"another label":      {node("slow", foreign, ""), false},
		"another taint":      {node("fast", foreign+" "+gpu, ""), false},
		"a taint less":       {node("fast", "", ""), false},
		"another node, too":  {append(node("fast", foreign, ""), node("fast", foreign, "")...), false},
		"no node any longer": {nil, false},
	} {
		if same := nodepolicy.Fingerprint(test.nodes) == before; same != test.same {
			t.Errorf("%s: the fingerprint is the same: %t", name, same)
		}
	}
}
