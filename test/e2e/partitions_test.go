// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	// smallClass, halfClass and wholeClass are for claims of a 1g.10gb, a 3g.40gb and a whole H100, passedClass for one in a virtual machine.
	smallClass, halfClass, wholeClass, passedClass = "e2e-mig-1g", "e2e-mig-3g", "e2e-whole", "e2e-vfio"
	small, half                                    = "1g.10gb", "3g.40gb"
	// memorySlices is how many an H100 has.
	memorySlices = 8
)

// dividedGPUs are eight H100 of the GPU node whose library answers. The simulator's own state is what the specs look at.
type dividedGPUs struct {
	nvmlsim.Machine
	simulators *harness.Simulators
}

// dividesGPUs runs on a node whose GPUs are divided for claims, and bound for virtual machines.
func dividesGPUs() {
	var g dividedGPUs

	BeforeAll(func(ctx SpecContext) { g = startDividedGPUs(ctx) }, NodeTimeout(h.Patient(6*time.Minute)))

	each := func(text string, do func(*dividedGPUs, SpecContext), decorators ...any) {
		It(text, decorators, func(ctx SpecContext) {
			g.empty(ctx)
			do(&g, ctx)
		}, NodeTimeout(h.Patient(4*time.Minute)))
	}
	each("publishes no part of a GPU that is made for a claim, where the API keeps no counters", (*dividedGPUs).noCounters, differs)
	each("makes a layout once, which stays whoever uses it", (*dividedGPUs).staticLayout)
	each("gives seven small instances of one GPU, each with its own nodes, and the eighth claim waits", (*dividedGPUs).seven, ofNode)
	each("gives instances of several sizes, and the whole GPU when they are gone", (*dividedGPUs).mixed, ofNode,
		later("scenario 18 of the demo shows it"))
	each("gives a GPU whole, in parts or to a virtual machine, whatever came first", (*dividedGPUs).oneWinner, ofNode)
	each("shares a GPU among claims by memory, and tells each what it was granted", (*dividedGPUs).shares, ofNode)
	each("gives a GPU to one claim at a time, where the API keeps no shares", (*dividedGPUs).noShares, differs)
	// Before any policy allows a strategy: the plugin sees a moment later than the API server that a policy is gone.
	each("refuses a strategy that no policy allows", (*dividedGPUs).notAllowed)
	each("gives shares of a GPU turns of one length, and takes it back after the last", (*dividedGPUs).timeSlices, ofNode)
	each("serves the pods of one claim by one MPS daemon, whatever is killed or updated", (*dividedGPUs).mps, ofNode)
	each("runs NVIDIA's examples of time slices, MPS and shares", (*dividedGPUs).foreignSharing, ofNode,
		later("repeats shares, time slices and MPS with the objects of another project"))
	each("runs NVIDIA's examples of partitions", (*dividedGPUs).foreignPartitions, ofNode,
		later("repeats instances with the objects of another project"))
	each("counts each share of a GPU as one device in a quota", (*dividedGPUs).quotaOfShares, ofNode,
		later("a quota counts devices alike, whatever they are"))
	each("counts pods and claims in a quota of extended resources", (*dividedGPUs).quotaOfExtended, ofNode)
	each("counts what is looked at with admin access in a quota", (*dividedGPUs).quotaOfAdminAccess)
	each("keeps an instance that a process uses until the process ends", (*dividedGPUs).inUse, ofNode)
	each("finishes or undoes what it was killed in the middle of", (*dividedGPUs).killed, ofNode, later("a storm of kills takes minutes"))
	each("evicts the pod of a GPU with a critical Xid, and tells one that tolerates it, until the GPU is bound again",
		(*dividedGPUs).failsByXid, ofNode)
	each("lets go of GPUs while their driver is changed, and releases claims meanwhile", (*dividedGPUs).letsGo, ofNode)
	each("leaves an instance alone that somebody else made, and says where it is", (*dividedGPUs).foreign, ofNode)
	It("never lets two claims have the same slices", later("hundreds of random pods take many minutes"), ofNode, func(ctx SpecContext) {
		g.empty(ctx)
		g.randomPods(ctx)
	}, NodeTimeout(h.Patient(25*time.Minute)))
}

