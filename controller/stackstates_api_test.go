// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/placement"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	exporterManifests = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter, labels: {app: exporter}}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      serviceAccountName: exporter
      tolerations: [{operator: Exists}]
      containers: [{name: exporter, image: 'registry.example/exporter:${KERNEL}-${OS}', args: ['--kernel=${KERNEL}']}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: exporter, namespace: fettle-drivers}
`
	settingsManifest = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: exporter-settings}\ndata: {a: '${DRIVER}'}\n"
)

// testStates: an extra state on nodes of two kernels. What is not allowed is refused with its reason, each kernel has objects of its own,
// a check that fails holds back its node alone, no claim of that is checked, and what is not wanted any more goes.
func (c cluster) testStates(t *testing.T, good, bad string) {
	for _, name := range []string{good, bad} {
		var a v1alpha1.AcceleratorNode
		check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: name}, &a))
		before := a.DeepCopy()
		a.Status.Facts.BootTime = new(metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second)))
		if name == bad {
			a.Status.Checks = nil // what the stacks before found
		}
		check.Must(t, c.client.Status().Patch(t.Context(), &a, client.MergeFrom(before)))
	}
	// What is left of checks of the stacks before: no garbage collector runs here. The result of the good node still counts.
	check.Must(t, c.client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(checkNamespace), client.GracePeriodSeconds(0)))
	s := hostStack("api-states", "stacks")
	s.Spec.States = []v1alpha1.ExtraState{{
		Name: "Exporter", After: v1alpha1.StatePublished, Manifests: v1alpha1.StateManifests{ConfigMap: "exporter-manifests"},
		Check: v1alpha1.StateCheck{Pods: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "exporter"}}},
	}}
	c.create(t, s)
	c.awaitState(t, s, "ManifestsMissing", bad, good)
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: driverNamespace, Name: "exporter-manifests"}}
	c.create(t, files)
	for _, refused := range []struct{ text, reason, says string }{
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}", "ManifestsRefused", "is no kind that a stack makes"},
		{
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: kube-system}", "ManifestsRefused", "is for the namespace kube-system",
		},
		{exporterManifests + "---\napiVersion: v1\nkind: Service\nmetadata: {name: a}", "StateRefused", "spec.ports: Required value"},
		{
			exporterManifests + "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default}", "StateRefused",
			"ServiceAccount default is there, of somebody else",
		},
	} {
		if strings.Contains(refused.text, "name: default") {
			c.create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: driverNamespace, Name: "default"}})
		}
		c.manifests(t, s, files, refused.text)
		c.awaitState(t, s, refused.reason, bad, good)
		if got := s.Status.Waiting[0].Message; !strings.Contains(got, refused.says) {
			t.Errorf("refused: %q, want %q", got, refused.says)
		}
	}
	c.manifests(t, s, files, exporterManifests+settingsManifest)
	const image = "registry.example/exporter:"
	c.awaitStateSets(t, image+"6.1.0-1-debian12 "+good, image+"6.1.0-2_-debian12 "+bad)
	c.statePod(t, good, true)
	c.statePod(t, bad, false)
	c.awaitState(t, s, "StateFailed", bad)
	apitest.Eventually(t, func() string { return c.missingEvent(bad, "StateFailed") })
	c.awaitStack(t, s, "False StateFailed", "False Settled", "True StateFailed", 2, 1, bad+" Exporter StateFailed")
	if p := c.checkOf(t, bad); p != nil {
		t.Errorf("a claim is checked on %s, which has failed a state before", bad)
	}
	at := slices.IndexFunc(s.Status.States, func(s v1alpha1.StackStateCount) bool { return s.Name == "Exporter" })
	if at != 4 || s.Status.States[at].Passed != 1 || s.Status.States[at].Failed != 1 {
		t.Errorf("the states are %+v", s.Status.States)
	}

	c.manifests(t, s, files, exporterManifests)
	apitest.Eventually(t, func() string {
		gone := &corev1.ConfigMap{}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: driverNamespace, Name: "exporter-settings"}, gone); err == nil {
			return "the ConfigMap that is not in the manifests any more is there"
		}
		return ""
	})
	c.awaitStack(t, s, "False StateFailed", "False Settled", "True StateFailed", 2, 1, bad+" Exporter StateFailed")
	before := s.DeepCopy()
	s.Spec.States = nil
	check.Must(t, c.client.Patch(t.Context(), s, client.MergeFrom(before)))
	c.awaitStateSets(t)
	c.endCheck(t, bad, corev1.PodSucceeded, "")
	c.awaitStack(t, s, "True AllNodesReady", "False Settled", "False NoNodeFailed", 2, 2, "")
	check.Must(t, c.client.Delete(t.Context(), s))
}

// manifests writes those of a state, and has the stack judged now, and not when the minute is over.
func (c cluster) manifests(t *testing.T, s *v1alpha1.AcceleratorStack, files *corev1.ConfigMap, text string) {
	t.Helper()
	files.Data = map[string]string{"manifests.yaml": text}
	check.Must(t, c.client.Update(t.Context(), files))
	check.Must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(s), s))
	before := s.DeepCopy()
	s.Spec.Check = &v1alpha1.StackCheck{Interval: &metav1.Duration{Duration: time.Hour + time.Duration(s.Generation)*time.Minute}}
	check.Must(t, c.client.Patch(t.Context(), s, client.MergeFrom(before)))
}

// awaitState waits until the state of this generation's stack waits with the reason on these nodes and with no other reason anywhere.
func (c cluster) awaitState(t *testing.T, s *v1alpha1.AcceleratorStack, reason string, nodes ...string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err.Error()
		}
		var waits []string
		for _, w := range s.Status.Waiting {
			if w.State == "Exporter" && w.Reason == reason {
				waits = append(waits, w.Node)
			}
		}
		if !slices.Equal(waits, nodes) || s.Status.ObservedGeneration != s.Generation {
			return fmt.Sprintf("%v wait with %s, want %v: %+v", waits, reason, nodes, s.Status.Waiting)
		}
		return ""
	})
}

// awaitStateSets waits until the DaemonSets of extra states have these images and nodes.
func (c cluster) awaitStateSets(t *testing.T, want ...string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		var list appsv1.DaemonSetList
		if err := c.client.List(t.Context(), &list, client.InNamespace(driverNamespace), client.HasLabels{"fettle.dev/state"}); err != nil {
			return err.Error()
		}
		var have []string
		for i := range list.Items {
			spec := &list.Items[i].Spec.Template.Spec
			have = append(have, spec.Containers[0].Image+" "+strings.Join(placement.Of(spec.Affinity), "+"))
		}
		if slices.Sort(have); !slices.Equal(have, want) {
			return fmt.Sprintf("the DaemonSets are %q, want %q", have, want)
		}
		return ""
	})
}

// statePod makes the pod of a state's DaemonSet as the DaemonSet's controller would. It runs, or has failed.
func (c cluster) statePod(t *testing.T, node string, runs bool) {
	t.Helper()
	var list appsv1.DaemonSetList
	check.Must(t, c.client.List(t.Context(), &list, client.InNamespace(driverNamespace), client.HasLabels{"fettle.dev/state"}))
	for i := range list.Items {
		d := &list.Items[i]
		if !slices.Contains(placement.Of(d.Spec.Template.Spec.Affinity), node) {
			continue
		}
		p := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
		p.Namespace, p.Name, p.Spec.NodeName = driverNamespace, d.Name+"-"+node, node
		c.create(t, p)
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "boom"}}
		if runs {
			state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "exporter", Image: "x", ImageID: "x", State: state}}
		check.Must(t, c.client.Status().Update(t.Context(), p))
		return
	}
	t.Fatalf("no DaemonSet is for node %s", node)
}
