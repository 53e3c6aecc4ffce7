// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/objects"
	"github.com/fettle-dev/fettle/test/signed"
)

// kernelHome is where the producer of the suite's caches had them.
const kernelHome = "/home/builder/.triton/cache"

// kernelCaches are what its specs work with.
type kernelCaches struct {
	*signed.Registry
	// bare has no list of referrers.
	bare *signed.Registry
	key  signed.Key
}

// warmsPods runs on the node with MI300X, which tell their architecture without any library.
func warmsPods() {
	BeforeAll(func(ctx SpecContext) {
		Expect(h.Install(ctx, values().Merge(podRanges(ctx)).Merge(harness.Values{"kernelCaches": harness.Values{
			"bindingConditions": true,
			"volumes":           harness.Values{"enabled": true, "image": harness.Values{"tag": h.Version, "pullPolicy": "Never"}},
		}}))).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(h.Install(ctx, values())).To(Succeed()) }, NodeTimeout(h.Patient(3*time.Minute)))
		pluginReady(ctx, mixedNode)
	}, NodeTimeout(h.Patient(3*time.Minute)))

	each := func(text string, do func(*kernelCaches, SpecContext), decorators ...any) {
		It(text, decorators, func(ctx SpecContext) { do(&kernels, ctx) }, NodeTimeout(h.Patient(3*time.Minute)))
	}
	each("has a program find its kernels where it had them, and elsewhere, and add its own", (*kernelCaches).hits)
	each("gives a cache that is here to another namespace only if that could read it, for no bytes", (*kernelCaches).shared, ofNode)
	each("refuses what does not fit, nobody signed, or is for others, and says why", (*kernelCaches).refused, ofNode)
	each("says who signed what is refused, and which field of the policy wants somebody else", (*kernelCaches).refusedSigners, ofNode,
		later("the spec before refuses; this is about the words"))
	It("keeps claims within the budgets of memory that the chart has by default", ofNode, func(ctx SpecContext) {
		kernels.budgets(ctx)
	}, NodeTimeout(h.Patient(6*time.Minute)))
	each("contacts nobody whom a tenant may not name", (*kernelCaches).contacts, later("one refusal for many spellings of an address"))
	each("gives new claims what a tag means now, and leaves the others theirs", (*kernelCaches).moved, ofNode)
	each("serves pods that are not root, and those in user namespaces", (*kernelCaches).users, ofNode,
		later("another spec has a user namespace"))
	if older {
		each("has a pod wait on its node where the API server knows no binding conditions, and says so", (*kernelCaches).lateOnNode, differs)
	} else {
		each("has a pod bound after its cache is on the node", (*kernelCaches).late)
	}
	each("has links into the cache for a pod in a user namespace, where it adds its own", (*kernelCaches).seeds, ofNode)
	It("runs on, and prepares others' claims, while tenants take all that they can of everything",
		later("an attack of minutes"), ofNode, func(ctx SpecContext) { kernels.attacked(ctx) },
		NodeTimeout(h.Patient(4*time.Minute+3*attackFor())))
	each("is there again after the plugin is killed and the container ended, with no registry", (*kernelCaches).lasts, ofNode)
	each("waits for a registry that is away, and goes on where one broke off", (*kernelCaches).away, ofNode,
		later("waits for the retries of a registry that is away"))
	each("says that the disk is full, and goes on when it is not", (*kernelCaches).full, ofNode, later("fills a disk"))
	each("holds nothing wrong, and serves every claim, however often the plugin is killed", (*kernelCaches).killed, ofNode,
		later("a storm of kills takes minutes"))
	cachesInVolumes(&kernels)
}

// start runs the registries, at an address that the nodes reach.
func (k *kernelCaches) start(ctx context.Context) {
	GinkgoHelper()
	address, err := h.StartRegistry(ctx) // it tells the address
	Expect(err).NotTo(HaveOccurred())
	Expect(h.StopRegistry(ctx)).To(Succeed())
	host, _, err := net.SplitHostPort(address)
	Expect(err).NotTo(HaveOccurred())
	full, bare := signed.StartAt(GinkgoTB(), shortPort(ctx, host), true), signed.StartAt(GinkgoTB(), host, false)
	*k = kernelCaches{full, bare, signed.NewKey(GinkgoTB())}
}