// needsCounters skips a spec where the API server drops counters. What happens there is a spec of its own.
func needsCounters() {
	if older {
		Skip("an API server as of 1.34 has the feature gate DRAPartitionableDevices off, so no partition is made for a claim")
	}
}

// startDividedGPUs makes the GPU node a machine whose GPUs can be divided, with its simulators, and the classes of the specs.
func startDividedGPUs(ctx context.Context) dividedGPUs {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) }, NodeTimeout(h.Patient(3*time.Minute)))
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) }, NodeTimeout(h.Patient(time.Minute)))
	g := dividedGPUs{simulators: startSimulators(ctx)}
	machine := place(ctx, gpuNode, "8xh100-iommu", "4xlocalssd")
	Expect(g.simulators.StartPCI(ctx, gpuNode, machine)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(g.simulators.StopPCI(ctx, gpuNode)).To(Succeed()) })
	var err error
	g.Machine, err = g.simulators.StartNVML(ctx, gpuNode, nvmlsim.H100)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(g.simulators.StopNVML(ctx, gpuNode)).To(Succeed()) })
	tag, err := g.simulators.NVMLImage(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Install(ctx, values().Merge(partitionValues()).Merge(harness.NVMLValues(tag)).Merge(strategyValues()))).To(Succeed())
	pluginReady(ctx, gpuNode)
	newPartClass(ctx, smallClass, partOf("mig", small))
	newPartClass(ctx, halfClass, partOf("mig", half))
	newPartClass(ctx, wholeClass, partOf("gpu", ""))
	newPassedClass(ctx)
	return g
}

// strategyValues are the chart's values with which claims choose strategies.
func strategyValues() harness.Values {
	return harness.Values{"partitions": harness.Values{"strategies": true}, "mps": harness.Values{"enabled": true}}
}

// partitionValues are the chart's values with which the plugin divides devices.
func partitionValues() harness.Values {
	return harness.Values{"partitions": harness.Values{"pci": true}}
}

// startSimulators builds what stands for hardware that answers.
func startSimulators(ctx context.Context) *harness.Simulators {
	GinkgoHelper()
	simulators, err := h.Simulators(ctx, filepath.Join(h.State, "simulators"))
	Expect(err).NotTo(HaveOccurred())
	return simulators
}

// partOf selects devices of a type, and of a profile unless that is empty.
func partOf(kind, profile string) string {
	expression := fmt.Sprintf(`device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == %q`, kind)
	if profile != "" {
		expression += fmt.Sprintf(` && device.attributes["fettle.dev"].profile == %q`, profile)
	}
	return expression
}

// newPassedClass makes the class that allows devices for virtual machines.
func newPassedClass(ctx context.Context) {
	GinkgoHelper()
	newPartClass(ctx, passedClass, partOf("vfio", ""),
		objects.Config(v1alpha1.DriverName, config("GPUConfig", `"policy":{"allowPassthrough":true}`)))
}

// newPartClass makes a class with one selector and configurations.
func newPartClass(ctx context.Context, name, expression string, configs ...resourceapi.DeviceClaimConfiguration) {
	GinkgoHelper()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = objects.Selectors(expression)
	for _, c := range configs {
		class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: c.DeviceConfiguration})
	}
	_, err := h.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.ResourceV1().DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	})
}

// newPolicy makes a policy for the GPU node that is gone after the spec.
func newPolicy(ctx context.Context, node, name string, devices v1alpha1.PartitionDevices) {
	GinkgoHelper()
	create(ctx, "partitionpolicies", "", &v1alpha1.PartitionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPartitionPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.PartitionPolicySpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}}, Devices: devices,
		},
	})
}

// dropPolicy deletes a policy before the spec ends.
func dropPolicy(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("partitionpolicies")).Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
}

// dynamicMIG divides the GPUs with these addresses, or all, as claims ask for it.
func dynamicMIG(addresses ...string) v1alpha1.PartitionDevices {
	return v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses(addresses),
		NVIDIA:         &v1alpha1.NVIDIAPartition{MIG: v1alpha1.MIGPartition{Mode: v1alpha1.MIGDynamic, Profiles: []string{small, half}}},
	}
}

