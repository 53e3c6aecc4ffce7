// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// The devices of the mixed node that are divided while versions change: an AMD GPU, and an Intel GPU with virtual functions.
const (
	crossedAMD, crossedIntel = "0000:26:00.0", "0000:4b:00.0"
	crossedStack             = "e2e-crossed"
)

// crossing is the hardware of both nodes while one version takes over from another, and the stack that is there all the time.
type crossing struct {
	*dividedGPUs
	namespace string
	// drivers are the pods that the stack made, and evidence is that of the newest checks, by node.
	drivers  map[string]types.UID
	evidence map[string]string
	// mayStay are parts of the paths of files that may stay of claims that are given back.
	mayStay []string
}

// dividedBothWays has claims of parts, shares, turns, an MPS daemon, partitions, virtual functions and a GPU for a virtual machine outlive
// a change of the version: some the upgrade, some the downgrade, some both, but no GPU for a virtual machine the downgrade. The version
// that takes over gives them back, and the hardware is as before. A stack keeps its drivers.
func dividedBothWays(ctx SpecContext, p previous) {
	needsCounters()
	c := startCrossing(ctx, p)
	with := crossingValues()

	say("the version before prepares")
	stays, taken := c.hold(ctx, "stays", 0), c.hold(ctx, "taken", 1)
	say("upgrade")
	tag, err := c.simulators.NVMLImage(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Install(ctx, with.Merge(harness.NVMLValues(tag)))).To(Succeed())
	eventuallyVersion(ctx, h.Version)
	for _, held := range []*heldParts{stays, taken} {
		held.right(ctx)
		held.restarts(ctx)
	}
	c.stackStays(ctx)
	taken.giveBack(ctx)
	stays.right(ctx)

	say("this version prepares")
	made := c.hold(ctx, "made", 1)
	for _, held := range []*heldParts{stays, made} { // that version's plugin is not ready on a node whose virtual machine has a GPU
		held.giveBackSort(ctx, "-vfio")
	}
	say("downgrade")
	Expect(h.Rollback(ctx, 0)).To(Succeed())
	eventuallyVersion(ctx, previousVersion)
	c.mayStay = []string{"/sharing/.lock_"} // that version does not know the marks of claims; the next claim of the device removes them
	for _, held := range []*heldParts{stays, made} {
		held.right(ctx)
	}
	made.restarts(ctx)
	c.stackStays(ctx)
	made.giveBack(ctx)
	stays.right(ctx)
	stays.giveBack(ctx)
	c.asBefore(ctx)
}

// crossingValues are the chart's values with which everything of crossing happens.
func crossingValues() harness.Values {
	return values().Merge(partitionValues()).Merge(strategyValues()).Merge(driverValues()).Merge(harness.NVMLValues(previousVersion))
}

// startCrossing makes the nodes machines that can be divided, and has the version before divide them as policies say.
func startCrossing(ctx context.Context, p previous) *crossing {
	GinkgoHelper()
	eventuallyUnused(ctx)
	DeferCleanup(func(ctx SpecContext) {
		p.install(ctx, values())
		driversGone(ctx)
	}, NodeTimeout(h.Patient(6*time.Minute)))
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) }, NodeTimeout(h.Patient(time.Minute)))
	c := &crossing{dividedGPUs: &dividedGPUs{simulators: startSimulators(ctx)}, drivers: map[string]types.UID{}, evidence: map[string]string{}}
	for node, machines := range map[string][]string{
		gpuNode: {"8xh100-iommu", "4xlocalssd"}, mixedNode: {"2xmi300x-divided", "2xb60-sriov"},
	} {
		Expect(c.simulators.StartPCI(ctx, node, place(ctx, node, machines...))).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(c.simulators.StopPCI(ctx, node)).To(Succeed()) })
	}
	var err error
	c.Machine, err = c.simulators.StartNVML(ctx, gpuNode, nvmlsim.H100)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(c.simulators.StopNVML(ctx, gpuNode)).To(Succeed()) })
	registry, err := h.StartRegistry(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(h.StopRegistry(ctx)).To(Succeed()) })

	p.install(ctx, crossingValues())
	for name, class := range map[string]string{
		smallClass: partOf("mig", small), wholeClass: partOf("gpu", ""), partitionClass: partOf("partition", ""), functionClass: partOf("vf", ""),
	} {
		newPartClass(ctx, name, class)
	}
	newPassedClass(ctx)
	c.policies(ctx)
	c.startStack(ctx, registry)
	c.namespace = newNamespace(ctx, nil)
	return c
}

