// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/fettle-dev/fettle/test/harness"
)

// faultLimit bounds one fault with all that comes before and after it.
const faultLimit = 6 * time.Minute

func survivesFaults() {
	It("keeps all claims right when kubelet, containerd and the plugin are killed, and writes its CDI files again when they are wiped",
		later("a storm of kills takes minutes"), func(ctx SpecContext) {
			survive(ctx,
				func(_ *tenants, a *arrivals) { killWhilePodsCome(ctx, a, "kubelet") },
				func(_ *tenants, a *arrivals) { killWhilePodsCome(ctx, a, "containerd") },
				func(*tenants, *arrivals) { killPlugin(ctx, gpuNode) },
				func(t *tenants, _ *arrivals) { wipeSpecs(ctx, t) })
		}, SpecTimeout(h.Patient(2*faultLimit)))

	It("keeps all claims right when the node is rebooted", func(ctx SpecContext) {
		showBootID(ctx)
		survive(ctx, func(t *tenants, _ *arrivals) { reboot(ctx, t) })
	}, SpecTimeout(h.Patient(faultLimit)))

	It("gives the device of a pod that was deleted by force to the next only when its container is gone", forced,
		SpecTimeout(h.Patient(faultLimit)))
	It("gives back what neither kubelet nor the API server knows of any more", later("unit tests show what is collected"),
		forgotten, SpecTimeout(h.Patient(faultLimit)))
	It("lets a damaged record hurt nobody", later("crash tests damage every record in every way"), damaged, SpecTimeout(h.Patient(faultLimit)))
}

// survive lets one thing after the other happen to the GPU node while pods run and start there, and expects each time that nobody can tell
// afterwards.
func survive(ctx context.Context, happen ...func(*tenants, *arrivals)) {
	GinkgoHelper()
	t := newTenants(ctx)
	for _, do := range happen {
		a := t.arrive(ctx)
		DeferCleanup(func() { a.stop() })
		a.more(ctx, 3)
		do(t, a)
		say("pods go on coming")
		a.more(ctx, 3)
		a.end(ctx)
		say("all claims are right")
		t.right(ctx)
	}
	t.leave(ctx)
}

func killWhilePodsCome(ctx context.Context, a *arrivals, component string) {
	GinkgoHelper()
	say("%s is killed, and pods come", component)
	Expect(h.StopComponent(ctx, gpuNode, component, true)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { _ = h.StartComponent(ctx, gpuNode, component) })
	a.more(ctx, 3)
	say("%s is started", component)
	Expect(h.StartComponent(ctx, gpuNode, component)).To(Succeed())
}

// killPlugin ends the plugin's process without a warning and waits until the next one serves.
func killPlugin(ctx context.Context, node string) {
	GinkgoHelper()
	before, err := h.PluginPod(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.KillContainer(ctx, node, harness.PluginContainer(before).ContainerID)).To(Succeed())
	pluginRestarted(ctx, node, harness.PluginContainer(before).RestartCount)
}

// pluginRestarted waits until a node's plugin was restarted once more than before, and serves.
func pluginRestarted(ctx context.Context, node string, before int32) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		plugin, err := h.PluginPod(ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(harness.PluginContainer(plugin).RestartCount).To(Equal(before + 1))
	}).Should(Succeed())
	pluginReady(ctx, node)
}

func wipeSpecs(ctx context.Context, t *tenants) {
	GinkgoHelper()
	before, err := h.Files(ctx, gpuNode, "/var/run/cdi")
	Expect(err).NotTo(HaveOccurred())
	own := slices.DeleteFunc(before, func(path string) bool {
		return !strings.Contains(path, "fettle.dev-claim") || !slices.ContainsFunc(t.all, func(one *tenant) bool { return one.hasFile(path) })
	})
	Expect(own).To(HaveLen(4), "a disk at a path of the claim's own, and three claims with mounts of their own")
	_, err = h.OnNode(ctx, gpuNode, "sh", "-c", "find /var/run/cdi -mindepth 1 -delete")
	Expect(err).NotTo(HaveOccurred())
	say("containers restart")
	for _, one := range t.all {
		crash(ctx, one.pod)
		one.restarted(ctx)
	}
	now, err := h.Files(ctx, gpuNode, "/var/run/cdi")
	Expect(err).NotTo(HaveOccurred())
	Expect(now).To(ContainElements(own), "a file means what it meant before")
}

// bootIDFile is where the plugin looks for the boot id of a simulated machine.
const bootIDFile = "proc/sys/kernel/random/boot_id"

