// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/fpgasim"
	"github.com/fettle-dev/fettle/test/signed"
)

// signatures: one file in four repositories, of which one has a good signature of it.
func (f *fpgas) signatures(ctx SpecContext) {
	ns, t := newNamespace(ctx, nil), GinkgoTB()
	kernels.policy(ctx, "e2e-fpga", []string{"fpga/**"}, nil, v1alpha1.TrustAuthority{
		Name: "release", Key: &v1alpha1.TrustKey{PEM: kernels.key.PEM(t)},
	})
	file := filepath.Join(t.TempDir(), "nlb3.gbs")
	Expect(os.WriteFile(file, fpgasim.GBS(arriaInterface, nlb3, "auto", 1<<20), 0o600)).To(Succeed())
	refs := map[string]string{}
	for name, repository := range map[string]string{
		"good": kernels.Host + "/fpga/good", "unsigned": kernels.Host + "/fpga/unsigned", "strangers": kernels.Host + "/fpga/strangers",
		"elsewhere": f.registry + "/team/elsewhere",
	} {
		refs[name] = strings.TrimSpace(fettle(ctx, "bitstream", "push", "--plain-http", file, repository+":v1"))
	}
	_, text, _ := strings.Cut(refs["good"], "@")
	digest, err := artifact.ParseDigest(text)
	Expect(err).NotTo(HaveOccurred())
	kernels.SignV3(t, "fpga/good", digest, kernels.key)
	kernels.SignV2(t, "fpga/strangers", digest, signed.NewKey(t))
	for name := range refs {
		create(ctx, "fpgabitstreams", ns, &v1alpha1.FPGABitstream{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindFPGABitstream},
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FPGABitstreamSpec{Image: strings.ReplaceAll(refs[name], "@"+text, ":v1")},
		})
	}
	newFPGAClass(ctx, "fpga-demands", v1alpha1.FPGAPolicy{
		AllowedRegistries: []string{kernels.Host + "/fpga", f.registry + "/team"}, RequireSignature: true,
	})
	start := func(name string, port int, source v1alpha1.BitstreamSource) *corev1.Pod {
		GinkgoHelper()
		newTemplate(ctx, ns, name, claimRegion("fpga-demands", port, v1alpha1.FPGAConfig{Bitstream: &source}))
		return newPod(ctx, ns, name, withTemplate(name))
	}
	const none, foreign = "the repository has no signature of it", "authority release"

	say("what the controller says")
	verified(ctx, ns, "good", metav1.ConditionTrue, "Verified", digest.String())
	verified(ctx, ns, "unsigned", metav1.ConditionFalse, "Refused", none)
	verified(ctx, ns, "strangers", metav1.ConditionFalse, "Refused", foreign)
	verified(ctx, ns, "elsewhere", metav1.ConditionUnknown, "NoTrustPolicy", "no TrustPolicy is for")

	say("what is not signed is programmed neither by object nor by reference")
	before := len(f.ioctls())
	type refused struct {
		name, text string
		source     v1alpha1.BitstreamSource
	}
	for _, pair := range [][]refused{
		{
			{"unsigned-object", none, v1alpha1.BitstreamSource{Name: "unsigned"}},
			{"stranger", foreign, v1alpha1.BitstreamSource{Ref: refs["strangers"]}},
		},
		{
			{"unsigned-reference", "TrustPolicy e2e-fpga (generation 1)", v1alpha1.BitstreamSource{Ref: refs["unsigned"]}},
			{"elsewhere", "requireSignature", v1alpha1.BitstreamSource{Name: "elsewhere"}},
		},
	} {
		var pods []*corev1.Pod
		for port, r := range pair {
			pods = append(pods, start(r.name, port, r.source))
		}
		for i, r := range pair {
			refusedAtPrepare(ctx, pods[i], "ForbiddenByPolicy", r.text)
			Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pods[i].Name, metav1.DeleteOptions{})).To(Succeed())
		}
		for _, pod := range pods {
			eventuallyGone(ctx, pod)
		}
	}
	Expect(f.ioctls()[before:]).To(BeEmpty())

	say("what is signed is programmed by object and by reference")
	pods := []*corev1.Pod{
		start("by-object", 0, v1alpha1.BitstreamSource{Name: "good"}), start("by-reference", 1, v1alpha1.BitstreamSource{Ref: refs["good"]}),
	}
	for port, pod := range pods {
		running(ctx, pod)
		Expect(f.attribute(port, "afu_id")).To(Equal(nlb3))
	}

	say("another key in the policy counts from the next Prepare on")
	patch := fmt.Sprintf(`{"spec":{"authorities":[{"name":"next","key":{"pem":%q}}]}}`, signed.NewKey(t).PEM(t))
	_, err = h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("trustpolicies")).
		Patch(ctx, "e2e-fpga", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	verified(ctx, ns, "good", metav1.ConditionFalse, "Refused", "TrustPolicy e2e-fpga (generation 2)")
	for _, pod := range pods {
		running(ctx, pod)
		f.end(ctx, pod)
	}
	late := start("late", 1, v1alpha1.BitstreamSource{Ref: refs["good"]})
	refusedAtPrepare(ctx, late, "ForbiddenByPolicy", "TrustPolicy e2e-fpga (generation 2)")
	Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, late.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, late)
}

// verified waits until the condition Verified of an FPGABitstream is so.
func verified(ctx context.Context, namespace, name string, status metav1.ConditionStatus, reason, text string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		object, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("fpgabitstreams")).Namespace(namespace).
			Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		b, err := v1alpha1.DecodeFPGABitstream(object)
		g.Expect(err).NotTo(HaveOccurred())
		c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionVerified)
		g.Expect(c).NotTo(BeNil())
		g.Expect(string(c.Status)+" "+c.Reason).To(Equal(string(status)+" "+reason), "%s: %s", name, c.Message)
		g.Expect(c.Message).To(ContainSubstring(text), name)
	}).Should(Succeed())
}