// shortPort is the address with a free port of four digits. CRDs allow five, so that a zero can stand before it.
func shortPort(ctx context.Context, host string) string {
	GinkgoHelper()
	for port := range 1000 {
		address := net.JoinHostPort(host, strconv.Itoa(8000+port))
		if l, err := new(net.ListenConfig).Listen(ctx, "tcp", address); err == nil {
			Expect(l.Close()).To(Succeed())
			return address
		}
	}
	Fail("no port from 8000 to 8999 is free")
	return ""
}

// spelled is the registry's host with a zero before the port, which is the same registry.
func (k *kernelCaches) spelled() string { return strings.Replace(k.Host, ":", ":0", 1) }

// trusted has the cluster believe the key for some repositories, until there is another cluster.
func (k *kernelCaches) trusted(ctx context.Context) {
	GinkgoHelper()
	policy := k.trustPolicy("e2e", []string{"team/**", "private/**"}, v1alpha1.TrustAuthority{
		Name: "release", Key: &v1alpha1.TrustKey{PEM: k.key.PEM(GinkgoTB())},
	})
	policies := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("trustpolicies"))
	Eventually(ctx, func() error { // the API server may serve a kind a moment after it is there
		if err := policies.Delete(ctx, policy.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		_, err := tryCreate(ctx, "trustpolicies", "", policy)
		return err
	}).Should(Succeed())
}

// policy makes a TrustPolicy for repositories of both registries, which is gone after the spec.
func (k *kernelCaches) policy(
	ctx context.Context, name string, repositories []string, change func(*v1alpha1.TrustPolicySpec), authorities ...v1alpha1.TrustAuthority,
) {
	GinkgoHelper()
	p := k.trustPolicy(name, repositories, authorities...)
	if change != nil {
		change(&p.Spec)
	}
	create(ctx, "trustpolicies", "", p)
}

func (k *kernelCaches) trustPolicy(name string, repositories []string, authorities ...v1alpha1.TrustAuthority) *v1alpha1.TrustPolicy {
	p := &v1alpha1.TrustPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindTrustPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TrustPolicySpec{Authorities: authorities},
	}
	for _, r := range repositories {
		p.Spec.Images = append(p.Spec.Images, k.Host+"/"+r, k.bare.Host+"/"+r)
	}
	return p
}

// mi300 are the files of a cache for the node's GPUs, with a text that makes them another image.
func mi300(text string) map[string]string {
	files := signed.Triton(kernelHome, "hip", `"gfx942"`, 64)
	files["TEXT/text"] = text
	return files
}

// push makes a signed image.
func (k *kernelCaches) push(r *signed.Registry, repository, tag string, files map[string]string) artifact.Digest {
	GinkgoHelper()
	d := r.Files(GinkgoTB(), repository, tag, files, nil)
	r.SignV3(GinkgoTB(), repository, d, k.key)
	return d
}

// cacheAddsAtMost is how much a claim may add to a cache of the specs, unless a spec says otherwise. So many claims fit into the budgets of
// memory that the chart has by default, on a small machine, too.
const cacheAddsAtMost = "16Mi"

// cache makes an object that is gone after the spec.
func (k *kernelCaches) cache(ctx context.Context, namespace, name, image string, change ...func(*v1alpha1.GPUKernelCache)) {
	GinkgoHelper()
	object := &v1alpha1.GPUKernelCache{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUKernelCache},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: v1alpha1.GPUKernelCacheSpec{Image: image},
	}
	for _, do := range change {
		do(object)
	}
	if object.Spec.Distribution == nil { // what is in a volume takes no memory
		if object.Spec.Mount == nil {
			object.Spec.Mount = &v1alpha1.CacheMount{}
		}
		if object.Spec.Mount.WritableLimit == nil {
			object.Spec.Mount.WritableLimit = new(resource.MustParse(cacheAddsAtMost))
		}
	}
	create(ctx, "gpukernelcaches", namespace, object)
}

