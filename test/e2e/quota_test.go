// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/objects"
)

// quotaName is the name of the specs' ResourceQuotas.
const quotaName = "devices"

// devicesOfClass is the resource of a ResourceQuota that counts devices of a class.
func devicesOfClass(class string) corev1.ResourceName {
	return corev1.ResourceName(class + ".deviceclass.resource.k8s.io/devices")
}

// newQuota makes a ResourceQuota and waits until it is enforced: the API server refuses nothing before its status says what is in use.
func newQuota(ctx context.Context, namespace string, hard corev1.ResourceList) {
	GinkgoHelper()
	_, err := h.Kube.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: quotaName}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		quota, err := h.Kube.CoreV1().ResourceQuotas(namespace).Get(ctx, quotaName, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(quota.Status.Hard).To(HaveLen(len(hard)))
		g.Expect(quota.Status.Used).To(HaveLen(len(hard)))
	}).Should(Succeed())
}

func most(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

// eventuallyUsed waits until a quota's status counts so many of a resource.
func eventuallyUsed(ctx context.Context, namespace string, name corev1.ResourceName, want int64) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		quota, err := h.Kube.CoreV1().ResourceQuotas(namespace).Get(ctx, quotaName, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		used := quota.Status.Used[name]
		g.Expect(used.Value()).To(Equal(want))
	}).Should(Succeed())
}

// fettleQuota is what `fettle quota` says of an object that does not exist yet, and whether it would be refused.
func fettleQuota(ctx context.Context, namespace string, object runtime.Object) (said string, refused bool) {
	GinkgoHelper()
	text, err := yaml.Marshal(object)
	Expect(err).NotTo(HaveOccurred())
	command := exec.CommandContext(ctx, filepath.Join(h.Root, "dist", "linux_"+goruntime.GOARCH, "fettle"),
		"quota", "--kubeconfig", h.Kubeconfig(), "-n", namespace, "--claim", writeTemp(string(text)))
	out, err := command.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
		return string(out), true
	}
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return string(out), false
}

// refusedByQuota expects that the API server refuses an object for the quota, in words that have a part, and that `fettle quota` said so in
// the same words.
func refusedByQuota(ctx context.Context, namespace string, object runtime.Object, part string, create func() error) {
	GinkgoHelper()
	said, refused := fettleQuota(ctx, namespace, object)
	Expect(refused).To(BeTrue(), said)
	err := create()
	Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, words, found := strings.Cut(err.Error(), "exceeded quota: ")
	Expect(found).To(BeTrue(), "%v", err)
	Expect(words).To(ContainSubstring(part))
	Expect(said).To(ContainSubstring(words))
}

// takenByQuota expects that `fettle quota` has no objection to an object, and that the API server soon takes it.
func takenByQuota(ctx context.Context, namespace string, object runtime.Object, create func() error) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		said, refused := fettleQuota(ctx, namespace, object)
		g.Expect(refused).To(BeFalse(), said)
		g.Expect(create()).To(Succeed())
	}).Should(Succeed())
}

// claimOf is a claim of its own, and what creates it.
func claimOf(ctx context.Context, namespace, name string, s resourceapi.ResourceClaimSpec) (*resourceapi.ResourceClaim, func() error) {
	claim := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: s,
	}
	return claim, func() error {
		_, err := h.Kube.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
		return err
	}
}

// quotaOfShares counts each share of a GPU as one device of its class, whatever its size.
func (g *dividedGPUs) quotaOfShares(ctx SpecContext) {
	needsCounters() // the gates of both came in the same versions
	address := g.address(5)
	newPolicy(ctx, gpuNode, "e2e-quota", sharedBy(4, address))
	eventuallyShared(ctx, wholeName(address), true)
	ns := newNamespace(ctx, nil)
	resourceName := devicesOfClass(wholeClass)
	newQuota(ctx, ns, corev1.ResourceList{resourceName: most(2)})
	at := where(`device.attributes["fettle.dev"].pciAddress == "` + address + `"`)
	newTemplate(ctx, ns, "small", spec(request("gpu", wholeClass, at, asking("2Gi"))))
	newTemplate(ctx, ns, "large", spec(request("gpu", wholeClass, at, asking("40Gi"))))
	first, second := newPod(ctx, ns, "first", withTemplate("small")), newPod(ctx, ns, "second", withTemplate("large"))
	running(ctx, first, second)
	for _, pod := range []*corev1.Pod{first, second} {
		Expect(results(onlyClaim(ctx, pod))[0].ShareID).NotTo(BeNil())
	}
	eventuallyUsed(ctx, ns, resourceName, 2)

	say("a third share is refused, although the GPU has room")
	third, create := claimOf(ctx, ns, "third", spec(request("gpu", wholeClass, at, asking("2Gi"))))
	words := string(resourceName) + "=1, used: " + string(resourceName) + "=2, limited: " + string(resourceName) + "=2"
	refusedByQuota(ctx, ns, third, "requested: "+words, create)

	say("a pod whose claim is refused gets it when another claim is gone")
	waiting := newPod(ctx, ns, "waiting", withTemplate("small"))
	eventuallyEvent(ctx, ns, "Pod", waiting.Name, "FailedResourceClaimCreation", "exceeded quota: "+quotaName)
	staysPending(ctx, waiting)
	removePods(ctx, first)
	running(ctx, waiting)
	refusedByQuota(ctx, ns, third, "requested: "+words, create)
	removePods(ctx, second, waiting)
	takenByQuota(ctx, ns, third, create)
}

