// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/test/harness"
)

const noneLeft = "cannot allocate all claims"

// seven fills a GPU with instances of one slice.
func (g *dividedGPUs) seven(ctx SpecContext) {
	needsCounters()
	address := g.address(0)
	newPolicy(ctx, gpuNode, "e2e-seven", dynamicMIG(address))
	eventuallyPublishes(ctx, gpuNode, wholeName(address), migName(address, small, 0), migName(address, small, 6), migName(address, half, 4))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "small", smallClass, address)
	var pods []*corev1.Pod
	for i := range 7 {
		pods = append(pods, newPod(ctx, ns, fmt.Sprintf("small-%d", i), withTemplate("small")))
	}
	running(ctx, pods...)
	Eventually(ctx, g.occupied).Should(Equal([]string{"0 0 1", "0 1 1", "0 2 1", "0 3 1", "0 4 1", "0 5 1", "0 6 1"}))
	eighth := newPod(ctx, ns, "eighth", withTemplate("small"))
	eventuallyUnschedulable(ctx, eighth, noneLeft)
	for _, pod := range pods {
		g.hasInstance(ctx, pod)
	}
	g.neighbourIsDenied(ctx, pods[0], pods[1])

	say("a slice that is given back goes to the pod that waits, as another instance")
	_, left := g.instanceOf(ctx, pods[3])
	removePods(ctx, pods[3])
	running(ctx, eighth)
	_, made := g.instanceOf(ctx, eighth)
	Expect(made.Start).To(Equal(left.Start))
	Expect(made.Compute[0].UUID).NotTo(Equal(left.Compute[0].UUID))
	g.hasInstance(ctx, eighth)

	say("nothing is left of them")
	removePods(ctx, append(pods, eighth)...)
	Eventually(ctx, g.occupied).Should(BeEmpty())
}

// hasInstance expects that a container has its instance's nodes and no other, that each opens, and that it is told the instance's UUID.
func (g *dividedGPUs) hasInstance(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	card, one := g.instanceOf(ctx, pod)
	Expect(lines(inside(ctx, pod, main, listNodes))).To(Equal(g.nodesOf(card, one)))
	Expect(inside(ctx, pod, main, openNodes)).To(BeEmpty())
	device := results(onlyClaim(ctx, pod))[0].Device
	Expect(lines(inside(ctx, pod, main, "env | grep -E '^(NVIDIA_VISIBLE_DEVICES|FETTLE_MIG_)' | sort"))).To(Equal([]string{
		mig.Variable(device) + "=" + one.Compute[0].UUID, "NVIDIA_VISIBLE_DEVICES=void",
	}))
}

// neighbourIsDenied makes the nodes of another pod's capabilities in a container whose root may do that. Only the device cgroup is in the
// way. Its own open.
func (g *dividedGPUs) neighbourIsDenied(ctx context.Context, pod, neighbour *corev1.Pod) {
	GinkgoHelper()
	own, foreign := []int{0, 0}, []int{0, 0}
	card, one := g.instanceOf(ctx, pod)
	own[0], own[1] = g.capabilities(card, one)
	card, one = g.instanceOf(ctx, neighbour)
	foreign[0], foreign[1] = g.capabilities(card, one)
	for i := range own {
		made := fmt.Sprintf(`rm -f /tmp/own /tmp/foreign; mknod /tmp/own c 4 %d && ( exec 3<>/tmp/own ) && echo own opens
			mknod /tmp/foreign c 4 %d && ( exec 3<>/tmp/foreign ) 2>&1; ( exec 3</tmp/foreign ) 2>&1; true`, own[i], foreign[i])
		Expect(inside(ctx, pod, main, made)).To(MatchRegexp(`(?s)^own opens\n.*not permitted.*not permitted`))
	}
	list := fmt.Sprintf("ls /dev/nvidia-caps/nvidia-cap%d 2>&1 || true", foreign[0])
	Expect(inside(ctx, pod, main, list)).To(ContainSubstring("No such file"))
}

