// SPDX-License-Identifier: Apache-2.0

package nodepolicy_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// parse reads taints in the form KEY=VALUE:EFFECT.
func parse(text string) (out []corev1.Taint) {
	for one := range strings.FieldsSeq(text) {
		key, rest, _ := strings.Cut(one, "=")
		value, effect, _ := strings.Cut(rest, ":")
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return out
}

func written(taints []corev1.Taint) string {
	var out []string
	for _, t := range taints {
		out = append(out, t.Key+"="+t.Value+":"+string(t.Effect))
	}
	return strings.Join(out, " ")
}

// policyOf is a policy of the pool a.
func policyOf(name string, priority int32, taints string) v1alpha1.PartitionPolicy {
	p := v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1, 0))}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "a"}}
	p.Spec.Priority = priority
	p.Spec.Nodes = &v1alpha1.NodePartition{}
	for _, t := range parse(taints) {
		p.Spec.Nodes.Taints = append(p.Spec.Nodes.Taints, v1alpha1.NodeTaint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return p
}

const (
	gpu     = "example.com/gpu=yes:NoSchedule"
	other   = "example.com/gpu=no:NoSchedule"
	execute = "example.com/gpu=yes:NoExecute"
	foreign = "team=b:NoSchedule"
	// unlisted has a key that listed does not return.
	unlisted = "example.com/other=a:NoExecute"
)

// listed returns the keys of taints that nodes get with NoExecute.
func listed() nodepolicy.NoExecuteKeys { return nodepolicy.NoExecuteKeys{"example.com/gpu", "a"} }

// TestDecide is what a node has before and after.
func TestDecide(t *testing.T) {
	pool := map[string]string{"pool": "a"}
	deleted := policyOf("p", 0, gpu)
	deleted.DeletionTimestamp = new(metav1.NewTime(time.Unix(2, 0)))
	invalid := policyOf("p", 0, gpu+" kubernetes.io/x=:NoSchedule")
	everywhere := policyOf("p", 0, gpu)
	everywhere.Spec.NodeSelector = nil
	for _, test := range []struct {
		name     string
		labels   map[string]string
		without  bool // devices
		before   string
		noted    string
		policies []v1alpha1.PartitionPolicy
		after    string
		notes    string
	}{
		{name: "no policy", labels: pool, before: foreign, after: foreign},
		{name: "put", labels: pool, before: foreign, policies: of(policyOf("p", 0, gpu)), after: foreign + " " + gpu, notes: gpu},
		{name: "there already", labels: pool, before: gpu, noted: gpu, policies: of(policyOf("p", 0, gpu)), after: gpu, notes: gpu},
		{name: "no devices", labels: pool, without: true, policies: of(policyOf("p", 0, gpu))},
		{name: "not selected", labels: map[string]string{"pool": "b"}, policies: of(policyOf("p", 0, gpu))},
		{name: "all nodes", policies: of(everywhere), after: gpu, notes: gpu},
		{name: "policy gone", labels: pool, before: gpu + " " + foreign, noted: gpu, after: foreign},
		{name: "policy being deleted", labels: pool, before: gpu, noted: gpu, policies: of(deleted)},
		{name: "policy not valid", labels: pool, before: gpu, noted: gpu, policies: of(invalid)},
		{name: "devices gone for good", labels: pool, without: true, before: gpu, noted: gpu, policies: of(policyOf("p", 0, gpu))},
		{
			name: "somebody else's with the same key, value and effect stays theirs", labels: pool, before: gpu,
			policies: of(policyOf("p", 0, gpu)), after: gpu,
		},
		{name: "and is not taken off with the policy", labels: pool, before: gpu, after: gpu},
		{name: "somebody else's with another value", labels: pool, before: other, policies: of(policyOf("p", 0, gpu)), after: other},
		{
			name: "one whose value somebody changed is theirs", labels: pool, before: other, noted: gpu, policies: of(policyOf("p", 0, gpu)),
			after: other,
		},
		{
			name: "one that somebody took off is put again", labels: pool, before: foreign, noted: gpu, policies: of(policyOf("p", 0, gpu)),
			after: foreign + " " + gpu, notes: gpu,
		},
		{name: "a note without its taint", labels: pool, before: foreign, noted: gpu, after: foreign},
		{
			name: "the policy's value changed", labels: pool, before: gpu + " " + foreign, noted: gpu, policies: of(policyOf("p", 0, other)),
			after: foreign + " " + other, notes: other,
		},
		{
			name: "the policy with the higher priority", labels: pool,
			policies: of(policyOf("a", 0, gpu+" "+execute), policyOf("b", 1, other)), after: other + " " + execute, notes: other + "," + execute,
		},
		{
			name: "NoExecute with a key that is not listed is not put", labels: pool, policies: of(policyOf("p", 0, unlisted+" "+gpu)),
			after: gpu, notes: gpu,
		},
		{
			name: "and stays where it is", labels: pool, before: unlisted, noted: unlisted, policies: of(policyOf("p", 0, unlisted)),
			after: unlisted, notes: unlisted,
		},
		{
			name: "also if a policy with a higher priority wants another value", labels: pool, before: unlisted, noted: unlisted,
			policies: of(policyOf("p", 0, unlisted), policyOf("q", 1, "example.com/other=b:NoExecute")), after: unlisted, notes: unlisted,
		},
		{
			name: "until its policy changes", labels: pool, before: unlisted, noted: unlisted,
			policies: of(policyOf("p", 0, "example.com/other=b:NoExecute")),
		},
		{name: "or is gone", labels: pool, before: unlisted, noted: unlisted},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := nodepolicy.Node{Labels: test.labels, HasDevices: !test.without, Taints: parse(test.before), Noted: test.noted}
			taints, notes := nodepolicy.Decide(node, nodepolicy.Wanted(node, test.policies, listed()))
			if diff := cmp.Diff(test.after, written(taints)) + cmp.Diff(sorted(test.notes), notes); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			node.Taints, node.Noted = taints, notes
			again, same := nodepolicy.Decide(node, nodepolicy.Wanted(node, test.policies, listed()))
			if written(again) != written(taints) || same != notes {
				t.Errorf("decided again: %s, %s", written(again), same)
			}
		})
	}
}