func onlyAddresses(addresses []string) *v1alpha1.PartitionDeviceSelector {
	if len(addresses) == 0 {
		return nil
	}
	return &v1alpha1.PartitionDeviceSelector{CEL: fmt.Sprintf(`device.attributes["fettle.dev"].pciAddress in [%s]`, quoted(addresses))}
}

func quoted(texts []string) string {
	var out []string
	for _, text := range texts {
		out = append(out, fmt.Sprintf("%q", text))
	}
	return strings.Join(out, ", ")
}

// look is the simulator's state.
func (g *dividedGPUs) look() *nvmlsim.State {
	GinkgoHelper()
	s, err := g.Look()
	Expect(err).NotTo(HaveOccurred())
	return s
}

// address is that of a card.
func (g *dividedGPUs) address(card int) string {
	GinkgoHelper()
	return addressOf(g.look().Cards[card])
}

func addressOf(c *nvmlsim.Card) string {
	GinkgoHelper()
	address, err := pci.ParseBusID(c.BusID)
	Expect(err).NotTo(HaveOccurred())
	return address.String()
}

// empty waits until the instances of an earlier spec are gone, and what its policy had published. Then it ends all processes and faults.
// It switches MIG mode off.
func (g *dividedGPUs) empty(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func() []string { return g.occupied() }).Should(BeEmpty(), "an earlier spec left instances")
	eventuallyUndivided(ctx, gpuNode)
	Expect(g.Script()).To(Succeed())
	Expect(g.Change(func(s *nvmlsim.State) error {
		for _, c := range s.Cards {
			c.MIG, c.Pending, c.Clients = false, false, 0
		}
		return nil
	})).To(Succeed())
}

// occupied lists the instances that there are, as "card start size".
func (g *dividedGPUs) occupied() []string {
	GinkgoHelper()
	out := []string{}
	for i, c := range g.look().Cards {
		for _, one := range c.Instances {
			out = append(out, fmt.Sprintf("%d %d %d", i, one.Start, one.Size))
		}
	}
	slices.Sort(out)
	return out
}

// published are the names of a node's GPUs and their parts.
func published(ctx context.Context, node string) []string {
	GinkgoHelper()
	devices, err := poolDevices(ctx, node+"/gpu")
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, d := range devices {
		out = append(out, d.Name)
	}
	slices.Sort(out)
	return out
}

// eventuallyUndivided waits until nothing is published any more that a policy made. What it made stays published for a moment after the
// policy is deleted, and a spec would take it for the next policy's.
func eventuallyUndivided(ctx context.Context, node string) {
	GinkgoHelper()
	Eventually(ctx, func() []string { return ofPolicies(ctx, node) }).Should(BeEmpty())
}

// ofPolicies lists what a node publishes of its GPUs that only a policy makes: parts, and GPUs that claims share.
func ofPolicies(ctx context.Context, node string) []string {
	GinkgoHelper()
	devices, err := poolDevices(ctx, node+"/gpu")
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, d := range devices {
		if isShared(&d) || device.StringOf(d.Attributes[device.AttributeType]) != "gpu" {
			out = append(out, d.Name)
		}
	}
	return out
}

// migName is the name of the device of an instance.
func migName(address, profile string, start int) string {
	return fmt.Sprintf("%s-mig-%s-s%d", harness.PCIName("nvidia", address), strings.ReplaceAll(profile, ".", "-"), start)
}

// wholeName is the name of the device of a whole GPU.
func wholeName(address string) string { return harness.PCIName("nvidia", address) }

// eventuallyPublishes waits until a node publishes devices, whatever else it does.
func eventuallyPublishes(ctx context.Context, node string, names ...any) {
	GinkgoHelper()
	Eventually(ctx, func() []string { return published(ctx, node) }).Should(ContainElements(names...))
}

