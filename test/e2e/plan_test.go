// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/test/hardware"
)

// plansAhead holds the command line's word about a cluster against what its scheduler, kubelets and plugins then do.
func plansAhead() {
	It("says which node and devices a pod will get, and the pod gets them", planned)
	It("says why pods wait, and they run once that is no more", explained)
}

// plannedPods is the part of a plan that the specs read.
type plannedPods struct {
	Pods map[string]struct {
		Node    *string
		Fits    []string
		Devices map[string][]string
		Reason  string
	}
}

// planWith is the plan of the cluster with further objects. Status 3 says that a pod has no node.
func planWith(ctx context.Context, namespace, objects string) plannedPods {
	GinkgoHelper()
	command := exec.CommandContext(ctx, filepath.Join(h.Root, "dist", "linux_"+goruntime.GOARCH, "fettle"),
		"plan", "--from-cluster", "--kubeconfig", h.Kubeconfig(), "-n", namespace, "--add", writeTemp(objects), "-o", "json")
	out, err := command.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		Expect(exit.ExitCode()).To(Equal(3), "%s", exit.Stderr)
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
	var made plannedPods
	Expect(json.Unmarshal(out, &made)).To(Succeed(), "%s", out)
	return made
}

// plannedResults are the devices of a plan, DRIVER/POOL/DEVICE, as a claim would have them.
func plannedResults(devices []string) []resourceapi.DeviceRequestAllocationResult {
	GinkgoHelper()
	var out []resourceapi.DeviceRequestAllocationResult
	for _, text := range devices {
		driver, rest, _ := strings.Cut(text, "/")
		at := strings.LastIndex(rest, "/")
		Expect(at).To(BeNumerically(">", 0), text)
		out = append(out, resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: rest[:at], Device: rest[at+1:]})
	}
	return out
}

// plannedPod wants two GPUs below one root and a disk. With a GPU of the first root taken, only the GPU node's other roots will do.
const plannedPod = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: pair}
spec:
  spec:
    devices:
      requests:
      - name: gpus
        exactly:
          deviceClassName: gpu.fettle.dev
          count: 2
          selectors: [{cel: {expression: 'device.attributes["fettle.dev"].vendor == "nvidia"'}}]
      constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: disk}
spec:
  spec:
    devices:
      requests:
      - name: disk
        exactly:
          deviceClassName: host.fettle.dev
          selectors: [{cel: {expression: 'device.attributes["fettle.dev"].productName == "ssd"'}}]
---
apiVersion: v1
kind: Pod
metadata: {name: planned}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims:
  - {name: pair, resourceClaimTemplateName: pair}
  - {name: disk, resourceClaimTemplateName: disk}
  containers:
  - name: main
    image: ` + image + `
    imagePullPolicy: Never
    command: [sh, -c, "` + stay + `"]
    resources: {claims: [{name: pair}, {name: disk}]}
