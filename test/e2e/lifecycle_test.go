// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/test/harness"
)

func followsClaims() {
	It("leaves nothing of a deleted pod's claim", func(ctx SpecContext) {
		pod, claim := holdOnGPUNode(ctx, "deleted")
		Expect(h.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, pod)
		eventuallyNothingLeft(ctx, gpuNode, claim)
	})

	It("keeps the device of a claim that was deleted under its pod from other claims", deletedUnderItsPod)

	It("gives a device to the next pod after kubelet and plugin were restarted", ofNode, func(ctx SpecContext) {
		eventuallyUnused(ctx) // a kubelet that restarts while it unprepares a claim leaves that to the plugin's collection
		pod, claim := holdOnGPUNode(ctx, "before")
		Expect(h.RestartComponent(ctx, gpuNode, "kubelet", false)).To(Succeed())
		plugin, err := h.PluginPod(ctx, gpuNode)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Kube.CoreV1().Pods(harness.Namespace).Delete(ctx, plugin.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, plugin)
		pluginReady(ctx, gpuNode)
		after, _ := holdOnGPUNode(ctx, "after")
		hasExactly(ctx, pod, main, devicesOf(results(claim))...)
		hasExactly(ctx, after, main, devicesOf(results(onlyClaim(ctx, after)))...)
		namesAreSecret(ctx, after)
		Expect(h.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyNothingLeft(ctx, gpuNode, claim)
	})
}

// deletedUnderItsPod has a tenant remove the finalizer of her claim and delete it while her pod runs.
func deletedUnderItsPod(ctx SpecContext) {
	pod, claim := holdOnGPUNode(ctx, "hold")
	held := devicesOf(results(claim))[0]
	noFinalizers := []byte(`{"metadata":{"finalizers":null}}`)
	claims := h.Kube.ResourceV1().ResourceClaims(claim.Namespace)
	_, err := claims.Patch(ctx, claim.Name, types.MergePatchType, noFinalizers, metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(claims.Delete(ctx, claim.Name, metav1.DeleteOptions{})).To(Succeed())

	say("the scheduler does not see it as free, and the administrator reads why")
	isHeld := func(ctx context.Context) (bool, error) { return taintedOrWithheld(ctx, held.Name) }
	Eventually(ctx, isHeld).Should(BeTrue())
	Eventually(ctx, func(g Gomega) {
		accelerators, err := h.AcceleratorNode(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(accelerators.Status.Problems).To(ContainElement(And(HaveField("Reason", "ClaimDeleted"), HaveField("Message", And(
			ContainSubstring(held.Name), ContainSubstring(claim.Namespace+"/"+claim.Name), ContainSubstring(string(claim.UID)),
		)))))
	}).Should(Succeed())

	say("another tenant gets another device, or waits at the scheduler for this one")
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "any", spec(request("gpu", gpuClass)))
	newTemplate(ctx, ns, "this", spec(request("gpu", gpuClass, where(onDevice(held)))))
	waits := newPod(ctx, ns, "waits", withTemplate("this"), onNode(gpuNode))
	other := newPod(ctx, ns, "other", withTemplate("any"), onNode(gpuNode))
	running(ctx, other)
	Expect(results(onlyClaim(ctx, other))[0].Device).NotTo(Equal(held.Name))
	eventuallyUnschedulable(ctx, waits, "cannot allocate all claims")
	hasExactly(ctx, pod, main, held)

	say("it is free when the pod has ended")
	Expect(h.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, pod)
	Eventually(ctx, isHeld).Should(BeFalse())
	running(ctx, waits)
	hasExactly(ctx, waits, main, held)
}

// taintedOrWithheld reports whether new claims cannot get a GPU of the GPU node. Where the API drops taints, it is not published.
func taintedOrWithheld(ctx context.Context, name string) (bool, error) {
	list, err := h.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + gpuNode,
	})
	if err != nil {
		return false, err
	}
	for i := range list.Items {
		for _, d := range list.Items[i].Spec.Devices {
			if d.Name == name {
				return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
					return t.Key == "fettle.dev/held" && t.Value == "ClaimDeleted"
				}), nil
			}
		}
	}
	return true, nil
}

