// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
)

// The labels and annotations of what is made.
const (
	// UIDLabel is the cache's UID, on claims, Jobs and their pods.
	UIDLabel = v1alpha1.DriverName + "/kernel-cache-uid"
	// DigestAnnotation is the digest that is in a claim, or that a Job puts there.
	DigestAnnotation = v1alpha1.DriverName + "/kernel-cache-digest"
	// ClaimAnnotation is the claim that a Job fills.
	ClaimAnnotation = v1alpha1.DriverName + "/kernel-cache-claim"
	// PathAnnotation is the path that the files of a claim are made for. None: the one where their producer had them.
	PathAnnotation = v1alpha1.DriverName + "/kernel-cache-path"
	// TemplateAnnotation is a hash of what a Job was made from: one that is made otherwise now has to be made anew.
	TemplateAnnotation = v1alpha1.DriverName + "/kernel-cache-template"
)

// Object is a cache of either kind.
type Object struct {
	Kind, Namespace, Name string
	UID                   types.UID
	Deleting              bool
	// Namespaces are those that are to have volumes.
	Namespaces []string
	Spec       *v1alpha1.GPUKernelCacheSpec
	Status     *v1alpha1.GPUKernelCacheStatus
	// current says that the status is about this spec.
	current bool
}

// Of returns the volumes' view of a cache of either kind.
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

// Type is how the cache comes to the nodes.
func (o Object) Type() v1alpha1.CacheDistributionType {
	if o.Spec.Distribution == nil || o.Spec.Distribution.Type == "" {
		return v1alpha1.CacheNodeLocal
	}
	return o.Spec.Distribution.Type
}

// Wants says whether it is put into volumes.
func (o Object) Wants() bool { return o.Type() != v1alpha1.CacheNodeLocal }

// digest is what volumes are to have: what claims may have, too. Empty: nobody knows, or it is refused.
func (o Object) digest() string {
	verdict := o.Status.Verification
	if !o.current || o.Status.Image == nil || verdict == nil || verdict.Digest != o.Status.ResolvedDigest ||
		verdict.Result == v1alpha1.CacheRefused {
		return ""
	}
	return o.Status.ResolvedDigest
}

// path is where pods are to mount the volumes, as far as the object says. Triton and vLLM write absolute paths into their files, so these
// are right for one place: this one, or where they were made.
func (o Object) path() string {
	if o.Spec.Mount == nil {
		return ""
	}
	return o.Spec.Mount.Path
}

// has says whether a claim has what it is to have.
func (o Object) has(c *corev1.PersistentVolumeClaim) bool {
	return c.Annotations[DigestAnnotation] == o.digest() && c.Annotations[PathAnnotation] == o.path()
}

// owner has the garbage collector delete what is made when the object goes. One of the cluster may own what is in namespaces.
func (o Object) owner() metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: o.Kind, Name: o.Name, UID: o.UID, Controller: new(true),
	}
}

// meta is the head of what is made.
func (o Object) meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: o.labels(), OwnerReferences: []metav1.OwnerReference{o.owner()},
		Annotations: map[string]string{},
	}
}

func (o Object) labels() map[string]string {
	return map[string]string{UIDLabel: string(o.UID), names.ManagedByLabel: names.Controller}
}
