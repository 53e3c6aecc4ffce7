// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// foreignPartitions converts and runs the examples of NVIDIA's driver that ask for MIG instances. Their profiles are those of an A100 with
// 40 GB and of an H100 with 94 GB, so some cards of the node become such cards. MIG mode of an A100 is switched by an administrator.
func (g *dividedGPUs) foreignPartitions(ctx SpecContext) {
	needsCounters()
	g.remodel(ctx, map[int]string{0: nvmlsim.A100x40, 1: nvmlsim.A100x40, 2: nvmlsim.H100x94})
	first, second, third := g.address(0), g.address(1), g.address(2)
	newPolicy(ctx, gpuNode, "e2e-a100", dynamicProfiles([]string{"1g.5gb", "3g.20gb"}, first, second))
	newPolicy(ctx, gpuNode, "e2e-h100", dynamicProfiles([]string{"1g.12gb"}, third))
	eventuallyPublishes(ctx, gpuNode, migName(first, "1g.5gb", 0), migName(first, "3g.20gb", 4), migName(second, "1g.5gb", 0),
		migName(second, "3g.20gb", 4), migName(third, "1g.12gb", 0))
	Expect(runForeign(ctx, "needs partitions", gpuNode, exampleLook{described: true, nodes: g.instanceNodes}, nvidiaOnly)).To(Equal(2))
	Eventually(ctx, g.occupied).Should(BeEmpty())
	dropPolicy(ctx, "e2e-a100")
	dropPolicy(ctx, "e2e-h100")
}

// remodel makes cards of the node other models until the spec ends, with MIG mode switched on where that takes a reset.
func (g *dividedGPUs) remodel(ctx context.Context, models map[int]string) {
	GinkgoHelper()
	change := func(ctx context.Context, models map[int]string) {
		Expect(g.Change(func(s *nvmlsim.State) error {
			for i, model := range models {
				c := s.Cards[i]
				c.Model = model
				c.MIG = c.Kind().NeedsReset
				c.Pending = c.MIG
			}
			return nil
		})).To(Succeed())
		killPlugin(ctx, gpuNode)
	}
	before := map[int]string{}
	for i := range models {
		before[i] = g.look().Cards[i].Model
	}
	DeferCleanup(func(ctx SpecContext) { change(ctx, before) })
	change(ctx, models)
}

// dynamicProfiles has the GPUs with these addresses divided into profiles as claims ask for it.
func dynamicProfiles(profiles []string, addresses ...string) v1alpha1.PartitionDevices {
	devices := dynamicMIG(addresses...)
	devices.NVIDIA.MIG.Profiles = profiles
	return devices
}

// instanceNodes are the nodes of MIG instances.
func (g *dividedGPUs) instanceNodes(_ context.Context, results []resourceapi.DeviceRequestAllocationResult) []string {
	GinkgoHelper()
	want := map[string]bool{}
	for _, r := range results {
		for _, node := range g.nodesOf(g.instanceNamed(r.Device)) {
			want[node] = true
		}
	}
	return slices.Sorted(maps.Keys(want))
}

// nvidiaOnly and amdOnly select the examples of a vendor's driver.
func nvidiaOnly(e foreignExample) bool { return e.driver == "gpu.nvidia.com" }
func amdOnly(e foreignExample) bool    { return e.driver == "gpu.amd.com" }

