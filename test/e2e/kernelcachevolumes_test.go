// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	ownCaches, clusterCaches = "gpukernelcaches", "clustergpukernelcaches"
	// volumeGroup is whom the Jobs' pods write to volumes as.
	volumeGroup = 65532
	// seedPath is where the pods of the older API mount their volumes.
	seedPath = "/cache"
)

// cachesInVolumes are specs of caches in volumes: those that the pods of the older API have, which say nothing of Fettle.
func cachesInVolumes(k *kernelCaches) {
	each := func(text string, do func(*kernelCaches, SpecContext), decorators ...any) {
		It(text, append(decorators, func(ctx SpecContext) { do(k, ctx) }, NodeTimeout(h.Patient(4*time.Minute)))...)
	}
	each("fills a volume for all nodes, which pods mount as they are, and not under them", (*kernelCaches).volumeForAll, ofNode)
	each("fills a volume for each node, which pods of DaemonSets get as they are", (*kernelCaches).volumeOfNode, differs)
	each("says what keeps a volume from being filled, and goes on", (*kernelCaches).volumeKept, ofNode,
		later("waits for the retries of what is refused"))
	each("gives claims to pods of all four ways of the older API", (*kernelCaches).fourWays, ofNode, later("a variant of storage"))
	each("gives claims to pods whose init containers change owners, as on KIND", (*kernelCaches).claimsOfKIND, ofNode,
		later("a variant of storage"))
	Describe("in volumes of a provisioner", ofNode, Ordered, func() {
		BeforeAll(provisions, NodeTimeout(h.Patient(2*time.Minute)))
		each("has those of KIND on each node's own disk, and says what an init container did to one", (*kernelCaches).volumesOfKIND,
			later("a variant of storage"))
		each("says who knows why a class without ReadOnlyMany makes none", (*kernelCaches).noReadOnlyMany, later("a variant of storage"))
		each("fills those of a tainted node by the template of the object", (*kernelCaches).tainted, later("a variant of storage"))
		each("follows the list of namespaces while pods run", (*kernelCaches).namespacesEdited, later("a variant of storage"))
	})
}

// seed is one of the older API's ways, with the image of a cache and a container that is here, in namespaces of this spec's.
func (k *kernelCaches) seed(way, image string, names ...string) string {
	GinkgoHelper()
	archive, err := txtar.ParseFile(filepath.Join(h.Root, "pkg", "convert", "testdata", "caches-"+way+".txtar"))
	Expect(err).NotTo(HaveOccurred())
	Expect(archive.Files[0].Name).To(Equal("in.yaml"))
	// What follows names caches that are not there.
	text, _, _ := bytes.Cut(archive.Files[0].Data, []byte("---\nkind: DaemonSet\napiVersion: apps/v1\nmetadata:\n  name: myDaemonSet3"))
	replace := append([]string{
		"quay.io/example/my-image:tag", image, "quay.io/fedora/fedora-minimal", "fettle.dev/test/busybox:1",
		"command: [sleep, 365d]", fmt.Sprintf("command: [sh, -c, %q]", stay),
	}, names...)
	return strings.NewReplacer(replace...).Replace(string(text))
}

// convert applies what the converter makes of a way.
func (k *kernelCaches) convert(ctx context.Context, text string, flags ...string) {
	GinkgoHelper()
	made := writeTemp(fettle(ctx, append([]string{"convert", "-f", writeTemp(text)}, flags...)...))
	_, err := h.Kubectl(ctx, "apply", "-f", made)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "--ignore-not-found", "--wait=false", "-f", made)
		Expect(err).NotTo(HaveOccurred())
	})
}

// bareStorage is a class without a provisioner, as bare clusters have it, for claims that name none as well.
func bareStorage(ctx context.Context) {
	GinkgoHelper()
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: "standard", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	_, err := h.Kube.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.StorageV1().StorageClasses().Delete(ctx, class.Name, metav1.DeleteOptions{})).To(Succeed())
	})
}

