// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/kmmsim"
)

// testKMM: KMM, of which a stand-in does the part, loads the driver by a Module of the stack. A kernel without an image holds back its
// node alone, another version is loaded only on a node whose label was taken off, and all is unloaded with the stack.
func (c cluster) testKMM(t *testing.T, good, bad string) {
	var mu sync.Mutex
	var done []string
	kmm := kmmsim.KMM{Client: c.client, Missing: map[string]bool{}, Seen: func(node, what string) {
		mu.Lock()
		defer mu.Unlock()
		done = append(done, node+" "+what)
	}}
	s := hostStack("api-kmm", "stacks")
	s.Spec.Driver = v1alpha1.StackDriver{Engine: v1alpha1.EngineKMM, KMM: &v1alpha1.KMMDriver{
		Version: "1", KernelMappings: []v1alpha1.KernelMapping{{Literal: "6.1.0-1", Image: "r.example/m:${KERNEL_FULL_VERSION}"}},
		Modprobe: v1alpha1.KMMModprobe{ModuleName: "nvidia"},
	}}
	c.create(t, s)
	c.awaitDriver(t, s, nil, bad+" KMMMissing, "+good+" KMMMissing")
	for _, d := range kmmsim.CRDs() {
		c.create(t, d)
	}
	c.changed(t, s, func() { s.Spec.Check = &v1alpha1.StackCheck{} }) // has it looked at now, and not when the minute is over
	c.awaitDriver(t, s, &kmm, bad+" NoKernelMapping")
	c.changed(t, s, func() {
		m := &s.Spec.Driver.KMM.KernelMappings
		*m = append(*m, v1alpha1.KernelMapping{Regexp: `^6\.1\.0-2$`, Image: "r.example/other:2"})
	})
	c.awaitDriver(t, s, &kmm, "")
	for _, node := range []string{good, bad} { // a cordon has a Module that does not tolerate it unloaded
		c.patchNode(t, node, `{"spec":{"unschedulable":true,"taints":[{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule"}]}}`)
	}
	c.awaitDriver(t, s, &kmm, "")

	c.changed(t, s, func() {
		s.Spec.Driver.KMM.Version = "2"
		s.Spec.Upgrade = &v1alpha1.StackUpgrade{Paused: true}
	})
	c.awaitDriver(t, s, &kmm, bad+" UpgradeWaiting, "+good+" UpgradeWaiting")
	c.patchNode(t, good, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, c.versionLabel(t, good)))
	c.awaitDriver(t, s, &kmm, bad+" UpgradeWaiting")
	c.upgradesByKMM(t, s, &kmm, bad)
	check.Must(t, c.client.Delete(t.Context(), s))
	apitest.Eventually(t, func() string {
		if err := kmm.Round(t.Context()); err != nil {
			return err.Error()
		}
		if label := c.versionLabel(t, bad) + c.versionLabel(t, good); label != "" {
			return "the nodes have " + label
		}
		mu.Lock()
		defer mu.Unlock()
		last := slices.Sorted(slices.Values(done[max(0, len(done)-2):]))
		if !slices.Equal(last, []string{bad + " unload 2", good + " unload 2"}) {
			return fmt.Sprintf("done last: %q", last)
		}
		return ""
	})
	want := []string{good + " load r.example/m:6.1.0-1", good + " unload 1", good + " load r.example/m:6.1.0-1", good + " unload 2"}
	if got := slices.DeleteFunc(slices.Clone(done), func(d string) bool { return !strings.HasPrefix(d, good) }); !slices.Equal(got, want) {
		t.Errorf("on %s was done %q, want %q", good, got, want)
	}
	for _, node := range []string{good, bad} {
		c.patchNode(t, node, `{"spec":{"unschedulable":null,"taints":null}}`)
	}
	for _, d := range kmmsim.CRDs() {
		check.Must(t, c.client.Delete(t.Context(), d))
	}
}

// upgradesByKMM: the stack itself changes the version of a node, once the plugin has let go of the devices.
func (c cluster) upgradesByKMM(t *testing.T, s *v1alpha1.AcceleratorStack, kmm *kmmsim.KMM, node string) {
	t.Helper()
	c.changed(t, s, func() { s.Spec.Upgrade = nil })
	c.awaitDriver(t, s, kmm, node+" UpgradeQuiescing")
	var a v1alpha1.AcceleratorNode
	check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: node}, &a))
	quiesced := func(a *v1alpha1.AcceleratorNodeStatus) {
		meta.SetStatusCondition(&a.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionQuiesced, Status: metav1.ConditionTrue, Reason: "Quiesced", Message: "nothing uses the driver",
		})
	}
	c.reportsFacts(t, node, a.Status.Facts.BootID, a.Status.Facts.PluginPod, quiesced)
	c.awaitDriver(t, s, kmm, node+" UpgradeChecking")
	check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: node}, &a))
	if _, quiet := a.Annotations[v1alpha1.QuiesceAnnotation]; quiet || a.Annotations[v1alpha1.UpgradeAnnotation] == "" {
		t.Errorf("while the node is checked it has %v", a.Annotations)
	}
	c.reportsFacts(t, node, a.Status.Facts.BootID, a.Status.Facts.PluginPod, nil)
	c.endCheck(t, node, corev1.PodSucceeded, "")
	c.awaitDriver(t, s, kmm, "")
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKey{Name: node}, &a); err != nil {
			return err.Error()
		}
		return a.Annotations[v1alpha1.UpgradeAnnotation]
	})
}

// awaitDriver waits until these nodes wait in the state Driver, while KMM does its part.
func (c cluster) awaitDriver(t *testing.T, s *v1alpha1.AcceleratorStack, kmm *kmmsim.KMM, want string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if kmm != nil {
			if err := kmm.Round(t.Context()); err != nil {
				return err.Error()
			}
		}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err.Error()
		}
		var have []string
		for _, w := range s.Status.Waiting {
			if w.State == v1alpha1.StateDriver {
				have = append(have, w.Node+" "+w.Reason)
			}
		}
		slices.Sort(have)
		if got := strings.Join(have, ", "); got != want || s.Status.ObservedGeneration != s.Generation {
			return fmt.Sprintf("in the state Driver wait %q, want %q", got, want)
		}
		return ""
	})
}

// changed changes the spec of a stack.
func (c cluster) changed(t *testing.T, s *v1alpha1.AcceleratorStack, change func()) {
	t.Helper()
	before := s.DeepCopy()
	change()
	check.Must(t, c.client.Patch(t.Context(), s, client.MergeFrom(before)))
}

func (c cluster) patchNode(t *testing.T, name, patch string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	check.Must(t, c.client.Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// versionLabel returns the label of a node by which KMM knows a version; empty: it has none.
func (c cluster) versionLabel(t *testing.T, name string) string {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("v1")
	o.SetKind("Node")
	check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: name}, o))
	for label := range o.GetLabels() {
		if strings.HasPrefix(label, "kmm.node.kubernetes.io/version-module.") {
			return label
		}
	}
	return ""
}
