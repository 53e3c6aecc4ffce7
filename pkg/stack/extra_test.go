// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

func extraOf(name string, after v1alpha1.StackState, status stack.Status) stack.Extra {
	return stack.Extra{
		Name: v1alpha1.StackState(name), After: after, Verdict: stack.Verdict{Status: status, Reason: name + "Reason", Message: "why"},
	}
}

// TestExtraStates: extra states have their place, a node waits in them like in others, and no claim is checked before those that stand
// before ClaimChecked.
func TestExtraStates(t *testing.T) {
	n := healthy("a")
	n.Extras = []stack.Extra{
		extraOf("First", v1alpha1.StatePublished, stack.Passed), extraOf("Second", v1alpha1.StatePublished, stack.Failed),
		extraOf("Last", v1alpha1.StateMonitored, stack.Unknown),
	}
	o := stack.Judge(n)
	want := []v1alpha1.StackState{
		"Facts", "Driver", "DriverChecked", "Published", "First", "Second", "ClaimChecked", "Monitored", "Last",
	}
	if diff := cmp.Diff(want, o.States); diff != "" || len(o.Verdicts) != len(want) {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if w, waits := o.Waits(); !waits || w.State != "Second" || w.Reason != "SecondReason" || !w.Failed {
		t.Errorf("the node waits: %t %+v", waits, w)
	}
	if due, _ := stack.Due(n, time.Now()); due != nil {
		t.Errorf("claims of %v are checked before a state is passed", due)
	}
	n.Extras[1].Verdict.Status = stack.Passed
	if due, _ := stack.Due(n, time.Now()); len(due) != 1 {
		t.Errorf("claims of %v are checked once the states before are passed", due)
	}
	s := made("s", 1, nil)
	s.Spec.States = []v1alpha1.ExtraState{
		{Name: "Last"}, {Name: "First", After: v1alpha1.StatePublished}, {Name: "Second", After: v1alpha1.StatePublished}, {Name: "New"},
	}
	stack.Record(&s, stack.Selection{}, []stack.Outcome{stack.Judge(n)}, time.Now())
	var counts []string
	for _, c := range s.Status.States {
		counts = append(counts, fmt.Sprintf("%s %d%d%d", c.Name, c.Passed, c.Failed, c.Unknown))
	}
	const all = "Facts 100, Driver 100, DriverChecked 100, Published 100, First 100, Second 100, ClaimChecked 100, Monitored 100, " +
		"Last 001, New 001"
	if got := strings.Join(counts, ", "); got != all {
		t.Errorf("counts %s, want %s", got, all)
	}
}

// TestReached: a state begins once all before it are passed, in its place, and never on a node without a device.
func TestReached(t *testing.T) {
	n := healthy("a")
	n.Accelerator.Checks = nil
	for _, tc := range []struct {
		after  v1alpha1.StackState
		extras []stack.Extra
		want   bool
	}{
		{v1alpha1.StateFacts, nil, true},
		{v1alpha1.StatePublished, nil, true},
		{v1alpha1.StateClaimChecked, nil, false},
		{v1alpha1.StateMonitored, nil, false},
		{v1alpha1.StatePublished, []stack.Extra{extraOf("First", v1alpha1.StatePublished, stack.Passed)}, true},
		{v1alpha1.StatePublished, []stack.Extra{extraOf("First", v1alpha1.StatePublished, stack.Unknown)}, false},
		{v1alpha1.StatePublished, []stack.Extra{extraOf("First", v1alpha1.StateFacts, stack.Failed)}, false},
	} {
		n.Extras = tc.extras
		if got := stack.Reached(n, tc.after); got != tc.want {
			t.Errorf("behind %s with %+v: %t", tc.after, tc.extras, got)
		}
	}
	n.Extras, n.Checks.Off = nil, "the chart has no checks"
	if !stack.Reached(n, v1alpha1.StateMonitored) {
		t.Error("where claims are not checked, the states after that never begin")
	}
	n.Accelerator.Pools = nil
	if stack.Reached(n, v1alpha1.StateFacts) {
		t.Error("a node without a device has come to a state")
	}
}

// TestByPods: the pods of a state count if all are ready, of the manifests that are wanted, and started in this boot.
func TestByPods(t *testing.T) {
	boot := time.Unix(1700000000, 0)
	good := stack.StatePod{Name: "p", Current: true, Ready: true, Started: boot.Add(time.Minute)}
	with := func(change func(*stack.StatePod)) stack.StatePod {
		p := good
		change(&p)
		return p
	}
	crashes := with(func(p *stack.StatePod) { p.Ready, p.Waits, p.Message = false, "CrashLoopBackOff", "boom" })
	ended := with(func(p *stack.StatePod) { p.Ready, p.Waits = false, "Error" })
	unready := with(func(p *stack.StatePod) { p.Ready = false })
	for _, tc := range []struct {
		name string
		pods []stack.StatePod
		want string
	}{
		{"none", nil, "StatePending"},
		{"one", []stack.StatePod{good}, "Passed"},
		{"one that ended, before it is started again", []stack.StatePod{ended}, "StateFailed"},
		{"one that leaves", []stack.StatePod{with(func(p *stack.StatePod) { p.Leaving = true })}, "StatePending"},
		{"one beside one that leaves", []stack.StatePod{with(func(p *stack.StatePod) { p.Leaving, p.Ready = true, false }), good}, "Passed"},
		{"not ready", []stack.StatePod{unready}, "StatePending"},
		{"no image", []stack.StatePod{with(func(p *stack.StatePod) { p.Ready, p.Waits = false, "ErrImagePull" })}, "StateFailed"},
		{"crashes", []stack.StatePod{crashes}, "StateFailed"},
		{"of other manifests", []stack.StatePod{with(func(p *stack.StatePod) { p.Current = false })}, "StateOutdated"},
		{"of another boot", []stack.StatePod{with(func(p *stack.StatePod) { p.Started = boot.Add(-time.Minute) })}, "StateOtherBoot"},
		{"ready, and a container never ran", []stack.StatePod{with(func(p *stack.StatePod) { p.Started = time.Time{} })}, "StatePending"},
		{"one of two", []stack.StatePod{good, unready}, "StatePending"},
		{"the other of two", []stack.StatePod{unready, good}, "StatePending"},
		{"one has failed", []stack.StatePod{good, unready, crashes}, "StateFailed"},
	} {
		n := healthy("a")
		n.Accelerator.Facts.BootTime = new(metav1.NewTime(boot))
		if got := stack.ByPods(n, tc.pods); got.Reason != tc.want {
			t.Errorf("%s: %+v, want %s", tc.name, got, tc.want)
		}
	}
	n := healthy("a")
	if got := stack.ByPods(n, []stack.StatePod{good}); got.Reason != stack.ReasonNotReported {
		t.Errorf("the time of the boot is not known: %+v", got)
	}
	n.BootID = "another"
	if got := stack.ByPods(n, []stack.StatePod{good}); got.Reason != stack.ReasonNotCurrent {
		t.Errorf("the report is of another boot: %+v", got)
	}
}

// TestByJob: a Job counts once it has completed, and a failed one fails the state.
func TestByJob(t *testing.T) {
	job := func(kind batchv1.JobConditionType, status corev1.ConditionStatus) *batchv1.Job {
		return &batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: kind, Status: status}}}}
	}
	leaving := job(batchv1.JobComplete, corev1.ConditionTrue)
	leaving.DeletionTimestamp = new(metav1.Now())
	for _, tc := range []struct {
		job  *batchv1.Job
		want stack.Status
	}{
		{nil, stack.Unknown},
		{&batchv1.Job{}, stack.Unknown},
		{leaving, stack.Unknown},
		{job(batchv1.JobSuspended, corev1.ConditionTrue), stack.Unknown},
		{job(batchv1.JobComplete, corev1.ConditionFalse), stack.Unknown},
		{job(batchv1.JobComplete, corev1.ConditionTrue), stack.Passed},
		{job(batchv1.JobFailed, corev1.ConditionTrue), stack.Failed},
	} {
		if got := stack.ByJob("a", tc.job); got.Status != tc.want {
			t.Errorf("%+v of %+v, want %v", got, tc.job, tc.want)
		}
	}
}

