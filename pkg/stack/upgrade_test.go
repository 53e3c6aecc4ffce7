// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

var upgradeTime = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant that Go cannot express as such

// upgradable is a node with an old driver. Its upgrade began that long ago; 0: it has not.
func upgradable(name string, ago time.Duration, change ...func(*stack.UpgradeNode)) stack.UpgradeNode {
	n := stack.UpgradeNode{Node: healthy(name)}
	n.Delivered = stack.Verdict{Reason: stack.ReasonDriverOutdated, Message: "old"}
	n.Annotations, n.Accelerator.Checks = map[string]string{}, nil
	verified(n.Node, gpus, true, upgradeTime.AddDate(0, 0, -1)) // the clock of whoever runs the test says nothing
	if ago > 0 {
		n.Annotations[v1alpha1.UpgradeAnnotation] = "s " + upgradeTime.Add(-ago).Format(time.RFC3339) + " drain"
	}
	for _, c := range change {
		c(&n)
	}
	n.Outcome = stack.Judge(n.Node)
	return n
}

func holder(n *stack.UpgradeNode) {
	n.Holders = append(n.Holders, stack.Holder{Namespace: "default", Name: "p", UID: "u"})
}

func admin(n *stack.UpgradeNode) {
	n.Holders = append(n.Holders, stack.Holder{Namespace: "default", Name: "exporter", UID: "w", Admin: true})
}

func annotated(key, value string) func(*stack.UpgradeNode) {
	return func(n *stack.UpgradeNode) { n.Annotations[key] = value }
}

func quiescing(n *stack.UpgradeNode) {
	n.Annotations[v1alpha1.QuiesceAnnotation] = v1alpha1.QuiesceByUpgrade
	set(n.Node, v1alpha1.ConditionQuiesced, metav1.ConditionFalse, "claims are left")
}

func letGo(n *stack.UpgradeNode) {
	quiescing(n)
	set(n.Node, v1alpha1.ConditionQuiesced, metav1.ConditionTrue, "nothing is open")
}

func delivered(status stack.Status, reason string) func(*stack.UpgradeNode) {
	return func(n *stack.UpgradeNode) { n.Delivered = stack.Verdict{Status: status, Reason: reason, Message: "m"} }
}

func hold(n *stack.UpgradeNode) { n.Labels = map[string]string{v1alpha1.UpgradeHoldLabel: ""} }

// seen is a step in short: phase, reason, whether the node failed or is stuck, whom to evict, what to write.
func seen(s *stack.Step) string {
	out := []string{string(s.Phase), s.Reason}
	for _, flag := range []struct {
		name string
		is   bool
	}{{"failed", s.Failed}, {"stuck", s.Stuck}, {"change", s.Change}} {
		if flag.is {
			out = append(out, flag.name)
		}
	}
	for _, h := range s.Evict {
		out = append(out, "evict="+h.Name)
	}
	for _, key := range []string{v1alpha1.UpgradeAnnotation, v1alpha1.QuiesceAnnotation} {
		if value, written := s.Annotations[key]; written {
			out = append(out, strings.TrimPrefix(key, "fettle.dev/")+"="+value)
		}
	}
	return strings.Join(strings.Fields(strings.Join(out, " ")), " ")
}