// showBootID gives the plugin a boot id that can change: a node shares its kernel with all others.
func showBootID(ctx context.Context) {
	GinkgoHelper()
	kernels, err := os.ReadFile(filepath.Join("/", bootIDFile))
	Expect(err).NotTo(HaveOccurred())
	for _, node := range h.NodeNames() {
		setBootID(node, strings.TrimSpace(string(kernels)))
	}
	const patch = `{"spec":{"template":{"spec":{
		"volumes":[{"name":"boot-id",%s}],
		"containers":[{"name":"plugin","volumeMounts":[{"mountPath":"/host/` + bootIDFile + `",%s}]}]}}}}`
	DeferCleanup(func(ctx SpecContext) {
		patchPlugin(ctx, fmt.Sprintf(patch, `"$patch":"delete"`, `"$patch":"delete"`))
	}, NodeTimeout(h.Patient(2*time.Minute)))
	patchPlugin(ctx, fmt.Sprintf(patch, `"hostPath":{"type":"File","path":"`+harness.MachineRoot+`/`+bootIDFile+`"}`, `"name":"boot-id"`))
}

func setBootID(node, id string) {
	GinkgoHelper()
	path := filepath.Join(h.MachineDir(node), bootIDFile)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, []byte(id+"\n"), 0o644)).To(Succeed())
}

// patchPlugin changes the plugin's DaemonSet and waits until that is everywhere.
func patchPlugin(ctx context.Context, patch string) {
	GinkgoHelper()
	const daemonSet = "daemonset/fettle-kubeletplugin"
	_, err := h.Kubectl(ctx, "--namespace", harness.Namespace, "patch", daemonSet, "--type", "strategic", "--patch", patch)
	Expect(err).NotTo(HaveOccurred())
	_, err = h.Kubectl(ctx, "--namespace", harness.Namespace, "rollout", "status", daemonSet, "--timeout", "100s")
	Expect(err).NotTo(HaveOccurred())
	for _, node := range h.NodeNames() {
		pluginReady(ctx, node)
	}
}

// reboot ends everything on the node at once; disks stay, and so does what is below /var/lib.
func reboot(ctx context.Context, t *tenants) {
	GinkgoHelper()
	setBootID(gpuNode, string(uuid.NewUUID()))
	Expect(h.Reboot(ctx, gpuNode)).To(Succeed())
	for _, one := range t.all {
		one.restarted(ctx)
	}
	pluginReady(ctx, gpuNode)
}

// forced: kubelet is not there when a pod and its claims go, and finds a pod that was given the same devices when it comes back.
func forced(ctx SpecContext) {
	t := newTenants(ctx)
	first := t.named("both")
	say("kubelet is killed, and a pod deleted by force")
	Expect(h.StopComponent(ctx, gpuNode, "kubelet", true)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { _ = h.StartComponent(ctx, gpuNode, "kubelet") })
	pluginAtNight(ctx, gpuNode)
	t.deleteByForce(ctx, first)
	say("the scheduler gives its devices to the next")
	// The plugin taints them, which may be before the scheduler looks.
	newTemplate(ctx, t.namespace, "same", spec(request("gpu", gpuClass, where(onDevice(gpuOf(first))), evenHeld)))
	newTemplate(ctx, t.namespace, "same-disk", spec(request("disk", hostClass, where(onProduct("solo")), evenHeld)))
	next := t.add(ctx, first.dir, "successor", withTemplate("same"), withTemplate("same-disk"))
	Eventually(ctx, func(g Gomega) {
		pod, err := h.Kube.CoreV1().Pods(t.namespace).Get(ctx, next.pod.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.Spec.NodeName).To(Equal(gpuNode))
	}).Should(Succeed())
	for _, claim := range first.claims {
		Expect(claimFiles(ctx, gpuNode, claim)).NotTo(BeEmpty(), "nobody could unprepare it yet")
	}

	say("kubelet comes back")
	Expect(h.StartComponent(ctx, gpuNode, "kubelet")).To(Succeed())
	Expect(h.Poll(ctx, "the next pod to run", reconciled, func(ctx context.Context) error {
		return h.PodDone(ctx, t.namespace, next.pod.Name, corev1.PodRunning)
	})).To(Succeed())
	next.settle(ctx)
	Expect(gpuOf(next).Name).To(Equal(gpuOf(first).Name))
	for _, claim := range first.claims {
		eventuallyForgotten(ctx, claim)
	}
	t.right(ctx)
	t.leave(ctx)
}

// evenHeld asks for devices also while a deleted claim holds them.
func evenHeld(r *resourceapi.ExactDeviceRequest) {
	r.Tolerations = append(r.Tolerations, resourceapi.DeviceToleration{
		Key: "fettle.dev/held", Operator: resourceapi.DeviceTolerationOpEqual, Value: "ClaimDeleted",
	})
}

func gpuOf(t *tenant) owned {
	GinkgoHelper()
	i := slices.IndexFunc(t.devices, func(d owned) bool { return d.Kind == "gpu" })
	Expect(i).To(BeNumerically(">=", 0))
	return t.devices[i]
}

// deleteByForce deletes a pod without waiting for its node, and waits until its claims are gone, too.
func (t *tenants) deleteByForce(ctx context.Context, one *tenant) {
	GinkgoHelper()
	t.forget(one)
	Expect(h.Kube.CoreV1().Pods(t.namespace).Delete(ctx, one.pod.Name, *metav1.NewDeleteOptions(0))).To(Succeed())
	eventuallyGone(ctx, one.pod)
	for _, claim := range one.claims {
		Eventually(ctx, func() bool {
			_, err := h.Kube.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}).Should(BeTrue(), "claim %s goes with its pod", claim.Name)
	}
}