// policies divide the first GPU, share the second among claims, let claims choose how programs take turns on the next four, and
// give the last two to virtual machines.
func (c *crossing) policies(ctx context.Context) {
	GinkgoHelper()
	newPolicy(ctx, gpuNode, "e2e-crossed-mig", dynamicMIG(c.address(0)))
	newPolicy(ctx, gpuNode, "e2e-crossed-shares", sharedBy(4, c.address(1)))
	for card := 2; card < 6; card++ {
		newPolicy(ctx, gpuNode, fmt.Sprintf("e2e-crossed-turns-%d", card),
			turns(c.address(card), 0, v1alpha1.SharingTimeSlicing, v1alpha1.SharingMPS))
	}
	newPolicy(ctx, gpuNode, "e2e-crossed-vfio", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{c.address(6), c.address(7)}), Passthrough: new(true),
	})
	newPolicy(ctx, mixedNode, "e2e-crossed-amd", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{crossedAMD}), AMD: &v1alpha1.AMDPartition{Compute: "CPX", Memory: "NPS1"},
	})
	newPolicy(ctx, mixedNode, "e2e-crossed-vf", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{crossedIntel}), SRIOV: &v1alpha1.SRIOVPartition{VirtualFunctions: 2},
	})
	eventuallyPublishes(ctx, gpuNode, migName(c.address(0), small, 0), wholeName(c.address(6))+"-vfio", wholeName(c.address(7))+"-vfio")
	eventuallyShared(ctx, wholeName(c.address(1)), true)
	eventuallyPublishes(ctx, mixedNode, harness.PCIName("amd", crossedAMD)+"-cpx-nps1-p0", harness.PCIName("intel", crossedIntel)+"-vf1")
}

// startStack has a stack run a driver's container on both nodes. It has nothing to load.
func (c *crossing) startStack(ctx context.Context, registry string) {
	GinkgoHelper()
	pushDriver(registry, "1")
	_, err := h.Apply(ctx, fmt.Sprintf(`
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: %s}
spec:
  driver:
    engine: DaemonSet
    daemonSet:
      repository: %s/driver
      tag: ${DRIVER_VERSION}
      version: "1"
      privileged: false
      command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]
      readyCommand: [ls, /ready]
  check: {deviceClassNames: [%s]}
`, crossedStack, registry, gpuClass))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", crossedStack, "--wait")
		Expect(err).NotTo(HaveOccurred())
	})
	for _, node := range h.NodeNames() {
		c.evidence[node] = availableStack(ctx, crossedStack, node, "").Evidence
		c.drivers[node] = driverPod(ctx, node).UID
	}
}

// stackStays waits until the stack is available by checks of the version that has taken over, and expects that no driver was touched.
func (c *crossing) stackStays(ctx context.Context) {
	GinkgoHelper()
	for _, node := range h.NodeNames() {
		check := availableStack(ctx, crossedStack, node, c.evidence[node])
		c.evidence[node] = check.Evidence
		Expect(check.Passed).To(BeTrue(), check.Message)
	}
	c.driversStay(ctx)
}

// driversStay expects that the pods of the driver are those of before.
func (c *crossing) driversStay(ctx context.Context) {
	GinkgoHelper()
	for _, node := range h.NodeNames() {
		Expect(driverPod(ctx, node).UID).To(Equal(c.drivers[node]), "the pod of the driver on %s", node)
	}
}

// heldPart is a pod that holds a claim of one sort.
type heldPart struct {
	pod *corev1.Pod
	// look is what the container has.
	look string
	// has expects that the container and the hardware are as the claim wants them.
	has func(context.Context)
	// free expects that the hardware is as before.
	free func(Gomega, context.Context)
	// stays says that the container is not to be ended: it has a program that would not end.
	stays bool
}

// heldParts are pods of every sort.
type heldParts struct {
	*crossing
	all []*heldPart
}

