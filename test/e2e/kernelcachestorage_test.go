// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/test/harness"
)

// sharedClass is a storage class whose directory all nodes see.
const sharedClass = "shared"

// provisions runs the provisioner of KIND with its class, "standard", and wants it to have removed all volumes in the end.
func provisions(ctx SpecContext) {
	shared := GinkgoT().TempDir()
	text, err := os.ReadFile(filepath.Join("testdata", "local-path.yaml"))
	Expect(err).NotTo(HaveOccurred())
	file := writeTemp(strings.ReplaceAll(string(text), "SHARED", shared))
	_, err = h.Kubectl(ctx, "apply", "-f", file)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "-f", file)
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(h.Patient(time.Minute)))
	Expect(h.StartProvisioner(ctx, gpuNode)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(h.StopProvisioner(ctx, gpuNode)).To(Succeed()) })
	DeferCleanup(func(ctx SpecContext) {
		Eventually(ctx, func(g Gomega) {
			for _, node := range h.NodeNames() {
				g.Expect(volumesOn(ctx, node)).To(BeEmpty(), node)
			}
			left, err := os.ReadDir(shared)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(left).To(BeEmpty())
		}).Should(Succeed(), "volumes outlast the namespaces of their claims")
	}, NodeTimeout(h.Patient(2*time.Minute)))
}

// volumesOn lists the volumes on a node's own disk as NAMESPACE_CLAIM.
func volumesOn(ctx context.Context, node string) []string {
	GinkgoHelper()
	out, err := h.OnNode(ctx, node, "ls", harness.LocalPath)
	Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, line := range strings.Fields(out) {
		_, name, _ := strings.Cut(line, "_") // the name of the volume comes first
		names = append(names, name)
	}
	return names
}