// cacheConfig is a GPUConfig with caches.
func cacheConfig(caches ...v1alpha1.KernelCacheSource) string {
	GinkgoHelper()
	parameters, err := json.Marshal(v1alpha1.GPUConfig{
		TypeMeta:     metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUConfig},
		KernelCaches: caches,
	})
	Expect(err).NotTo(HaveOccurred())
	return string(parameters)
}

// claim makes a template of one MI300X with caches.
func (k *kernelCaches) claim(ctx context.Context, namespace, name string, caches ...v1alpha1.KernelCacheSource) {
	GinkgoHelper()
	k.claimOf(ctx, "amd", namespace, name, caches...)
}

// claimOf makes one of a GPU of a vendor.
func (k *kernelCaches) claimOf(ctx context.Context, vendor, namespace, name string, caches ...v1alpha1.KernelCacheSource) {
	GinkgoHelper()
	s := spec(request("gpu", gpuClass, where(onVendor(vendor))))
	s.Devices.Config = append(s.Devices.Config, objects.Config(v1alpha1.DriverName, cacheConfig(caches...)))
	newTemplate(ctx, namespace, name, s)
}

// status waits until the status of a cache, which is the cluster's without a namespace, is as wanted.
func (k *kernelCaches) status(ctx context.Context, namespace, name string, want func(Gomega, *v1alpha1.GPUKernelCacheStatus)) {
	GinkgoHelper()
	resource := "gpukernelcaches"
	if namespace == "" {
		resource = "clustergpukernelcaches"
	}
	Eventually(ctx, func(g Gomega) {
		u, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var object struct {
			Status v1alpha1.GPUKernelCacheStatus `json:"status"`
		}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object)).To(Succeed())
		want(g, &object.Status)
	}).Should(Succeed())
}

// found looks every file up that the group of the cache's kernel names, as Triton does, and tells which are not there.
const found = `cd "$TRITON_CACHE_DIR" && n=0; IFS='"'; for f in $(cat */__grp__*.json); do case $f in
	/*) if [ -e "$f" ]; then n=$((n+1)); else echo "missing $f"; fi;; esac; done; unset IFS; echo "$n at $TRITON_CACHE_DIR"`

func (k *kernelCaches) hits(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/add", "v1", mi300("one"))
	k.cache(ctx, ns, "add", k.Host+"/team/add:v1")
	k.claim(ctx, ns, "home", v1alpha1.KernelCacheSource{Name: "add"})
	k.claim(ctx, ns, "elsewhere", v1alpha1.KernelCacheSource{Name: "add", MountPath: "/cache"})
	k.claim(ctx, ns, "shared", v1alpha1.KernelCacheSource{Name: "add", Access: v1alpha1.CacheAccessReadOnly})
	home, elsewhere := newPod(ctx, ns, "home", withTemplate("home")), newPod(ctx, ns, "elsewhere", withTemplate("elsewhere"))
	readOnly := newPod(ctx, ns, "shared", withTemplate("shared"))
	running(ctx, home)
	Expect(inside(ctx, home, main, found)).To(Equal("3 at " + kernelHome + "\n"))
	running(ctx, elsewhere)
	Expect(inside(ctx, elsewhere, main, found)).To(Equal("3 at /cache\n"))

	say("what a program misses is its own")
	const miss = `mkdir $TRITON_CACHE_DIR/MISSED && echo compiled > $TRITON_CACHE_DIR/MISSED/kernel; ls $TRITON_CACHE_DIR`
	Expect(inside(ctx, home, main, miss)).To(ContainSubstring("MISSED"))
	Expect(inside(ctx, elsewhere, main, "ls $TRITON_CACHE_DIR")).NotTo(ContainSubstring("MISSED"))
	running(ctx, readOnly)
	Expect(inside(ctx, readOnly, main, found+"; mkdir $TRITON_CACHE_DIR/MISSED 2>&1 || true")).To(
		And(HavePrefix("3 at "+kernelHome), ContainSubstring("Read-only")))

	say("counted")
	k.status(ctx, ns, "add", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Phase).To(Equal(v1alpha1.CacheRunning))
		g.Expect(s.Counts.Nodes).To(BeNumerically(">=", 1)) // the other node may have fetched it ahead, to see what it is
		g.Expect(s.Counts.NodesInUse).To(BeEquivalentTo(1))
		g.Expect(s.Counts.PodsRunning).To(BeEquivalentTo(3))
		for _, kind := range []string{v1alpha1.ConditionResolved, v1alpha1.ConditionVerified, v1alpha1.ConditionReady} {
			g.Expect(meta.IsStatusConditionTrue(s.Conditions, kind)).To(BeTrue(), "%s: %+v", kind, s.Conditions)
		}
	})

	say("gone with the pods")
	remove(ctx, home)
	remove(ctx, elsewhere)
	remove(ctx, readOnly)
	Eventually(ctx, func() (string, error) {
		return h.OnNode(ctx, mixedNode, "sh", "-c", idleAside+"grep -c /var/lib/fettle/mounts/ || true")
	}).Should(Equal("0\n"))
}

