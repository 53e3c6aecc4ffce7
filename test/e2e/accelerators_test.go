// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/objects"
)

const (
	acceleratorClass = "accelerator.fettle.dev"
	acceleratorPool  = mixedNode + "/accelerator"
)

// vendorIs is a selector of one vendor's devices.
func vendorIs(name string) string {
	return `"vendor" in device.attributes["fettle.dev"] && device.attributes["fettle.dev"].vendor == "` + name + `"`
}

func givesAccelerators() {
	It("gives each claim the node of its accelerator and nothing else", func(ctx SpecContext) {
		place(ctx, mixedNode, "2xaccel")
		DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
		eventuallyPublished(ctx, acceleratorPool, "habana-0000-c1-00-0", "qualcomm-0000-81-00-0")
		ns := newNamespace(ctx, nil)
		newTemplate(ctx, ns, "any", spec(request("accelerator", acceleratorClass)))
		newTemplate(ctx, ns, "habana", spec(request("accelerator", acceleratorClass, where(vendorIs("habana")))))
		first := newPod(ctx, ns, "first", withTemplate("habana"), asUser)
		running(ctx, first)
		second := newPod(ctx, ns, "second", withTemplate("any"))
		running(ctx, first, second)
		for _, pod := range []*corev1.Pod{first, second} {
			got := results(onlyClaim(ctx, pod))
			Expect(got).To(HaveLen(1))
			Expect(got[0].Pool).To(Equal(acceleratorPool))
			hasExactly(ctx, pod, main, devicesOf(got)...)
		}
		Expect(results(onlyClaim(ctx, first))[0].Device).To(Equal("habana-0000-c1-00-0"))
		Expect(results(onlyClaim(ctx, second))[0].Device).To(Equal("qualcomm-0000-81-00-0"))

		say("both are held: a third pod waits, and gets the one that is given back")
		third := newPod(ctx, ns, "third", withTemplate("any"))
		eventuallyUnschedulable(ctx, third, "cannot allocate")
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, first.Name, metav1.DeleteOptions{})).To(Succeed())
		running(ctx, third)
		hasExactly(ctx, third, main, devicesOf(results(onlyClaim(ctx, third)))...)
	})

	It("publishes what works of a machine with broken accelerators, and a GPU in the class as a GPU", later("the first tier has broken GPUs"),
		ofNode, brokenAccelerators)

	It("keeps accelerators of a class from other namespaces", later("the first tier has classes of GPUs for namespaces"), acceleratorsOfAClass)
}

func brokenAccelerators(ctx SpecContext) {
	place(ctx, mixedNode, "broken-accel")
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
	eventuallyPublished(ctx, acceleratorPool, "habana-0000-61-00-0")
	eventuallyExplained(ctx, mixedNode, "")
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "any", spec(request("accelerator", acceleratorClass)))
	pod := newPod(ctx, ns, "healthy", withTemplate("any"), onNode(mixedNode))
	running(ctx, pod)
	hasExactly(ctx, pod, main, devicesOf(results(onlyClaim(ctx, pod)))...)
}

func acceleratorsOfAClass(ctx SpecContext) {
	place(ctx, mixedNode, "2xaccel")
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
	eventuallyPublished(ctx, acceleratorPool, "habana-0000-c1-00-0", "qualcomm-0000-81-00-0")
	allowed := newNamespace(ctx, nil)
	newClass(ctx, "research.accelerator.example.com", acceleratorClass,
		objects.Config("fettle.dev", config("AcceleratorConfig", `"policy":{"allowedNamespaces":["`+allowed+`"]}`)))
	newTemplate(ctx, allowed, "own", spec(request("accelerator", "research.accelerator.example.com")))
	pod := newPod(ctx, allowed, "allowed", withTemplate("own"))
	running(ctx, pod)
	hasExactly(ctx, pod, main, devicesOf(results(onlyClaim(ctx, pod)))...)
	other := newNamespace(ctx, nil)
	// The API server's policies follow a new class within moments.
	Eventually(ctx, func() error {
		_, err := h.Kube.ResourceV1().ResourceClaims(other).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "denied-"}, Spec: spec(request("accelerator", "research.accelerator.example.com")),
		}, metav1.CreateOptions{})
		return err
	}).Should(MatchError(ContainSubstring("does not allow namespace " + other)))
}
