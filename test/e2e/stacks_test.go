// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

func showsStacks() {
	It("has a claim checked on a node, again when the plugin is another, and says so in the stack", stackOfNode)
}

// stackOfNode: a stack of one node becomes available once its claim was checked by a pod that the scheduler placed. Another pod of the
// plugin makes the result worthless, and the check runs again.
func stackOfNode(ctx SpecContext) {
	const name = "e2e"
	_, err := h.Apply(ctx, fmt.Sprintf(`
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: %s}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: %s}}
  driver: {engine: Host}
  check: {deviceClassNames: [gpu.fettle.dev]}
`, name, gpuNode))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", name, "--wait")
		Expect(err).NotTo(HaveOccurred())
	})
	first := availableStack(ctx, name, "")
	Expect(first.Passed).To(BeTrue(), first.Message)
	By("another pod of the plugin")
	_, err = h.Kubectl(ctx, "delete", "pod", "-n", "fettle-system", "-l", "app.kubernetes.io/component=kubeletplugin",
		"--field-selector", "spec.nodeName="+gpuNode, "--wait")
	Expect(err).NotTo(HaveOccurred())
	second := availableStack(ctx, name, first.Evidence)
	Expect(second.Passed).To(BeTrue(), second.Message)
}

// availableStack waits until a stack is available by a check with other evidence than before, and returns the check.
func availableStack(ctx context.Context, name, before string) (check v1alpha1.NodeCheck) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		object, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratorstacks")).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var s v1alpha1.AcceleratorStack
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &s)).To(Succeed())
		node, err := h.AcceleratorNode(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionAvailable)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(metav1.ConditionTrue), c.Message)
		g.Expect(node.Status.Checks).To(HaveLen(1))
		check = node.Status.Checks[0]
		g.Expect(check.Evidence).NotTo(Equal(before))
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())
	return check
}