// TestByCondition: a condition counts if it is of the object's present generation.
func TestByCondition(t *testing.T) {
	object := func(generation, observed int64, condition map[string]any) map[string]any {
		status := map[string]any{"conditions": []any{"nonsense", condition}}
		if observed > 0 {
			status["observedGeneration"] = observed
		}
		return map[string]any{"metadata": map[string]any{"generation": generation}, "status": status}
	}
	well := map[string]any{"type": "Available", "status": "True"}
	for _, tc := range []struct {
		name   string
		object map[string]any
		want   stack.Status
	}{
		{"no object", nil, stack.Unknown},
		{"no status", map[string]any{"status": "nonsense"}, stack.Unknown},
		{"well", object(2, 0, well), stack.Passed},
		{"of this generation", object(2, 2, well), stack.Passed},
		{"of an earlier one", object(2, 1, well), stack.Unknown},
		{"the condition of an earlier one", object(2, 0, map[string]any{
			"type": "Available", "status": "True", "observedGeneration": int64(1),
		}), stack.Unknown},
		{"another status", object(1, 1, map[string]any{"type": "Available", "status": "False"}), stack.Unknown},
		{"another type", object(1, 1, map[string]any{"type": "Progressing", "status": "True"}), stack.Unknown},
	} {
		got := stack.ByCondition(&v1alpha1.StateCondition{Kind: "Deployment", Name: "a", Type: "Available"}, tc.object)
		if got.Status != tc.want || got.Reason == "" {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
}