// idleAside prints the table of mounts without images that stay mounted for the next claim.
const idleAside = "grep -v /var/lib/fettle/mounts/trees/ /proc/self/mountinfo | "

// remove deletes a pod and waits until it is gone.
func remove(ctx context.Context, p *corev1.Pod) {
	GinkgoHelper()
	Expect(h.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})).To(Succeed())
	Eventually(ctx, func() bool {
		_, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}).Should(BeTrue())
}

func (k *kernelCaches) shared(ctx SpecContext) {
	first, second := newNamespace(ctx, nil), newNamespace(ctx, nil)
	layer := k.LayerOf(k.push(k.Registry, "private/add", "v1", mi300("two")))
	for _, ns := range []string{first, second} {
		config := `{"auths":{"` + k.Host + `":{"username":"fpga","password":"open sesame"}}}`
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)},
		}
		_, err := h.Kube.CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		k.claim(ctx, ns, "add", v1alpha1.KernelCacheSource{Name: "add"})
	}
	withSecret := func(c *v1alpha1.GPUKernelCache) {
		c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	}
	k.cache(ctx, first, "add", k.Host+"/private/add:v1", withSecret)
	running(ctx, newPod(ctx, first, "pod", withTemplate("add")))
	k.status(ctx, first, "add", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Counts.Nodes).To(BeEquivalentTo(len(h.NodeNames())), "nodes that have it: the others fetch it ahead")
	})

	say("without credentials")
	reads := k.ReadsOf(layer)
	k.cache(ctx, second, "add", k.Host+"/private/add:v1")
	refusedPod := newPod(ctx, second, "refused", withTemplate("add"))
	k.status(ctx, second, "add", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(meta.IsStatusConditionFalse(s.Conditions, v1alpha1.ConditionResolved)).To(BeTrue(), "%+v", s.Conditions)
	})
	k.claimTold(ctx, refusedPod, "KernelCacheNotReady", "GPUKernelCache "+second+"/add is not ready", "its image is not resolved")
	staysPending(ctx, refusedPod)
	remove(ctx, refusedPod)

	say("with them it costs nothing")
	client := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("gpukernelcaches")).Namespace(second)
	_, err := client.Patch(ctx, "add", types.MergePatchType, []byte(`{"spec":{"imagePullSecrets":[{"name":"pull"}]}}`), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	pod := newPod(ctx, second, "pod", withTemplate("add"))
	running(ctx, pod)
	Expect(inside(ctx, pod, main, found)).To(Equal("3 at " + kernelHome + "\n"))
	Expect(k.ReadsOf(layer)).To(Equal(reads), "times that the layer was read, once a second namespace has it")
}