// eventuallyProblem waits until a node's AcceleratorNode has a problem with a reason that names something.
func eventuallyProblem(ctx context.Context, node, reason string, words ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		accelerators, err := h.AcceleratorNode(ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		var seen []string
		for _, p := range accelerators.Status.Problems {
			seen = append(seen, p.Reason+": "+p.Subject+": "+p.Message)
		}
		all := []types.GomegaMatcher{HavePrefix(reason + ": ")}
		for _, word := range words {
			all = append(all, ContainSubstring(word))
		}
		g.Expect(seen).To(ContainElement(And(all...)))
	}).Should(Succeed())
}

// newPart makes a template for one device of a class, on a card unless the address is empty.
func newPart(ctx context.Context, namespace, name, class, address string) {
	GinkgoHelper()
	var modify []func(*resourceapi.ExactDeviceRequest)
	if address != "" {
		modify = append(modify, where(fmt.Sprintf(`device.attributes["fettle.dev"].pciAddress == %q`, address)))
	}
	newTemplate(ctx, namespace, name, spec(request("gpu", class, modify...)))
}

// removePods deletes pods and waits until they are gone.
func removePods(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, p := range pods {
		err := h.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			Expect(err).NotTo(HaveOccurred())
		}
	}
	eventuallyGone(ctx, pods...)
}

// instanceOf finds the instance of a pod's claim in the simulator's state, by the device's name.
func (g *dividedGPUs) instanceOf(ctx context.Context, pod *corev1.Pod) (*nvmlsim.Card, *nvmlsim.Instance) {
	GinkgoHelper()
	return g.instanceNamed(results(onlyClaim(ctx, pod))[0].Device)
}

// instanceNamed finds an instance in the simulator's state.
func (g *dividedGPUs) instanceNamed(device string) (*nvmlsim.Card, *nvmlsim.Instance) {
	GinkgoHelper()
	// The names are NVIDIA's, by the numbers of the profiles.
	names := map[string]map[uint32]string{
		nvmlsim.H100: {19: small, 9: half}, nvmlsim.H100x94: {19: "1g.12gb"}, nvmlsim.A100x40: {19: "1g.5gb", 9: "3g.20gb"},
	}
	for _, c := range g.look().Cards {
		for _, one := range c.Instances {
			if migName(addressOf(c), names[c.Model][one.Profile], int(one.Start)) == device {
				return c, one
			}
		}
	}
	Fail("there is no instance for " + device)
	return nil, nil
}

// nodesOf are the nodes that a container with an instance has, as listNodes prints them: the GPU's, the driver's control nodes, and those
// of the two capabilities.
func (g *dividedGPUs) nodesOf(card *nvmlsim.Card, one *nvmlsim.Instance) []string {
	GinkgoHelper()
	gpu, compute := g.capabilities(card, one)
	want := []string{
		fmt.Sprintf("/dev/nvidia%[1]d 4:%[1]d", card.Minor),
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%[1]d 4:%[1]d", gpu), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%[1]d 4:%[1]d", compute),
	}
	for _, name := range []string{"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"} {
		want = append(want, g.control(name))
	}
	slices.Sort(want)
	return want
}

// capabilities are the minors of an instance's nodes.
func (g *dividedGPUs) capabilities(card *nvmlsim.Card, one *nvmlsim.Instance) (gpu, compute int) {
	GinkgoHelper()
	Expect(one.Compute).To(HaveLen(1))
	numbered := g.look().Numbered
	dir := fmt.Sprintf("gpu%d/mig/gi%d", card.Minor, one.ID)
	gpu, compute = numbered[dir], numbered[fmt.Sprintf("%s/ci%d", dir, one.Compute[0].ID)]
	Expect(gpu).NotTo(BeZero())
	Expect(compute).NotTo(BeZero())
	return gpu, compute
}

// control is a control node of the driver, as listNodes prints it.
func (g *dividedGPUs) control(name string) string {
	GinkgoHelper()
	var stat unix.Stat_t
	Expect(unix.Lstat(filepath.Join(h.MachineDir(gpuNode), "dev", name), &stat)).To(Succeed())
	return fmt.Sprintf("/dev/%s %d:%d", name, unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
}