// foreignAMDPartitions converts and runs the example of AMD's driver that asks for two partitions of one GPU, or of one model.
func foreignAMDPartitions(ctx SpecContext) {
	needsCounters()
	// The render node of a GPU's first partition. Those of the others follow.
	firstNodes := map[string]int{"amd-0000-05-00-0": 128, "amd-0000-26-00-0": 136}
	newPolicy(ctx, mixedNode, "e2e-foreign-cpx", v1alpha1.PartitionDevices{AMD: &v1alpha1.AMDPartition{Compute: "CPX", Memory: "NPS1"}})
	for whole := range firstNodes {
		eventuallyPublishes(ctx, mixedNode, whole+"-cpx-nps1-p0", whole+"-cpx-nps1-p7")
	}
	nodes := func(ctx context.Context, results []resourceapi.DeviceRequestAllocationResult) []string {
		paths := []string{"/dev/kfd"}
		for _, r := range results {
			whole, part, is := strings.Cut(r.Device, "-cpx-nps1-p")
			Expect(is).To(BeTrue(), "%s is a partition", r.Device)
			index, err := strconv.Atoi(part)
			Expect(err).NotTo(HaveOccurred())
			Expect(firstNodes).To(HaveKey(whole))
			paths = append(paths, fmt.Sprintf("/dev/dri/renderD%d", firstNodes[whole]+index))
		}
		return numbered(ctx, mixedNode, paths...)
	}
	Expect(runForeign(ctx, "needs partitions", mixedNode, exampleLook{described: true, nodes: nodes}, amdOnly)).To(Equal(1))
}

// numbered are device nodes of a node's machine, as listNodes prints them.
func numbered(ctx context.Context, node string, paths ...string) []string {
	GinkgoHelper()
	slices.Sort(paths)
	const script = `for n; do echo "$n $((0x$(stat -c %t "/opt/machine$n"))):$((0x$(stat -c %T "/opt/machine$n")))"; done`
	out, err := h.OnNode(ctx, node, append([]string{"sh", "-c", script, "sh"}, slices.Compact(paths)...)...)
	Expect(err).NotTo(HaveOccurred())
	return lines(out)
}

// foreignPassthrough converts and runs the examples of NVIDIA's driver for virtual machines, and the one of Kubernetes that reads what the
// driver writes about its device: the plugin writes that, too, where it gives devices to virtual machines.
func foreignPassthrough(ctx SpecContext) {
	needsCounters()
	classesOfOthers(ctx)
	const address = "0000:16:00.0"
	newPolicy(ctx, mixedNode, "e2e-foreign-vfio", v1alpha1.PartitionDevices{Passthrough: new(true)})
	eventuallyPublishes(ctx, mixedNode, wholeName(address), wholeName(address)+"-vfio")
	nodes := func(ctx context.Context, results []resourceapi.DeviceRequestAllocationResult) []string {
		Expect(results).To(HaveLen(1))
		Expect(results[0].Device).To(Equal(wholeName(address)+"-vfio"), "the one GPU that may be given")
		Expect(driverOf(ctx, mixedNode, address)).To(Equal("vfio-pci"))
		out, err := h.OnNode(ctx, mixedNode, "sh", "-c", `basename "$(readlink -f `+onMachine("sys/bus/pci/devices", address, "iommu_group")+`)"
			ls `+onMachine("sys/bus/pci/devices", address, "vfio-dev"))
		Expect(err).NotTo(HaveOccurred())
		names := lines(out)
		Expect(names).To(HaveLen(2), "a group and a VFIO device")
		return numbered(ctx, mixedNode, "/dev/iommu", "/dev/vfio/vfio", "/dev/vfio/"+names[0], "/dev/vfio/devices/"+names[1])
	}
	vfio := exampleLook{described: true, nodes: nodes, configured: func(
		_ foreignExample, config map[string]any, _ resourceapi.DeviceRequestAllocationResult,
	) {
		// Both interfaces are always there, which the nodes show.
		Expect(config["iommu"]).To(Equal(map[string]any{"backendPolicy": "LegacyOnly", "enableAPIDevice": true}))
	}}
	Expect(runForeign(ctx, "needs VFIO", mixedNode, vfio)).To(Equal(2))
	Eventually(ctx, func() string { return driverOf(ctx, mixedNode, address) }).Should(Equal("nvidia"))
	Expect(runForeign(ctx, "needs `deviceMetadata", mixedNode, exampleLook{described: true, nodes: wholeNodes})).To(Equal(1))
}
