// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// noCounters is what happens where the API server drops counters: a part that is made for a claim would be given twice.
func (g *dividedGPUs) noCounters(ctx SpecContext) {
	address := g.address(3)
	newPolicy(ctx, gpuNode, "e2e-counters", dynamicMIG(address))
	if !older {
		say("this API server keeps them")
		eventuallyPublishes(ctx, gpuNode, migName(address, small, 0))
		counters, err := poolSlices(ctx, gpuNode+"/gpu")
		Expect(err).NotTo(HaveOccurred())
		Expect(counters).To(ContainElement(HaveField("Spec.SharedCounters", Not(BeEmpty()))))
		return
	}
	eventuallyProblem(ctx, gpuNode, "NoCounters", wholeName(address))
	plugin, err := h.PluginPod(ctx, gpuNode)
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		metrics, err := h.Metrics(ctx, plugin.Name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(metrics).To(HaveKeyWithValue(`fettle_discovery_problems{reason="NoCounters"}`, Not(Equal("0"))))
	}).Should(Succeed())
	Eventually(ctx, func() []string { return published(ctx, gpuNode) }).Should(And(
		ContainElement(wholeName(address)), Not(ContainElement(ContainSubstring("-mig-")))), "whole GPUs share nothing")
}

// staticLayout makes a layout, whose instances are devices of their own.
func (g *dividedGPUs) staticLayout(ctx SpecContext) {
	const card = 7
	address := g.address(card)
	newPolicy(ctx, gpuNode, "e2e-static", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{address}),
		NVIDIA: &v1alpha1.NVIDIAPartition{MIG: v1alpha1.MIGPartition{Mode: v1alpha1.MIGStatic, Layout: []v1alpha1.MIGInstances{
			{Profile: half, Count: 1, Starts: []int32{4}}, {Profile: small, Count: 4},
		}}},
	})
	want := []string{"7 0 1", "7 1 1", "7 2 1", "7 3 1", "7 4 4"}
	Eventually(ctx, g.occupied).Should(Equal(want), "nobody claimed any of them")
	eventuallyPublishes(ctx, gpuNode, migName(address, small, 0), migName(address, small, 3), migName(address, half, 4))
	Eventually(ctx, func() []string { return published(ctx, gpuNode) }).ShouldNot(ContainElement(wholeName(address)))
	before := uuidsOf(g.look().Cards[card])
	Eventually(ctx, func() []string { return attributeValues(ctx, gpuNode, address, "uuid") }).Should(ConsistOf(before),
		"a static instance has a UUID that can be selected")

	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "small", smallClass, address)
	newPart(ctx, ns, "half", halfClass, address)
	for range 2 {
		pods := []*corev1.Pod{newPod(ctx, ns, "small", withTemplate("small")), newPod(ctx, ns, "half", withTemplate("half"))}
		running(ctx, pods...)
		for _, pod := range pods {
			g.hasInstance(ctx, pod)
		}
		waits := newPod(ctx, ns, "waits", withTemplate("half"))
		eventuallyUnschedulable(ctx, waits, noneLeft)
		removePods(ctx, append(pods, waits)...)
	}
	Eventually(ctx, g.occupied).Should(Equal(want))
	Expect(uuidsOf(g.look().Cards[card])).To(Equal(before), "the same instances, whoever used them")

	say("they go when a policy wants none")
	dropPolicy(ctx, "e2e-static")
	newPolicy(ctx, gpuNode, "e2e-disabled", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{address}),
		NVIDIA:         &v1alpha1.NVIDIAPartition{MIG: v1alpha1.MIGPartition{Mode: v1alpha1.MIGDisabled}},
	})
	Eventually(ctx, g.occupied).Should(BeEmpty())
	eventuallyPublishes(ctx, gpuNode, wholeName(address))
	Eventually(ctx, func() bool { return g.look().Cards[card].MIG }).Should(BeFalse())
}

// uuidsOf are the UUIDs of a card's instances.
func uuidsOf(c *nvmlsim.Card) (out []string) {
	for _, one := range c.Instances {
		for _, compute := range one.Compute {
			out = append(out, compute.UUID)
		}
	}
	return out
}

// attributeValues are the values of an attribute of the parts of a card.
func attributeValues(ctx context.Context, node, address, name string) (out []string) {
	GinkgoHelper()
	devices, err := poolDevices(ctx, node+"/gpu")
	Expect(err).NotTo(HaveOccurred())
	for _, d := range devices {
		value := d.Attributes[resourceapi.QualifiedName(name)].StringValue
		if strings.HasPrefix(d.Name, wholeName(address)+"-") && value != nil {
			out = append(out, *value)
		}
	}
	return out
}

