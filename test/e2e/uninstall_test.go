// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/objects"
)

func comesAndGoes() {
	It("has only the rights and mounts that each feature needs", later("installs the chart once for each feature"),
		ofNode, hasFewRights, SpecTimeout(h.Patient(3*time.Minute)))
	It("says in columns how many devices are used, of which vendors and models", ofNode, columnsSay)
	It("tells pods, and Helm's test, of presets that are missing, whatever the vendor", later("installs the chart for each vendor"),
		ofNode, tellsOfMissingPresets,
		SpecTimeout(h.Patient(6*time.Minute)))
	It("passes its own helm test", later("scenario 14 of the demo shows it"), func(ctx SpecContext) {
		out, err := h.TestChart(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("opened /dev/"))
	})

	It("refuses to be uninstalled while claims are prepared, and goes on serving", func(ctx SpecContext) {
		pod, claim := holdOnGPUNode(ctx, "holder")
		_, err := h.Uninstall(ctx)
		Expect(err).To(MatchError(And(ContainSubstring(claim.Name), ContainSubstring(pod.Name), ContainSubstring("uninstall.force=true"))),
			"the refusal says who holds what, and what overrides it")
		say("Helm shows the log of the Job as one quoted text, in which a line ends with a written \\n")
		Expect(err).To(MatchError(MatchRegexp(`msg="Fettle is not uninstalled, because devices are in use:\\n`)))
		Expect(err).NotTo(MatchError(MatchRegexp(`(msg="|\\n)[IWE][0-9]{4} `)), "the log of the Job has nothing else")
		say("Helm calls the release uninstalling from now on; a rollback to where it was makes it whole")
		revision, err := h.Revision(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Rollback(ctx, revision)).To(Succeed())
		hasExactly(ctx, pod, main, devicesOf(results(claim))...)
		next, nextClaim := holdOnGPUNode(ctx, "next")
		hasExactly(ctx, next, main, devicesOf(results(nextClaim))...)
	}, SpecTimeout(h.Patient(5*time.Minute)))

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
		hasExactly(ctx, again, main, devicesOf(results(claim))...)

		say("the API server's policy on namespaces knows only the classes of before, until it starts anew (kubernetes/kubernetes#130887)")
		Expect(h.RestartComponent(ctx, "", "kube-apiserver", true)).To(Succeed())
		newClass(ctx, "reinstalled.example.com", gpuClass,
			objects.Config("fettle.dev", config("GPUConfig", `"policy":{"allowedNamespaces":["other"]}`)))
		ns := newNamespace(ctx, nil)
		Eventually(ctx, func() error {
			_, err := h.Kube.ResourceV1().ResourceClaims(ns).Create(ctx, &resourceapi.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "denied-"}, Spec: spec(request("gpu", "reinstalled.example.com")),
			}, metav1.CreateOptions{})
			return err
		}).Should(MatchError(ContainSubstring("DeviceClass reinstalled.example.com does not allow namespace " + ns)))
	}, SpecTimeout(h.Patient(6*time.Minute)))
}

// nothingOn expects that the driver has left a node: no file but of a region with traces, no socket, spec or mount, no taint.
func nothingOn(ctx context.Context, node string) {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the driver to leave "+node, soon, func(ctx context.Context) error {
		out, err := h.OnNode(ctx, node, "sh", "-c", `
			find /var/lib/fettle /var/lib/kubelet/plugins/fettle.dev -mindepth 1 -not -path '/var/lib/fettle/regions*'
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
