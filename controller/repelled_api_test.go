// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/kmmsim"
)

// testRepelled: a policy says which DaemonSets its taints keep away, and for which Modules KMM unloads the driver, as soon as KMM is
// installed. The API server taints the node as not ready, which hides none of them.
func (c cluster) testRepelled(t *testing.T) {
	const space, pool = "repelled", "repelled"
	c.taintable(t, "repelled-gpus", pool, 1)
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}})
	exporter := c.daemonSet(t, space, "exporter", pool)
	c.daemonSet(t, space, "tolerating", pool, corev1.Toleration{Operator: corev1.TolerationOpExists})
	c.daemonSet(t, space, "elsewhere", "other")
	p := nodePolicy("repelling", pool, "example.com/gpu=a:NoSchedule")
	c.create(t, p)
	c.awaitRepelling(t, p, "True DaemonSetsRepelled", "1 DaemonSet without a toleration of the taints: repelled/exporter;")
	apitest.Eventually(t, func() string { return c.missingEvent(p.Name, "DaemonSetsRepelled") })

	for _, d := range kmmsim.CRDs() {
		c.create(t, d)
	}
	module := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"selector": map[string]any{"pool": pool}, "moduleLoader": map[string]any{"container": map[string]any{}},
	}}}
	module.SetAPIVersion("kmm.sigs.x-k8s.io/v1beta1")
	module.SetKind("Module")
	module.SetNamespace(space)
	module.SetName("driver")
	apitest.Eventually(t, func() string { return errorText(c.client.Create(t.Context(), module.DeepCopy())) })
	c.update(t, p, func() { p.Spec.Nodes.Taints[0].Value = "b" })
	c.awaitRepelling(t, p, "True ModulesRepelled", "1 Module without a toleration of the taints: repelled/driver;")

	tolerates := corev1.Toleration{Key: "example.com/gpu", Operator: corev1.TolerationOpExists}
	c.update(t, exporter, func() { exporter.Spec.Template.Spec.Tolerations = []corev1.Toleration{tolerates} })
	c.update(t, module, func() {
		check.Must(t, unstructured.SetNestedSlice(module.Object,
			[]any{map[string]any{"key": tolerates.Key, "operator": string(tolerates.Operator)}}, "spec", "tolerations"))
	})
	c.update(t, p, func() { p.Spec.Nodes.Taints[0].Value = "c" })
	c.awaitRepelling(t, p, "False NoneRepelled", "tolerate the taints")

	c.update(t, p, func() { p.Spec.NodeSelector.MatchLabels["pool"] = "nothing" })
	c.awaitRepelling(t, p, "", "")
	check.Must(t, c.client.Delete(t.Context(), p))
	for _, d := range kmmsim.CRDs() {
		check.Must(t, c.client.Delete(t.Context(), d))
		apitest.Eventually(t, func() string { // a later test begins without KMM
			if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(d), d); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("CustomResourceDefinition %s is still there, error %v", d.Name, err)
			}
			return ""
		})
	}
}

// daemonSet makes a DaemonSet for the nodes of a pool.
func (c cluster) daemonSet(t *testing.T, space, name, pool string, tolerations ...corev1.Toleration) *appsv1.DaemonSet {
	t.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = corev1.PodSpec{
		NodeSelector: map[string]string{"pool": pool}, Tolerations: tolerations,
		Containers: []corev1.Container{{Name: "a", Image: "registry.example/a:v1"}},
	}
	c.create(t, d)
	return d
}

// awaitRepelling waits until the condition is as wanted; without any it must be gone.
func (c cluster) awaitRepelling(t *testing.T, p *v1alpha1.PartitionPolicy, want, says string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		check.Must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		got := status.Condition(p.Status.Conditions, v1alpha1.ConditionRepelling)
		outdated := want != "" && got.ObservedGeneration != p.Generation
		if strings.TrimSpace(string(got.Status)+" "+got.Reason) != want || !strings.Contains(got.Message, says) || outdated {
			return fmt.Sprintf("%+v, want %s: %s", got, want, says)
		}
		return ""
	})
}
