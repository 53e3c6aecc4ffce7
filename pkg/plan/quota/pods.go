// SPDX-License-Identifier: Apache-2.0

package quota

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
)

func podKey(namespace, name, uid string) string { return namespace + "/" + name + "/" + uid }

func podsByUID(pods []*corev1.Pod) map[string]*corev1.Pod {
	out := map[string]*corev1.Pod{}
	for _, pod := range pods {
		out[podKey(pod.Namespace, pod.Name, string(pod.UID))] = pod
	}
	return out
}

// extended returns what a pod requests of extended resources that are devices.
func (r rules) extended(pod *corev1.Pod) charges {
	out := charges{}
	for name, q := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if r.classOf[name] != nil && !q.IsZero() {
			out[name] = q.Value()
		}
	}
	return out
}

// item is an object that was asked about: what the API server would charge, one object after the other.
type item struct {
	namespace, object string
	steps             []step
}

// step is an object that the API server charges: the one that was asked about, or a claim that it brings along.
type step struct {
	object string
	charges
}

// itemsOf returns what was asked about: claims, then pods with the claims that are made for them, then templates that no pod names.
func itemsOf(asked, snapshot *plan.Snapshot, r rules) []item {
	var out []item
	for _, claim := range asked.Claims {
		object := "ResourceClaim " + claim.Namespace + "/" + claim.Name
		out = append(out, item{claim.Namespace, object, []step{{object, r.claim(&claim.Spec, nil)}}})
	}
	templates := map[[2]string]*resourceapi.ResourceClaimTemplate{}
	for _, list := range [][]*resourceapi.ResourceClaimTemplate{snapshot.Templates, asked.Templates} {
		for _, t := range list {
			templates[[2]string{t.Namespace, t.Name}] = t
		}
	}
	named := map[[2]string]bool{}
	for _, pod := range asked.Pods {
		out = append(out, r.podItem(pod, templates, named))
	}
	for _, t := range asked.Templates {
		if !named[[2]string{t.Namespace, t.Name}] {
			object := "ResourceClaimTemplate " + t.Namespace + "/" + t.Name
			out = append(out, item{t.Namespace, object, []step{{"a claim of " + object, r.claim(&t.Spec.Spec, nil)}}})
		}
	}
	return out
}

// podItem returns what a pod would be charged, with the claims that are made of its templates and for its extended resources. It marks the
// templates that it names.
func (r rules) podItem(pod *corev1.Pod, templates map[[2]string]*resourceapi.ResourceClaimTemplate, named map[[2]string]bool) item {
	out := item{namespace: pod.Namespace, object: "Pod " + pod.Namespace + "/" + pod.Name}
	own := plan.PodCharge(pod, r.classOf)
	out.steps = append(out.steps, step{out.object, whole(own)})
	for _, reference := range pod.Spec.ResourceClaims {
		if reference.ResourceClaimTemplateName == nil {
			continue
		}
		key := [2]string{pod.Namespace, *reference.ResourceClaimTemplateName}
		named[key] = true
		if t := templates[key]; t != nil {
			out.steps = append(out.steps, step{"claim " + reference.Name + " of " + out.object, r.claim(&t.Spec.Spec, nil)})
		}
	}
	if extended := r.extended(pod); len(extended) > 0 {
		spec := resourceapi.ResourceClaimSpec{}
		for name, n := range extended {
			spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: r.classOf[name].Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: n,
				},
			})
		}
		out.steps = append(out.steps, step{"the claim for extended resources of " + out.object, r.claim(&spec, own)})
	}
	return out
}