// namesAreSecret expects that a pod with a GPU reads the name of no CDI device that gives anything, and that the other node has other
// names, although it may have the same devices.
func namesAreSecret(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	secret := regexp.MustCompile(`=?\bn[0-9a-f]{32}\b`)
	names := map[string][]string{}
	for _, node := range h.NodeNames() {
		modes, err := h.OnNode(ctx, node, "sh", "-c", "find /var/run/cdi /var/lib/fettle/cdi-secret -type f -printf '%m %p\\n'")
		Expect(err).NotTo(HaveOccurred())
		Expect(lines(modes)).To(HaveEach(HavePrefix("600 ")))
		names[node] = secret.FindAllString(modes, -1)
		Expect(names[node]).NotTo(BeEmpty(), modes)
	}
	Expect(names[gpuNode]).NotTo(ContainElements(names[mixedNode]))

	const own = "cat /proc/mounts /proc/self/mountinfo; env; tr '\\0' '\\n' < /proc/1/environ; find / -xdev 2>/dev/null"
	seen := inside(ctx, pod, main, own)
	Expect(seen).To(ContainSubstring("FETTLE_CLAIM=prepared"))
	for _, kind := range []string{"pods", "resourceclaims.resource.k8s.io", "events"} {
		objects, err := h.Kubectl(ctx, "get", kind, "-n", pod.Namespace, "-o", "json")
		Expect(err).NotTo(HaveOccurred())
		seen += objects
	}
	Expect(secret.FindAllString(seen, -1)).To(BeEmpty())
	held := onlyClaim(ctx, pod).Status.Allocation.Devices.Results[0].Device
	Eventually(ctx, func(g Gomega) {
		p, err := h.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		shown := p.Status.ContainerStatuses[0].AllocatedResourcesStatus
		g.Expect(shown).To(HaveLen(1))
		g.Expect(shown[0].Resources).To(HaveLen(1))
		g.Expect(string(shown[0].Resources[0].ResourceID)).To(Equal("fettle.dev/gpu="+held), "it names the device, and is of no use to any pod")
	}).Should(Succeed())
}

// holdOnGPUNode runs a pod with one GPU on the GPU node, in a namespace of its own.
func holdOnGPUNode(ctx context.Context, name string) (*corev1.Pod, *resourceapi.ResourceClaim) {
	GinkgoHelper()
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	pod := newPod(ctx, ns, name, withTemplate("gpu"), onNode(gpuNode))
	running(ctx, pod)
	claim := onlyClaim(ctx, pod)
	Expect(claimFiles(ctx, gpuNode, claim)).NotTo(BeEmpty(), "a prepared claim has a record")
	return pod, claim
}

// claimFiles are the files of a node that belong to a claim, by name or by what they say. That it was given back is remembered for a
// while, and does not count.
func claimFiles(ctx context.Context, node string, claim *resourceapi.ResourceClaim) []string {
	GinkgoHelper()
	files, err := filesOf(ctx, node, claim)
	Expect(err).NotTo(HaveOccurred())
	return files
}

func filesOf(ctx context.Context, node string, claim *resourceapi.ResourceClaim) ([]string, error) {
	const script = `for d in /var/lib/fettle /var/run/cdi /var/lib/kubelet/plugins/fettle.dev; do
		find "$d" -name "*$0*"; grep -rl "$0" "$d"; done | sort -u`
	out, err := h.OnNode(ctx, node, "sh", "-c", script, string(claim.UID))
	return lines(out), err
}

// reconciled is for what kubelet does at its next look at claims whose pods it never saw: once a minute.
const reconciled = 100 * time.Second

// eventuallyNothingLeft waits until a node knows nothing of a claim, where no claim needs a spec of its own.
func eventuallyNothingLeft(ctx context.Context, node string, claim *resourceapi.ResourceClaim) {
	GinkgoHelper()
	eventuallyNoRecord(ctx, node, claim)
	specs, err := h.Files(ctx, node, "/var/run/cdi")
	Expect(err).NotTo(HaveOccurred())
	Expect(slices.ContainsFunc(specs, func(path string) bool { return strings.Contains(path, "fettle.dev-claim") })).To(BeFalse(),
		"no claim of this suite needs a spec of its own: %v", specs)
}

// eventuallyNoRecord waits until a node knows nothing of a claim but files with such paths, and its count is that of its records.
func eventuallyNoRecord(ctx context.Context, node string, claim *resourceapi.ResourceClaim, but ...string) {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the end of claim "+claim.Name, reconciled, func(ctx context.Context) error {
		files, err := filesOf(ctx, node, claim)
		if err != nil {
			return err
		}
		files = slices.DeleteFunc(files, func(path string) bool {
			return slices.ContainsFunc(but, func(part string) bool { return strings.Contains(path, part) })
		})
		if len(files) > 0 {
			return fmt.Errorf("files are left: %v", files)
		}
		records, err := h.OnNode(ctx, node, "find", "/var/lib/fettle/claims", "-name", "*.json")
		if err != nil {
			return err
		}
		accelerators, err := h.AcceleratorNode(ctx, node)
		if err != nil {
			return err
		}
		if have, want := int(accelerators.Status.PreparedClaims), len(lines(records)); have != want {
			return fmt.Errorf("AcceleratorNode counts %d prepared claims, the node has %d records", have, want)
		}
		return nil
	})).To(Succeed())
}

// pluginReady waits until a node has exactly one plugin pod, and that is ready.
func pluginReady(ctx context.Context, node string) {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the plugin on "+node, soon, func(ctx context.Context) error {
		pod, err := h.PluginPod(ctx, node)
		if err != nil {
			return err
		}
		if pod.DeletionTimestamp != nil {
			return errors.New("it is going")
		}
		return h.PodDone(ctx, pod.Namespace, pod.Name, corev1.PodRunning)
	})).To(Succeed())
}