// inUse has a process keep an instance after its pod is gone, as a monitor on the node does.
func (g *dividedGPUs) inUse(ctx SpecContext) {
	needsCounters()
	address := g.address(4)
	newPolicy(ctx, gpuNode, "e2e-used", dynamicMIG(address))
	eventuallyPublishes(ctx, gpuNode, migName(address, half, 4))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "half", halfClass, address)
	pods := []*corev1.Pod{newPod(ctx, ns, "first", withTemplate("half")), newPod(ctx, ns, "second", withTemplate("half"))}
	running(ctx, pods...)
	claim := onlyClaim(ctx, pods[0])
	held := results(claim)[0].Device
	_, one := g.instanceOf(ctx, pods[0])
	uuid := one.Compute[0].UUID
	Expect(g.Hold(uuid, 1)).To(Succeed())
	used := true
	DeferCleanup(func() {
		if used {
			Expect(g.Hold(uuid, -1)).To(Succeed())
		}
	})
	Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pods[0].Name, metav1.DeleteOptions{})).To(Succeed())

	say("the claim's record stays, and the instance with it, and the node says why")
	eventuallyProblem(ctx, gpuNode, "UndoFailed", held)
	Expect(claimFiles(ctx, gpuNode, claim)).NotTo(BeEmpty())
	Eventually(ctx, g.occupied).Should(HaveLen(2))
	eventuallyHalfTaken(ctx, address, held)
	third := newPod(ctx, ns, "third", withTemplate("half"))
	eventuallyUnschedulable(ctx, third, noneLeft)

	say("it is given back after the process has ended")
	Expect(g.Hold(uuid, -1)).To(Succeed())
	used = false
	Eventually(ctx, g.occupied).ShouldNot(ContainElement(HaveSuffix(" " + startOf(held) + " 4")))
	eventuallyGone(ctx, pods[0])
	eventuallyNoRecord(ctx, gpuNode, claim)
	running(ctx, third)
	g.hasInstance(ctx, third)
	removePods(ctx, pods[1], third)
}

// eventuallyHalfTaken waits until no claim can get the slices of a half: it is published, so that its counters count, or nothing is that
// overlaps it. The first pass over a claim that could not be given back withholds them all.
func eventuallyHalfTaken(ctx context.Context, address, held string) {
	GinkgoHelper()
	start, err := strconv.Atoi(startOf(held))
	Expect(err).NotTo(HaveOccurred())
	overlapping := []string{wholeName(address)}
	for s := start; s < start+4; s++ {
		overlapping = append(overlapping, migName(address, small, s))
	}
	Eventually(ctx, func() []string { return published(ctx, gpuNode) }).
		Should(Or(ContainElement(held), Not(ContainElement(BeElementOf(overlapping)))))
}

// startOf is the memory slice in the name of a device.
func startOf(device string) string { return device[strings.LastIndex(device, "-s")+2:] }

// killed kills the plugin, and fettle-nvml with it, before and after calls of the library.
func (g *dividedGPUs) killed(ctx SpecContext) {
	needsCounters()
	const card = 5
	address := g.address(card)
	newPolicy(ctx, gpuNode, "e2e-killed", dynamicMIG(address))
	eventuallyPublishes(ctx, gpuNode, migName(address, half, 0))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "half", halfClass, address)
	const create, compute = "Device.CreateGpuInstanceWithPlacement", "GpuInstance.CreateComputeInstance"
	for i, function := range []string{create, compute} {
		say("while it makes an instance, at %s", function)
		g.holdAt(function)
		pod := newPod(ctx, ns, []string{"create", "compute"}[i], withTemplate("half"))
		g.killPluginAt(ctx, function)
		running(ctx, pod)
		Eventually(ctx, g.occupied).Should(HaveLen(1))
		g.hasInstance(ctx, pod)
		removePods(ctx, pod)
		Eventually(ctx, g.occupied).Should(BeEmpty())
	}
	for i, function := range []string{"ComputeInstance.Destroy", "GpuInstance.Destroy"} {
		say("while it destroys one, at %s", function)
		pod := newPod(ctx, ns, []string{"destroy", "destroy-rest"}[i], withTemplate("half"))
		running(ctx, pod)
		claim := onlyClaim(ctx, pod)
		g.holdAt(function)
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		g.killPluginAt(ctx, function)
		eventuallyGone(ctx, pod)
		Eventually(ctx, g.occupied).Should(BeEmpty())
		eventuallyNoRecord(ctx, gpuNode, claim)
	}
	for _, after := range []bool{false, true} {
		say("fettle-nvml alone is killed at %s (after: %t)", create, after)
		Expect(g.Script(nvmlsim.Fault{Function: create, Nth: 1, After: after, Do: nvmlsim.Kill})).To(Succeed())
		pod := newPod(ctx, ns, "child", withTemplate("half"))
		running(ctx, pod)
		Eventually(ctx, g.occupied).Should(HaveLen(1))
		removePods(ctx, pod)
		Eventually(ctx, g.occupied).Should(BeEmpty())
	}
}

