// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
)

func showsStacks() {
	It("has a claim checked on a node, again when the plugin is another, and says so in the stack", stackOfNode)
	It("has a node that joins pass every state before it is available", later("waits for a node to join and for every state"),
		ofNode, nodeJoins, SpecTimeout(h.Patient(8*time.Minute)))
	It("brings drivers in containers, by the kernel of each node, and names the node that has no image for its own", ofNode, driversByKernel,
		SpecTimeout(h.Patient(8*time.Minute)))
	It("changes the driver of nodes while the controller is killed, honours disruption budgets, and tells of one that does not load", ofNode,
		later("a change of all nodes takes five minutes, most of them pauses"), changesDriver, SpecTimeout(h.Patient(15*time.Minute)))
	It("runs states of an administrator's own, and holds back the node alone on which one fails",
		later("waits for every state of several nodes"), ofNode, ownStates,
		SpecTimeout(h.Patient(8*time.Minute)))
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
	first := availableStack(ctx, name, gpuNode, "")
	Expect(first.Passed).To(BeTrue(), first.Message)
	By("another pod of the plugin")
	_, err = h.Kubectl(ctx, "delete", "pod", "-n", "fettle-system", "-l", "app.kubernetes.io/component=kubeletplugin",
		"--field-selector", "spec.nodeName="+gpuNode, "--wait")
	Expect(err).NotTo(HaveOccurred())
	second := availableStack(ctx, name, gpuNode, first.Evidence)
	Expect(second.Passed).To(BeTrue(), second.Message)
}

// availableStack waits until a stack is available by a check of a node with other evidence than before, and returns the check.
func availableStack(ctx context.Context, name, onNode, before string) (check v1alpha1.NodeCheck) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		s := readStack(ctx, g, name)
		node, err := h.AcceleratorNode(ctx, onNode)
		g.Expect(err).NotTo(HaveOccurred())
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionAvailable)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(metav1.ConditionTrue), c.Message)
		check = checkOf(g, node, s.Spec.Check.DeviceClassNames[0])
		g.Expect(check.Evidence).NotTo(Equal(before))
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())
	return check
}

// checkOf is the result of a class's check on a node, on which other stacks may have had other classes checked before.
func checkOf(g Gomega, node *v1alpha1.AcceleratorNode, class string) v1alpha1.NodeCheck {
	at := slices.IndexFunc(node.Status.Checks, func(c v1alpha1.NodeCheck) bool { return c.DeviceClassName == class })
	g.Expect(at).To(BeNumerically(">=", 0), "%+v", node.Status.Checks)
	return node.Status.Checks[at]
}

func readStack(ctx context.Context, g Gomega, name string) (s v1alpha1.AcceleratorStack) {
	object, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratorstacks")).Get(ctx, name, metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &s)).To(Succeed())
	return s
}

// nodeJoins: a node that nothing in the cluster remembers joins. The stack counts it once it is there, and is available once each of its
// states was passed. A claim then runs there.
func nodeJoins(ctx SpecContext) {
	const name = "e2e-joins"
	_, err := h.Apply(ctx, fmt.Sprintf(`
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: %s}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: %s}}
  driver: {engine: Host}
  check: {deviceClassNames: [gpu.fettle.dev]}
`, name, driverNode))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", name, "--wait")
		Expect(err).NotTo(HaveOccurred())
	})
	before := availableStack(ctx, name, driverNode, "")

	say("the node leaves the cluster, with all that is known of it")
	Expect(h.StopComponent(ctx, driverNode, "kubelet", true)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { // where the spec failed half way
		if _, err := h.Kube.CoreV1().Nodes().Get(ctx, driverNode, metav1.GetOptions{}); err != nil {
			Expect(h.Reboot(ctx, driverNode)).To(Succeed())
		}
	}, NodeTimeout(h.Patient(3*time.Minute)))
	Expect(h.Kube.CoreV1().Nodes().Delete(ctx, driverNode, metav1.DeleteOptions{})).To(Succeed())
	Eventually(ctx, func(g Gomega) {
		pods, err := h.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + driverNode})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods.Items).To(BeEmpty())
		s := readStack(ctx, g, name)
		g.Expect(s.Status.Waiting).To(BeEmpty())
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionAvailable)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(metav1.ConditionUnknown), c.Message)
	}).WithTimeout(h.Patient(4 * soon)).Should(Succeed())
	_, err = h.Kubectl(ctx, "delete", "acceleratornode", driverNode) // what is kept of a node whose Node is gone
	Expect(err).NotTo(HaveOccurred())

	say("it joins")
	Expect(h.Reboot(ctx, driverNode)).To(Succeed())
	after := availableStack(ctx, name, driverNode, before.Evidence)
	Expect(after.Passed).To(BeTrue(), after.Message)
	Eventually(ctx, func(g Gomega) {
		for _, state := range readStack(ctx, g, name).Status.States {
			g.Expect([]int32{state.Passed, state.Failed, state.Unknown}).To(Equal([]int32{1, 0, 0}), "state %s", state.Name)
		}
	}).Should(Succeed())
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	running(ctx, newPod(ctx, ns, "first", withTemplate("gpu"), onNode(driverNode)))
}

const (
	driverStack, driversNamespace = "e2e-drivers", "fettle-drivers"
	// driverNode is the node that gets another kernel.
	driverNode = mixedNode
)