// byHand makes volumes of directories: for all nodes, or as many for each node as are wanted.
func byHand(ctx context.Context, count int, nodes ...string) {
	GinkgoHelper()
	if len(nodes) == 0 {
		nodes = []string{""}
	}
	client := h.Kube.CoreV1().PersistentVolumes()
	for i := range count * len(nodes) {
		dir := GinkgoT().TempDir()
		Expect(os.Chown(dir, 0, volumeGroup)).To(Succeed())
		Expect(os.Chmod(dir, 0o775|os.ModeSetgid)).To(Succeed())
		volume := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}, StorageClassName: "standard",
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: new(corev1.HostPathDirectory)},
				},
			},
		}
		if node := nodes[i%len(nodes)]; node != "" {
			volume.Spec.AccessModes = volume.Spec.AccessModes[:1]
			volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				},
			}}}}
		}
		made, err := client.Create(ctx, volume, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(client.Delete(ctx, made.Name, metav1.DeleteOptions{})).To(Succeed()) })
	}
}

// cacheStatus waits until the status of a cache of either kind is as wanted.
func cacheStatus(ctx context.Context, kind, namespace, name string, want func(Gomega, *v1alpha1.GPUKernelCacheStatus)) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		u, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(kind)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var object v1alpha1.GPUKernelCache // both have the same status
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"status": u.Object["status"]}, &object)).To(Succeed())
		want(g, &object.Status)
	}).Should(Succeed())
}

// filled wants all volumes to have the newest digest, and so many pods on so many nodes to have it.
func filled(volumes, nodes, pods int) func(Gomega, *v1alpha1.GPUKernelCacheStatus) {
	return func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Volumes).To(HaveLen(volumes))
		g.Expect(s.Volumes).To(HaveEach(And(
			HaveField("Phase", v1alpha1.CacheVolumeFilled), HaveField("Digest", s.ResolvedDigest), HaveField("Message", ""))))
		g.Expect(meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionDistributed)).To(BeTrue(), "%+v", s.Conditions)
		g.Expect(s.Counts.PodsRunning).To(BeEquivalentTo(pods))
		g.Expect(s.Counts.NodesInUse).To(BeEquivalentTo(nodes))
		g.Expect(s.Counts.PodsOutdated).To(BeZero())
		if pods > 0 {
			g.Expect(s.Phase).To(Equal(v1alpha1.CacheRunning))
		}
	}
}

// atSeedPath is what a pod finds of the cache at the path of its volume.
const atSeedPath = "export TRITON_CACHE_DIR=" + seedPath + "; " + found

// hitsIn wants pods to find all of the cache. They may run before it is there.
func hitsIn(ctx context.Context, container string, pods ...*corev1.Pod) {
	GinkgoHelper()
	running(ctx, pods...)
	for _, p := range pods {
		Eventually(ctx, func() (string, error) { return h.Exec(ctx, p.Namespace, p.Name, container, atSeedPath) }).Should(
			Equal("3 at "+seedPath+"\n"), p.Name)
	}
}

// aPod is one that something else made.
func aPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// nodesOf is on how many nodes pods run.
func nodesOf(ctx context.Context, pods ...*corev1.Pod) int {
	GinkgoHelper()
	nodes := map[string]bool{}
	for _, p := range pods {
		pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		nodes[pod.Spec.NodeName] = true
	}
	return len(nodes)
}

// daemons waits for the pods of a DaemonSet on nodes.
func daemons(ctx context.Context, namespace, name string, nodes ...string) (pods []*corev1.Pod) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		list, err := h.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "name=" + name})
		g.Expect(err).NotTo(HaveOccurred())
		pods = nil
		for i := range list.Items {
			for _, node := range nodes {
				if list.Items[i].Spec.NodeName == node {
					pods = append(pods, &list.Items[i])
				}
			}
		}
		g.Expect(pods).To(HaveLen(len(nodes)))
	}).Should(Succeed())
	return pods
}

