// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// changesDriver: another version is wanted. The node with a pod that a disruption budget keeps is stuck, with the reason, and the other
// node gets the new driver meanwhile. Without the budget the pod is evicted, the driver changed, claims checked, and the pod's successor
// runs there again. The controller is killed twice on the way, and nothing is left of it all.
func changesDriver(ctx SpecContext) {
	allowsDrivers(ctx)
	registry, err := h.StartRegistry(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(h.StopRegistry(ctx)).To(Succeed()) })
	kernel := kernelOf(ctx, gpuNode)
	pushDriver(registry, "1-"+kernel)
	pushDriver(registry, "2-"+kernel)
	const name = "e2e-change"
	manifest := fmt.Sprintf(`
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: %s}
spec:
  driver:
    engine: DaemonSet
    daemonSet:
      repository: %s/driver
      tag: ${DRIVER_VERSION}-${KERNEL}
      version: "1"
      privileged: false
      command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]
      readyCommand: [ls, /ready]
  check: {deviceClassNames: [gpu.fettle.dev]}
  upgrade: {drainTimeout: 1m}
`, name, registry)
	_, err = h.Apply(ctx, manifest)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", name, "--wait")
		Expect(err).NotTo(HaveOccurred())
	})
	for _, node := range []string{gpuNode, mixedNode} {
		availableStack(ctx, name, node, "")
	}
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	first := keptWorker(ctx, ns)

	say("what another version would do")
	manifest = strings.Replace(manifest, `version: "1"`, `version: "2"`, 1)
	plan := stackPlan(ctx, manifest)
	Expect(plan.Nodes).To(HaveLen(h.Nodes))
	Expect(plan.Nodes[0]).To(And(HaveField("Node", gpuNode), HaveField("Turn", 1), HaveField("Phase", stack.PhaseDraining)))
	Expect(plan.Nodes[0].Pods).To(HaveLen(1))
	Expect(plan.Nodes[0].Pods[0]).To(And(HaveField("Name", first.Name), HaveField("Budgets", []string{"keeps"})))
	Expect(plan.Nodes[1]).To(And(HaveField("Node", mixedNode), HaveField("Turn", 2), HaveField("Pods", BeEmpty())))

	say("another version is wanted, and the controller is killed")
	begun := time.Now().Truncate(time.Second)
	_, err = h.Apply(ctx, manifest)
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		node, err := h.AcceleratorNode(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Annotations).To(HaveKey(v1alpha1.UpgradeAnnotation))
	}).Should(Succeed())
	killController(ctx)

	say("the node of the pod is stuck, and the other one is changed")
	Eventually(ctx, func(g Gomega) {
		w := readStack(ctx, g, name).Status.Waiting
		g.Expect(w).To(HaveLen(1))
		g.Expect(w[0].Node).To(Equal(gpuNode))
		g.Expect(w[0].Reason).To(Equal("UpgradeDrainBlocked"))
		g.Expect(w[0].Message).To(And(ContainSubstring(ns+"/"+first.Name), ContainSubstring("keeps")))
	}).WithTimeout(h.Patient(4 * soon)).Should(Succeed())
	Expect(driverPod(ctx, mixedNode).Spec.Containers[0].Image).To(HaveSuffix("/driver:2-" + kernel))
	Expect(driverPod(ctx, gpuNode).Spec.Containers[0].Image).To(HaveSuffix("/driver:1-" + kernel))
	stillRun(ctx, first)
	eventuallyUpgradeTaints(ctx, gpuNode, true)

	say("the budget goes, and the controller is killed again")
	Expect(h.Kube.PolicyV1().PodDisruptionBudgets(ns).Delete(ctx, "keeps", metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, first)
	eventuallyEvent(ctx, ns, "Pod", first.Name, "EvictedForUpgrade", name)
	killController(ctx)
	for _, node := range []string{gpuNode, mixedNode} {
		availableStack(ctx, name, node, "")
		Expect(driverPod(ctx, node).Spec.Containers[0].Image).To(HaveSuffix("/driver:2-" + kernel))
		Eventually(ctx, func(g Gomega) {
			n, err := h.AcceleratorNode(ctx, node)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(n.Annotations).NotTo(Or(HaveKey(v1alpha1.UpgradeAnnotation), HaveKey(v1alpha1.QuiesceAnnotation)))
			g.Expect(n.Status.Checks[0].Time.Time).To(BeTemporally(">=", begun), "the check is of the new driver")
		}).Should(Succeed())
		eventuallyUpgradeTaints(ctx, node, false)
	}

	say("the pod's successor runs there again")
	Eventually(ctx, func(g Gomega) {
		pods := workers(ctx, g, ns)
		g.Expect(pods).To(HaveLen(1))
		g.Expect(pods[0].UID).NotTo(Equal(first.UID))
		g.Expect(pods[0].Spec.NodeName).To(Equal(gpuNode))
		g.Expect(pods[0].Status.Phase).To(Equal(corev1.PodRunning))
	}).WithTimeout(h.Patient(2 * soon)).Should(Succeed())
}