// allowsDrivers installs the chart with the right to run drivers, and takes that back in the end. The namespace of drivers goes with its
// last pod, and nothing can be made in it while it goes.
func allowsDrivers(ctx SpecContext) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Install(ctx, values())).To(Succeed())
		driversGone(ctx)
		for _, node := range h.NodeNames() {
			pluginReady(ctx, node)
		}
	}, NodeTimeout(h.Patient(8*time.Minute)))
	Expect(h.Install(ctx, values().Merge(driverValues()))).To(Succeed())
}

// driversGone waits until the namespace of drivers has gone.
func driversGone(ctx context.Context) {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the namespace of drivers to go", 3*time.Minute, func(ctx context.Context) error {
		ns, err := h.Kube.CoreV1().Namespaces().Get(ctx, driversNamespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is there: %+v", ns.Status)
	})).To(Succeed())
}

// driverValues are the chart's values with which stacks may run drivers.
func driverValues() harness.Values { return harness.Values{"drivers": harness.Values{"enabled": true}} }

// driversByKernel: the driver's image is pulled by a tag that has the node's kernel. A node that comes back with a kernel for which there
// is no image is named in the stack, in its conditions and by an Event, and the other node stays as it is. With the image it passes, and
// its claims are checked again.
func driversByKernel(ctx SpecContext) {
	allowsDrivers(ctx)
	registry, err := h.StartRegistry(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(h.StopRegistry(ctx)).To(Succeed()) })

	say("both nodes get the driver for their kernel, from the registry")
	usual := kernelOf(ctx, driverNode)
	Expect(kernelOf(ctx, gpuNode)).To(Equal(usual), "the nodes share the machine's kernel")
	pushDriver(registry, "e2e-"+usual)
	DeferCleanup(func(ctx SpecContext) { // after the stack has gone
		Expect(h.Reboot(ctx, driverNode)).To(Succeed())
	}, NodeTimeout(h.Patient(3*time.Minute)))
	_, err = h.Apply(ctx, fmt.Sprintf(`
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: %s}
spec:
  driver:
    engine: DaemonSet
    daemonSet:
      repository: %s/driver
      tag: e2e-${KERNEL}
      version: "1"
      privileged: false
      command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]
      readyCommand: [ls, /ready]
  check: {deviceClassNames: [gpu.fettle.dev]}
`, driverStack, registry))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", driverStack, "--wait")
		Expect(err).NotTo(HaveOccurred())
	})
	first := availableStack(ctx, driverStack, driverNode, "")
	Expect(first.Passed).To(BeTrue(), first.Message)
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	startWorker(ctx, ns, driverNode)
	kept := driverPod(ctx, gpuNode)

	say("one node starts with another kernel, for which there is no image")
	Expect(h.RebootOtherKernel(ctx, driverNode)).To(Succeed())
	other := kernelOf(ctx, driverNode)
	Expect(other).NotTo(Equal(usual))
	missing := And(ContainSubstring("e2e-"+other), ContainSubstring("for kernel "+other))
	Eventually(ctx, func(g Gomega) {
		s := readStack(ctx, g, driverStack)
		g.Expect(s.Status.Waiting).To(HaveLen(1), "the other node has passed every state")
		w := s.Status.Waiting[0]
		g.Expect(w.Node).To(Equal(driverNode))
		g.Expect(w.Reason).To(Equal("DriverImageMissing"))
		g.Expect(w.Message).To(missing)
		degraded := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded)
		g.Expect(degraded).NotTo(BeNil())
		g.Expect(degraded.Status).To(Equal(metav1.ConditionTrue))
		g.Expect(degraded.Message).To(And(ContainSubstring(driverNode), missing))
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())
	eventuallyEvent(ctx, metav1.NamespaceDefault, "AcceleratorNode", driverNode, "DriverImageMissing", "e2e-"+other)

	say("the image is pushed, and the node passes with a new check")
	pushDriver(registry, "e2e-"+other)
	second := availableStack(ctx, driverStack, driverNode, first.Evidence)
	Expect(second.Passed).To(BeTrue(), second.Message)
	Expect(driverPod(ctx, driverNode).Spec.Containers[0].Image).To(HaveSuffix(":e2e-" + other))
	Expect(driverPod(ctx, gpuNode).UID).To(Equal(kept.UID), "the other node has kept its driver's pod")
	Eventually(ctx, func(g Gomega) { // the pod with a GPU runs there again, on the other kernel
		pods := workers(ctx, g, ns)
		g.Expect(pods).To(HaveLen(1))
		g.Expect(pods[0].Spec.NodeName).To(Equal(driverNode))
		g.Expect(h.PodDone(ctx, ns, pods[0].Name, corev1.PodRunning)).To(Succeed())
	}).WithTimeout(h.Patient(2 * soon)).Should(Succeed())
}

// driverPod returns the driver's pod of a node.
func driverPod(ctx context.Context, node string) *corev1.Pod {
	GinkgoHelper()
	pods, err := h.Kube.CoreV1().Pods(driversNamespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	Expect(err).NotTo(HaveOccurred())
	Expect(pods.Items).To(HaveLen(1))
	return &pods.Items[0]
}

func kernelOf(ctx context.Context, node string) string {
	GinkgoHelper()
	n, err := h.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return n.Status.NodeInfo.KernelVersion
}

// pushDriver puts an image into a registry that stands for a driver. It has nothing to load.
func pushDriver(registry, tag string) {
	GinkgoHelper()
	ref, err := name.NewTag(registry+"/driver:"+tag, name.Insecure)
	Expect(err).NotTo(HaveOccurred())
	image := builtImage{files: append(busybox("bin"), regular("ready", []byte(tag)))}
	Expect(remote.Write(ref, image.build())).To(Succeed())
}
