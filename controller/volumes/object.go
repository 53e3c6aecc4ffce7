// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
)

// The labels and annotations of claims and Jobs.
const (
	// UIDLabel is the cache's UID, on claims, Jobs and their pods.
	UIDLabel = v1alpha1.DriverName + "/kernel-cache-uid"
	// DigestAnnotation is the digest that a claim holds, or that a Job writes. Empty: the content of the claim is unknown, since a Job
	// began to replace it. A claim that was never filled has no such annotation.
	DigestAnnotation = v1alpha1.DriverName + "/kernel-cache-digest"
	// ClaimAnnotation is the claim that a Job fills.
	ClaimAnnotation = v1alpha1.DriverName + "/kernel-cache-claim"
	// PathAnnotation is the path for which the files of a claim are made. Without it they are for the path of their producer.
	PathAnnotation = v1alpha1.DriverName + "/kernel-cache-path"
	// TemplateAnnotation is a hash of the spec that a Job was made from. If the spec would be another now, the Job is made again.
	TemplateAnnotation = v1alpha1.DriverName + "/kernel-cache-template"
)

// Object is a cache of either kind.
type Object struct {
	Kind, Namespace, Name string
	UID                   types.UID
	Deleting              bool
	// Namespaces get volumes.
	Namespaces []string
	Spec       *v1alpha1.GPUKernelCacheSpec
	Status     *v1alpha1.GPUKernelCacheStatus
	// current says that the status describes this generation of the spec.
	current bool
}

// Of converts a cache of either kind.
func Of(c v1alpha1.CommonGPUKernelCache) Object {
	o := Object{
		Kind: c.Kind, Namespace: c.GetNamespace(), Name: c.GetName(), UID: c.GetUID(), Deleting: c.GetDeletionTimestamp() != nil,
		Namespaces: c.NamedNamespaces(), Spec: c.Spec, Status: c.Status, current: c.Status.ObservedGeneration == c.GetGeneration(),
	}
	if !c.OfCluster() {
		o.Namespaces = []string{c.GetNamespace()}
	}
	return o
}

func (o Object) key() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// Type returns how the cache is distributed.
func (o Object) Type() v1alpha1.CacheDistributionType {
	if o.Spec.Distribution == nil || o.Spec.Distribution.Type == "" {
		return v1alpha1.CacheNodeLocal
	}
	return o.Spec.Distribution.Type
}

// Wants says whether the cache is put into volumes.
func (o Object) Wants() bool { return o.Type() != v1alpha1.CacheNodeLocal }

// digest returns the digest that volumes get, which claims may have, too. It is empty if the image is not resolved, or is refused.
func (o Object) digest() string {
	verdict := o.Status.Verification
	if !o.current || o.Status.Image == nil || verdict == nil || verdict.Digest != o.Status.ResolvedDigest ||
		verdict.Result == v1alpha1.VerdictRefused {
		return ""
	}
	return o.Status.ResolvedDigest
}

// path returns the path at which pods mount the volumes, empty if the object does not say. Triton and vLLM write absolute paths into
// their files, so these are valid for one path: this one, or the path of their producer.
func (o Object) path() string {
	if o.Spec.Mount == nil {
		return ""
	}
	return o.Spec.Mount.Path
}

// has says whether a claim has the wanted digest, made for the wanted path.
func (o Object) has(c *corev1.PersistentVolumeClaim) bool {
	return c.Annotations[DigestAnnotation] == o.digest() && c.Annotations[PathAnnotation] == o.path()
}

// owner returns the reference by which the garbage collector deletes claims and Jobs with their cache. A cluster-wide object may own
// objects in namespaces.
func (o Object) owner() metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: o.Kind, Name: o.Name, UID: o.UID, Controller: new(true),
	}
}

// meta returns the metadata of claims and Jobs.
func (o Object) meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: o.labels(), OwnerReferences: []metav1.OwnerReference{o.owner()},
		Annotations: map[string]string{},
	}
}