// gate is the file in the machine's directory that a held call waits for. A container sees it below the driver's root.
const gate = "gate"

// holdAt has the next call of a function wait.
func (g *dividedGPUs) holdAt(function string) {
	GinkgoHelper()
	Expect(g.Script(nvmlsim.Fault{Function: function, Nth: 1, Do: nvmlsim.Wait, File: filepath.Join("/driver-root", gate)})).To(Succeed())
}

// killPluginAt waits until a call is held, kills the plugin with its children, and holds no call any more.
func (g *dividedGPUs) killPluginAt(ctx context.Context, function string) {
	GinkgoHelper()
	Eventually(ctx, func() int { return g.look().Calls[function] }).Should(Equal(1), "the call comes")
	before, err := h.PluginPod(ctx, gpuNode)
	Expect(err).NotTo(HaveOccurred())
	container := harness.PluginContainer(before)
	Expect(h.KillContainer(ctx, gpuNode, container.ContainerID)).To(Succeed())
	Eventually(ctx, func(g Gomega) {
		runs, err := h.RunsContainer(ctx, gpuNode, container.ContainerID)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(runs).To(BeFalse())
	}).Should(Succeed())
	Expect(g.Script()).To(Succeed())
	// A new pod does not wait longer each time, as a container that dies often does.
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	Expect(h.Kube.CoreV1().Pods(before.Namespace).Delete(ctx, before.Name, now)).To(Succeed())
	eventuallyGone(ctx, before)
	pluginReady(ctx, gpuNode)
}

// foreign has an administrator make an instance by hand.
func (g *dividedGPUs) foreign(ctx SpecContext) {
	needsCounters()
	const card = 6
	address := g.address(card)
	Expect(g.Change(func(s *nvmlsim.State) error {
		s.Cards[card].MIG, s.Cards[card].Pending = true, true
		return nil
	})).To(Succeed())
	_, err := g.Foreign(card, 14, 2, 2) // 2g.20gb in memory slices 2 and 3
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(g.Reset(card, g.look().Cards[card].Minor)).To(Succeed()) })
	newPolicy(ctx, gpuNode, "e2e-foreign", dynamicMIG(address))
	eventuallyProblem(ctx, gpuNode, "ForeignInstance", "2-3")
	eventuallyPublishes(ctx, gpuNode, migName(address, small, 0), migName(address, half, 4))
	for _, overlapping := range []string{
		wholeName(address), migName(address, small, 2), migName(address, small, 3), migName(address, half, 0),
	} {
		Eventually(ctx, func() []string { return published(ctx, gpuNode) }).ShouldNot(ContainElement(overlapping))
	}
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "small", smallClass, address)
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		pods = append(pods, newPod(ctx, ns, name, withTemplate("small")))
	}
	running(ctx, pods...)
	Eventually(ctx, g.occupied).Should(Equal([]string{"6 0 1", "6 1 1", "6 2 2", "6 4 1", "6 5 1", "6 6 1"}))
	serial := g.look().Cards[card].Instances[0].Serial

	say("a plugin that starts anew does not take it for its own")
	plugin, err := h.PluginPod(ctx, gpuNode)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.KillContainer(ctx, gpuNode, harness.PluginContainer(plugin).ContainerID)).To(Succeed())
	removePods(ctx, pods...)
	Eventually(ctx, g.occupied).Should(Equal([]string{"6 2 2"}))
	Expect(g.look().Cards[card].Instances[0].Serial).To(Equal(serial))

	say("its place is published once it is gone")
	Expect(g.Change(func(s *nvmlsim.State) error {
		s.Cards[card].Instances = nil
		return nil
	})).To(Succeed())
	eventuallyPublishes(ctx, gpuNode, wholeName(address), migName(address, half, 0))
}