func (k *kernelCaches) refused(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/arch", "v1", signed.Triton(kernelHome, "hip", `"gfx90a"`, 64))
	k.push(k.Registry, "team/warp", "v1", signed.Triton(kernelHome, "hip", `"gfx942"`, 32))
	k.Files(GinkgoTB(), "team/unsigned", "v1", mi300("unsigned"), nil)
	d := k.Files(GinkgoTB(), "team/other", "v1", mi300("other"), nil)
	k.SignV3(GinkgoTB(), "team/other", d, signed.NewKey(GinkgoTB()))
	reasons := map[string]string{
		"arch": "gfx90a", "warp": "warps of 32", "unsigned": "no signature", "other": "release", "gone": "does not exist",
	}
	pods := map[string]*corev1.Pod{}
	for name := range reasons {
		if name != "gone" {
			k.cache(ctx, ns, name, k.Host+"/team/"+name+":v1")
		}
		k.claim(ctx, ns, name, v1alpha1.KernelCacheSource{Name: name})
		pods[name] = newPod(ctx, ns, name, withTemplate(name))
	}
	for name, want := range reasons {
		k.claimTold(ctx, pods[name], "KernelCacheRefused", "GPUKernelCache "+ns+"/"+name, want)
	}
	staysPending(ctx, slices.Collect(maps.Values(pods))...)
	k.status(ctx, ns, "unsigned", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Phase).To(Equal(v1alpha1.CacheError))
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(metav1.ConditionFalse))
	})

	say("one of the cluster, for another namespace")
	k.push(k.Registry, "team/cluster", "v1", mi300("cluster"))
	create(ctx, "clustergpukernelcaches", "", &v1alpha1.ClusterGPUKernelCache{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterGPUKernelCache},
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-others"}, Spec: v1alpha1.ClusterGPUKernelCacheSpec{
			GPUKernelCacheSpec: v1alpha1.GPUKernelCacheSpec{Image: k.Host + "/team/cluster:v1"}, WorkloadNamespaces: []string{"nobody"},
		},
	})
	k.claim(ctx, ns, "others", v1alpha1.KernelCacheSource{Kind: v1alpha1.KindClusterGPUKernelCache, Name: "e2e-others"})
	others := newPod(ctx, ns, "others", withTemplate("others"))
	Eventually(ctx, func(g Gomega) {
		events, err := h.Kube.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=KernelCacheRefused"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events.Items).To(ContainElement(HaveField("Note", ContainSubstring("spec.workloadNamespaces"))))
	}).Should(Succeed())
	staysPending(ctx, others)
}

func (k *kernelCaches) moved(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	d := k.bare.Files(GinkgoTB(), "team/moves", "v1", mi300("before"), nil)
	k.bare.SignV2(GinkgoTB(), "team/moves", d, k.key)
	k.cache(ctx, ns, "add", k.bare.Host+"/team/moves:v1")
	k.claim(ctx, ns, "add", v1alpha1.KernelCacheSource{Name: "add"})
	old := newPod(ctx, ns, "old", withTemplate("add"))
	running(ctx, old)
	const text = "cat $TRITON_CACHE_DIR/TEXT/text"
	Expect(inside(ctx, old, main, text)).To(Equal("before"))

	k.push(k.bare, "team/moves", "v1", mi300("after"))
	k.status(ctx, ns, "add", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.PreviousDigests).To(ContainElement(d.String()))
		g.Expect(s.Counts.PodsOutdated).To(BeEquivalentTo(1))
		g.Expect(s.Phase).To(Equal(v1alpha1.CacheOutdated))
	})
	restarted(ctx, old)
	Expect(inside(ctx, old, main, text)).To(Equal("before"))
	fresh := newPod(ctx, ns, "fresh", withTemplate("add"))
	running(ctx, fresh)
	Expect(inside(ctx, fresh, main, text)).To(Equal("after"))
	k.status(ctx, ns, "add", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Phase).To(Equal(v1alpha1.CacheRunning))
		g.Expect(s.Counts.PodsRunning).To(BeEquivalentTo(2))
		g.Expect(s.Counts.PodsOutdated).To(BeEquivalentTo(1))
	})
}