// textOf prints the text of the caches on a node's own disk, by claim.
func textOf(ctx context.Context, node, namespace, claim string) string {
	GinkgoHelper()
	out, err := h.OnNode(ctx, node, "sh", "-c", `cat "$0"/*_"$1"/TEXT/text`, harness.LocalPath, namespace+"_"+claim)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// fixesPermissions has the init containers that the older API's documentation prints for KIND.
func fixesPermissions(seed string) func(*corev1.Pod) {
	GinkgoHelper()
	var printed corev1.Pod
	Expect(yaml.Unmarshal([]byte(strings.Split(seed, "---\n")[1]), &printed)).To(Succeed())
	Expect(printed.Spec.InitContainers).To(ConsistOf(HaveField("Name", "fix-permissions")))
	return func(p *corev1.Pod) { p.Spec.InitContainers = printed.Spec.InitContainers }
}

// volumesOfKIND has the older API's objects for KIND, which have no ReadOnlyMany, in volumes that KIND's provisioner makes.
func (k *kernelCaches) volumesOfKIND(ctx SpecContext) {
	first, second := newNamespace(ctx, nil), newNamespace(ctx, nil)
	// A node loses its volume as soon as it knows that the cache is for none of its GPUs: both have some that it is for.
	DeferCleanup(func(ctx SpecContext) { placeAll(ctx) })
	place(ctx, gpuNode, "8xmi300x")
	eventuallyExplained(ctx, gpuNode, "")
	before := k.push(k.Registry, "team/kind", "v1", mi300("before"))
	seed := k.seed("kind", k.Host+"/team/kind:v1", "myns1", first, "myns2", second, "cacheCl", "e2e-kind")
	k.convert(ctx, seed, "--kernel-caches=volumes")
	cacheStatus(ctx, clusterCaches, "", "e2e-kind", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Volumes).To(HaveLen(4))
		g.Expect(s.Volumes).To(HaveEach(HaveField("Phase", v1alpha1.CacheVolumeFilled)))
	})
	for _, node := range h.NodeNames() {
		claim := "e2e-kind-" + node
		Expect(volumesOn(ctx, node)).To(ConsistOf(first+"_"+claim, second+"_"+claim), "only those of the node are on its disk")
		Expect(textOf(ctx, node, first, claim) + textOf(ctx, node, second, claim)).To(Equal("before" + "before"))
	}
	daemonPods := 0
	if !older { // which has policies that change pods
		pods := daemons(ctx, second, "myDaemonSet1", gpuNode, mixedNode)
		hitsIn(ctx, "test", pods...)
		daemonPods = len(pods)
	}
	eventuallyUnschedulable(ctx, aPod(first, "mypod1"), `persistentvolumeclaim "e2e-kind" not found`) // as the converter says

	say("an init container gives the files to its user, as printed")
	claim := "e2e-kind-" + mixedNode
	printed := newPod(ctx, first, "printed", withVolume(claim), nobody, fixesPermissions(seed))
	hitsIn(ctx, main, printed)
	Expect(inside(ctx, printed, main, "stat -c %u:%g:%a /cache /cache/TEXT/text; touch /cache/own && echo wrote")).To(
		Equal("1000:1000:775\n1000:1000:775\nwrote\n"))
	remove(ctx, printed)

	say("which keeps the next digest out, until the claim is made again")
	after := k.push(k.Registry, "team/kind", "v1", mi300("after"))
	of := func(g Gomega, s *v1alpha1.GPUKernelCacheStatus, namespace, node string) v1alpha1.CacheVolume {
		for _, v := range s.Volumes {
			if v.Namespace == namespace && v.Node == node {
				return v
			}
		}
		g.Expect(s.Volumes).To(BeEmpty(), "none of namespace %s and node %s", namespace, node)
		return v1alpha1.CacheVolume{}
	}
	cacheStatus(ctx, clusterCaches, "", "e2e-kind", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.PreviousDigests).To(ConsistOf(before.String()))
		g.Expect(of(g, s, first, gpuNode)).To(And(HaveField("Phase", v1alpha1.CacheVolumeFilled), HaveField("Digest", after.String())))
		g.Expect(of(g, s, first, mixedNode).Message).To(And(ContainSubstring("/cache belongs to 1000:1000 with mode 0775"),
			ContainSubstring("delete its PersistentVolumeClaim")))
	})
	Expect(h.Kube.CoreV1().PersistentVolumeClaims(first).Delete(ctx, claim, metav1.DeleteOptions{})).To(Succeed())
	cacheStatus(ctx, clusterCaches, "", "e2e-kind", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(of(g, s, first, mixedNode)).To(And(HaveField("Phase", v1alpha1.CacheVolumeFilled), HaveField("Digest", after.String()),
			HaveField("Message", "")))
		g.Expect(s.Counts.PodsOutdated).To(BeEquivalentTo(daemonPods), "those that run keep what they have")
	})
	Eventually(ctx, func() []string { return volumesOn(ctx, mixedNode) }).Should(ConsistOf(first+"_"+claim, second+"_"+claim))
	Expect(textOf(ctx, mixedNode, first, claim)).To(Equal("after"))
}

// claimsOfKIND has the same objects with claims, on the node with MI300X: their DaemonSet has another pod that waits on a node without.
func (k *kernelCaches) claimsOfKIND(ctx SpecContext) {
	first, second := newNamespace(ctx, nil), newNamespace(ctx, nil)
	image := k.Host + "/team/kindclaims@" + k.push(k.Registry, "team/kindclaims", "v1", mi300("kind")).String()
	k.convert(ctx, k.seed("kind", image, "myns1", first, "myns2", second, "cacheCl", "e2e-kind-claims"),
		"--gpu-class", "amd.gpu.fettle.dev")
	plain, more := aPod(first, "mypod1"), aPod(first, "more")
	pods := append(daemons(ctx, second, "myDaemonSet1", mixedNode), plain, more)
	running(ctx, pods...)
	for _, p := range pods {
		Expect(inside(ctx, p, "test", found)).To(Equal("3 at "+seedPath+"\n"), p.Name)
	}
	// The init container that does more than to change owners is still there, and changes what its own pod has.
	const owner = "stat -c %u:%g:%a /cache/TEXT/text"
	Expect(inside(ctx, more, "test", owner)).To(Equal("1000:1000:775\n"))
	Expect(inside(ctx, plain, "test", owner)).NotTo(HavePrefix("1000:"))
}

