// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
)

// PodClaim is a claim as a pod names it.
type PodClaim struct {
	// Name is the pod's own name of the claim, ExtendedResources for the claim that the scheduler makes for extended resources.
	Name  string
	Claim *resourceapi.ResourceClaim
	// New is set if the claim does not exist yet: it would be made of a template or for extended resources.
	New bool
}

// Refusal is why a pod has no node before any node was tried.
type Refusal struct {
	// Words are those of Kubernetes: of the scheduler, or of the controller that makes claims.
	Words string
	// Meaning says what that means, and what helps.
	Meaning string
	// Stopped says that a search was ended before it was done: another one may find a node.
	Stopped bool
}

// Error puts the two together.
func (r *Refusal) Error() string { return r.Words + ": " + r.Meaning }

// refusal makes one. The format is of the meaning.
func refusal(words, format string, args ...any) *Refusal {
	return &Refusal{Words: words, Meaning: fmt.Sprintf(format, args...)}
}

// stopped makes the refusal of a search that was ended before it was done. The format is of the meaning.
func stopped(words, format string, args ...any) *Refusal {
	r := refusal(words, format, args...)
	r.Stopped = true
	return r
}

// PodClaims returns the claims of a pod in the order of spec.resourceClaims, without that of extended resources. A claim of a template
// that does not exist yet is made as the controller would, and not added to the cluster; Run does that. The error is a *Refusal; the
// claims before the one that it is about are returned with it.
func (c *Cluster) PodClaims(pod *corev1.Pod) ([]PodClaim, error) {
	var out []PodClaim
	for i := range pod.Spec.ResourceClaims {
		named := &pod.Spec.ResourceClaims[i]
		claim, isNew, err := c.podClaim(pod, named, out)
		if err != nil {
			return out, err
		}
		if claim == nil {
			continue // the controller decided that the pod needs none
		}
		out = append(out, PodClaim{Name: named.Name, Claim: claim, New: isNew})
	}
	return out, nil
}

// podClaim finds or makes one claim of a pod.
func (c *Cluster) podClaim(pod *corev1.Pod, named *corev1.PodResourceClaim, before []PodClaim) (*resourceapi.ResourceClaim, bool, error) {
	name, generated, err := resourceclaim.Name(pod, named)
	switch {
	case named.ResourceClaimTemplateName != nil && err != nil:
		if claim := c.ownedClaim(pod, named.Name); claim != nil {
			return claim, false, nil
		}
		claim, err := c.fromTemplate(pod, named, before)
		return claim, true, err
	case err != nil:
		return nil, false, refusal(err.Error(), "claim %s of the pod names neither a ResourceClaim nor a ResourceClaimTemplate", named.Name)
	case name == nil:
		return nil, false, nil
	}
	claim := c.Claims[types.NamespacedName{Namespace: pod.Namespace, Name: *name}]
	switch {
	case claim == nil:
		return nil, false, refusal(fmt.Sprintf("could not find ResourceClaim %q", pod.Namespace+"/"+*name),
			"claim %s of the pod waits for a ResourceClaim that does not exist: create it", named.Name)
	case claim.DeletionTimestamp != nil:
		return nil, false, refusal(fmt.Sprintf("resourceclaim %q is being deleted", claim.Name),
			"the pod waits until ResourceClaim %s was deleted and made again", claim.Name)
	}
	if generated {
		if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
			return nil, false, refusal(err.Error(), "another pod of the same name had it: the controller makes one for this pod after it is gone")
		}
	}
	return claim, false, nil
}

// ownedClaim returns the claim that was made for a pod and is not yet in its status.
func (c *Cluster) ownedClaim(pod *corev1.Pod, podClaimName string) *resourceapi.ResourceClaim {
	for _, key := range c.owned[pod.UID] {
		claim := c.Claims[key]
		if claim != nil && claim.Annotations[resourceapi.PodResourceClaimAnnotation] == podClaimName && metav1.IsControlledBy(claim, pod) {
			return claim
		}
	}
	return nil
}

// fromTemplate makes a claim as the controller does, with a name that is the same in every run.
func (c *Cluster) fromTemplate(pod *corev1.Pod, named *corev1.PodResourceClaim, before []PodClaim) (*resourceapi.ResourceClaim, error) {
	const notCreated = "ResourceClaim not created yet"
	words := fmt.Sprintf("pod %q: %s", pod.Namespace+"/"+pod.Name, notCreated)
	template := c.Templates[types.NamespacedName{Namespace: pod.Namespace, Name: *named.ResourceClaimTemplateName}]
	if template == nil {
		return nil, refusal(words, "ResourceClaimTemplate %s/%s does not exist: create it", pod.Namespace, *named.ResourceClaimTemplateName)
	}
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourceapi.PodResourceClaimAnnotation] = named.Name
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: c.freeName(pod.Namespace, pod.Name+"-"+named.Name),
			Labels: maps.Clone(template.Spec.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
	defaultUID("claim", claim)
	if err := c.admit(claim, before); err != nil {
		return nil, refusal(words, "%s", err.Error())
	}
	return claim, nil
}

// freeName returns a name that no claim has yet.
func (c *Cluster) freeName(namespace, base string) string {
	name := base
	for i := 1; c.Claims[types.NamespacedName{Namespace: namespace, Name: name}] != nil; i++ {
		name = fmt.Sprintf("%s-%d", base, i)
	}
	return name
}

// admit says why the API server would refuse a new claim: administrators' access outside of their namespaces, or a quota. Claims that the
// same pod gets before it count.
func (c *Cluster) admit(claim *resourceapi.ResourceClaim, before []PodClaim) error {
	if wantsAdminAccess(&claim.Spec) && !c.adminNamespace(claim.Namespace) {
		return fmt.Errorf("the API server refuses adminAccess in namespace %s: want its label %s: \"true\"",
			claim.Namespace, resourceapi.DRAAdminNamespaceLabelKey)
	}
	return c.withinQuota(claim, before)
}

func wantsAdminAccess(spec *resourceapi.ResourceClaimSpec) bool {
	return slices.ContainsFunc(spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && ptr.Deref(r.Exactly.AdminAccess, false)
	})
}

func (c *Cluster) adminNamespace(name string) bool {
	namespace := c.Namespaces[name]
	return namespace != nil && namespace.Labels[resourceapi.DRAAdminNamespaceLabelKey] == "true"
}