// withVolume mounts a claim as the pods of the older API do.
func withVolume(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "kernel-volume", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "kernel-volume", MountPath: seedPath}}
	}
}

// besides has a pod run on another node than one that runs.
func besides(ctx context.Context, p *corev1.Pod) func(*corev1.Pod) {
	GinkgoHelper()
	pod, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	i := slices.IndexFunc(h.NodeNames(), func(node string) bool { return node != pod.Spec.NodeName })
	Expect(i).To(BeNumerically(">=", 0))
	return onNode(h.NodeNames()[i])
}

// nobody is a user that no file is of.
func nobody(p *corev1.Pod) {
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000)), AllowPrivilegeEscalation: new(false),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func (k *kernelCaches) volumeForAll(ctx SpecContext) {
	own, first, second := newNamespace(ctx, nil), newNamespace(ctx, nil), newNamespace(ctx, nil)
	before := k.push(k.Registry, "team/rox", "v1", mi300("before"))
	bareStorage(ctx)
	byHand(ctx, 3)
	k.convert(ctx, k.seed("ns-rox", k.Host+"/team/rox:v1", "myns1", own), "--kernel-caches=volumes")
	k.convert(ctx, k.seed("cluster-rox", k.Host+"/team/rox@"+before.String(), "myns1", first, "myns2", second, "cacheCl", "e2e-rox"),
		"--kernel-caches=volumes")
	hitsIn(ctx, "test", aPod(own, "mypod1"), aPod(first, "mypod1"), aPod(second, "mypod1"))
	cacheStatus(ctx, clusterCaches, "", "e2e-rox", filled(2, nodesOf(ctx, aPod(first, "mypod1"), aPod(second, "mypod1")), 2))

	say("on the other node, too: a user that owns nothing reads all of it, and nobody writes what others run")
	user := newPod(ctx, own, "user", withVolume("cachens"), nobody, besides(ctx, aPod(own, "mypod1")))
	hitsIn(ctx, main, user)
	Expect(nodesOf(ctx, aPod(own, "mypod1"), user)).To(Equal(len(h.NodeNames())))
	Expect(inside(ctx, user, main, "cat /cache/TEXT/text; touch /cache/TEXT/text 2>/dev/null || echo kept")).To(Equal("before" + "kept\n"))

	say("a tag that moved")
	k.push(k.Registry, "team/rox", "v1", mi300("after"))
	cacheStatus(ctx, ownCaches, own, "cachens", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.PreviousDigests).To(ConsistOf(before.String()))
		g.Expect(s.Phase).To(Equal(v1alpha1.CacheOutdated))
		g.Expect(s.Counts.PodsOutdated).To(BeEquivalentTo(2))
		g.Expect(s.Volumes).To(HaveLen(1))
		g.Expect(s.Volumes[0].Digest).To(Equal(before.String()))
		g.Expect(s.Volumes[0].Message).To(ContainSubstring("when no pod uses the claim: mypod1, user"))
	})
	Expect(inside(ctx, user, main, "cat /cache/TEXT/text")).To(Equal("before"))
	remove(ctx, user)
	remove(ctx, aPod(own, "mypod1"))
	cacheStatus(ctx, ownCaches, own, "cachens", filled(1, 0, 0))
	fresh := newPod(ctx, own, "fresh", withVolume("cachens"))
	hitsIn(ctx, main, fresh)
	Expect(inside(ctx, fresh, main, "cat /cache/TEXT/text")).To(Equal("after"))
}