// stackPlan returns what fettle stack plan says of the cluster with another stack.
func stackPlan(ctx context.Context, manifest string) stack.Preview {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "stack.yaml")
	Expect(os.WriteFile(file, []byte(manifest), 0o600)).To(Succeed())
	out, err := h.Fettle(ctx, "stack", "plan", "--from-cluster", "-f", file, "-o", "json")
	Expect(err).NotTo(HaveOccurred())
	var plans struct{ Stacks []stack.Preview }
	Expect(json.Unmarshal([]byte(out), &plans)).To(Succeed())
	Expect(plans.Stacks).To(HaveLen(1))
	return plans.Stacks[0]
}

// startWorker runs a Deployment of one pod with a GPU of a node, and returns the pod.
func startWorker(ctx context.Context, ns, node string) *corev1.Pod {
	GinkgoHelper()
	pod := corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: node}, TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken: new(false),
		ResourceClaims:               []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu")}},
		Containers: []corev1.Container{{
			Name: main, Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", stay},
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
		}},
	}
	_, err := h.Kube.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: workerLabels()},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: workerLabels()}, Spec: pod},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	var first *corev1.Pod
	Eventually(ctx, func(g Gomega) {
		pods := workers(ctx, g, ns)
		g.Expect(pods).To(HaveLen(1))
		first = &pods[0]
	}).Should(Succeed())
	running(ctx, first)
	return first
}

func workerLabels() map[string]string { return map[string]string{"e2e": "worker"} }

// keptWorker starts a worker that a disruption budget keeps.
func keptWorker(ctx context.Context, ns string) *corev1.Pod {
	GinkgoHelper()
	_, err := h.Kube.PolicyV1().PodDisruptionBudgets(ns).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "keeps"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: workerLabels()}, MaxUnavailable: new(intstr.FromInt32(0)),
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return startWorker(ctx, ns, gpuNode)
}

func workers(ctx context.Context, g Gomega, ns string) []corev1.Pod {
	pods, err := h.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "e2e=worker"})
	g.Expect(err).NotTo(HaveOccurred())
	return pods.Items
}

// killController ends the controller's process without notice. The Deployment starts another.
func killController(ctx context.Context) {
	GinkgoHelper()
	of := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"}
	pods, err := h.Kube.CoreV1().Pods("fettle-system").List(ctx, of)
	Expect(err).NotTo(HaveOccurred())
	gone := map[types.UID]bool{}
	for _, p := range pods.Items {
		gone[p.UID] = true
	}
	Expect(gone).NotTo(BeEmpty())
	err = h.Kube.CoreV1().Pods("fettle-system").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, of)
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		pods, err := h.Kube.CoreV1().Pods("fettle-system").List(ctx, of)
		g.Expect(err).NotTo(HaveOccurred())
		for _, p := range pods.Items {
			g.Expect(gone).NotTo(HaveKey(p.UID))
		}
		g.Expect(pods.Items).NotTo(BeEmpty())
	}).Should(Succeed())
}

// eventuallyUpgradeTaints waits until all devices of a node are published with the taint of an upgrade, or without.
func eventuallyUpgradeTaints(ctx context.Context, node string, want bool) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		devices, err := poolDevices(ctx, node+"/gpu")
		g.Expect(err).NotTo(HaveOccurred())
		for _, d := range devices {
			tainted := false
			for _, t := range d.Taints {
				tainted = tainted || t.Key == v1alpha1.UpgradeAnnotation
			}
			g.Expect(tainted).To(Equal(want), d.Name)
		}
		g.Expect(devices).NotTo(BeEmpty())
	}).Should(Succeed())
}