// mixed puts instances of two sizes on one GPU, which is given whole when they are gone.
func (g *dividedGPUs) mixed(ctx SpecContext) {
	needsCounters()
	address := g.address(1)
	newPolicy(ctx, gpuNode, "e2e-mixed", dynamicMIG(address))
	eventuallyPublishes(ctx, gpuNode, wholeName(address), migName(address, half, 0), migName(address, half, 4))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "small", smallClass, address)
	newPart(ctx, ns, "half", halfClass, address)
	newPart(ctx, ns, "whole", wholeClass, address)
	pods := []*corev1.Pod{newPod(ctx, ns, "half", withTemplate("half")), newPod(ctx, ns, "small", withTemplate("small"))}
	running(ctx, pods...)
	for _, pod := range pods {
		g.hasInstance(ctx, pod)
	}
	whole, second := newPod(ctx, ns, "whole", withTemplate("whole")), newPod(ctx, ns, "second", withTemplate("half"))
	for _, pod := range []*corev1.Pod{whole, second} {
		eventuallyUnschedulable(ctx, pod, noneLeft)
	}
	Eventually(ctx, g.occupied).Should(HaveLen(2))

	say("the whole GPU fits when nothing of it is held, and is not in MIG mode then")
	removePods(ctx, append(pods, second)...)
	running(ctx, whole)
	hasExactly(ctx, whole, main, devicesOf(results(onlyClaim(ctx, whole)))...)
	Eventually(ctx, g.occupied).Should(BeEmpty())
	Eventually(ctx, func() bool { return g.look().Cards[1].MIG }).Should(BeFalse(), "programs cannot use a GPU whole that is in MIG mode")
	waits := newPod(ctx, ns, "waits", withTemplate("small"))
	eventuallyUnschedulable(ctx, waits, noneLeft)
	removePods(ctx, whole)
	running(ctx, waits)
	g.hasInstance(ctx, waits)
	removePods(ctx, waits)
}

// oneWinner has three claims arrive for one GPU that is given whole, in parts and to a virtual machine, in every order.
func (g *dividedGPUs) oneWinner(ctx SpecContext) {
	needsCounters()
	const card = 2
	address := g.address(card)
	devices := dynamicMIG(address)
	devices.Passthrough = new(true)
	newPolicy(ctx, gpuNode, "e2e-winner", devices)
	eventuallyPublishes(ctx, gpuNode, wholeName(address), wholeName(address)+"-vfio", migName(address, small, 3))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "whole", wholeClass, address)
	newPart(ctx, ns, "mig", halfClass, address)
	newPart(ctx, ns, "vfio", passedClass, address)
	for _, order := range []string{
		"whole mig vfio", "whole vfio mig", "mig whole vfio", "mig vfio whole", "vfio whole mig", "vfio mig whole",
	} {
		kinds := strings.Fields(order)
		say("in this order: %s", order)
		first := newPod(ctx, ns, kinds[0], withTemplate(kinds[0]))
		running(ctx, first)
		second, third := newPod(ctx, ns, kinds[1], withTemplate(kinds[1])), newPod(ctx, ns, kinds[2], withTemplate(kinds[2]))
		// A second instance of the same profile fits beside the first: another kind does not.
		eventuallyUnschedulable(ctx, second, noneLeft)
		eventuallyUnschedulable(ctx, third, noneLeft)
		g.isOnly(ctx, card, kinds[0])
		say("the next one gets it when the first is gone: %s", kinds[1])
		removePods(ctx, third, first)
		running(ctx, second)
		g.isOnly(ctx, card, kinds[1])
		switch kinds[1] {
		case "whole":
			hasExactly(ctx, second, main, devicesOf(results(onlyClaim(ctx, second)))...)
		case "mig":
			g.hasInstance(ctx, second)
		}
		removePods(ctx, second)
		Eventually(ctx, g.occupied).Should(BeEmpty())
		Eventually(ctx, func() string { return driverOf(ctx, gpuNode, address) }).Should(Equal("nvidia"))
		Eventually(ctx, func() string { return overrideOf(ctx, gpuNode, address) }).Should(Equal("(null)"))
	}
}

// isOnly expects that a card is used in one way alone.
func (g *dividedGPUs) isOnly(ctx context.Context, card int, kind string) {
	GinkgoHelper()
	c := g.look().Cards[card]
	instances, driver := 0, "nvidia"
	switch kind {
	case "mig":
		instances = 1
	case "vfio":
		driver = "vfio-pci"
	}
	Expect(c.Instances).To(HaveLen(instances))
	Expect(driverOf(ctx, gpuNode, addressOf(c))).To(Equal(driver))
	if kind == "whole" {
		Expect(c.MIG).To(BeFalse())
	}
}

// driverOf is the driver that a PCI function of a node's machine has.
func driverOf(ctx context.Context, node, address string) string {
	GinkgoHelper()
	out, err := h.OnNode(ctx, node, "sh", "-c", `readlink "$0/driver" || echo none`, onMachine("sys/bus/pci/devices", address))
	Expect(err).NotTo(HaveOccurred())
	return path.Base(strings.TrimSpace(out))
}

func overrideOf(ctx context.Context, node, address string) string {
	GinkgoHelper()
	return attributeOf(ctx, node, address, "driver_override")
}

// attributeOf reads an attribute of a PCI function of a node's machine.
func attributeOf(ctx context.Context, node, address, name string) string {
	GinkgoHelper()
	out, err := h.OnNode(ctx, node, "cat", onMachine("sys/bus/pci/devices", address, name))
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}

// onMachine is a path on the simulated machine, as its node sees it.
func onMachine(elements ...string) string {
	return path.Join(append([]string{harness.MachineRoot}, elements...)...)
}