func (k *kernelCaches) noReadOnlyMany(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	k.push(k.Registry, "team/norox", "v1", mi300("norox"))
	k.cache(ctx, ns, "norox", k.Host+"/team/norox:v1", inVolume())
	eventuallyEvent(ctx, ns, "PersistentVolumeClaim", "norox", "ProvisioningFailed", "only supports ReadWriteOnce")
	cacheStatus(ctx, ownCaches, ns, "norox", func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Volumes).To(ConsistOf(And(HaveField("Phase", v1alpha1.CacheVolumePending),
			HaveField("Message", And(ContainSubstring("[ReadOnlyMany ReadWriteOnce]"), ContainSubstring("Events are at the claim"))))))
	})
}

// tainted has a cache in a volume of a tainted node, and one in a volume for all nodes whose Job may run on that node only.
func (k *kernelCaches) tainted(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	const class, important = "e2e-caches", 1000
	_, err := h.Kube.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Value: important,
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.SchedulingV1().PriorityClasses().Delete(ctx, class, metav1.DeleteOptions{})).To(Succeed())
	})
	_, err = h.Kubectl(ctx, "taint", "node", mixedNode, "gpu=true:NoSchedule")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "taint", "node", mixedNode, "gpu=true:NoSchedule-")
		Expect(err).NotTo(HaveOccurred())
	})
	k.push(k.Registry, "team/tainted", "v1", mi300("tainted"))
	onlyThere := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{mixedNode},
			}},
		}}},
	}}
	template := &v1alpha1.CachePodTemplate{Spec: v1alpha1.CachePodSpec{Affinity: onlyThere}}
	k.cache(ctx, ns, "own", k.Host+"/team/tainted:v1", inVolume(func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Distribution.Type, c.Spec.PodTemplate = v1alpha1.CacheRWOPerNode, template
		c.Spec.Distribution.NodeSelector = map[string]string{corev1.LabelHostname: mixedNode}
	}))
	k.cache(ctx, ns, "all", k.Host+"/team/tainted:v1", inVolume(func(c *v1alpha1.GPUKernelCache) {
		c.Spec.StorageClassName, c.Spec.PodTemplate = new(sharedClass), template
	}))
	for _, name := range []string{"own", "all"} {
		cacheStatus(ctx, ownCaches, ns, name, func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
			g.Expect(s.Volumes).To(ConsistOf(HaveField("Message", ContainSubstring("untolerated taint"))))
		})
	}

	say("a template that tolerates the taint")
	tolerates := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	template.Metadata = v1alpha1.CachePodMetadata{Labels: map[string]string{"team": "storage"}, Annotations: map[string]string{"note": "seen"}}
	template.Spec.Tolerations, template.Spec.PriorityClassName = []corev1.Toleration{tolerates}, class
	for _, name := range []string{"own", "all"} {
		patchCache(ctx, ownCaches, ns, name, map[string]any{"podTemplate": template})
	}
	for name, claim := range map[string]string{"own": "own-" + mixedNode, "all": "all"} {
		cacheStatus(ctx, ownCaches, ns, name, filled(1, 0, 0))
		jobs, err := h.Kube.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{LabelSelector: volumes.UIDLabel})
		Expect(err).NotTo(HaveOccurred())
		var job string
		for i := range jobs.Items {
			if jobs.Items[i].Annotations[volumes.ClaimAnnotation] == claim {
				job = jobs.Items[i].Name
			}
		}
		Expect(job).NotTo(BeEmpty(), "%s has a Job", name)
		pods, err := h.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "team=storage," + batchv1.JobNameLabel + "=" + job})
		Expect(err).NotTo(HaveOccurred())
		Expect(pods.Items).To(HaveLen(1), "with the label of the template")
		pod := pods.Items[0]
		Expect(pod.Annotations).To(HaveKeyWithValue("note", "seen"))
		Expect(pod.Spec.Tolerations).To(ContainElement(tolerates))
		Expect(pod.Spec.PriorityClassName).To(Equal(class))
		Expect(pod.Spec.Priority).To(HaveValue(BeEquivalentTo(important)))
		term := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
		Expect(term.MatchExpressions).To(ConsistOf(HaveField("Key", corev1.LabelHostname)))
		Expect(pod.Spec.NodeName).To(Equal(mixedNode), "although another node has no taint")
	}
	tolerant := func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, tolerates) }
	hitsIn(ctx, main, newPod(ctx, ns, "there", withVolume("own-"+mixedNode), tolerant, nobody),
		newPod(ctx, ns, "elsewhere", withVolume("all"), onNode(gpuNode), nobody))
}