// hold has a pod of every sort come. Two sets have cards of their own where a claim has a card for itself.
func (c *crossing) hold(ctx context.Context, name string, set int) *heldParts {
	GinkgoHelper()
	out := &heldParts{crossing: c}
	out.instance(ctx, name+"-mig")
	out.share(ctx, name+"-share")
	out.turns(ctx, name+"-turns", c.address(2+set))
	out.mps(ctx, name+"-mps", c.address(4+set))
	out.passed(ctx, name+"-vfio", c.address(6+set))
	out.other(ctx, name+"-amd", partitionClass, crossedAMD, `^renderD13[6-9]$|^renderD14[0-3]$`)
	out.other(ctx, name+"-vf", functionClass, "", `^renderD\d+$`)
	for _, one := range out.all {
		running(ctx, one.pod)
		one.look = one.seen(ctx)
	}
	out.right(ctx)
	return out
}

func (p *heldParts) add(pod *corev1.Pod) *heldPart {
	one := &heldPart{pod: pod}
	p.all = append(p.all, one)
	return one
}

func (p *heldParts) instance(ctx context.Context, name string) {
	GinkgoHelper()
	newPart(ctx, p.namespace, name, smallClass, p.address(0))
	one := p.add(newPod(ctx, p.namespace, name, withTemplate(name)))
	one.has = func(ctx context.Context) { p.hasInstance(ctx, one.pod) }
	one.free = func(g Gomega, ctx context.Context) {
		g.Expect(p.occupied()).To(HaveLen(p.left(ctx, g, "-mig")), "instances of pods that are left")
	}
}

func (p *heldParts) share(ctx context.Context, name string) {
	GinkgoHelper()
	newTemplate(ctx, p.namespace, name, spec(request("gpu", wholeClass, where(partAt(p.address(1))), asking("12Gi"))))
	one := p.add(newPod(ctx, p.namespace, name, withTemplate(name)))
	one.has = func(ctx context.Context) { Expect(grantedIn(ctx, one.pod)).To(Equal(int64(12 << 30))) }
	one.free = func(Gomega, context.Context) {} // it is no setting of the hardware
}

func (p *heldParts) turns(ctx context.Context, name, address string) {
	GinkgoHelper()
	newTemplate(ctx, p.namespace, name, chosen(address, longTurns))
	one := p.add(newPod(ctx, p.namespace, name, withTemplate(name)))
	one.has = func(context.Context) { Expect(p.setting(address)).To(Equal(setting{Slice: longSlice})) }
	one.free = func(g Gomega, _ context.Context) { g.Expect(p.setting(address)).To(Equal(setting{})) }
}

