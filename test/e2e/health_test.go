// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/hardware"
	"github.com/fettle-dev/fettle/test/harness"
)

// The GPUs of the mixed node that fail. Their counters are files of the machine.
const (
	failingGPU = "0000:05:00.0"
	watchedGPU = "0000:26:00.0"
)

func tellsOfFailures() {
	if older {
		It("withholds a GPU that failed until it has recovered where the API drops taints, and leaves its pod alone", differs, gpuWithheld)
	} else {
		It("taints a GPU that failed, has its pod evicted and tells the pods that tolerate it, until it has recovered", gpuFails)
	}
}

// uncorrectable has GPUs tell so many uncorrectable memory errors, as amdgpu counts them. A number that is smaller than before is that of a
// GPU that was reset.
func uncorrectable(errors int, addresses ...string) {
	GinkgoHelper()
	for _, address := range addresses {
		dir := filepath.Join(h.MachineDir(mixedNode), "sys/bus/pci/devices", address, "ras")
		Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
		file := filepath.Join(dir, "umc_err_count")
		Expect(os.WriteFile(file+".new", fmt.Appendf(nil, "ue: %d\nce: 0\n", errors), 0o644)).To(Succeed())
		Expect(os.Rename(file+".new", file)).To(Succeed())
	}
}

// countErrors has GPUs count errors from now on, and waits until the plugin has seen the first of them. Earlier ones are nobody's fault.
// Each GPU must be a pod's already. The spec before may have put another machine into the node. Until the plugin has seen that this one is
// back, it forgets the counters that it reads.
func countErrors(ctx context.Context, addresses ...string) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
	uncorrectable(2, addresses...)
	Eventually(ctx, func() (int, error) {
		ledger, err := h.OnNode(ctx, mixedNode, "cat", "/var/lib/fettle/health.json")
		return strings.Count(ledger, "ras/umc.ue"), err
	}).Should(BeNumerically(">=", len(addresses)))
}

// taintsOf are the effects of a GPU's taints, and whether it is published at all.
func taintsOf(ctx context.Context, address string) (effects []string, published bool, err error) {
	devices, err := poolDevices(ctx, mixedNode+"/gpu")
	for _, d := range devices {
		if d.Name != harness.PCIName("amd", address) {
			continue
		}
		published = true
		for _, t := range d.Taints {
			effects = append(effects, t.Key+":"+string(t.Effect))
		}
	}
	return effects, published, err
}

// eventuallyTold waits until the AcceleratorNode says of the GPUs that they are healthy or not.
func eventuallyTold(ctx context.Context, healthy bool, addresses ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		node, err := h.AcceleratorNode(ctx, mixedNode)
		g.Expect(err).NotTo(HaveOccurred())
		c := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionHealthy)
		g.Expect(c).NotTo(BeNil())
		if healthy {
			g.Expect(c.Status).To(Equal(metav1.ConditionTrue), c.Message)
			return
		}
		g.Expect(c.Status).To(Equal(metav1.ConditionFalse))
		for _, address := range addresses {
			g.Expect(c.Message).To(ContainSubstring(harness.PCIName("amd", address)))
			g.Expect(node.Status.Problems).To(ContainElement(And(
				HaveField("Subject", address), HaveField("Message", ContainSubstring("uncorrectable errors")))))
		}
	}).Should(Succeed())
}

// healthIn waits until a pod's status says of its one device that it is healthy or not, and why.
func healthIn(ctx context.Context, p *corev1.Pod, want corev1.ResourceHealthStatus, text string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		var told []corev1.ResourceHealth
		for _, s := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			told = append(told, s.Resources...)
		}
		g.Expect(told).To(HaveLen(1))
		g.Expect(told[0].Health).To(Equal(want))
		if text != "" {
			g.Expect(told[0].Message).NotTo(BeNil())
			g.Expect(*told[0].Message).To(ContainSubstring(text))
		}
	}).Should(Succeed())
}