func (k *kernelCaches) users(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/users", "v1", mi300("users"))
	k.cache(ctx, ns, "add", k.Host+"/team/users:v1")
	k.claim(ctx, ns, "add", v1alpha1.KernelCacheSource{Name: "add", MountPath: "/cache"})
	pod := newPod(ctx, ns, "user", withTemplate("add"), asUser)
	running(ctx, pod)
	Expect(inside(ctx, pod, main, found)).To(Equal("3 at /cache\n"))
	const add = `cd /cache && mkdir MISSED && echo own > MISSED/kernel && echo over > TEXT/text && cat MISSED/kernel TEXT/text`
	Expect(inside(ctx, pod, main, add)).To(Equal("own\nover\n"))

	say("a user namespace, in which an overlay cannot be mapped, reading only")
	k.claim(ctx, ns, "shared", v1alpha1.KernelCacheSource{Name: "add", Access: v1alpha1.CacheAccessReadOnly})
	mapped := newPod(ctx, ns, "mapped", withTemplate("shared"), userNamespace)
	running(ctx, mapped)
	Expect(inside(ctx, mapped, main, found)).To(Equal("3 at " + kernelHome + "\n"))
}

func (k *kernelCaches) late(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/late", "v1", mi300("late"))
	k.claim(ctx, ns, "add", v1alpha1.KernelCacheSource{Name: "add", BindAfter: v1alpha1.BindAfterFetched})
	pod := newPod(ctx, ns, "pod", withTemplate("add"))
	refusedAtPrepare(ctx, pod, "KernelCacheRefused", "GPUKernelCache "+ns+"/add")
	now, err := h.Kube.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(now.Spec.NodeName).To(BeEmpty(), "bound although its cache is not there")
	k.cache(ctx, ns, "add", k.Host+"/team/late:v1")
	running(ctx, pod)
	Expect(inside(ctx, pod, main, found)).To(Equal("3 at " + kernelHome + "\n"))
	c := onlyClaim(ctx, pod)
	Expect(c.Status.Devices).To(ContainElement(HaveField("Conditions", ContainElement(And(
		HaveField("Type", "fettle.dev/KernelCachesReady"), HaveField("Reason", "Fetched"))))))
}

// lateOnNode is late with an API server that drops binding conditions.
func (k *kernelCaches) lateOnNode(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/late", "v1", mi300("late"))
	k.claim(ctx, ns, "add", v1alpha1.KernelCacheSource{Name: "add", BindAfter: v1alpha1.BindAfterFetched})
	pod := newPod(ctx, ns, "pod", withTemplate("add"))
	k.claimTold(ctx, pod, "KernelCacheRefused", "GPUKernelCache "+ns+"/add", "does not exist")
	now, err := h.Kube.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(now.Spec.NodeName).To(Equal(mixedNode))
	staysPending(ctx, pod)
	eventuallyDropped(ctx, mixedNode, bindingConditions)
	k.cache(ctx, ns, "add", k.Host+"/team/late:v1")
	running(ctx, pod)
	Expect(inside(ctx, pod, main, found)).To(Equal("3 at " + kernelHome + "\n"))
}

// bindingConditions is the feature of the API that has pods bound after their data is there.
const bindingConditions = "DRADeviceBindingConditions"

// eventuallyDropped waits until a node's metrics say that the API server drops a feature from the slices.
func eventuallyDropped(ctx context.Context, node, feature string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		plugin, err := h.PluginPod(ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		metrics, err := h.Metrics(ctx, plugin.Name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(metrics).To(HaveKeyWithValue(fmt.Sprintf("fettle_dropped_features{feature=%q}", feature), "1"))
	}).Should(Succeed())
}

func (k *kernelCaches) lasts(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/lasts", "v1", mi300("lasts"))
	k.cache(ctx, ns, "add", k.Host+"/team/lasts:v1")
	k.claim(ctx, ns, "add", v1alpha1.KernelCacheSource{Name: "add"})
	first := newPod(ctx, ns, "first", withTemplate("add"))
	running(ctx, first)
	Expect(inside(ctx, first, main, "echo own > $TRITON_CACHE_DIR/own")).To(BeEmpty())
	k.Down.Store(true)
	DeferCleanup(func() { k.Down.Store(false) })
	killPlugin(ctx, mixedNode)
	restarted(ctx, first)
	Expect(inside(ctx, first, main, found+"; cat $TRITON_CACHE_DIR/own")).To(Equal("3 at " + kernelHome + "\nown\n"))

	say("a second claim while the registry is away")
	second := newPod(ctx, ns, "second", withTemplate("add"))
	running(ctx, second)
	Expect(inside(ctx, second, main, found)).To(Equal("3 at " + kernelHome + "\n"))
}
