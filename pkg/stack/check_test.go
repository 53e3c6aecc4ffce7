// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

const gpus = "gpu.fettle.dev"

// verified adds the result of a check to a node.
func verified(n *stack.Node, class string, passed bool, at time.Time) {
	reason := stack.ReasonPassed
	if !passed {
		reason = stack.ReasonCheckFailed
	}
	n.Accelerator.SetChecks(append(n.Accelerator.Checks, v1alpha1.NodeCheck{
		DeviceClassName: class, Evidence: stack.Evidence(n, class), Passed: passed, Reason: reason, Message: "said", Time: metav1.NewTime(at),
	}))
}

// claimChecked is the verdict of the state.
func claimChecked(n *stack.Node) stack.Verdict {
	return stack.Judge(n).Verdicts[slices.Index(v1alpha1.StackStates(), v1alpha1.StateClaimChecked)]
}

// TestEvidence: a result counts for one boot, kernel, driver, plugin and class, and for no other.
func TestEvidence(t *testing.T) {
	for name, change := range map[string]func(*stack.Node){
		"another boot":                   func(n *stack.Node) { n.BootID, n.Accelerator.Facts.BootID = "boot-2", "boot-2" },
		"a kernel":                       func(n *stack.Node) { n.KernelVersion = "6.1.0-2" },
		"a driver":                       func(n *stack.Node) { n.Accelerator.Summary.Drivers = "nvidia 590.1.1" },
		"no driver":                      func(n *stack.Node) { n.Accelerator.Summary = nil },
		"a plugin":                       func(n *stack.Node) { n.Accelerator.Facts.PluginPod, n.Plugins[0].UID = "pod-2", "pod-2" },
		"a plugin that has not reported": func(n *stack.Node) { n.Plugins[0].UID = "pod-2" },
		"a boot that is not reported":    func(n *stack.Node) { n.BootID = "boot-2" },
		"another node":                   func(n *stack.Node) { n.Name = "b" },
		"another class":                  func(n *stack.Node) { n.Checks.Classes = []string{"fpga.fettle.dev"} },
	} {
		n := healthy("a")
		if v := claimChecked(n); v.Status != stack.Passed {
			t.Fatalf("before: %+v", v)
		}
		if change(n); claimChecked(n).Status != stack.Unknown {
			t.Errorf("%s: %+v, want it unknown", name, claimChecked(n))
		}
	}
}

// TestEarlierStatesFlicker: a check that has passed stays passed while the plugin's pod is not ready, slices are written or the engine has
// failed; nothing new is begun meanwhile.
func TestEarlierStatesFlicker(t *testing.T) {
	for name, change := range map[string]func(*stack.Node){
		"not ready": func(n *stack.Node) { n.Plugins[0].Ready = false },
		"engine":    func(n *stack.Node) { n.Delivered = stack.Verdict{Status: stack.Failed, Reason: "R"} },
		"slices":    func(n *stack.Node) { set(n, v1alpha1.ConditionPublished, metav1.ConditionFalse, "not yet") },
	} {
		n := healthy("a")
		if change(n); claimChecked(n).Status != stack.Passed {
			t.Errorf("%s: %+v", name, claimChecked(n))
		}
		n.Accelerator.Checks = nil
		if due, _ := stack.Due(n, time.Now()); due != nil || claimChecked(n).Status != stack.Unknown {
			t.Errorf("%s: %q are due", name, due)
		}
	}
}