// patchCache changes fields of a cache's spec.
func patchCache(ctx context.Context, kind, namespace, name string, spec map[string]any) {
	GinkgoHelper()
	patch, err := json.Marshal(map[string]any{"spec": spec})
	Expect(err).NotTo(HaveOccurred())
	_, err = h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(kind)).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
}

// namespacesEdited changes the list of a cluster's cache while pods use its volumes.
func (k *kernelCaches) namespacesEdited(ctx SpecContext) {
	first, second, third := newNamespace(ctx, nil), newNamespace(ctx, nil), newNamespace(ctx, nil)
	const name = "e2e-edited"
	k.push(k.Registry, "team/edited", "v1", mi300("edited"))
	create(ctx, clusterCaches, "", &v1alpha1.ClusterGPUKernelCache{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterGPUKernelCache},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ClusterGPUKernelCacheSpec{
			GPUKernelCacheSpec: v1alpha1.GPUKernelCacheSpec{
				Image: k.Host + "/team/edited:v1", StorageClassName: new(sharedClass), Mount: &v1alpha1.CacheMount{Path: seedPath},
				Distribution: &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume},
			},
			WorkloadNamespaces: []string{first, second},
		},
	})
	stays := newPod(ctx, first, "stays", withVolume(name), onNode(gpuNode))
	leaves := newPod(ctx, second, "leaves", withVolume(name), onNode(mixedNode))
	hitsIn(ctx, main, stays, leaves)
	cacheStatus(ctx, clusterCaches, "", name, filled(2, 2, 2))

	say("one namespace goes and one comes")
	patchCache(ctx, clusterCaches, "", name, map[string]any{"workloadNamespaces": []string{first, third}})
	comes := newPod(ctx, third, "comes", withVolume(name), onNode(gpuNode))
	hitsIn(ctx, main, comes)
	cacheStatus(ctx, clusterCaches, "", name, func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		filled(2, 1, 2)(g, s)
		g.Expect(s.Volumes).To(ConsistOf(HaveField("Namespace", first), HaveField("Namespace", third)))
	})
	claims := h.Kube.CoreV1().PersistentVolumeClaims(second)
	Eventually(ctx, func(g Gomega) {
		claim, err := claims.Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred(), "a claim is there as long as a pod uses it")
		g.Expect(claim.DeletionTimestamp).NotTo(BeNil())
	}).Should(Succeed())
	hitsIn(ctx, main, stays, leaves)
	late := newPod(ctx, second, "late", withVolume(name), onNode(mixedNode))
	eventuallyUnschedulable(ctx, late, "is being deleted")

	say("the namespace comes back while its pod runs")
	patchCache(ctx, clusterCaches, "", name, map[string]any{"workloadNamespaces": []string{first, second, third}})
	cacheStatus(ctx, clusterCaches, "", name, func(g Gomega, s *v1alpha1.GPUKernelCacheStatus) {
		g.Expect(s.Volumes).To(ContainElement(And(HaveField("Namespace", second), HaveField("Phase", v1alpha1.CacheVolumePending),
			HaveField("Message", And(ContainSubstring("its claim is being deleted"), ContainSubstring("leaves"))))))
	})
	remove(ctx, leaves)
	hitsIn(ctx, main, late)
	cacheStatus(ctx, clusterCaches, "", name, filled(3, 2, 3))
}
