// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
)

const drivers = "fettle-drivers"

// driving is a fixture whose stack s runs drivers on the nodes a and b.
func driving(t *testing.T) *fixture {
	t.Helper()
	return newFixture(t).driving(t)
}

func (f *fixture) driving(t *testing.T) *fixture {
	t.Helper()
	f.verified(t)
	f.drivers = drivers
	f.restart()
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineDaemonSet, DaemonSet: &v1alpha1.DaemonSetDriver{
		Repository: "registry.example/d", Tag: "${DRIVER_VERSION}-${KERNEL}", Version: "1", Privileged: new(true),
	}}
	check.Must(t, f.api.Update(t.Context(), &s))
	for _, name := range []string{"a", "b"} {
		f.kernel(t, name, "6.1.0-1")
		f.report(t, name, func(a *v1alpha1.AcceleratorNodeStatus) {
			a.Facts.BootTime = new(metav1.NewTime(time.Unix(1700000000, 0)))
		})
	}
	return f
}

func (f *fixture) kernel(t *testing.T, name, kernel string) {
	t.Helper()
	var n corev1.Node
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: name}, &n))
	n.Status.NodeInfo.KernelVersion, n.Status.NodeInfo.Architecture = kernel, "amd64"
	check.Must(t, f.api.Status().Update(t.Context(), &n))
}

// sets returns the nodes of the DaemonSets, by kernel.
func (f *fixture) sets(t *testing.T) map[string]string {
	t.Helper()
	var list appsv1.DaemonSetList
	check.Must(t, f.api.List(t.Context(), &list, client.InNamespace(drivers)))
	out := map[string]string{}
	for i := range list.Items {
		d := &list.Items[i]
		nodes := ""
		for _, term := range d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				nodes += strings.Join(field.Values, "")
			}
		}
		out[d.Annotations[stack.DriverKernelAnnotation]] = nodes
	}
	return out
}

// runs gives a node the pod of a driver for its kernel, in place of the one before.
func (f *fixture) runs(t *testing.T, node, kernel string, state corev1.ContainerState) {
	t.Helper()
	s := &v1alpha1.AcceleratorStack{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	set := setName(s, stack.Platform{KernelVersion: kernel, Architecture: "amd64"})
	p := podOn(node, drivers, "driver-"+node)
	p.Labels = map[string]string{stack.DriverLabel: set}
	p.Annotations = map[string]string{
		stack.DriverStackAnnotation: "s", stack.DriverArchAnnotation: "amd64", stack.DriverKernelAnnotation: kernel,
		stack.DriverImageAnnotation: "registry.example/d:1-" + kernel,
	}
	_ = f.api.Delete(t.Context(), p.DeepCopy(), client.GracePeriodSeconds(0))
	ready := corev1.ConditionFalse
	if state.Running != nil {
		ready = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: driverContainer, State: state}}
	f.write(t, p)
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(1700000060, 0))}}
}

// TestDrivers: one DaemonSet a kernel. A node that gets another kernel moves alone, an image that is missing holds it alone, and a
// DaemonSet of a kernel that no node has is deleted once no node waits.
func TestDrivers(t *testing.T) {
	f := driving(t)
	want := func(step, first, second string, reason string) {
		t.Helper()
		s := f.reconcile(t, "s")
		got := f.sets(t)
		if got["6.1.0-1"] != first || got["6.1.0+"] != second {
			t.Errorf("%s: the DaemonSets are %v", step, got)
		}
		waits := ""
		for _, w := range s.Status.Waiting {
			waits += w.Node + " " + w.Reason + ";"
		}
		if waits != reason {
			t.Errorf("%s: nodes wait %q, want %q", step, waits, reason)
		}
	}
	want("no pod", "ab", "", "a DriverPending;b DriverPending;")
	f.runs(t, "a", "6.1.0-1", running())
	f.runs(t, "b", "6.1.0-1", running())
	want("both have one", "ab", "", "")
	f.kernel(t, "b", "6.1.0+")
	want("another kernel: it begins", "ab", "", "b UpgradeDraining;")
	want("no pod has a device", "ab", "", "b UpgradeQuiescing;")
	want("the plugin has not let go", "ab", "", "b UpgradeQuiescing;")
	f.report(t, "b", func(a *v1alpha1.AcceleratorNodeStatus) {
		a.Conditions = append(a.Conditions, metav1.Condition{Type: v1alpha1.ConditionQuiesced, Status: metav1.ConditionTrue, Reason: "Quiesced"})
	})
	want("it has", "a", "b", "b UpgradeChanging;")
	f.runs(t, "b", "6.1.0+", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
	s := f.reconcile(t, "s")
	if len(s.Status.Waiting) == 0 || s.Status.Waiting[0].Node != "b" || !s.Status.Waiting[0].Failed && s.Status.Waiting[0].State != "Driver" {
		t.Errorf("no image: %+v", s.Status.Waiting)
	}
	f.kernel(t, "b", "6.1.0-1")
	want("back, and its pod is still of the other kernel", "ab", "", "b UpgradeChanging;")
	if len(f.sets(t)) != 2 {
		t.Errorf("a DaemonSet was deleted while a node waits: %v", f.sets(t))
	}
	f.runs(t, "b", "6.1.0-1", running())
	want("the driver is there", "ab", "", "b UpgradeChecking;")
	f.report(t, "b", func(a *v1alpha1.AcceleratorNodeStatus) { a.Conditions = a.Conditions[:len(a.Conditions)-1] })
	f.reconcile(t, "s")
	if want("all is well", "ab", "", ""); len(f.sets(t)) != 1 {
		t.Errorf("a DaemonSet without nodes is left: %v", f.sets(t))
	}
}

// TestSetNames: kernels and architectures that are one when sanitised have DaemonSets of their own.
func TestSetNames(t *testing.T) {
	s, seen := stackOf("s", "x"), map[string]bool{}
	for _, kernel := range []string{"6.1.0+", "6.1.0_", "6.1.0-"} {
		for _, arch := range []string{"amd64", "arm64"} {
			seen[setName(s, stack.Platform{KernelVersion: kernel, Architecture: arch})] = true
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d names for 6 platforms", len(seen))
	}
}
