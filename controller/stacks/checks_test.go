// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
)

// pluginImage is what checks run. The chart that TestAPI installs has it, too: its policies let the controller run no other image.
const pluginImage = "registry.example/plugin:v1"

func testChecks() Checks {
	return Checks{Namespace: "checks", Image: pluginImage, PullPolicy: corev1.PullAlways, PullSecrets: []string{"pull"}}
}

// TestPod: the pod of a check is placed by the scheduler on its node, whatever taints the node and its devices have, takes no device from
// anybody, and has no rights.
func TestPod(t *testing.T) {
	o := testChecks()
	c := &claimCheck{stack: stackOf("s", "x"), node: strings.Repeat("n", 253), class: "gpu.fettle.dev", evidence: "e"}
	p, template := o.pod(c), o.template(c.class)
	if p.Spec.NodeName != "" || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Tolerations[0] != (corev1.Toleration{Operator: "Exists"}) {
		t.Errorf("the pod is placed by %+v", p.Spec)
	}
	r := template.Spec.Spec.Devices.Requests[0].Exactly
	if !*r.AdminAccess || len(r.Tolerations) != 1 || r.Tolerations[0] != (resourceapi.DeviceToleration{Operator: "Exists"}) ||
		*p.Spec.ResourceClaims[0].ResourceClaimTemplateName != template.Name || r.DeviceClassName != c.class {
		t.Errorf("the claim is %+v", r)
	}
	security := p.Spec.Containers[0].SecurityContext
	if *p.Spec.AutomountServiceAccountToken || *security.AllowPrivilegeEscalation || security.Privileged != nil || len(p.Spec.Volumes) > 0 ||
		p.Spec.HostNetwork || p.Spec.HostPID {
		t.Errorf("the pod has rights: %+v", p.Spec)
	}
	if len(p.Name) > 63 || p.Spec.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("pod %s pulls with %v", p.Name, p.Spec.ImagePullSecrets)
	}
	seen := map[string]bool{}
	for _, other := range []claimCheck{
		*c,
		{stack: stackOf("r", "x"), node: c.node, class: c.class},
		{stack: c.stack, node: "m", class: c.class},
		{stack: c.stack, node: c.node, class: "other"},
	} {
		seen[other.name()] = true
	}
	if len(seen) != 4 {
		t.Errorf("only %d names", len(seen))
	}
}

// pods returns the pods of checks by node, as "pending" or the phase.
func (f *fixture) pods(t *testing.T) map[string]*corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := f.api.List(t.Context(), &list, client.InNamespace("checks")); err != nil {
		t.Fatal(err)
	}
	out := map[string]*corev1.Pod{}
	for i := range list.Items {
		out[list.Items[i].Annotations[nodeAnnotation]] = &list.Items[i]
	}
	return out
}

// ends has the pod of a node's check end.
func (f *fixture) ends(t *testing.T, node string, phase corev1.PodPhase, message string) {
	t.Helper()
	p := f.pods(t)[node]
	if p == nil {
		t.Fatalf("node %s has no pod of a check", node)
	}
	p.Status.Phase = phase
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: message},
	}}}
	if err := f.api.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// TestChecks: a node is checked once the states before are passed, a failed check holds back that node alone and says why, another
// controller goes on where the last one was, and a node that starts again is checked again.
func TestChecks(t *testing.T) {
	f := newFixture(t)
	f.checks = testChecks()
	f.restart()
	f.report(t, "b", noDriver)
	if s := f.reconcile(t, "s"); s.Status.ReadyNodes != 0 {
		t.Errorf("before any check: %+v", s.Status)
	}
	if pods := f.pods(t); len(pods) != 1 || pods["a"] == nil {
		t.Fatalf("checked are %v, want a alone: b has no driver", pods)
	}
	f.report(t, "b", mended)
	f.reconcile(t, "s")
	f.ends(t, "a", corev1.PodSucceeded, "opened /dev/nvidia0")
	f.ends(t, "b", corev1.PodFailed, "selftest: open /dev/nvidia0: no such device")
	f.restart()
	s := f.reconcile(t, "s")
	if s.Status.ReadyNodes != 1 || s.Status.FailedNodes != 1 || s.Status.Waiting[0].Node != "b" ||
		s.Status.Waiting[0].State != v1alpha1.StateClaimChecked || !strings.Contains(s.Status.Waiting[0].Message, "no such device") {
		t.Errorf("one passed and one failed: %+v", s.Status)
	}
	if pods := f.pods(t); len(pods) != 0 {
		t.Errorf("pods that have ended are left: %v", pods)
	}
	if !slices.Contains(told(f.recorder), "Warning CheckFailed") {
		t.Error("no Event says that the check failed")
	}
	var a v1alpha1.AcceleratorNode
	if err := f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a); err != nil {
		t.Fatal(err)
	}
	if len(a.Status.Checks) != 1 || !a.Status.Checks[0].Passed || a.Status.Pools[0].Devices != 8 || len(a.Status.Conditions) != 3 {
		t.Errorf("node a reports %+v", a.Status)
	}
	f.reconcile(t, "s")
	if pods := f.pods(t); len(pods) != 0 {
		t.Errorf("checked again at once: %v", pods)
	}
	f.boots(t, "a", "boot-2")
	f.report(t, "a", func(s *v1alpha1.AcceleratorNodeStatus) { s.Facts.BootID = "boot-2" })
	if s := f.reconcile(t, "s"); s.Status.ReadyNodes != 0 || f.pods(t)["a"] == nil {
		t.Errorf("after a start: %+v", s.Status)
	}
	f.boots(t, "a", "boot-3") // while the check runs: its result would be of another boot
	f.report(t, "a", func(s *v1alpha1.AcceleratorNodeStatus) { s.Facts.BootID = "boot-3" })
	f.ends(t, "a", corev1.PodSucceeded, "")
	if s := f.reconcile(t, "s"); s.Status.ReadyNodes != 0 {
		t.Errorf("a check of another boot counts: %+v", s.Status)
	}
	f.reconcile(t, "s")
	f.ends(t, "a", corev1.PodSucceeded, "")
	if s := f.reconcile(t, "s"); s.Status.ReadyNodes != 1 {
		t.Errorf("after the check of this boot: %+v", s.Status)
	}
}

