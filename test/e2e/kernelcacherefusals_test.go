// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/signed"
)

// Who is believed without a key.
const (
	builderIssuer  = "https://issuer.example"
	builderSubject = "builder@team.example"
)

// refusal is a cache that a claim must not have.
type refusal struct {
	name string
	// cluster: it is one of the cluster.
	cluster bool
	image   string
	change  []func(*v1alpha1.GPUKernelCache)
	// condition is the one of the object that says so, with its status, and words are what both it and the Event on the claim have.
	condition string
	status    metav1.ConditionStatus
	words     []string
	// more are in the Event, told in the condition.
	more, told []string
	// vendor is that of the claim's GPU, NVIDIA if it is empty.
	vendor string
}

// refusedSigners has everything at once: who is refused uses no GPU, and nobody waits for another.
func (k *kernelCaches) refusedSigners(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	world := signed.NewWorld(GinkgoTB())
	all := slices.Concat(k.strangers(ctx, world), k.others(ctx, ns))
	pods := map[string]*corev1.Pod{}
	for _, r := range all {
		pods[r.name] = k.ask(ctx, ns, r)
	}
	good, warned, revoked := k.passes(ctx, ns, world)
	for _, r := range all {
		k.expectRefused(ctx, ns, pods[r.name], r)
	}
	staysPending(ctx, slices.Collect(maps.Values(pods))...)

	say("who is right passes, and who is only warned of")
	running(ctx, good, warned, revoked)
	Expect(inside(ctx, warned, main, found)).To(Equal("3 at " + kernelHome + "\n"))
	eventuallyEvent(ctx, ns, v1alpha1.KindGPUKernelCache, "warned", "Warned", "the repository has no signature of it")
	k.condition(ctx, ns, "warned", v1alpha1.ConditionVerified, metav1.ConditionFalse, "TrustPolicy e2e-warn", "no signature")
	k.condition(ctx, ns, "warned", v1alpha1.ConditionReady, metav1.ConditionTrue)

	say("a registry that has the manifest and the config of what is on the node, and no layer")
	stolen := refusal{
		name: "stolen", image: k.bare.Host + "/warn/stolen@" + steal(ctx, k.Host, "warn/add", "v1", k.bare.Registry, "warn/stolen"),
		condition: v1alpha1.ConditionDegraded, status: metav1.ConditionTrue, vendor: "amd",
		words: []string{"the node has the image, but not from this repository", "404"}, told: []string{"Refused"},
	}
	thief := k.ask(ctx, ns, stolen)
	k.expectRefused(ctx, ns, thief, stolen)
	staysPending(ctx, thief)

	say("a policy that believes somebody else from now on")
	patch := fmt.Sprintf(`{"spec":{"authorities":[{"name":"next","key":{"pem":%q}}]}}`, signed.NewKey(GinkgoTB()).PEM(GinkgoTB()))
	_, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("trustpolicies")).
		Patch(ctx, "e2e-revoked", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	late := newPod(ctx, ns, "late", withTemplate("revoked"))
	k.expectRefused(ctx, ns, late, refusal{
		name: "revoked", condition: v1alpha1.ConditionVerified, status: metav1.ConditionFalse,
		words: []string{"TrustPolicy e2e-revoked (generation 2)", "authority next (key sha256:", "), key: failed to verify signature"},
	})
	staysPending(ctx, late)
	Expect(inside(ctx, revoked, main, found)).To(Equal("3 at "+kernelHome+"\n"), "who has it keeps it")
}