// TestClaimChecked: every class needs a result, a failed one counts first, and a repeated check takes nothing back.
func TestClaimChecked(t *testing.T) {
	now := time.Now()
	running := map[string]stack.Verdict{gpus: {Reason: stack.ReasonCheckRunning, Message: "runs"}}
	for _, tc := range []struct {
		name   string
		change func(*stack.Node)
		want   stack.Status
		reason string
	}{
		{"not checked yet", func(*stack.Node) {}, stack.Unknown, stack.ReasonCheckPending},
		{"runs", func(n *stack.Node) { n.Checks.Running = running }, stack.Unknown, stack.ReasonCheckRunning},
		{"may not run", func(n *stack.Node) { n.Checks.Off = "off" }, stack.Unknown, stack.ReasonChecksOff},
		{"passed", func(n *stack.Node) { verified(n, gpus, true, now) }, stack.Passed, stack.ReasonPassed},
		{"failed", func(n *stack.Node) { verified(n, gpus, false, now) }, stack.Failed, stack.ReasonCheckFailed},
		{"is repeated", func(n *stack.Node) {
			verified(n, gpus, true, now.Add(-48*time.Hour))
			n.Checks.Running = running
		}, stack.Passed, stack.ReasonPassed},
		{"one of two classes", func(n *stack.Node) {
			n.Checks.Classes = []string{gpus, "other"}
			verified(n, gpus, true, now)
		}, stack.Unknown, stack.ReasonCheckPending},
		{"two classes, the second failed", func(n *stack.Node) {
			n.Checks.Classes = []string{"other", gpus}
			verified(n, gpus, false, now)
		}, stack.Failed, stack.ReasonCheckFailed},
		{"nothing is published", func(n *stack.Node) { n.Accelerator.Pools[0].Devices = 0 }, stack.Unknown, stack.ReasonNoClass},
		{"no report", func(n *stack.Node) { n.Accelerator = nil }, stack.Unknown, stack.ReasonNotCurrent},
		{"directories beside GPUs", func(n *stack.Node) {
			n.Accelerator.Pools = append(n.Accelerator.Pools, v1alpha1.PoolStatus{Kind: "host", Devices: 1})
			verified(n, gpus, true, now)
		}, stack.Passed, stack.ReasonPassed},
		{"directories alone", func(n *stack.Node) { n.Accelerator.Pools[0].Kind = "host" }, stack.Passed, stack.ReasonPassed},
	} {
		n := healthy("a")
		n.Accelerator.Checks = nil
		tc.change(n)
		if v := claimChecked(n); v.Status != tc.want || v.Reason != tc.reason || v.Message == "" {
			t.Errorf("%s: %+v, want %v %s", tc.name, v, tc.want, tc.reason)
		}
	}
}

// TestDue: what passed is repeated after the interval, what failed earlier, and nothing while a check runs or a state before is not passed.
func TestDue(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name   string
		change func(*stack.Node)
		want   []string
		next   time.Duration
	}{
		{"first", func(*stack.Node) {}, []string{gpus}, 0},
		{"off", func(n *stack.Node) { n.Checks.Off = "off" }, nil, 0},
		{"runs", func(n *stack.Node) { n.Checks.Running = map[string]stack.Verdict{gpus: {}} }, nil, 0},
		{"passed an hour ago", func(n *stack.Node) { verified(n, gpus, true, now.Add(-time.Hour)) }, nil, 23 * time.Hour},
		{"passed a day ago", func(n *stack.Node) { verified(n, gpus, true, now.Add(-24*time.Hour)) }, []string{gpus}, 0},
		{"failed a minute ago", func(n *stack.Node) { verified(n, gpus, false, now.Add(-time.Minute)) }, nil, 9 * time.Minute},
		{"failed a while ago", func(n *stack.Node) { verified(n, gpus, false, now.Add(-10*time.Minute)) }, []string{gpus}, 0},
		{"started again since", func(n *stack.Node) {
			verified(n, gpus, true, now)
			n.BootID, n.Accelerator.Facts.BootID = "boot-2", "boot-2"
		}, []string{gpus}, 0},
		{"one of two", func(n *stack.Node) {
			n.Checks.Classes = []string{gpus, "other"}
			verified(n, gpus, true, now)
		}, []string{"other"}, 24 * time.Hour},
		{"no driver on a device", func(n *stack.Node) { problems(n, 1, missing) }, nil, 0},
		{"nothing is watched", func(n *stack.Node) {
			set(n, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, "silent")
		}, []string{gpus}, 0},
	} {
		n := healthy("a")
		n.Accelerator.Checks, n.Checks.Interval = nil, 24*time.Hour
		tc.change(n)
		got, next := stack.Due(n, now)
		if !slices.Equal(got, tc.want) || next.Round(time.Second) != tc.next {
			t.Errorf("%s: due are %q, the next in %s; want %q, %s", tc.name, got, next, tc.want, tc.next)
		}
	}
}