// TestResultsOfEarlierClasses: however many classes were checked before, the results of those that are checked now are in the status.
func TestResultsOfEarlierClasses(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("class-%02d", i) }
	begun := time.Unix(1e9, 0)
	for _, classes := range [][]string{nil, {name(15), "last"}} {
		var results []v1alpha1.NodeCheck
		for i := range v1alpha1.MaxNodeChecks {
			r := v1alpha1.NodeCheck{DeviceClassName: name(i), Time: metav1.NewTime(begun.Add(-time.Duration(i) * time.Second))}
			results = withResult(results, r, classes)
		}
		results = withResult(results, v1alpha1.NodeCheck{DeviceClassName: "last", Time: metav1.NewTime(begun)}, classes)
		var status v1alpha1.AcceleratorNodeStatus
		status.SetChecks(results)
		has := func(class string) bool {
			return slices.ContainsFunc(status.Checks, func(c v1alpha1.NodeCheck) bool { return c.DeviceClassName == class })
		}
		if !has("last") || !has(name(0)) || has(name(15)) != (classes != nil) || has(name(14)) != (classes == nil) {
			t.Errorf("for classes %q %d results are kept: %+v", classes, len(status.Checks), status.Checks)
		}
	}
}

// TestPodWithoutEvidence: a pod that does not say what it was made for proves nothing of a node without a report, and is deleted.
func TestPodWithoutEvidence(t *testing.T) {
	f := newFixture(t)
	f.checks = testChecks()
	f.restart()
	check.Must(t, f.api.Delete(t.Context(), &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	check.Must(t, f.api.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "checks", Name: "p", Labels: map[string]string{checkLabel: "claim"},
			Annotations: map[string]string{stackAnnotation: "s", nodeAnnotation: "a", classAnnotation: "gpu.fettle.dev"},
		},
		Status: corev1.PodStatus{Phase: corev1.PodSucceeded},
	}))
	f.reconcile(t, "s")
	if pods := f.pods(t); pods["a"] != nil {
		t.Error("the pod is left")
	}
}

// TestChecksWithoutRoom: checks that wait for room on nodes which are full do not run, and keep no other node from its check.
func TestChecksWithoutRoom(t *testing.T) {
	f := newFixture(t)
	f.checks = testChecks()
	f.restart()
	for _, node := range []string{"a", "b"} {
		f.report(t, node, noDriver)
	}
	for i := range maxChecks {
		for _, o := range machine(fmt.Sprintf("full-%02d", i), "x") {
			f.write(t, o)
		}
	}
	for _, o := range machine("other", "x") {
		f.write(t, o)
	}
	f.reconcile(t, "s")
	pods := f.pods(t)
	if len(pods) != maxChecks || pods["other"] != nil {
		t.Fatalf("%d checks run at once", len(pods))
	}
	for _, p := range pods {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/20 nodes are available: 1 Insufficient cpu, 19 node(s) didn't match Pod's node affinity/selector.",
		}}
		check.Must(t, f.api.Status().Update(t.Context(), p))
	}
	f.reconcile(t, "s")
	if pods := f.pods(t); len(pods) != maxChecks+1 || pods["other"] == nil {
		t.Errorf("the node with room is not checked: there are %d pods", len(pods))
	}
}