// TestUpgrade: what is done for one node follows from its annotations and what is observed, and from nothing else.
func TestUpgrade(t *testing.T) {
	const now = "s 2026-11-25T12:00:00Z"
	passed := delivered(stack.Passed, stack.ReasonPassed)
	checked := func(ago time.Duration) func(*stack.UpgradeNode) {
		return func(n *stack.UpgradeNode) {
			passed(n)
			n.Accelerator.Checks = nil
			verified(n.Node, gpus, true, upgradeTime.Add(-ago))
		}
	}
	forced := stack.UpgradeRules{Stack: "s", MaxUnavailable: 1, DrainTimeout: time.Hour, Force: true}
	for _, tc := range []struct {
		name  string
		node  stack.UpgradeNode
		rules *stack.UpgradeRules
		want  string
	}{
		{"the driver is the one wanted", upgradable("a", 0, passed), nil, "Current"},
		{"the driver has failed, and is no other", upgradable("a", 0, delivered(stack.Failed, "X")), nil, "Current"},
		{"it begins, and evicts nobody before the taint", upgradable("a", 0, holder), nil, "Draining UpgradeDraining upgrade=" + now + " drain"},
		{"the plugin never reported", upgradable("a", 0, func(n *stack.UpgradeNode) { n.Accelerator = nil }), nil, "Current"},
		{"held back", upgradable("a", 0, hold), nil, "Waiting UpgradeWaiting"},
		{"quiesced by hand", upgradable("a", 0, annotated(v1alpha1.QuiesceAnnotation, "nvidia")), nil, "Waiting UpgradeWaiting"},
		{
			"the plugin still lets go", upgradable("a", 0, letGo, func(n *stack.UpgradeNode) { n.Annotations = nil }), nil,
			"Waiting UpgradeWaiting",
		},
		{"paused", upgradable("a", 0), &stack.UpgradeRules{Stack: "s", MaxUnavailable: 1, Paused: true}, "Waiting UpgradeWaiting"},
		{"drains, held back too late", upgradable("a", time.Minute, holder, hold), nil, "Draining UpgradeDraining evict=p"},
		{"drains for long", upgradable("a", 2*time.Hour, holder), nil, "Draining UpgradeDrainBlocked stuck evict=p"},
		{
			"drains for long, and may force", upgradable("a", 2*time.Hour, holder), &forced,
			"Draining UpgradeDrainBlocked stuck evict=p upgrade=s 2026-11-25T10:00:00Z force",
		},
		{
			"has forced already", upgradable("a", 0, holder, annotated(v1alpha1.UpgradeAnnotation, "s 2026-11-25T10:00:00Z force")), &forced,
			"Draining UpgradeDrainBlocked stuck evict=p",
		},
		{
			"no longer forced", upgradable("a", 0, holder, annotated(v1alpha1.UpgradeAnnotation, "s 2026-11-25T10:00:00Z force")), nil,
			"Draining UpgradeDrainBlocked stuck evict=p upgrade=s 2026-11-25T10:00:00Z drain",
		},
		{
			"a version before the word began it", upgradable("a", 0, holder, annotated(v1alpha1.UpgradeAnnotation, "s 2026-11-25T11:59:00Z")), nil,
			"Draining UpgradeDraining evict=p upgrade=s 2026-11-25T11:59:00Z drain",
		},
		{"drained", upgradable("a", time.Minute), nil, "Quiescing UpgradeQuiescing upgrade=" + now + " quiesce=*"},
		{"drained but for admin access", upgradable("a", time.Minute, admin), nil, "Quiescing UpgradeQuiescing upgrade=" + now + " quiesce=*"},
		{
			"quiesced by hand meanwhile", upgradable("a", time.Minute, annotated(v1alpha1.QuiesceAnnotation, "amd")), nil,
			"Draining UpgradeDraining",
		},
		{"admin access goes at last", upgradable("a", time.Minute, quiescing, admin), nil, "Quiescing UpgradeQuiescing evict=exporter"},
		{"a program keeps the driver", upgradable("a", 2*time.Hour, quiescing), nil, "Quiescing UpgradeQuiescing stuck"},
		{"nothing uses the driver", upgradable("a", time.Minute, letGo), nil, "Changing UpgradeChanging change"},
		{
			"what is reported is of the boot before", upgradable("a", time.Minute, letGo, func(n *stack.UpgradeNode) { n.BootID = "boot-2" }), nil,
			"Quiescing UpgradeQuiescing",
		},
		{"the new one comes", upgradable("a", time.Minute, letGo, delivered(0, "DriverPending")), nil, "Changing UpgradeChanging change"},
		{"the new one fails", upgradable("a", time.Minute, letGo, delivered(2, "DriverFailed")), nil, "Changing UpgradeChanging failed change"},
		{"the new one never comes", upgradable("a", 2*time.Hour, letGo, delivered(0, "X")), nil, "Changing UpgradeOverdue failed change"},
		{"the new one is there", upgradable("a", time.Minute, letGo, passed), nil, "Checking UpgradeChecking upgrade=" + now + " quiesce="},
		{
			"the change is taken back in time", upgradable("a", time.Minute, quiescing, passed), nil,
			"Checking UpgradeChecking upgrade=" + now + " quiesce=",
		},
		{"a check is from before", upgradable("a", time.Minute, checked(2*time.Minute)), nil, "Checking UpgradeChecking"},
		{"a check has passed since", upgradable("a", time.Minute, checked(0)), nil, "Current upgrade="},
		{"claims are not checked", upgradable("a", time.Minute, checked(time.Hour), func(n *stack.UpgradeNode) {
			n.Checks.Off = "off"
		}), nil, "Current upgrade="},
		{"a check failed", upgradable("a", time.Minute, checked(0), func(n *stack.UpgradeNode) {
			n.Accelerator.Checks = nil
			verified(n.Node, gpus, false, upgradeTime)
		}), nil, "Checking UpgradeChecking failed"},
		{"the checks never end", upgradable("a", 2*time.Hour, checked(3*time.Hour)), nil, "Checking UpgradeOverdue failed"},
		{
			"another stack began", upgradable("a", 0, quiescing, annotated(v1alpha1.UpgradeAnnotation, "t "+upgradeTime.Format(time.RFC3339))), nil,
			"Current upgrade= quiesce=",
		},
		{
			"the note is none", upgradable("a", 0, holder, annotated(v1alpha1.UpgradeAnnotation, "s")), nil,
			"Draining UpgradeDrainBlocked stuck evict=p upgrade=s 0001-01-01T00:00:00Z drain",
		},
	} {
		rules := stack.UpgradeRules{Stack: "s", MaxUnavailable: 1, MaxFailed: 1, DrainTimeout: time.Hour}
		if tc.rules != nil {
			rules = *tc.rules
		}
		steps := stack.Upgrade(rules, []stack.UpgradeNode{tc.node}, upgradeTime)
		if got := seen(&steps[0]); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
		if steps[0].Phase != stack.PhaseCurrent && steps[0].Message == "" {
			t.Errorf("%s: no message", tc.name)
		}
	}
}