func of(policies ...v1alpha1.PartitionPolicy) []v1alpha1.PartitionPolicy { return policies }

func sorted(notes string) string {
	list := strings.Split(notes, ",")
	slices.Sort(list)
	return strings.Join(list, ",")
}

// TestForeignTaintsStay: whatever policies come and go, the taints of others stay as they are, and at the end nothing of ours is left.
func TestForeignTaintsStay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := []string{gpu, other, execute, unlisted, foreign, "a=:NoSchedule", "a=:PreferNoSchedule"}
	for range 500 {
		node := nodepolicy.Node{Labels: map[string]string{"pool": "a"}, HasDevices: true}
		theirs := map[string]bool{}
		for range random.IntN(3) {
			one := parse(pick[random.IntN(len(pick))])[0]
			if !slices.ContainsFunc(node.Taints, func(t corev1.Taint) bool { return t.Key == one.Key && t.Effect == one.Effect }) {
				node.Taints = append(node.Taints, one)
			}
		}
		for one := range strings.FieldsSeq(written(node.Taints)) {
			theirs[one] = true
		}
		for round := range 6 {
			var policies []v1alpha1.PartitionPolicy
			for i := range random.IntN(4) {
				policies = append(policies, policyOf(string(rune('a'+i)), int32(random.IntN(3)), pick[random.IntN(len(pick))]))
			}
			if round == 5 {
				policies = nil
			}
			node.Taints, node.Noted = nodepolicy.Decide(node, nodepolicy.Wanted(node, policies, listed()))
			for one := range theirs {
				if !strings.Contains(" "+written(node.Taints)+" ", " "+one+" ") {
					t.Fatalf("%s is gone", one)
				}
			}
		}
		if len(node.Taints) != len(theirs) || node.Noted != "" {
			t.Fatalf("left are %s, noted %s; theirs were %v", written(node.Taints), node.Noted, theirs)
		}
	}
}