// TestChecksThatNeverEnd: the pods of checks that are deleted and never end, on nodes that are gone or with a program that the kernel
// cannot end, keep no other node from its check. Those that were deleted a moment ago still run.
func TestChecksThatNeverEnd(t *testing.T) {
	f := newFixture(t)
	f.checks = testChecks()
	for i := range maxChecks {
		for _, o := range machine(fmt.Sprintf("dead-%02d", i), "x") {
			f.write(t, o)
		}
	}
	f.restart()
	for _, node := range []string{"a", "b"} {
		f.report(t, node, noDriver)
	}
	f.reconcile(t, "s")
	for _, o := range machine("other", "x") {
		f.write(t, o)
	}
	deleted := metav1.Now()
	f.own = interceptor.NewClient(f.api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, l, opts...)
			if pods, is := l.(*corev1.PodList); is {
				for i := range pods.Items {
					if p := &pods.Items[i]; strings.HasPrefix(p.Annotations[nodeAnnotation], "dead-") {
						p.DeletionTimestamp = &deleted
					}
				}
			}
			return err
		},
	})
	f.restart()
	f.reconcile(t, "s")
	if pods := f.pods(t); len(pods) != maxChecks || pods["other"] != nil {
		t.Fatalf("%d checks run at once", len(pods))
	}
	deleted = metav1.NewTime(time.Now().Add(-time.Hour))
	f.restart()
	f.reconcile(t, "s")
	if pods := f.pods(t); len(pods) != maxChecks+1 || pods["other"] == nil {
		t.Errorf("the other node is not checked: there are %d pods", len(pods))
	}
}

// TestChecksTogether: two checks of a node end one after the other, and the controller's cache has not seen the result of the first when it
// writes that of the second. Both results are kept.
func TestChecksTogether(t *testing.T) {
	f := newFixture(t)
	f.checks = testChecks()
	classes := []string{"a.example", "b.example"}
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Check = &v1alpha1.StackCheck{DeviceClassNames: classes}
	check.Must(t, f.api.Update(t.Context(), &s))
	var stale v1alpha1.AcceleratorNodeList
	check.Must(t, f.api.List(t.Context(), &stale))
	f.own = interceptor.NewClient(f.api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if nodes, is := l.(*v1alpha1.AcceleratorNodeList); is {
				stale.DeepCopyInto(nodes)
				return nil
			}
			return c.List(ctx, l, opts...)
		},
	})
	f.restart()
	f.reconcile(t, "s")
	for _, class := range classes {
		var list corev1.PodList
		check.Must(t, f.api.List(t.Context(), &list, client.InNamespace("checks")))
		for i := range list.Items {
			if p := &list.Items[i]; p.Annotations[classAnnotation] == class && p.Annotations[nodeAnnotation] == "a" {
				p.Status.Phase = corev1.PodSucceeded
				check.Must(t, f.api.Status().Update(t.Context(), p))
			}
		}
		f.reconcile(t, "s")
	}
	var a v1alpha1.AcceleratorNode
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
	if len(a.Status.Checks) != 2 {
		t.Errorf("the results are %+v, want those of %q", a.Status.Checks, classes)
	}
}

// TestChecksOfOthers: pods of nodes that the stack does not hold for any more are deleted, and at most so many run at once.
func TestChecksOfOthers(t *testing.T) {
	f := newFixture(t)
	f.checks = testChecks()
	f.restart()
	for i := range maxChecks + 4 {
		for _, o := range machine("m"+string(rune('a'+i)), "x") {
			if err := f.api.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.reconcile(t, "s")
	f.reconcile(t, "s")
	if got := len(f.pods(t)); got != maxChecks {
		t.Errorf("%d pods, want %d", got, maxChecks)
	}
	var s v1alpha1.AcceleratorStack
	if err := f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s); err != nil {
		t.Fatal(err)
	}
	s.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "none"}}
	if err := f.api.Update(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	f.reconcile(t, "s")
	if pods := f.pods(t); len(pods) != 0 {
		t.Errorf("left are %d pods", len(pods))
	}
}

// boots has a Node report another boot.
func (f *fixture) boots(t *testing.T, name, boot string) {
	t.Helper()
	var node corev1.Node
	if err := f.api.Get(t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	node.Status.NodeInfo.BootID = boot
	if err := f.api.Status().Update(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
}

func mended(s *v1alpha1.AcceleratorNodeStatus) {
	s.SetProblems(nil)
	s.Facts.WithoutDriver = 0
}

// checkedOnce gives a node the result of a check that passed, as of the boot and the pod that it reports.
func checkedOnce(name string, a *v1alpha1.AcceleratorNode) {
	n := stack.Node{
		Name: name, BootID: "boot-1", KernelVersion: "6.1.0-1", Accelerator: &a.Status,
		Plugins: []stack.Pod{{UID: a.Status.Facts.PluginPod}},
	}
	a.Status.SetChecks([]v1alpha1.NodeCheck{{
		DeviceClassName: "gpu.fettle.dev", Evidence: stack.Evidence(&n, "gpu.fettle.dev"), Passed: true, Reason: "Passed",
		Time: metav1.NewTime(time.Now()),
	}})
}

// TestGoldenCheck writes the pod and the template of a check. The chart's policies are tested with them (test/chart).
func TestGoldenCheck(t *testing.T) {
	o := testChecks()
	c := &claimCheck{stack: stackOf("s", "x"), node: "n1", class: "gpu.fettle.dev", evidence: "e"}
	for name, object := range map[string]any{"pod": o.pod(c), "template": o.template(c.class)} {
		content, err := yaml.Marshal(object)
		check.Must(t, err)
		check.Golden(t, filepath.Join("testdata", name+".yaml"), content)
	}
}