// eventuallyForgotten waits until the node holds nothing for a claim.
func eventuallyForgotten(ctx context.Context, claim *resourceapi.ResourceClaim) {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the end of claim "+claim.Name, reconciled, func(ctx context.Context) error {
		files, err := filesOf(ctx, gpuNode, claim)
		if err == nil && len(files) > 0 {
			err = fmt.Errorf("left: %v", files)
		}
		return err
	})).To(Succeed())
}

// forgotten: the pod and its claims go while kubelet is away, and so does what kubelet knew of them.
func forgotten(ctx SpecContext) {
	t := newTenants(ctx)
	lost, before := t.named("both"), t.incidents["ClaimCollected"]
	say("kubelet is killed, a pod deleted by force, and kubelet's list of claims removed")
	Expect(h.StopComponent(ctx, gpuNode, "kubelet", true)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { _ = h.StartComponent(ctx, gpuNode, "kubelet") })
	t.deleteByForce(ctx, lost)
	_, err := h.OnNode(ctx, gpuNode, "rm", "/var/lib/kubelet/dra_manager_state")
	Expect(err).NotTo(HaveOccurred())
	Expect(h.StartComponent(ctx, gpuNode, "kubelet")).To(Succeed())

	say("the plugin gives the devices back, and says so")
	for _, claim := range lost.claims {
		eventuallyForgotten(ctx, claim)
		eventuallyEvent(ctx, metav1.NamespaceDefault, "Node", gpuNode, "ClaimCollected", string(claim.UID))
	}
	t.incidents = incidents(ctx)
	Expect(t.incidents["ClaimCollected"] - before).To(Equal(len(lost.claims)))
	say("kubelet ends the container that it knows no pod for")
	Eventually(ctx, func(g Gomega) {
		running, err := h.RunsContainer(ctx, gpuNode, lost.container)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(running).To(BeFalse())
	}).Should(Succeed())
	say("the next pod gets the same devices")
	newTemplate(ctx, t.namespace, "same", spec(request("gpu", gpuClass, where(onDevice(gpuOf(lost))))))
	next := t.add(ctx, lost.dir, "successor", withTemplate("same"), withTemplate("solo"))
	next.settle(ctx)
	t.right(ctx)
	t.leave(ctx)
}

// damaged: what the node remembers of a claim cannot be read any more.
func damaged(ctx SpecContext) {
	t := newTenants(ctx)
	both, placed := t.named("both"), t.named("placed")
	var hurt []*resourceapi.ResourceClaim
	for _, one := range []*tenant{both, placed} {
		for _, claim := range one.claims {
			hurt = append(hurt, claim)
		}
	}
	say("%d records are overwritten, and the plugin restarted", len(hurt))
	for _, claim := range hurt {
		const overwrite = `set -e; cd /var/lib/fettle/claims; [ -e "$0.json" ]; echo garbage > "$0.json"`
		_, err := h.OnNode(ctx, gpuNode, "sh", "-c", overwrite, string(claim.UID))
		Expect(err).NotTo(HaveOccurred())
	}
	killPlugin(ctx, gpuNode)
	for _, claim := range hurt {
		eventuallyEvent(ctx, metav1.NamespaceDefault, "Node", gpuNode, "RecordDamaged", string(claim.UID))
	}
	t.incidents = incidents(ctx)
	Expect(t.incidents["RecordDamaged"]).To(Equal(len(hurt)), "since the plugin started")
	say("nobody notices, and pods start")
	t.right(ctx)
	a := t.arrive(ctx)
	a.more(ctx, 5)
	a.end(ctx)

	say("one of the pods ends, and its devices are free and its directory is empty")
	t.forget(placed)
	Expect(h.Kube.CoreV1().Pods(t.namespace).Delete(ctx, placed.pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, placed.pod)
	for _, claim := range placed.claims {
		eventuallyForgotten(ctx, claim)
	}
	Eventually(func() []string { return append(onDisk(ctx, "ssd0"), onDisk(ctx, "ssd1")...) }).Should(BeEmpty())

	say("kubelet asks for the other's claims again when it has lost the pod's sandbox, and they have a record again")
	Expect(h.Reboot(ctx, gpuNode)).To(Succeed())
	for _, one := range t.all {
		one.restarted(ctx)
	}
	for _, claim := range both.claims {
		const look = `cd /var/lib/fettle && grep -q "$0" "claims/$0.json" && [ ! -e "damaged/$0" ]`
		_, err := h.OnNode(ctx, gpuNode, "sh", "-c", look, string(claim.UID))
		Expect(err).NotTo(HaveOccurred())
	}
	t.right(ctx)
	t.leave(ctx)
}