const (
	quotaClass    = "e2e-quota"
	quotaExtended = "example.com/e2e-quota"
)

// extendedPodOf is a pod that asks for one of an extended resource.
func extendedPodOf(namespace, name string, extended corev1.ResourceName) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)), AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{
				Name: main, Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", stay},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{extended: most(1)}},
			}},
		},
	}
}

func createPod(ctx context.Context, p *corev1.Pod) func() error {
	return func() error {
		created, err := h.Kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		if err == nil {
			p.UID = created.UID
		}
		return err
	}
}

// quotaOfExtended limits an extended resource by the name that the class gives itself, which counts at the pod, and by the name that every
// class has, which counts at the claim that the scheduler makes.
func (g *dividedGPUs) quotaOfExtended(ctx SpecContext) {
	needsExtendedResources()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: quotaClass}}
	class.Spec.Selectors = objects.Selectors(partOf("gpu", "") + ` && device.attributes["fettle.dev"].pciAddress in [` +
		quoted([]string{g.address(5), g.address(6), g.address(7)}) + `]`)
	class.Spec.ExtendedResourceName = new(quotaExtended)
	_, err := h.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.ResourceV1().DeviceClasses().Delete(ctx, quotaClass, metav1.DeleteOptions{})).To(Succeed())
	})
	const implicit = corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix + quotaClass)
	const named, byClass = corev1.ResourceName("requests." + quotaExtended), "requests." + implicit
	ns := newNamespace(ctx, nil)
	newQuota(ctx, ns, corev1.ResourceList{named: most(2), byClass: most(1)})
	first, second := extendedPodOf(ns, "first", quotaExtended), extendedPodOf(ns, "second", quotaExtended)
	takenByQuota(ctx, ns, first, createPod(ctx, first))
	running(ctx, first)
	eventuallyUsed(ctx, ns, named, 1)
	eventuallyUsed(ctx, ns, byClass, 1)

	say("the claim of a second pod is refused, and the pod waits")
	said, refused := fettleQuota(ctx, ns, second)
	Expect(refused).To(BeTrue(), said)
	Expect(said).To(ContainSubstring("exceeded quota: %s, requested: %[2]s=1, used: %[2]s=1, limited: %[2]s=1", quotaName, byClass))
	Expect(createPod(ctx, second)()).To(Succeed())
	eventuallyUsed(ctx, ns, named, 2)
	staysPending(ctx, second)

	say("the API server refuses the pods themselves that exceed either name")
	third := extendedPodOf(ns, "third", quotaExtended)
	refusedByQuota(ctx, ns, third, string(named)+"=1", createPod(ctx, third))
	other := extendedPodOf(ns, "other", implicit)
	refusedByQuota(ctx, ns, other, string(byClass)+"=1", createPod(ctx, other))

	say("when the first pod is gone, the second one runs and a further one is taken")
	removePods(ctx, first)
	running(ctx, second)
	Eventually(ctx, createPod(ctx, third)).Should(Succeed())
	removePods(ctx, second, third)
}

// quotaOfAdminAccess counts devices that are looked at like any other.
func (g *dividedGPUs) quotaOfAdminAccess(ctx SpecContext) {
	ns := newNamespace(ctx, map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"})
	resourceName := devicesOfClass(wholeClass)
	newQuota(ctx, ns, corev1.ResourceList{resourceName: most(1)})
	look := spec(request("look", wholeClass, asAdmin))
	first, create := claimOf(ctx, ns, "first", look)
	takenByQuota(ctx, ns, first, create)
	eventuallyUsed(ctx, ns, resourceName, 1)
	second, create := claimOf(ctx, ns, "second", look)
	refusedByQuota(ctx, ns, second, string(resourceName)+"=1", create)
	Expect(h.Kube.ResourceV1().ResourceClaims(ns).Delete(ctx, first.Name, metav1.DeleteOptions{})).To(Succeed())
	takenByQuota(ctx, ns, second, create)
}

// needsExtendedResources skips a spec where no class stands for an extended resource.
func needsExtendedResources() {
	if older {
		Skip("this API has no extended resources of DRA")
	}
}
