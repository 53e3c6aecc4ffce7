// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// stateManifests are those of an exporter that does not start on one node, or on none. The Service is the same on all nodes.
const stateManifests = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - name: exporter
        image: %s
        imagePullPolicy: Never
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: KERNEL, value: '${KERNEL}'}]
        readinessProbe: {exec: {command: [ls, /up]}, periodSeconds: 1}
        command:
        - sh
        - -c
        - |
          [ $NODE != '%s' ] || { echo no counters > /dev/termination-log; exit 3; }
          [ "$KERNEL" = "$(uname -r)" ] || exit 4
          : > /up
          %s
---
apiVersion: v1
kind: Service
metadata: {name: exporter}
spec: {selector: {app: exporter}, ports: [{port: 9400}]}
`

// ownStates: the objects of an administrator's own state are made for the nodes, with the kernel of these. The node on which its check
// fails is held alone, with the reason in the stack, at its AcceleratorNode and in an Event, and no claim is checked there. Other manifests
// mend it, once the pods are replaced, and with the stack the objects go.
func ownStates(ctx SpecContext) {
	allowsDrivers(ctx)
	const name, files, state = "e2e-states", "exporter-files", "Exporter"
	writeStateFiles(ctx, files, mixedNode)
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "configmap", "-n", driversNamespace, files)
		Expect(err).NotTo(HaveOccurred())
	})
	judged := func(minutes int) { // ConfigMaps are read once a minute; a stack that changes is judged now
		_, err := h.Apply(ctx, fmt.Sprintf(`
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: %s}
spec:
  driver: {engine: Host}
  check: {deviceClassNames: [gpu.fettle.dev], interval: %dm}
  states:
  - {name: %s, after: Published, manifests: {configMap: %s}, check: {pods: {matchLabels: {app: exporter}}}}
`, name, minutes, state, files))
		Expect(err).NotTo(HaveOccurred())
	}
	begun := time.Now().Truncate(time.Second)
	judged(120)
	DeferCleanup(func(ctx SpecContext) { // where the spec failed half way
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", name, "--wait", "--ignore-not-found")
		Expect(err).NotTo(HaveOccurred())
	})

	say("one node is held")
	Eventually(ctx, func(g Gomega) {
		w := readStack(ctx, g, name).Status.Waiting
		g.Expect(w).To(HaveLen(1), "the other node passes: %+v", w)
		g.Expect(w[0]).To(And(HaveField("Node", mixedNode), HaveField("State", v1alpha1.StackState(state)), HaveField("Failed", true)))
		g.Expect(w[0].Reason).To(Equal("StateFailed"))
		g.Expect(w[0].Message).To(ContainSubstring("no counters"))
		held, err := h.AcceleratorNode(ctx, mixedNode)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(checkedSince(held, begun)).To(BeFalse(), "no claim is checked on a node that is held before")
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())
	eventuallyEvent(ctx, metav1.NamespaceDefault, "AcceleratorNode", mixedNode, "StateFailed", "no counters")

	say("other manifests, and their pods")
	writeStateFiles(ctx, files, "none")
	judged(121)
	Eventually(ctx, func(g Gomega) {
		var reasons []string
		for _, w := range readStack(ctx, g, name).Status.Waiting {
			reasons = append(reasons, w.Node+" "+w.Reason)
		}
		g.Expect(reasons).To(ContainElement(gpuNode+" StateOutdated"), "pods are replaced by whoever knows when")
	}).WithTimeout(h.Patient(2 * soon)).Should(Succeed())
	_, err := h.Kubectl(ctx, "delete", "pod", "-n", driversNamespace, "-l", "app=exporter", "--wait")
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		s := readStack(ctx, g, name)
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionAvailable)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(metav1.ConditionTrue), c.Message)
		at := slices.IndexFunc(s.Status.States, func(c v1alpha1.StackStateCount) bool { return c.Name == state })
		g.Expect(at).To(BeNumerically(">", 0))
		g.Expect(s.Status.States[at].Passed).To(Equal(int32(h.Nodes)))
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())

	say("the stack goes, and its objects")
	_, err = h.Kubectl(ctx, "delete", "acceleratorstack", name, "--wait")
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		out, err := h.Kubectl(ctx, "get", "daemonset,service,pod", "-n", driversNamespace, "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.TrimSpace(out)).To(BeEmpty())
	}).WithTimeout(h.Patient(2 * soon)).Should(Succeed())
}

// writeStateFiles writes the ConfigMap with the manifests of the state, which fails on a node.
func writeStateFiles(ctx context.Context, name, failsOn string) {
	GinkgoHelper()
	files := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: driversNamespace},
		Data:       map[string]string{"exporter.yaml": fmt.Sprintf(stateManifests, image, failsOn, stay)},
	}
	_, err := h.Kube.CoreV1().ConfigMaps(driversNamespace).Update(ctx, files, metav1.UpdateOptions{})
	if err != nil {
		_, err = h.Kube.CoreV1().ConfigMaps(driversNamespace).Create(ctx, files, metav1.CreateOptions{})
	}
	Expect(err).NotTo(HaveOccurred())
}

// checkedSince says whether a claim was checked on a node since then.
func checkedSince(node *v1alpha1.AcceleratorNode, since time.Time) bool {
	return slices.ContainsFunc(node.Status.Checks, func(c v1alpha1.NodeCheck) bool { return !c.Time.Time.Before(since) })
}