// strangers are caches that somebody signed whom no policy believes.
func (k *kernelCaches) strangers(ctx context.Context, world signed.World) []refusal {
	GinkgoHelper()
	t := GinkgoTB()
	k.policy(ctx, "e2e-ci", []string{"ci/**"}, nil,
		world.Authority(t, "ci", v1alpha1.TrustIdentity{Issuer: builderIssuer, Subject: builderSubject}))
	refused := func(name, repository string, r *signed.Registry, sign func(artifact.Digest), words ...string) refusal {
		sign(r.Files(t, repository, "v1", mi300(name), nil))
		return refusal{
			name: name, image: r.Host + "/" + repository + ":v1", condition: v1alpha1.ConditionVerified, status: metav1.ConditionFalse, words: words,
		}
	}
	keyless := func(name string, by signed.Identity, words ...string) refusal {
		return refused(name, "ci/"+name, k.Registry, func(d artifact.Digest) {
			k.SignKeyless(t, "ci/"+name, d, by)
		}, append(words, "TrustPolicy e2e-ci (generation 1)", "CosignV3 sha256:")...)
	}
	const identities, root = "authority ci (keyless), keyless.identities: ", "authority ci (keyless), trustedRoot: "
	return []refusal{
		refused("stranger", "team/stranger", k.bare, func(d artifact.Digest) {
			k.bare.SignV2(t, "team/stranger", d, signed.NewKey(t))
		}, "TrustPolicy e2e (generation 1)", "CosignV2 sha256:", "authority release (key sha256:", "), key: failed to verify signature"),
		refused("sbom", "team/sbom", k.Registry, func(d artifact.Digest) {
			k.AttestV3(t, "team/sbom", d, k.key, signed.SBOMPredicate)
		}, "TrustPolicy e2e (generation 1)", "authority release", "predicate type", signed.SBOMPredicate, signed.SignPredicate),
		keyless("issuer", signed.Identity{World: world, Issuer: "https://other.example", Subject: builderSubject},
			identities, builderIssuer, "https://other.example"),
		keyless("subject", signed.Identity{World: world, Issuer: builderIssuer, Subject: "somebody@team.example"},
			identities, builderSubject, "somebody@team.example"),
		keyless("world", signed.Identity{World: signed.NewWorld(t), Issuer: builderIssuer, Subject: builderSubject}, root),
	}
}

// others are refused for what is not a matter of who signed them.
func (k *kernelCaches) others(ctx context.Context, ns string) []refusal {
	GinkgoHelper()
	k.Files(GinkgoTB(), "team/spelled", "v1", mi300("spelled"), nil)
	k.policy(ctx, "e2e-broad", nil, func(p *v1alpha1.TrustPolicySpec) {
		p.Mode, p.Images, p.Namespaces = v1alpha1.VerificationSkip, []string{"**"}, []string{ns}
	})
	tampered := k.LayerOf(k.push(k.Registry, "team/tampered", "v1", mi300("tampered")))
	k.Around(signed.Tampered(func(digest string) bool { return digest == tampered }))
	DeferCleanup(func() { k.Around(nil) })
	k.policy(ctx, "e2e-warn", []string{"warn/**"}, func(p *v1alpha1.TrustPolicySpec) { p.Mode = v1alpha1.VerificationWarn },
		v1alpha1.TrustAuthority{Name: "release", Key: &v1alpha1.TrustKey{PEM: k.key.PEM(GinkgoTB())}})
	k.Files(GinkgoTB(), "warn/add", "v1", mi300("warned"), nil)
	k.push(k.Registry, "team/elsewhere", "v1", mi300("elsewhere"))
	return []refusal{
		{
			name: "tampered", image: k.Host + "/team/tampered:v1", condition: v1alpha1.ConditionDegraded, status: metav1.ConditionTrue,
			words: []string{"layer 1: not what was declared by the rule on digest", "expected " + tampered}, told: []string{"Refused"},
		},
		{ // the strict policy names the registry otherwise, and the broad one would let everything pass
			name: "spelled", image: k.spelled() + "/team/spelled:v1", condition: v1alpha1.ConditionVerified, status: metav1.ConditionFalse,
			words: []string{"TrustPolicy e2e (generation 1)", "the repository has no signature of it"},
		},
		{
			name: "stricter", image: k.Host + "/warn/add:v1", condition: v1alpha1.ConditionVerified, status: metav1.ConditionFalse,
			change: []func(*v1alpha1.GPUKernelCache){func(c *v1alpha1.GPUKernelCache) {
				c.Spec.Verification = &v1alpha1.CacheVerification{Mode: v1alpha1.VerificationEnforce}
			}},
			words: []string{"TrustPolicy e2e-warn", "the repository has no signature of it"},
		},
		{
			name: "e2e-elsewhere", cluster: true, image: k.Host + "/team/elsewhere:v1",
			condition: v1alpha1.ConditionNamespaceMissing, status: metav1.ConditionTrue,
			told: []string{"elsewhere-only"}, // whoever reads the cluster's cache, and not the tenant
			more: []string{"spec.workloadNamespaces", "ask its owner to add the namespace"},
		},
	}
}