func (k *kernelCaches) volumeOfNode(ctx SpecContext) {
	own, first, second := newNamespace(ctx, nil), newNamespace(ctx, nil), newNamespace(ctx, nil)
	// A node loses its volume as soon as it knows that the cache is for none of its GPUs: both have some that it is for.
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
	place(ctx, gpuNode, "8xmi300x")
	eventuallyExplained(ctx, gpuNode, "")
	d := k.push(k.Registry, "team/rwo", "v1", mi300("rwo"))
	bareStorage(ctx)
	byHand(ctx, 3, gpuNode, mixedNode)
	image := k.Host + "/team/rwo@" + d.String()
	k.convert(ctx, k.seed("ns-rwo", image, "myns1", own), "--kernel-caches=volumes")
	k.convert(ctx, k.seed("cluster-rwo", image, "myns1", first, "myns2", second, "cacheCl", "e2e-rwo"), "--kernel-caches=volumes")
	if older { // which has no policies that change pods: they name their node's claim
		pod := newPod(ctx, own, "plain", withVolume("cachens-"+mixedNode), onNode(mixedNode))
		hitsIn(ctx, main, pod)
		cacheStatus(ctx, ownCaches, own, "cachens", filled(2, 1, 1))
		return
	}
	for _, set := range []struct{ namespace, name, cache string }{
		{own, "myDaemonSet1", "cachens"}, {first, "myDaemonSet1", "e2e-rwo"}, {second, "myDaemonSet2", "e2e-rwo"},
	} {
		pods := daemons(ctx, set.namespace, set.name, gpuNode, mixedNode)
		for _, p := range pods {
			Expect(p.Spec.Volumes).To(ContainElement(HaveField("PersistentVolumeClaim.ClaimName", set.cache+"-"+p.Spec.NodeName)))
		}
		hitsIn(ctx, "test", pods...)
	}
	cacheStatus(ctx, ownCaches, own, "cachens", filled(2, 2, 2))
	cacheStatus(ctx, clusterCaches, "", "e2e-rwo", filled(4, 2, 4))
}

// inVolume is an object whose cache is in one volume.
func inVolume(change ...func(*v1alpha1.GPUKernelCache)) func(*v1alpha1.GPUKernelCache) {
	return func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume}
		c.Spec.Mount = &v1alpha1.CacheMount{Path: seedPath}
		for _, do := range change {
			do(c)
		}
	}
}

