// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/harness"
)

func comesAndGoes() {
	It("has only the rights and mounts that each feature needs", ofNode, hasFewRights, SpecTimeout(3*time.Minute))
	It("passes its own helm test", func(ctx SpecContext) {
		out, err := h.TestChart(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("opened /dev/"))
	})

	It("refuses to be uninstalled while claims are prepared, and goes on serving", func(ctx SpecContext) {
		pod, claim := holdOnGPUNode(ctx, "holder")
		_, err := h.Uninstall(ctx)
		Expect(err).To(MatchError(And(ContainSubstring(claim.Name), ContainSubstring(pod.Name))), "the refusal says who holds what")
		say("Helm calls the release uninstalling from now on; a rollback to where it was makes it whole")
		revision, err := h.Revision(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Rollback(ctx, revision)).To(Succeed())
		hasExactly(ctx, pod, main, devicesOf(ctx, results(claim))...)
		next, nextClaim := holdOnGPUNode(ctx, "next")
		hasExactly(ctx, next, main, devicesOf(ctx, results(nextClaim))...)
	}, SpecTimeout(5*time.Minute))

	It("drains when it is forced, leaves nothing on the nodes, and can be installed again", func(ctx SpecContext) {
		pod, _ := holdOnGPUNode(ctx, "holder")
		Expect(h.Install(ctx, values().Merge(harness.Values{"uninstall": map[string]any{"force": true}}))).To(Succeed())
		_, err := h.Uninstall(ctx)
		Expect(err).NotTo(HaveOccurred())
		eventuallyGone(ctx, pod)
		for _, node := range h.NodeNames() {
			nothingOn(ctx, node)
		}
		classes, err := h.Kube.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		for _, c := range classes.Items {
			Expect(c.Name).NotTo(HaveSuffix(".fettle.dev"))
		}
		slices, err := h.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=fettle.dev"})
		Expect(err).NotTo(HaveOccurred())
		Expect(slices.Items).To(BeEmpty())

		say("and back again")
		Expect(h.Install(ctx, values())).To(Succeed())
		again, claim := holdOnGPUNode(ctx, "again")
		hasExactly(ctx, again, main, devicesOf(ctx, results(claim))...)
	}, SpecTimeout(6*time.Minute))
}

// nothingOn expects that the driver has left a node: no file, socket, spec or mount, no taint.
func nothingOn(ctx context.Context, node string) {
	GinkgoHelper()
	Expect(harness.Poll(ctx, "the driver to leave "+node, soon, func(ctx context.Context) error {
		out, err := h.OnNode(ctx, node, "sh", "-c", `
			find /var/lib/fettle /var/lib/kubelet/plugins/fettle.dev -mindepth 1
			find /var/lib/kubelet/plugins_registry /var/run/cdi /etc/cdi -name '*fettle*'
			find /mnt/disks -mindepth 2 -path '/mnt/disks/ssd*'
			grep -E ' /(var/lib/fettle|var/run/cdi|var/lib/kubelet/plugins)/[^ ]*fettle' /proc/self/mountinfo; true`)
		if err != nil {
			return err
		}
		if text := strings.TrimSpace(out); text != "" {
			return fmt.Errorf("left: %s", text)
		}
		return nil
	})).To(Succeed())
	object, err := h.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	for _, t := range object.Spec.Taints {
		Expect(t.Key).NotTo(ContainSubstring("fettle"))
	}
}