func (o Object) labels() map[string]string {
	return map[string]string{UIDLabel: string(o.UID), names.ManagedByLabel: names.Controller}
}

// Node is a node of the cluster.
type Node struct {
	Name   string
	Labels map[string]string
	// Unreported says that it has no AcceleratorNode: the driver does not run there, or its report is missing for a while.
	Unreported bool
	// Caches has what the node reports of the object's cache.
	Caches []v1alpha1.NodeCache
}

// Key names an object in a namespace.
type Key struct{ Namespace, Name string }

// Observed are the objects that a plan depends on.
type Observed struct {
	// Namespaces are those of the object that exist and are not being deleted.
	Namespaces map[string]bool
	Nodes      []Node
	// Claims and Jobs are the object's own, and claims of other owners that have the names of its claims.
	Claims map[Key]*corev1.PersistentVolumeClaim
	Jobs   map[Key]*batchv1.Job
	// Pods use one of the claims or belong to one of the Jobs. Empty if the [Reader] did not read them.
	Pods []corev1.Pod
	// Now is the time of the observation.
	Now time.Time
}

// wanted returns the volumes that the object wants, in the order of namespaces and nodes, and the namespaces that do not exist. A node
// without a report keeps the volumes that it has.
func (o Object) wanted(w Observed) (all []v1alpha1.CacheVolume, missing []string) {
	nodes := []Node{{}}
	if o.Type() == v1alpha1.CacheRWOPerNode {
		nodes = o.nodes(w)
	}
	for _, namespace := range slices.Sorted(slices.Values(o.Namespaces)) {
		if !w.Namespaces[namespace] {
			missing = append(missing, namespace)
			continue
		}
		for _, node := range nodes {
			claim := ClaimName(o.Name, node.Name)
			if c := w.Claims[Key{namespace, claim}]; node.Unreported && (c == nil || !o.owns(c.Labels)) {
				continue
			}
			v := v1alpha1.CacheVolume{Namespace: namespace, Node: node.Name, ClaimName: claim}
			if digest := o.digest(); digest != "" {
				v.JobName = JobName(claim, digest, o.path())
			}
			all = append(all, v)
		}
	}
	return all, missing
}

// nodes returns the nodes that get a volume, or keep theirs, by name.
func (o Object) nodes(w Observed) (nodes []Node) {
	selector := labels.Everything()
	if d := o.Spec.Distribution; d != nil && len(d.NodeSelector) > 0 {
		selector = labels.SelectorFromSet(d.NodeSelector)
	}
	for _, n := range w.Nodes {
		if selector.Matches(labels.Set(n.Labels)) && !o.misfits(n) {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// misfits says whether the node reports that the cache fits none of its GPUs.
func (o Object) misfits(n Node) bool {
	return slices.ContainsFunc(n.Caches, func(c v1alpha1.NodeCache) bool {
		return c.Namespace == o.Namespace && c.Name == o.Name && o.isNewest(c.Digest) && c.CompatibleDevices == 0 && c.IncompatibleDevices > 0
	})
}

// reportedBy returns what a node reports of the cache.
func (o Object) reportedBy(s *v1alpha1.AcceleratorNodeStatus) []v1alpha1.NodeCache {
	digests := []string{o.digest()}
	if o.Status.Image != nil {
		digests = append(digests, o.Status.Image.Digest)
	}
	return s.CachesOf(o.Namespace, o.Name, digests...)
}

// isNewest says whether a digest that a node reports is the one that volumes get, or that of the image below it.
func (o Object) isNewest(digest string) bool {
	newest := o.digest()
	return newest != "" && (digest == newest || digest == o.Status.Image.Digest)
}

// owns says whether a claim or a Job belongs to the object.
func (o Object) owns(labels map[string]string) bool { return labels[UIDLabel] == string(o.UID) }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
