// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/objects"
)

// turns is a policy by which claims may choose strategies, and may share if there are to be shares.
func turns(address string, claims int32, strategies ...v1alpha1.SharingStrategy) v1alpha1.PartitionDevices {
	return v1alpha1.PartitionDevices{
		DeviceSelector: onlyAddresses([]string{address}),
		Sharing:        &v1alpha1.DeviceSharing{MaxClaims: claims, Strategies: strategies},
	}
}

// choosing gives a claim a configuration of how programs take turns, in JSON.
func choosing(sharing string) func(*resourceapi.ResourceClaimSpec) {
	return func(s *resourceapi.ResourceClaimSpec) {
		s.Devices.Config = append(s.Devices.Config, objects.Config(v1alpha1.DriverName,
			fmt.Sprintf(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":%s}`, sharing)))
	}
}

// chosen is the spec of a claim for one GPU with a configuration.
func chosen(address, sharing string) resourceapi.ResourceClaimSpec {
	out := spec(request("gpu", wholeClass, where(fmt.Sprintf(`device.attributes["fettle.dev"].pciAddress == %q`, address))))
	choosing(sharing)(&out)
	return out
}

// card is the simulated card at an address.
func (g *dividedGPUs) card(address string) *nvmlsim.Card {
	GinkgoHelper()
	for _, c := range g.look().Cards {
		if addressOf(c) == address {
			return c
		}
	}
	Fail("no card at " + address)
	return nil
}

// The settings of the simulated card, as NVIDIA numbers them.
const (
	computeDefault, computeExclusiveProcess = 0, 3
	longSlice                               = 3
)

// setting is the compute mode and the time slice of a card.
type setting struct{ Mode, Slice int }

func (g *dividedGPUs) setting(address string) setting {
	GinkgoHelper()
	c := g.card(address)
	return setting{Mode: c.ComputeMode, Slice: c.TimeSlice}
}

const (
	longTurns  = `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}`
	shortTurns = `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Short"}}`
)

// timeSlices has two claims share a GPU with the policy's interval, and a third that wants another refused, whether it comes first or not.
// The GPU is as before once the last is gone.
func (g *dividedGPUs) timeSlices(ctx SpecContext) {
	needsCounters() // the gates of both came in the same versions
	address := g.address(5)
	long := turns(address, 4, v1alpha1.SharingTimeSlicing)
	long.Sharing.Interval = v1alpha1.IntervalLong
	newPolicy(ctx, gpuNode, "e2e-turns", long)
	eventuallyShared(ctx, wholeName(address), true)
	ns, other := newNamespace(ctx, nil), newNamespace(ctx, nil)
	newTemplate(ctx, ns, "long", chosen(address, longTurns))
	newTemplate(ctx, other, "short", chosen(address, shortTurns))
	there := fmt.Sprintf(`device.attributes["fettle.dev"].pciAddress == %q`, address)
	newTemplate(ctx, ns, "any", spec(request("gpu", wholeClass, where(there))))

	say("a claim with another interval is refused and costs nobody a share")
	third := newPod(ctx, other, "third", withTemplate("short"))
	const refused = "every share of it has TimeSlicing with interval Long"
	eventuallyRefused(ctx, third, "SharingUnsupported", refused)
	first, second := newPod(ctx, ns, "first", withTemplate("long")), newPod(ctx, ns, "second", withTemplate("any"))
	running(ctx, first, second)
	Expect(g.setting(address)).To(Equal(setting{Mode: computeDefault, Slice: longSlice}))
	eventuallyRefused(ctx, third, "SharingUnsupported", refused)
	Expect(onlyClaim(ctx, third).Status.String()).NotTo(ContainSubstring(ns))

	say("the interval stays until the last share is gone, whatever becomes of the plugin")
	removePods(ctx, first)
	killPlugin(ctx, gpuNode)
	Expect(g.setting(address)).To(Equal(setting{Mode: computeDefault, Slice: longSlice}))
	removePods(ctx, second)
	Eventually(ctx, func() setting { return g.setting(address) }).Should(Equal(setting{}))
	removePods(ctx, third)
	dropPolicy(ctx, "e2e-turns")
}

// notAllowed has a claim choose a strategy without a policy for it, which a policy then allows.
func (g *dividedGPUs) notAllowed(ctx SpecContext) {
	address := g.address(6)
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "long", chosen(address, longTurns))
	pod := newPod(ctx, ns, "early", withTemplate("long"))
	eventuallyRefused(ctx, pod, "SharingUnsupported", "no PartitionPolicy allows TimeSlicing")
	newPolicy(ctx, gpuNode, "e2e-late", turns(address, 0, v1alpha1.SharingTimeSlicing))
	running(ctx, pod)
	Expect(g.setting(address).Slice).To(Equal(longSlice))
	removePods(ctx, pod)
	Eventually(ctx, func() int { return g.setting(address).Slice }).Should(BeZero())
	dropPolicy(ctx, "e2e-late")
}

// settingOf is what a configuration of NVIDIA's driver asks of a card.
func settingOf(config map[string]any) setting {
	GinkgoHelper()
	sharing, ok := config["sharing"].(map[string]any)
	Expect(ok).To(BeTrue(), "the configuration is about sharing: %v", config)
	if sharing["strategy"] == "MPS" {
		return setting{Mode: computeExclusiveProcess}
	}
	Expect(sharing).To(Equal(map[string]any{"strategy": "TimeSlicing", "timeSlicingConfig": map[string]any{"interval": "Long"}}))
	return setting{Mode: computeDefault, Slice: longSlice}
}

// foreignSharing converts the examples of NVIDIA's driver with fettle convert and runs them: first the ones that choose a strategy, then
// the ones that ask for an amount of memory.
func (g *dividedGPUs) foreignSharing(ctx SpecContext) {
	needsCounters() // the gates of shares came in the same versions
	classesOfOthers(ctx)
	newPolicy(ctx, gpuNode, "e2e-foreign", v1alpha1.PartitionDevices{Sharing: &v1alpha1.DeviceSharing{
		Strategies: []v1alpha1.SharingStrategy{v1alpha1.SharingTimeSlicing, v1alpha1.SharingMPS},
	}})
	seen := map[setting]int{}
	look := exampleLook{nodes: wholeNodes, described: true, configured: func(
		e foreignExample, config map[string]any, device resourceapi.DeviceRequestAllocationResult,
	) {
		want := settingOf(config)
		address := devicesOf([]resourceapi.DeviceRequestAllocationResult{device})[0].Address
		Expect(g.setting(address)).To(Equal(want), "the setting of %s for a request of %s", address, e.name)
		seen[want]++
	}}
	Expect(runForeign(ctx, "needs strategies", gpuNode, look)).To(BeNumerically(">=", 3))
	Expect(seen).To(HaveKey(setting{Mode: computeDefault, Slice: longSlice}))
	Expect(seen).To(HaveKey(setting{Mode: computeExclusiveProcess}))
	for _, c := range g.look().Cards {
		Eventually(ctx, func() setting { return g.setting(addressOf(c)) }).Should(Equal(setting{}))
	}
	dropPolicy(ctx, "e2e-foreign")
	eventuallyUndivided(ctx, gpuNode)

	say("shares by memory")
	newPolicy(ctx, gpuNode, "e2e-foreign-shares", v1alpha1.PartitionDevices{Sharing: &v1alpha1.DeviceSharing{
		MaxClaims: 8, Memory: &v1alpha1.SharedMemory{Default: "10Gi", Range: &v1alpha1.MemoryRange{Min: "1Mi", Step: "1Mi"}},
	}})
	eventuallyShared(ctx, wholeName(g.address(0)), true)
	Expect(runForeign(ctx, "needs shares", gpuNode, exampleLook{nodes: wholeNodes, described: true})).To(BeNumerically(">=", 2))
	dropPolicy(ctx, "e2e-foreign-shares")
}