`

// nothingHeld waits until no claim has a device: what an earlier spec left would be in the plan, and gone when the scheduler looks.
func nothingHeld(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		claims, err := h.Kube.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var held []string
		for _, c := range claims.Items {
			if c.Status.Allocation != nil {
				held = append(held, c.Namespace+"/"+c.Name)
			}
		}
		g.Expect(held).To(BeEmpty(), "claims with devices")
	}).Should(Succeed())
}

func planned(ctx SpecContext) {
	nothingHeld(ctx)
	ns := newNamespace(ctx, nil)
	first := hardwareOf(gpuNode).Devices[0]
	Expect(first.Kind).To(Equal("gpu"))
	newTemplate(ctx, ns, "holder", spec(request("gpu", gpuClass, where(onDevice(owned{Device: first})))))
	holder := newPod(ctx, ns, "holder", withTemplate("holder"), onNode(gpuNode))
	running(ctx, holder)

	say("before it is created")
	said, known := planWith(ctx, ns, plannedPod).Pods[ns+"/planned"]
	Expect(known).To(BeTrue(), "the plan has the pod")
	Expect(said.Node).To(HaveValue(Equal(gpuNode)), said.Reason)
	Expect(said.Fits).To(Equal([]string{gpuNode}))
	pair, disk := plannedResults(said.Devices["pair"]), plannedResults(said.Devices["disk"])
	devices := devicesOf(pair)
	Expect(devices).To(HaveLen(2))
	Expect(devices[0].Root).To(Equal(devices[1].Root))
	Expect(devices[0].Root).NotTo(Equal(first.Root), "of the first root one is taken")
	Expect(disk).To(HaveLen(1))

	say("created")
	_, err := h.Kubectl(ctx, "--namespace", ns, "apply", "-f", writeTemp(plannedPod))
	Expect(err).NotTo(HaveOccurred())
	pod, err := h.Kube.CoreV1().Pods(ns).Get(ctx, "planned", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	running(ctx, pod)
	pod, err = h.Kube.CoreV1().Pods(ns).Get(ctx, "planned", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(pod.Spec.NodeName).To(Equal(*said.Node))
	claims := claimsOf(ctx, pod)
	Expect(namesOf(results(claims["pair"]))).To(Equal(namesOf(pair)))
	Expect(namesOf(results(claims["disk"]))).To(Equal(namesOf(disk)))
	hasExactly(ctx, pod, main, devices...)
	directory := strings.TrimPrefix(disk[0].Device, "ssd-")
	Expect(inside(ctx, pod, main, `grep -c "/`+directory+` " /proc/self/mountinfo`)).To(Equal("1\n"), "the disk that was planned")

	say("the overview has the programs, and what the node gave")
	var overview struct {
		Programs []struct {
			Name        string
			Ready, Want int
		}
		Nodes []struct {
			Name  string
			Pools []struct {
				Kind string
				Used int
			}
		}
	}
	Eventually(ctx, func(g Gomega) {
		text, _ := h.Fettle(ctx, "status", "--kubeconfig", h.Kubeconfig(), "-o", "json") // the exit status says whether anything is wrong
		g.Expect(json.Unmarshal([]byte(text), &overview)).To(Succeed(), text)
		used := map[string]int{}
		for _, n := range overview.Nodes {
			for _, p := range n.Pools {
				if n.Name == gpuNode {
					used[p.Kind] = p.Used
				}
			}
		}
		g.Expect(used).To(HaveKeyWithValue("gpu", 3), "the holder's, and the pair")
	}).Should(Succeed())
	Expect(overview.Programs).To(ContainElement(And(HaveField("Name", "fettle-kubeletplugin"), HaveField("Ready", BeNumerically(">", 0)))))

	say("a second one like it is planned beside it")
	again := planWith(ctx, ns, strings.ReplaceAll(plannedPod, "name: planned", "name: second")).Pods[ns+"/second"]
	for _, d := range namesOf(plannedResults(again.Devices["pair"])) {
		Expect(namesOf(pair)).NotTo(ContainElement(d))
	}
}

// namesOf are the names of devices, sorted, as DRIVER/POOL/DEVICE.
func namesOf(results []resourceapi.DeviceRequestAllocationResult) []string {
	var out []string
	for _, r := range results {
		out = append(out, r.Driver+"/"+r.Pool+"/"+r.Device)
	}
	slices.Sort(out)
	return out
}

// whyWaits is the class of the reason for which a pod waits, and the first line of its explanation.
func whyWaits(ctx context.Context, pod *corev1.Pod) (reason, first string) {
	GinkgoHelper()
	var e struct{ Reason, First string }
	text := fettle(ctx, "explain", "pod", pod.Name, "-n", pod.Namespace, "--kubeconfig", h.Kubeconfig(), "-o", "json")
	Expect(json.Unmarshal([]byte(text), &e)).To(Succeed(), text)
	return e.Reason, e.First
}

// obstacle keeps a pod from its devices until it is removed.
type obstacle struct {
	// reason is the class of the explanation, and words are in its first line.
	reason, words string
	pod           *corev1.Pod
	devices       []hardwareDevice
	remove        func()
}

// hardwareDevice is the name of a device of a node.
type hardwareDevice struct{ pool, name string }

// explained has pods wait for one reason each, of which none has anything to do with the others, and takes the reasons away.
func explained(ctx SpecContext) {
	nothingHeld(ctx)
	ns := newNamespace(ctx, nil)
	obstacles := []obstacle{
		heldDevice(ctx, ns), splitPair(ctx, ns), missingClass(ctx, ns), missingClaim(ctx, ns), closedNode(ctx, ns), gatedPod(ctx, ns),
	}
	if !older { // which keeps no taints of devices
		obstacles = append(obstacles, taintedDevice(ctx, ns))
	}
	for i := range obstacles {
		o := &obstacles[i]
		say("%s: pod %s", o.reason, o.pod.Name)
		Eventually(ctx, func(g Gomega) {
			reason, first := whyWaits(ctx, o.pod)
			g.Expect(reason).To(Equal(o.reason), first)
			g.Expect(first).To(ContainSubstring(o.words))
		}).Should(Succeed())
		staysPending(ctx, o.pod)
	}
	for i := range obstacles {
		o := &obstacles[i]
		say("without %s", o.reason)
		o.remove()
		running(ctx, o.pod)
		var want []string
		for _, d := range o.devices {
			want = append(want, "fettle.dev/"+d.pool+"/"+d.name)
		}
		got := results(onlyClaim(ctx, o.pod))
		Expect(namesOf(got)).To(Equal(want))
		hasExactly(ctx, o.pod, main, devicesOf(got)...)
		reason, _ := whyWaits(ctx, o.pod)
		Expect(reason).To(Equal("placed"))
	}
}

// gpuNumbered is a GPU of the GPU node, by its place in the list of all.
func gpuNumbered(i int) owned {
	GinkgoHelper()
	d := owned{Device: hardwareOf(gpuNode).Devices[i]}
	Expect(d.Kind).To(Equal("gpu"))
	return d
}

// onDevices selects some GPUs by their addresses.
func onDevices(devices ...owned) string {
	var addresses []string
	for _, d := range devices {
		addresses = append(addresses, d.Address)
	}
	return `device.attributes["fettle.dev"].?pciAddress.orValue("") in [` + quoted(addresses) + `]`
}

// ofGPUNode names GPUs of the GPU node.
func ofGPUNode(devices ...owned) []hardwareDevice {
	var out []hardwareDevice
	for _, d := range devices {
		out = append(out, hardwareDevice{gpuNode + "/gpu", d.Name})
	}
	return out
}

// heldDevice has another pod hold the only GPU that would do.
func heldDevice(ctx context.Context, ns string) obstacle {
	GinkgoHelper()
	gpu := gpuNumbered(0)
	newTemplate(ctx, ns, "held", spec(request("gpu", gpuClass, where(onDevices(gpu)))))
	holder := newPod(ctx, ns, "holder", withTemplate("held"))
	running(ctx, holder)
	pod := newPod(ctx, ns, "held", withTemplate("held"))
	return obstacle{"held", onlyClaim(ctx, holder).Name, pod, ofGPUNode(gpu), func() { removePods(ctx, holder) }}
}

// splitPair has the GPUs that are free be below different roots.
func splitPair(ctx context.Context, ns string) obstacle {
	GinkgoHelper()
	first, taken, other := gpuNumbered(2), gpuNumbered(3), gpuNumbered(4)
	Expect(first.Root).To(Equal(taken.Root))
	Expect(first.Root).NotTo(Equal(other.Root))
	newTemplate(ctx, ns, "half", spec(request("gpu", gpuClass, where(onDevices(taken)))))
	holder := newPod(ctx, ns, "half", withTemplate("half"))
	running(ctx, holder)
	pair := spec(request("gpus", gpuClass, count(2), where(onDevices(first, taken, other))))
	root := resourceapi.FullyQualifiedName(pcieRoot)
	pair.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &root}}
	newTemplate(ctx, ns, "pair", pair)
	pod := newPod(ctx, ns, "split", withTemplate("pair"))
	return obstacle{"constraint", "different PCIe roots", pod, ofGPUNode(first, taken), func() { removePods(ctx, holder) }}
}

// missingClass has a claim name a DeviceClass that there is not.
func missingClass(ctx context.Context, ns string) obstacle {
	GinkgoHelper()
	gpu := gpuNumbered(5)
	class := "e2e-late-" + ns
	newTemplate(ctx, ns, "classless", spec(request("gpu", class, where(onDevices(gpu)))))
	pod := newPod(ctx, ns, "classless", withTemplate("classless"))
	pendingAtNight(ctx, ns, pod.Name, class)
	return obstacle{"class", class, pod, ofGPUNode(gpu), func() { newClass(ctx, class, gpuClass) }}
}

// missingClaim has a pod name a claim that there is not.
func missingClaim(ctx context.Context, ns string) obstacle {
	GinkgoHelper()
	gpu := gpuNumbered(6)
	pod := newPod(ctx, ns, "early", withClaim("absent"))
	return obstacle{"claim", "absent", pod, ofGPUNode(gpu), func() {
		newClaim(ctx, ns, "absent", spec(request("gpu", gpuClass, where(onDevices(gpu)))))
	}}
}

// closedNode has the only GPU that would do be on a node that takes no pods.
func closedNode(ctx context.Context, ns string) obstacle {
	GinkgoHelper()
	devices := hardwareOf(mixedNode).Devices
	at := slices.IndexFunc(devices, func(d hardware.Device) bool { return d.Kind == "gpu" })
	Expect(at).To(BeNumerically(">=", 0))
	gpu := owned{Device: devices[at]}
	cordon := func(ctx context.Context, closed bool) {
		_, err := h.Kube.CoreV1().Nodes().Patch(ctx, mixedNode, types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	cordon(ctx, true)
	DeferCleanup(func(ctx SpecContext) { cordon(ctx, false) })
	newTemplate(ctx, ns, "closed", spec(request("gpu", gpuClass, where(onDevices(gpu)))))
	pod := newPod(ctx, ns, "closed", withTemplate("closed"))
	return obstacle{"node", mixedNode, pod, []hardwareDevice{{mixedNode + "/gpu", gpu.Name}}, func() { cordon(ctx, false) }}
}

// gatedPod has a scheduling gate.
func gatedPod(ctx context.Context, ns string) obstacle {
	GinkgoHelper()
	gpu := gpuNumbered(1)
	newTemplate(ctx, ns, "gated", spec(request("gpu", gpuClass, where(onDevices(gpu)))))
	pod := newPod(ctx, ns, "gated", withTemplate("gated"), func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.fettle.dev/later"}}
	})
	return obstacle{"gated", "gate e2e.fettle.dev/later is to be removed first", pod, ofGPUNode(gpu), func() {
		_, err := h.Kube.CoreV1().Pods(ns).Patch(ctx, pod.Name, types.JSONPatchType,
			[]byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
	}}
}

// taintedDevice has the only GPU that would do be tainted by an administrator.
func taintedDevice(ctx context.Context, ns string) obstacle {
	GinkgoHelper()
	gpu := gpuNumbered(7)
	rules := h.Kube.ResourceV1().DeviceTaintRules()
	pool := gpuNode + "/gpu"
	rule, err := rules.Create(ctx, &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-" + ns},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: new("fettle.dev"), Pool: &pool, Device: &gpu.Name},
			Taint:          resourceapi.DeviceTaint{Key: "e2e.fettle.dev/maintenance", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	drop := func(ctx context.Context) { Expect(rules.Delete(ctx, rule.Name, metav1.DeleteOptions{})).To(Succeed()) }
	dropped := false
	DeferCleanup(func(ctx SpecContext) {
		if !dropped {
			drop(ctx)
		}
	})
	newTemplate(ctx, ns, "tainted", spec(request("gpu", gpuClass, where(onDevices(gpu)))))
	pod := newPod(ctx, ns, "tainted", withTemplate("tainted"))
	return obstacle{"taint", "e2e.fettle.dev/maintenance", pod, ofGPUNode(gpu), func() {
		drop(ctx)
		dropped = true
	}}
}