// ask makes the cache and a pod whose claim asks for it, with a GPU of those that the other specs leave alone.
func (k *kernelCaches) ask(ctx context.Context, ns string, r refusal) *corev1.Pod {
	GinkgoHelper()
	source := v1alpha1.KernelCacheSource{Name: r.name}
	if r.cluster {
		source.Kind = v1alpha1.KindClusterGPUKernelCache
		create(ctx, "clustergpukernelcaches", "", &v1alpha1.ClusterGPUKernelCache{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterGPUKernelCache},
			ObjectMeta: metav1.ObjectMeta{Name: r.name}, Spec: v1alpha1.ClusterGPUKernelCacheSpec{
				GPUKernelCacheSpec: v1alpha1.GPUKernelCacheSpec{Image: r.image}, WorkloadNamespaces: []string{"elsewhere-only"},
			},
		})
	} else {
		k.cache(ctx, ns, r.name, r.image, r.change...)
	}
	k.claimOf(ctx, cmp.Or(r.vendor, "nvidia"), ns, r.name, source)
	return newPod(ctx, ns, r.name, withTemplate(r.name))
}

// passes makes what is not refused: signed by who is believed, by nobody where that is only told, and by a key that is not believed later.
func (k *kernelCaches) passes(ctx context.Context, ns string, world signed.World) (good, warned, revoked *corev1.Pod) {
	GinkgoHelper()
	t := GinkgoTB()
	pod := func(name, image string) *corev1.Pod {
		k.cache(ctx, ns, name, k.Host+"/"+image+":v1")
		k.claim(ctx, ns, name, v1alpha1.KernelCacheSource{Name: name})
		return newPod(ctx, ns, name, withTemplate(name))
	}
	image := k.Files(t, "ci/good", "v1", mi300("good"), nil)
	k.SignKeyless(t, "ci/good", image, signed.Identity{World: world, Issuer: builderIssuer, Subject: builderSubject})
	key := signed.NewKey(t)
	k.policy(ctx, "e2e-revoked", []string{"revoked/**"}, nil, v1alpha1.TrustAuthority{Name: "old", Key: &v1alpha1.TrustKey{PEM: key.PEM(t)}})
	k.SignV3(t, "revoked/add", k.Files(t, "revoked/add", "v1", mi300("revoked"), nil), key)
	return pod("good", "ci/good"), pod("warned", "warn/add"), pod("revoked", "revoked/add")
}

// expectRefused waits until both the claim's Event and the cache's condition name the object, the field and the reason.
func (k *kernelCaches) expectRefused(ctx context.Context, ns string, pod *corev1.Pod, r refusal) {
	GinkgoHelper()
	say("%s is refused", r.name)
	object, of := v1alpha1.KindGPUKernelCache+" "+ns+"/"+r.name, ns
	if r.cluster {
		object, of = v1alpha1.KindClusterGPUKernelCache+" "+r.name, ""
	}
	k.claimTold(ctx, pod, "KernelCacheRefused", slices.Concat([]string{object + " is refused"}, r.words, r.more)...)
	k.condition(ctx, of, r.name, r.condition, r.status, append(r.told, r.words...)...)
}

// containsAll is a text with all the words.
func containsAll(words []string) gomegatypes.GomegaMatcher {
	var all []gomegatypes.GomegaMatcher
	for _, w := range words {
		all = append(all, ContainSubstring(w))
	}
	return And(all...)
}

// claimTold waits until the pod's claim has an Event for a reason with all the words.
func (k *kernelCaches) claimTold(ctx context.Context, pod *corev1.Pod, reason string, words ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		pod, err := h.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.Status.ResourceClaimStatuses).NotTo(BeEmpty())
		events, err := h.Kube.EventsV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		g.Expect(err).NotTo(HaveOccurred())
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name == *pod.Status.ResourceClaimStatuses[0].ResourceClaimName {
				notes = append(notes, e.Note)
			}
		}
		g.Expect(notes).To(ContainElement(containsAll(words)), "of pod %s", pod.Name)
	}).Should(Succeed())
}

// condition waits until one of a cache, which is the cluster's without a namespace, has the status and all the words.
func (k *kernelCaches) condition(ctx context.Context, ns, name, kind string, status metav1.ConditionStatus, words ...string) {
	GinkgoHelper()
	k.status(ctx, ns, name, func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		c := meta.FindStatusCondition(s.Conditions, kind)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(status), "%s of %s: %s", kind, name, c.Message)
		g.Expect(c.Message).To(containsAll(words), "%s of %s", kind, name)
	})
}