func (k *kernelCaches) volumeKept(ctx SpecContext) {
	ns, late := newNamespace(ctx, nil), fmt.Sprintf("e2e-late-%d", GinkgoRandomSeed())
	bareStorage(ctx)
	byHand(ctx, 2)
	k.Files(GinkgoTB(), "team/nobodys", "v1", mi300("nobodys"), nil)
	k.cache(ctx, ns, "unsigned", k.Host+"/team/nobodys:v1", inVolume())
	k.push(k.Registry, "team/late", "v1", mi300("late"))
	create(ctx, clusterCaches, "", &v1alpha1.ClusterGPUKernelCache{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterGPUKernelCache},
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-late"},
		Spec: v1alpha1.ClusterGPUKernelCacheSpec{
			GPUKernelCacheSpec: v1alpha1.GPUKernelCacheSpec{
				Image: k.Host + "/team/late:v1", Distribution: &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume},
			},
			WorkloadNamespaces: []string{late},
		},
	})

	say("a Job that no node may run, with two secrets of which the second may read the image")
	for name, host := range map[string]string{"other": "other.example", "pull": k.Host} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil,
				`{"auths":{%q:{"username":"fpga","password":"open sesame"}}}`, host)},
		}
		_, err := h.Kube.CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	k.push(k.Registry, "private/kept", "v1", mi300("kept"))
	k.cache(ctx, ns, "kept", k.Host+"/private/kept:v1", inVolume(func(c *v1alpha1.GPUKernelCache) {
		c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "other"}, {Name: "pull"}}
		c.Spec.PodTemplate = &v1alpha1.CachePodTemplate{Spec: v1alpha1.CachePodSpec{NodeSelector: map[string]string{"nobody": "has-it"}}}
	}))
	kept := func(kind string) func(Gomega, *v1alpha1.GPUKernelCacheStatus) {
		return func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
			c := meta.FindStatusCondition(s.Conditions, kind)
			g.Expect(c).NotTo(BeNil())
			g.Expect(c.Message).To(And(ContainSubstring("volume claim "+ns+"/kept"), ContainSubstring("Unschedulable"),
				ContainSubstring("affinity/selector")))
		}
	}
	cacheStatus(ctx, ownCaches, ns, "kept", kept(v1alpha1.ConditionDistributed))

	say("what nobody signed, and a namespace that comes")
	cacheStatus(ctx, ownCaches, ns, "unsigned", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Phase).To(Equal(v1alpha1.CacheError))
		g.Expect(s.Volumes).To(ConsistOf(HaveField("Phase", v1alpha1.CacheVolumePending)))
	})
	cacheStatus(ctx, clusterCaches, "", "e2e-late", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Phase).To(Equal(v1alpha1.CacheNoNamespace))
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionNamespaceMissing)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Message).To(ContainSubstring(late))
	})
	newNamed(ctx, late)
	cacheStatus(ctx, clusterCaches, "", "e2e-late", filled(1, 0, 0))
	cacheStatus(ctx, ownCaches, ns, "kept", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		kept(v1alpha1.ConditionDegraded)(g, s)
		g.Expect(meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionDegraded)).To(BeTrue())
	})
	client := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(ownCaches)).Namespace(ns)
	_, err := client.Patch(ctx, "kept", types.MergePatchType, []byte(`{"spec":{"podTemplate":null}}`), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	cacheStatus(ctx, ownCaches, ns, "kept", filled(1, 0, 0))
	_, err = h.Kube.CoreV1().PersistentVolumeClaims(ns).Get(ctx, "unsigned", metav1.GetOptions{})
	Expect(apierrors.IsNotFound(err)).To(BeTrue(), "a claim of what nobody signed: %v", err)
	jobs, err := h.Kube.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{LabelSelector: volumes.UIDLabel})
	Expect(err).NotTo(HaveOccurred())
	Expect(jobs.Items).To(HaveLen(1))
}

// fourWays has converted pods on the node with MI300X; their DaemonSets have others that wait on nodes without.
func (k *kernelCaches) fourWays(ctx SpecContext) {
	const class = "e2e-mi300x"
	object := objects.Class(class, `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "gpu"`, onVendor("amd"))
	_, err := h.Kube.ResourceV1().DeviceClasses().Create(ctx, object, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.ResourceV1().DeviceClasses().Delete(ctx, class, metav1.DeleteOptions{})).To(Succeed())
	})
	image := k.Host + "/team/ways@" + k.push(k.Registry, "team/ways", "v1", mi300("ways")).String()
	var pods []*corev1.Pod
	for _, way := range []string{"rox", "rwo"} {
		own, first, second := newNamespace(ctx, nil), newNamespace(ctx, nil), newNamespace(ctx, nil)
		k.convert(ctx, k.seed("ns-"+way, image, "myns1", own), "--gpu-class", class)
		k.convert(ctx, k.seed("cluster-"+way, image, "myns1", first, "myns2", second, "cacheCl", "e2e-"+way), "--gpu-class", class)
		if way == "rox" {
			pods = append(pods, aPod(own, "mypod1"), aPod(first, "mypod1"), aPod(second, "mypod1"))
			continue
		}
		for _, set := range []struct{ namespace, name string }{{own, "myDaemonSet1"}, {first, "myDaemonSet1"}, {second, "myDaemonSet2"}} {
			pods = append(pods, daemons(ctx, set.namespace, set.name, mixedNode)...)
		}
	}
	running(ctx, pods...)
	for _, p := range pods {
		Expect(inside(ctx, p, "test", found)).To(Equal("3 at "+seedPath+"\n"), p.Name)
	}
}
