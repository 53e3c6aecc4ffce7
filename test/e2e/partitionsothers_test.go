// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
)

const (
	// partitionClass and functionClass are for claims of a part of an AMD GPU, and of a virtual function.
	partitionClass, functionClass = "e2e-partition", "e2e-vf"
	// renders prints the render nodes of a container.
	renders = `ls /dev/dri 2>/dev/null | grep renderD || true`
)

// dividesOthers runs on a node whose PCI functions react as those of a kernel: modes, virtual functions and drivers.
func dividesOthers() {
	var simulators *harness.Simulators

	BeforeAll(func(ctx SpecContext) {
		DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) }, NodeTimeout(h.Patient(3*time.Minute)))
		DeferCleanup(func(ctx SpecContext) { placeAll(ctx) }, NodeTimeout(h.Patient(time.Minute)))
		simulators = startSimulators(ctx)
		passthrough := harness.Values{"deviceClasses": harness.Values{"vfio": true}}
		Expect(h.Install(ctx, values().Merge(partitionValues()).Merge(passthrough))).To(Succeed())
		newPartClass(ctx, partitionClass, partOf("partition", ""))
		newPartClass(ctx, functionClass, partOf("vf", ""))
		newPartClass(ctx, wholeClass, partOf("gpu", ""))
		newPassedClass(ctx)
	}, NodeTimeout(h.Patient(5*time.Minute)))

	each := func(text, machine string, do func(SpecContext), decorators ...any) {
		It(text, decorators, func(ctx SpecContext) {
			react(ctx, simulators, machine)
			do(ctx)
		}, NodeTimeout(h.Patient(3*time.Minute)))
	}
	each("gives partitions of an AMD GPU in the mode of its policy", "2xmi300x-divided", amdPartitions,
		later("scenario 20 of the demo shows it"))
	each("runs AMD's examples of partitions", "2xmi300x-divided", foreignAMDPartitions,
		later("repeats partitions with the objects of another project"))
	each("gives virtual functions, and the GPU itself when none is used", "2xb60-sriov", virtualFunctions,
		later("scenario 21 of the demo shows it"))
	each("gives a GPU to a virtual machine and back to its driver", "2xrtx-vfio", passedThrough, later("scenario 22 of the demo shows it"))
	each("runs NVIDIA's examples for virtual machines, and Kubernetes' of metadata", "2xrtx-vfio", foreignPassthrough,
		later("repeats what goes to virtual machines with the objects of another project"))
}

// react has the mixed node be a machine that reacts, until the spec ends.
func react(ctx context.Context, simulators *harness.Simulators, name string) {
	GinkgoHelper()
	machine := place(ctx, mixedNode, name)
	Expect(simulators.StartPCI(ctx, mixedNode, machine)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(simulators.StopPCI(ctx, mixedNode)).To(Succeed()) })
	// A container keeps the mounts that it began with.
	old, err := h.PluginPod(ctx, mixedNode)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Kube.CoreV1().Pods(harness.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, old)
	pluginReady(ctx, mixedNode)
}

// amdPartitions divides the second of two GPUs, which somebody left in another mode.
func amdPartitions(ctx SpecContext) {
	needsCounters()
	const address, renderNode = "0000:26:00.0", 136
	whole := harness.PCIName("amd", address)
	part := func(i int) string { return fmt.Sprintf("%s-cpx-nps1-p%d", whole, i) }
	Expect(attributeOf(ctx, mixedNode, address, "current_compute_partition")).To(Equal("DPX"))
	newPolicy(ctx, mixedNode, "e2e-cpx", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{address}),
		AMD:            &v1alpha1.AMDPartition{Compute: "CPX", Memory: "NPS1"},
	})
	eventuallyPublishes(ctx, mixedNode, whole, part(0), part(7))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "part", partitionClass, address)
	newPart(ctx, ns, "whole", wholeClass, address)
	pods := []*corev1.Pod{newPod(ctx, ns, "first", withTemplate("part")), newPod(ctx, ns, "second", withTemplate("part"))}
	running(ctx, pods...)
	Expect(attributeOf(ctx, mixedNode, address, "current_compute_partition")).To(Equal("CPX"))
	for _, pod := range pods {
		var index int
		_, err := fmt.Sscanf(results(onlyClaim(ctx, pod))[0].Device, whole+"-cpx-nps1-p%d", &index)
		Expect(err).NotTo(HaveOccurred())
		Expect(inside(ctx, pod, main, renders)).To(Equal(fmt.Sprintf("renderD%d\n", renderNode+index)), "its own node and no other")
		Expect(inside(ctx, pod, main, "ls /dev/kfd")).To(Equal("/dev/kfd\n"))
		Expect(inside(ctx, pod, main, openNodes)).To(BeEmpty())
	}
	waits := newPod(ctx, ns, "waits", withTemplate("whole"))
	eventuallyUnschedulable(ctx, waits, noneLeft)

	say("the whole GPU is whole")
	removePods(ctx, pods...)
	running(ctx, waits)
	Expect(attributeOf(ctx, mixedNode, address, "current_compute_partition")).To(Equal("SPX"))
	Expect(inside(ctx, waits, main, renders)).To(Equal(fmt.Sprintf("renderD%d\n", renderNode)))
	removePods(ctx, waits)
}