func (p *heldParts) mps(ctx context.Context, name, address string) {
	GinkgoHelper()
	newTemplate(ctx, p.namespace, name, chosen(address, served))
	one := p.add(newPod(ctx, p.namespace, name, withTemplate(name), cudaProgram))
	one.stays = true
	one.has = func(ctx context.Context) {
		Expect(told(ctx, one.pod, 1)).To(And(ContainSubstring("percentage=50"), ContainSubstring("devices="+p.uuid(address))))
		untouched(ctx, []*corev1.Pod{one.pod})
		Expect(p.setting(address)).To(Equal(setting{Mode: computeExclusiveProcess}))
	}
	one.free = func(g Gomega, ctx context.Context) {
		g.Expect(p.setting(address)).To(Equal(setting{}))
		out, err := h.OnNode(ctx, gpuNode, "ls", filepath.Join(harness.MachineRoot, "run/fettle/mps"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(lines(out)).To(HaveLen(p.left(ctx, g, "-mps")), "directories of claims that are left")
	}
}

func (p *heldParts) passed(ctx context.Context, name, address string) {
	GinkgoHelper()
	newPart(ctx, p.namespace, name, passedClass, address)
	one := p.add(newPod(ctx, p.namespace, name, withTemplate(name)))
	one.has = func(ctx context.Context) {
		Expect(driverOf(ctx, gpuNode, address)).To(Equal("vfio-pci"))
		Expect(inside(ctx, one.pod, main, `find /dev/vfio /dev/iommu -type c | sort`)).To(ContainSubstring("/dev/vfio/devices/"))
		Expect(inside(ctx, one.pod, main, openNodes)).To(BeEmpty())
	}
	one.free = func(g Gomega, ctx context.Context) {
		g.Expect(driverOf(ctx, gpuNode, address)).To(Equal("nvidia"))
		g.Expect(overrideOf(ctx, gpuNode, address)).To(Equal("(null)"))
	}
}

// other is a part of a card of the mixed node.
func (p *heldParts) other(ctx context.Context, name, class, address, want string) {
	GinkgoHelper()
	newPart(ctx, p.namespace, name, class, address)
	one := p.add(newPod(ctx, p.namespace, name, withTemplate(name), onNode(mixedNode)))
	one.has = func(ctx context.Context) {
		Expect(strings.TrimSpace(inside(ctx, one.pod, main, renders))).To(MatchRegexp(want), "its own node and no other")
		Expect(inside(ctx, one.pod, main, openNodes)).To(BeEmpty())
	}
	one.free = func(Gomega, context.Context) {} // the mode and the functions are the policy's: see asBefore
}

// left is how many pods of a sort there are.
func (c *crossing) left(ctx context.Context, g Gomega, sort string) (n int) {
	pods, err := h.Kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	for i := range pods.Items {
		if strings.HasSuffix(pods.Items[i].Name, sort) {
			n++
		}
	}
	return n
}

// seen is what a container has of devices, and what it is told of them.
func (p *heldPart) seen(ctx context.Context) string {
	GinkgoHelper()
	return inside(ctx, p.pod, main, "("+listNodes+"); env | grep -E '^(NVIDIA|FETTLE|CUDA)_' | sort")
}

// right expects that each container has what it had when it began.
func (p *heldParts) right(ctx context.Context) {
	GinkgoHelper()
	for _, one := range p.all {
		By("pod " + one.pod.Name)
		stillRun(ctx, one.pod)
		one.has(ctx)
		Expect(one.seen(ctx)).To(Equal(one.look))
	}
}

// restarts has each container that can be ended start again, with what it had.
func (p *heldParts) restarts(ctx context.Context) {
	GinkgoHelper()
	for _, one := range p.all {
		if !one.stays {
			crash(ctx, one.pod)
		}
	}
	p.right(ctx)
}

// giveBack ends the pods, and waits until nothing of their claims is left on the nodes or their hardware.
func (p *heldParts) giveBack(ctx context.Context) {
	GinkgoHelper()
	say("claims are given back")
	var pods []*corev1.Pod
	var claims []*resourceapi.ResourceClaim
	for _, one := range p.all {
		pods, claims = append(pods, one.pod), append(claims, onlyClaim(ctx, one.pod))
	}
	removePods(ctx, pods...)
	for _, claim := range claims {
		eventuallyNoRecord(ctx, claimNode(claim), claim, p.mayStay...)
	}
	for _, one := range p.all {
		By("the hardware of pod " + one.pod.Name)
		Eventually(ctx, one.free).WithArguments(ctx).Should(Succeed())
	}
}

// giveBackSort ends the pods of one sort and keeps the others.
func (p *heldParts) giveBackSort(ctx context.Context, sort string) {
	GinkgoHelper()
	ended, kept := &heldParts{crossing: p.crossing}, []*heldPart(nil)
	for _, one := range p.all {
		if strings.HasSuffix(one.pod.Name, sort) {
			ended.all = append(ended.all, one)
		} else {
			kept = append(kept, one)
		}
	}
	Expect(ended.all).NotTo(BeEmpty())
	ended.giveBack(ctx)
	p.all = kept
}

// asBefore expects that cards whose parts were given back can be had whole, and that functions go with their policy.
func (c *crossing) asBefore(ctx context.Context) {
	GinkgoHelper()
	say("the cards can be had whole")
	Eventually(ctx, func() []string { return c.occupied() }).Should(BeEmpty())
	newPart(ctx, c.namespace, "whole-amd", wholeClass, crossedAMD)
	newPart(ctx, c.namespace, "whole-nvidia", wholeClass, c.address(0))
	pods := []*corev1.Pod{
		newPod(ctx, c.namespace, "whole-amd", withTemplate("whole-amd")), newPod(ctx, c.namespace, "whole-nvidia", withTemplate("whole-nvidia")),
	}
	running(ctx, pods...)
	Expect(attributeOf(ctx, mixedNode, crossedAMD, "current_compute_partition")).To(Equal("SPX"))
	Expect(c.card(c.address(0)).MIG).To(BeFalse())
	removePods(ctx, pods...)
	dropPolicy(ctx, "e2e-crossed-vf")
	newPolicy(ctx, mixedNode, "e2e-crossed-no-vf", v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{crossedIntel}), SRIOV: &v1alpha1.SRIOVPartition{},
	})
	Eventually(ctx, func() string { return attributeOf(ctx, mixedNode, crossedIntel, "sriov_numvfs") }).Should(Equal("0"))
}