// TestQuiescedBefore: that the plugin let go for an earlier change, or by hand, does not count for the next: the driver stays until the
// plugin has taken the devices back and has let go of them anew.
func TestQuiescedBefore(t *testing.T) {
	rules := stack.UpgradeRules{Stack: "s", MaxUnavailable: 1, MaxFailed: 1, DrainTimeout: time.Hour}
	n := upgradable("a", time.Minute, letGo)
	delete(n.Annotations, v1alpha1.QuiesceAnnotation)
	for range 3 {
		step := stack.Upgrade(rules, []stack.UpgradeNode{n}, upgradeTime)[0]
		if got, want := seen(&step), "Draining UpgradeDraining"; got != want || step.Message == "" {
			t.Fatalf("got %s (%s), want %s", got, step.Message, want)
		}
		for key, value := range step.Annotations {
			n.Annotations[key] = value
		}
	}
	meta.RemoveStatusCondition(&n.Accelerator.Conditions, v1alpha1.ConditionQuiesced)
	step := stack.Upgrade(rules, []stack.UpgradeNode{n}, upgradeTime)[0]
	if got, want := seen(&step), "Quiescing UpgradeQuiescing upgrade=s 2026-11-25T12:00:00Z quiesce=*"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestForceAfterDrain: a pod that got a device between the last look at the claims and the moment at which the plugin let go of the
// devices, and that a budget keeps, is deleted after the time for draining as others are. Devices that are withheld have no taint, and
// nothing but the taint deletes pods: so the node is drained once more.
func TestForceAfterDrain(t *testing.T) {
	rules := stack.UpgradeRules{Stack: "s", MaxUnavailable: 1, MaxFailed: 1, DrainTimeout: time.Hour, Force: true}
	n := upgradable("a", 2*time.Hour, quiescing, holder)
	for _, want := range []string{
		"Draining UpgradeDrainBlocked stuck evict=p upgrade=s 2026-11-25T10:00:00Z force quiesce=",
		"Draining UpgradeDrainBlocked stuck evict=p", // until the plugin has taken the devices back
	} {
		step := stack.Upgrade(rules, []stack.UpgradeNode{n}, upgradeTime)[0]
		if got := seen(&step); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		for key, value := range step.Annotations {
			n.Annotations[key] = value
		}
		if n.Annotations[v1alpha1.QuiesceAnnotation] == "" {
			delete(n.Annotations, v1alpha1.QuiesceAnnotation)
		}
	}
	for name, change := range map[string]func(*stack.UpgradeNode, *stack.UpgradeRules){
		"not for long enough": func(_ *stack.UpgradeNode, r *stack.UpgradeRules) { r.DrainTimeout = 3 * time.Hour },
		"it may not":          func(_ *stack.UpgradeNode, r *stack.UpgradeRules) { r.Force = false },
		"admin access only":   func(n *stack.UpgradeNode, _ *stack.UpgradeRules) { n.Holders[0].Admin = true },
	} {
		n, r := upgradable("a", 2*time.Hour, quiescing, holder), rules
		change(&n, &r)
		if step := stack.Upgrade(r, []stack.UpgradeNode{n}, upgradeTime)[0]; step.Phase != stack.PhaseQuiescing || step.Annotations != nil {
			t.Errorf("%s: %s", name, seen(&step))
		}
	}
}

// TestFullNodeIsNoFailure: a node that is full, so that the check of a claim finds no room there after the change of its driver, waits for
// as long as it is full. It is not taken for one that failed with the new driver, and holds up no other.
func TestFullNodeIsNoFailure(t *testing.T) {
	full := func(n *stack.UpgradeNode) {
		delivered(stack.Passed, stack.ReasonPassed)(n)
		n.Accelerator.Checks = nil
		n.Checks.Running = map[string]stack.Verdict{gpus: {Reason: stack.ReasonCheckNoRoom, Message: "Insufficient cpu"}}
	}
	rules := stack.UpgradeRules{Stack: "s", MaxUnavailable: 1, MaxFailed: 1, DrainTimeout: time.Hour}
	steps := stack.Upgrade(rules, []stack.UpgradeNode{
		upgradable("a", 2*time.Hour, full), upgradable("b", 2*time.Hour, full), upgradable("c", 2*time.Hour, full), upgradable("d", 0),
	}, upgradeTime)
	var got []string
	for i := range steps {
		got = append(got, seen(&steps[i]))
	}
	want := []string{
		"Checking UpgradeChecking stuck", "Checking UpgradeChecking stuck", "Checking UpgradeChecking stuck",
		"Draining UpgradeDraining upgrade=s 2026-11-25T12:00:00Z drain",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// TestUsedByOthers: while a driver is changed, the reason has what the plugin says of programs that keep it from being unloaded.
func TestUsedByOthers(t *testing.T) {
	const others = "other programs keep them from being unloaded: process 20 (dcgm)"
	for reason, want := range map[string]bool{v1alpha1.ReasonUsedByOthers: true, "Quiesced": false} {
		n := upgradable("a", time.Minute, letGo, delivered(0, "DriverPending"))
		n.Accelerator.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionQuiesced, Status: metav1.ConditionTrue, Reason: reason, Message: others,
		}}
		steps := stack.Upgrade(stack.UpgradeRules{Stack: "s", MaxUnavailable: 1}, []stack.UpgradeNode{n}, upgradeTime)
		if s := steps[0]; s.Phase != stack.PhaseChanging || strings.Contains(s.Message, others) != want {
			t.Errorf("%s: %s: %s", reason, s.Phase, s.Message)
		}
	}
}

// TestUpgradeOrder: so many at once; a node that is stuck or has failed takes nobody's place, until too many have failed.
func TestUpgradeOrder(t *testing.T) {
	waits := upgradable("w", 0)
	works := upgradable("d", time.Minute, holder)
	stuck := upgradable("d", 2*time.Hour, holder)
	broken := upgradable("d", time.Minute, letGo, delivered(stack.Failed, "DriverFailed"))
	for _, tc := range []struct {
		name       string
		nodes      []stack.UpgradeNode
		most, fail int
		want       string
	}{
		{"one at once", []stack.UpgradeNode{waits, waits, waits}, 1, 1, "Draining Waiting Waiting"},
		{"two at once", []stack.UpgradeNode{waits, works, waits}, 2, 1, "Draining Draining Waiting"},
		{"a stuck node", []stack.UpgradeNode{stuck, waits, waits}, 1, 1, "Draining Draining Waiting"},
		{"many stuck nodes", []stack.UpgradeNode{stuck, stuck, stuck, waits}, 1, 0, "Draining Draining Draining Draining"},
		{"one failed", []stack.UpgradeNode{broken, waits, waits}, 1, 1, "Changing Draining Waiting"},
		{"too many failed", []stack.UpgradeNode{broken, broken, waits}, 3, 1, "Changing Changing Waiting"},
		{"one is too many", []stack.UpgradeNode{broken, waits}, 3, 0, "Changing Waiting"},
	} {
		rules := stack.UpgradeRules{Stack: "s", MaxUnavailable: tc.most, MaxFailed: tc.fail, DrainTimeout: time.Hour}
		var got []string
		last := stack.Step{}
		for _, s := range stack.Upgrade(rules, tc.nodes, upgradeTime) {
			got, last = append(got, string(s.Phase)), s
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
		if strings.Contains(tc.name, "too many") && last.Reason != stack.ReasonUpgradeStopped {
			t.Errorf("%s: waits for %s", tc.name, last.Reason)
		}
	}
}

// TestRules: percentages are of the stack's nodes, and one node may always change.
func TestRules(t *testing.T) {
	for _, tc := range []struct {
		most  intstr.IntOrString
		nodes int
		want  int
	}{
		{intstr.FromInt32(3), 2, 3},
		{intstr.FromString("10%"), 30, 3},
		{intstr.FromString("10%"), 29, 2},
		{intstr.FromString("10%"), 3, 1},
		{intstr.FromString("100%"), 7, 7},
		{intstr.FromString("x"), 7, 1},
		{intstr.FromInt32(0), 7, 1},
	} {
		s := &v1alpha1.AcceleratorStack{}
		s.Spec.Upgrade = &v1alpha1.StackUpgrade{MaxUnavailable: &tc.most}
		got := stack.RulesOf(s, make([]stack.UpgradeNode, tc.nodes))
		if got.MaxUnavailable != tc.want || got.MaxFailed != 1 || got.DrainTimeout != 30*time.Minute {
			t.Errorf("%s of %d nodes: %+v", tc.most.String(), tc.nodes, got)
		}
	}
}

// TestUpgrading: what is being changed is in doubt, and counts; what failed stays failed.
func TestUpgrading(t *testing.T) {
	for want, tc := range map[string]struct {
		delivered stack.Verdict
		phase     stack.Phase
		reason    string
	}{
		"0 UpgradeDraining true":  {stack.Verdict{}, stack.PhaseDraining, stack.ReasonUpgradeDraining},
		"0 UpgradeWaiting false":  {stack.Verdict{}, stack.PhaseWaiting, stack.ReasonUpgradeWaiting},
		"2 DriverFailed true":     {stack.Verdict{Status: stack.Failed, Reason: "DriverFailed"}, stack.PhaseChanging, "Other"},
		"2 UpgradeOverdue true":   {stack.Verdict{}, stack.PhaseChanging, stack.ReasonUpgradeOverdue},
		"1 Passed false":          {stack.Host(), stack.PhaseCurrent, ""},
		"0 UpgradeChecking true":  {stack.Host(), stack.PhaseChecking, stack.ReasonUpgradeChecking},
		"0 UpgradeQuiescing true": {stack.Verdict{}, stack.PhaseQuiescing, stack.ReasonUpgradeQuiescing},
	} {
		n := healthy("a")
		n.Delivered = tc.delivered
		o := stack.Judge(n)
		o.Upgrading(&stack.Step{Phase: tc.phase, Reason: tc.reason})
		if got := fmt.Sprintf("%d %s %t", o.Verdicts[1].Status, o.Verdicts[1].Reason, o.UpgradeRuns); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}

	// With a state of an administrator's own before it, the state Driver is the third.
	n := healthy("a")
	n.Delivered = stack.Verdict{}
	n.Extras = []stack.Extra{{Name: "Firmware", After: v1alpha1.StateFacts, Verdict: stack.Host()}}
	o := stack.Judge(n)
	step := stack.Step{Phase: stack.PhaseCurrent}
	step.Unwritten()
	o.Upgrading(&step)
	if w, waits := o.Waits(); !waits || w.State != v1alpha1.StateDriver || w.Reason != stack.ReasonUpgradeChecking || !o.UpgradeRuns {
		t.Errorf("a node that could not be released: %+v %t", w, waits)
	}
}