// virtualFunctions makes virtual functions of a GPU that has none.
func virtualFunctions(ctx SpecContext) {
	needsCounters()
	const address = "0000:4b:00.0"
	whole := harness.PCIName("intel", address)
	vf := func(i int) string { return fmt.Sprintf("%s-vf%d", whole, i) }
	newPolicy(ctx, mixedNode, "e2e-functions", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{address}),
		SRIOV: &v1alpha1.SRIOVPartition{
			VirtualFunctions: 2, Xe: &v1alpha1.XeProvisioning{ExecQuantumMS: new(int32(20)), SchedPriority: "normal"},
		},
	})
	Eventually(ctx, func() string { return attributeOf(ctx, mixedNode, address, "sriov_numvfs") }).Should(Equal("2"))
	for _, n := range []string{"1", "2"} {
		for name, want := range map[string]string{"exec_quantum_ms": "20", "sched_priority": "low [normal] high"} {
			Eventually(ctx, func() string { return attributeOf(ctx, mixedNode, address, "sriov_admin/vf"+n+"/profile/"+name) }).
				Should(Equal(want))
		}
	}
	eventuallyPublishes(ctx, mixedNode, vf(0), vf(1))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "vf", functionClass, "")
	newPart(ctx, ns, "whole", wholeClass, address)
	pods := []*corev1.Pod{newPod(ctx, ns, "first", withTemplate("vf")), newPod(ctx, ns, "second", withTemplate("vf"))}
	running(ctx, pods...)
	seen := map[string]bool{}
	for _, pod := range pods {
		node := strings.TrimSpace(inside(ctx, pod, main, renders))
		Expect(node).To(MatchRegexp(`^renderD\d+$`))
		Expect(seen[node]).To(BeFalse())
		seen[node] = true
		Expect(inside(ctx, pod, main, openNodes)).To(BeEmpty())
	}
	waits := newPod(ctx, ns, "waits", withTemplate("whole"))
	eventuallyUnschedulable(ctx, waits, noneLeft)
	removePods(ctx, pods...)
	running(ctx, waits)
	removePods(ctx, waits)

	say("they are removed when the policy wants none")
	dropPolicy(ctx, "e2e-functions")
	newPolicy(ctx, mixedNode, "e2e-no-functions", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{address}), SRIOV: &v1alpha1.SRIOVPartition{},
	})
	Eventually(ctx, func() string { return attributeOf(ctx, mixedNode, address, "sriov_numvfs") }).Should(Equal("0"))
}

// passedThrough gives a GPU with its audio function to a virtual machine. The other one shares its IOMMU group with a network card.
func passedThrough(ctx SpecContext) {
	needsCounters()
	const address, audio, other = "0000:16:00.0", "0000:16:00.1", "0000:38:00.0"
	newPolicy(ctx, mixedNode, "e2e-passed", v1alpha1.PartitionDevices{Passthrough: new(true)})
	eventuallyPublishes(ctx, mixedNode, wholeName(address), wholeName(address)+"-vfio", wholeName(other))
	eventuallyProblem(ctx, mixedNode, "NoIOMMU", wholeName(other))
	Eventually(ctx, func() []string { return published(ctx, mixedNode) }).ShouldNot(ContainElement(wholeName(other) + "-vfio"))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "vfio", passedClass, address)
	newPart(ctx, ns, "whole", wholeClass, address)
	machine := newPod(ctx, ns, "machine", withTemplate("vfio"))
	running(ctx, machine)
	waits := newPod(ctx, ns, "waits", withTemplate("whole"))
	eventuallyUnschedulable(ctx, waits, noneLeft)
	for _, function := range []string{address, audio} {
		Expect(driverOf(ctx, mixedNode, function)).To(Equal("vfio-pci"))
	}
	Expect(inside(ctx, machine, main, `find /dev/vfio /dev/iommu -type c | sort`)).
		To(MatchRegexp(`^/dev/iommu\n/dev/vfio/20\n/dev/vfio/devices/vfio\d+\n/dev/vfio/vfio\n$`), "both interfaces, and its own group alone")
	Expect(inside(ctx, machine, main, openNodes)).To(BeEmpty())
	Expect(inside(ctx, machine, main, `ls /dev | grep nvidia || echo none`)).To(Equal("none\n"))

	say("the node's drivers are back before the next one gets it")
	removePods(ctx, machine)
	running(ctx, waits)
	for function, driver := range map[string]string{address: "nvidia", audio: "snd_hda_intel"} {
		Expect(driverOf(ctx, mixedNode, function)).To(Equal(driver))
		Expect(overrideOf(ctx, mixedNode, function)).To(Equal("(null)"))
	}
	hasExactly(ctx, waits, main, devicesOf(results(onlyClaim(ctx, waits)))...)
	removePods(ctx, waits)
}
