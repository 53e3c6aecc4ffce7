// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// sharedBy is a policy with shares of 10 GiB by default, or 2 GiB and more.
func sharedBy(claims int32, address string) v1alpha1.PartitionDevices {
	return v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{address}),
		Sharing: &v1alpha1.DeviceSharing{MaxClaims: claims, Memory: &v1alpha1.SharedMemory{
			Default: "10Gi", Range: &v1alpha1.MemoryRange{Min: "2Gi", Step: "2Gi"},
		}},
	}
}

// asking asks for an amount of a GPU's memory.
func asking(memory string) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory),
		}}
	}
}

// noShares is what happens where the API server drops consumable capacity.
func (g *dividedGPUs) noShares(ctx SpecContext) {
	address := g.address(5)
	newPolicy(ctx, gpuNode, "e2e-no-shares", sharedBy(4, address))
	if !older {
		say("this API server keeps it")
		eventuallyShared(ctx, wholeName(address), true)
		return
	}
	eventuallyProblem(ctx, gpuNode, "NoShares", wholeName(address))
	eventuallyShared(ctx, wholeName(address), false)
}

// eventuallyShared waits until a GPU is published for several claims, or for one.
func eventuallyShared(ctx context.Context, name string, want bool) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		devices, err := poolDevices(ctx, gpuNode+"/gpu")
		g.Expect(err).NotTo(HaveOccurred())
		var shared []bool
		for _, d := range devices {
			if d.Name == name {
				shared = append(shared, isShared(&d))
			}
		}
		g.Expect(shared).To(Equal([]bool{want}))
	}).Should(Succeed())
}

// isShared says whether several claims can have a device.
func isShared(d *resourceapi.Device) bool {
	return d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
}

// eventuallyClosed waits until a GPU that claims share has no share for further claims: each of these took one, and there is
// one.
func eventuallyClosed(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		devices, err := poolDevices(ctx, gpuNode+"/gpu")
		g.Expect(err).NotTo(HaveOccurred())
		var shares []int64
		for _, d := range devices {
			if total, ok := d.Capacity["shares"]; ok && d.Name == name {
				shares = append(shares, total.Value.Value())
			}
		}
		g.Expect(shares).To(Equal([]int64{1}))
	}).Should(Succeed())
}

// shares has three pods on one GPU, and a fourth that waits for memory. A GPU that a pod has for itself is shared once that pod is gone.
func (g *dividedGPUs) shares(ctx SpecContext) {
	needsCounters() // the gates of both came in the same versions
	address := g.address(5)
	ns := newNamespace(ctx, nil)
	at := where(fmt.Sprintf(`device.attributes["fettle.dev"].pciAddress == %q`, address))
	newTemplate(ctx, ns, "any", spec(request("gpu", wholeClass, at)))
	newTemplate(ctx, ns, "most", spec(request("gpu", wholeClass, at, asking("45Gi"))))
	alone := newPod(ctx, ns, "alone", withTemplate("any"))
	running(ctx, alone)

	say("the GPU stays that pod's")
	newPolicy(ctx, gpuNode, "e2e-shares", sharedBy(3, address))
	eventuallyProblem(ctx, gpuNode, "SharingPending", wholeName(address))
	eventuallyShared(ctx, wholeName(address), false)
	removePods(ctx, alone)
	eventuallyShared(ctx, wholeName(address), true)

	first, second := newPod(ctx, ns, "first", withTemplate("any")), newPod(ctx, ns, "second", withTemplate("most"))
	running(ctx, first, second)
	Expect(grantedIn(ctx, first)).To(Equal(int64(10 << 30)))
	Expect(grantedIn(ctx, second)).To(Equal(int64(46<<30)), "45Gi rounded up to a step")

	say("a share is left, and not enough memory")
	third := newPod(ctx, ns, "third", withTemplate("most"))
	eventuallyUnschedulable(ctx, third, noneLeft)
	removePods(ctx, second)
	running(ctx, third)
	Expect(grantedIn(ctx, third)).To(Equal(int64(46 << 30)))

	say("without the policy no further claim gets a share")
	dropPolicy(ctx, "e2e-shares")
	eventuallyClosed(ctx, wholeName(address))
	late := newPod(ctx, ns, "late", withTemplate("any"))
	eventuallyUnschedulable(ctx, late, noneLeft)

	say("the next claim has the GPU for itself, and then it is not shared any more")
	removePods(ctx, first, third)
	running(ctx, late)
	if result := results(onlyClaim(ctx, late))[0]; result.ShareID != nil { // the scheduler was faster than the end of sharing
		Expect(grantedIn(ctx, late)).To(BeNumerically(">", int64(79<<30)), "the one share that is left has all memory")
	}
	removePods(ctx, late)
	eventuallyShared(ctx, wholeName(address), false)
}

// grantedIn is what a container is told of its share, which is what its claim says.
func grantedIn(ctx context.Context, pod *corev1.Pod) int64 {
	GinkgoHelper()
	result := results(onlyClaim(ctx, pod))[0]
	Expect(result.ShareID).NotTo(BeNil())
	variable := "FETTLE_MEMORY_" + strings.ToUpper(strings.ReplaceAll(result.Device, "-", "_"))
	told, err := strconv.ParseInt(strings.TrimSpace(inside(ctx, pod, main, "echo $"+variable)), 10, 64)
	Expect(err).NotTo(HaveOccurred())
	inClaim := result.ConsumedCapacity["memory"]
	Expect(told).To(Equal(inClaim.Value()))
	return told
}