// TestEnded: what a pod shows. A busy node fails nothing, and a claim that gets no device does.
func TestEnded(t *testing.T) {
	now := time.Now()
	state := func(s corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: s}} }
	}
	unscheduled := func(message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message}}
		}
	}
	scheduled := func(since time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-since)),
			}}
		}
	}
	const busy = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector."
	const noDevice = "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't match Pod's node affinity/selector."
	for _, tc := range []struct {
		name   string
		phase  corev1.PodPhase
		age    time.Duration
		change func(*corev1.Pod)
		status stack.Status
		reason string
		text   string
		done   bool
	}{
		{"succeeded", corev1.PodSucceeded, time.Hour, nil, stack.Passed, stack.ReasonPassed, "opened", true},
		{"failed", corev1.PodFailed, 0, state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Reason: "Error", Message: "selftest: open /dev/nvidia0: no such device\n",
		}}), stack.Failed, stack.ReasonCheckFailed, "open /dev/nvidia0: no such device", true},
		{"killed", corev1.PodFailed, 0, state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "OOMKilled",
		}}), stack.Failed, stack.ReasonCheckFailed, "OOMKilled, exit code 137", true},
		{"evicted", corev1.PodFailed, 0, func(p *corev1.Pod) {
			p.Status.Message = "the node was low on resource: memory"
		}, stack.Failed, stack.ReasonCheckFailed, "low on resource", true},
		{"new", corev1.PodPending, 0, unscheduled(noDevice), stack.Unknown, stack.ReasonCheckRunning, "cannot allocate", false},
		{
			"no device", corev1.PodPending, time.Minute, unscheduled(noDevice), stack.Failed, stack.ReasonCheckNotScheduled,
			"cannot allocate", true,
		},
		{"a busy node", corev1.PodPending, 24 * time.Hour, unscheduled(busy), stack.Unknown, stack.ReasonCheckNoRoom, "Insufficient cpu", false},
		{"no more so", corev1.PodPending, 24 * time.Hour, scheduled(time.Second), stack.Unknown, stack.ReasonCheckRunning, "runs since", false},
		{"hangs then", corev1.PodRunning, 24 * time.Hour, scheduled(time.Minute), stack.Failed, stack.ReasonCheckNotStarted, "did not end", true},
		{"starts", corev1.PodPending, time.Second, nil, stack.Unknown, stack.ReasonCheckRunning, "runs since", false},
		{"no image", corev1.PodPending, time.Minute, state(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "ImagePullBackOff", Message: "not found",
		}}), stack.Failed, stack.ReasonCheckNotStarted, "ImagePullBackOff: not found", true},
		{"hangs", corev1.PodRunning, time.Minute, nil, stack.Failed, stack.ReasonCheckNotStarted, "did not end in 1m0s", true},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "checks", Name: "p", CreationTimestamp: metav1.NewTime(now.Add(-tc.age))}}
		p.Spec.NodeName, p.Status.Phase = "a", tc.phase
		if tc.change != nil {
			tc.change(p)
		}
		v, done := stack.Ended(p, time.Minute, now)
		if v.Status != tc.status || v.Reason != tc.reason || done != tc.done || !strings.Contains(v.Message, tc.text) {
			t.Errorf("%s: %+v, done %t", tc.name, v, done)
		}
	}
}

// TestCheckDue: the check that passed longest ago is the one to be repeated first. One that failed, one of other evidence and one that is
// not run any more are not waited for.
func TestCheckDue(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(*stack.Node)
		want   time.Time
	}{
		"two classes": {func(n *stack.Node) {
			verified(n, gpus, true, now)
			verified(n, "fpga.fettle.dev", true, now.Add(-time.Hour))
		}, now.Add(time.Hour)},
		"a failure": {func(n *stack.Node) { verified(n, gpus, false, now) }, time.Time{}},
		"none yet":  {func(*stack.Node) {}, time.Time{}},
		"off": {func(n *stack.Node) {
			verified(n, gpus, true, now)
			n.Checks.Off = "they are off"
		}, time.Time{}},
		"another boot": {func(n *stack.Node) {
			verified(n, gpus, true, now)
			n.BootID, n.Accelerator.Facts.BootID = "boot-2", "boot-2"
		}, time.Time{}},
	} {
		n := healthy("a")
		n.Accelerator.Checks = nil
		n.Checks.Classes, n.Checks.Interval = []string{gpus, "fpga.fettle.dev"}, 2*time.Hour
		c.change(n)
		if got := stack.Judge(n).CheckDue; !got.Equal(c.want) {
			t.Errorf("%s: due %s, want %s", name, got, c.want)
		}
	}
}