// TestHasDevices is which nodes policies may taint.
func TestHasDevices(t *testing.T) {
	with := func(kind string, devices, withheld int32) *v1alpha1.AcceleratorNode {
		return &v1alpha1.AcceleratorNode{Status: v1alpha1.AcceleratorNodeStatus{
			Pools: []v1alpha1.PoolStatus{{Name: "n/" + kind, Kind: kind, Devices: devices, Withheld: withheld}},
		}}
	}
	for _, test := range []struct {
		name  string
		node  *v1alpha1.AcceleratorNode
		noted string
		want  bool
	}{
		{"no AcceleratorNode", nil, gpu, false},
		{"an empty one", &v1alpha1.AcceleratorNode{}, "", false},
		{"GPUs", with("gpu", 1, 0), "", true},
		{"GPUs that are withheld", with("gpu", 0, 1), "", true},
		{"FPGAs", with("fpga", 1, 0), "", true},
		{"no GPU", with("gpu", 0, 0), "", false},
		{"no GPU for now", with("gpu", 0, 0), gpu, true},
		{"host devices", with("host", 1, 0), "", false},
	} {
		if got := nodepolicy.HasDevices(test.node, test.noted); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
}

// TestStanding compares a policy's taints with those of a node.
func TestStanding(t *testing.T) {
	want := policyOf("p", 0, gpu+" "+execute).Spec.Nodes.Taints
	for _, test := range []struct{ have, missing, taken string }{
		{gpu + " " + execute, "", ""},
		{foreign, gpu, ""},
		{gpu, execute, ""},
		{other, execute, gpu},
		{other + " " + execute, "", gpu},
	} {
		s := nodepolicy.StandingOf("n", parse(test.have), want)
		got := [2]string{text(s.Missing), text(s.Taken)}
		if got != [2]string{test.missing, test.taken} || s.Tainted() != (test.missing+test.taken == "") {
			t.Errorf("%s: %v", test.have, got)
		}
	}
}

func text(t *v1alpha1.NodeTaint) string {
	if t == nil {
		return ""
	}
	return t.String()
}

// TestTolerated: pods that get devices tolerate the taints of all policies, both values of one that two policies want included, as far as
// the status says so.
func TestTolerated(t *testing.T) {
	judged := func(p v1alpha1.PartitionPolicy, tolerated string) v1alpha1.PartitionPolicy {
		p.Status.ToleratedTaints = policyOf("", 0, tolerated).Spec.Nodes.Taints
		return p
	}
	const reserved = "kubernetes.io/x=:NoSchedule"
	var got []string
	for _, one := range nodepolicy.Tolerated(of(
		judged(policyOf("a", 0, gpu+" "+execute+" "+foreign), gpu+" "+execute), judged(policyOf("b", 1, other), other),
		judged(policyOf("not valid", 0, reserved), reserved), judged(policyOf("d", 0, gpu), gpu), policyOf("not judged", 0, "a=:NoSchedule"),
		judged(policyOf("changed since", 0, "b=:NoSchedule"), "c=:NoSchedule"),
	)) {
		got = append(got, one.String())
	}
	if diff := cmp.Diff([]string{other, gpu, execute}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestForeign: a taint is somebody else's where a node has it and does not note it.
func TestForeign(t *testing.T) {
	node := func(name, taints, noted string) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.TaintsAnnotation: noted}},
			Spec:       corev1.NodeSpec{Taints: parse(taints)},
		}
	}
	want := policyOf("p", 0, gpu).Spec.Nodes.Taints[0]
	for name, test := range map[string]struct {
		nodes []corev1.Node
		want  string
	}{
		"no node":                 {},
		"put by Fettle":           {nodes: []corev1.Node{node("a", gpu, gpu), node("b", foreign+" "+gpu, execute+","+gpu)}},
		"with another value":      {nodes: []corev1.Node{node("a", other, "")}},
		"with another effect":     {nodes: []corev1.Node{node("a", execute, "")}},
		"put by somebody else":    {[]corev1.Node{node("a", gpu, gpu), node("c", gpu, ""), node("b", foreign+" "+gpu, execute)}, "b"},
		"a note of another taint": {[]corev1.Node{node("a", gpu, other)}, "a"},
	} {
		if got := nodepolicy.Foreign(want, test.nodes); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