// claimOfGPU makes a template of one GPU by its address.
func claimOfGPU(ctx context.Context, ns, name, address string, tolerations ...resourceapi.DeviceToleration) {
	GinkgoHelper()
	s := spec(request("gpu", gpuClass, where(onDevice(owned{Device: hardware.Device{Address: address}}))))
	s.Devices.Requests[0].Exactly.Tolerations = tolerations
	newTemplate(ctx, ns, name, s)
}

// gpuFails is a failure from the counter of the GPU to its pod's end, and back.
func gpuFails(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	claimOfGPU(ctx, ns, "failing", failingGPU)
	claimOfGPU(ctx, ns, "watched", watchedGPU, resourceapi.DeviceToleration{
		Key: "fettle.dev/unhealthy", Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute,
	})
	worker, watcher := newPod(ctx, ns, "worker", withTemplate("failing")), newPod(ctx, ns, "watcher", withTemplate("watched"))
	running(ctx, worker, watcher)
	healthIn(ctx, watcher, corev1.ResourceHealthStatusHealthy, "")
	countErrors(ctx, failingGPU, watchedGPU)

	say("both GPUs count an uncorrectable error")
	uncorrectable(3, failingGPU, watchedGPU)
	for _, address := range []string{failingGPU, watchedGPU} {
		Eventually(ctx, func() ([]string, error) {
			effects, _, err := taintsOf(ctx, address)
			return effects, err
		}).Should(ConsistOf("fettle.dev/unhealthy:NoExecute"))
	}
	eventuallyTold(ctx, false, failingGPU, watchedGPU)

	say("Kubernetes evicts the pod that does not tolerate it, and the next one waits")
	eventuallyEvent(ctx, ns, "Pod", worker.Name, "DeviceTaintManagerEviction", "Marking for deletion")
	evictedAtNight(ctx, ns, worker.Name, "DeviceTaintManagerEviction")
	goneAtNight(ctx, mixedNode, failingGPU, watchedGPU)
	eventuallyGone(ctx, worker)
	next := newPod(ctx, ns, "next", withTemplate("failing"))
	eventuallyUnschedulable(ctx, next, "cannot allocate all claims")

	say("the pod that tolerates it is told")
	healthIn(ctx, watcher, corev1.ResourceHealthStatusUnhealthy, "uncorrectable errors")
	running(ctx, watcher)

	say("both GPUs are reset, and their counters with them")
	uncorrectable(0, failingGPU, watchedGPU)
	running(ctx, next)
	healthIn(ctx, watcher, corev1.ResourceHealthStatusHealthy, "")
	eventuallyTold(ctx, true)
	for _, address := range []string{failingGPU, watchedGPU} {
		effects, published, err := taintsOf(ctx, address)
		Expect(err).NotTo(HaveOccurred())
		Expect(published).To(BeTrue())
		Expect(effects).To(BeEmpty())
	}
}

// gpuWithheld is the same where a taint would be dropped.
func gpuWithheld(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	claimOfGPU(ctx, ns, "failing", failingGPU)
	worker := newPod(ctx, ns, "worker", withTemplate("failing"))
	running(ctx, worker)
	countErrors(ctx, failingGPU)

	uncorrectable(3, failingGPU)
	isPublished := func() (bool, error) {
		_, published, err := taintsOf(ctx, failingGPU)
		return published, err
	}
	Eventually(ctx, isPublished).Should(BeFalse())
	eventuallyTold(ctx, false, failingGPU)
	running(ctx, worker)
	remove(ctx, worker)
	next := newPod(ctx, ns, "next", withTemplate("failing"))
	eventuallyUnschedulable(ctx, next, "cannot allocate all claims")

	say("the GPU is reset, and its counters with it")
	uncorrectable(0, failingGPU)
	Eventually(ctx, isPublished).Should(BeTrue())
	running(ctx, next)
	eventuallyTold(ctx, true)
}
