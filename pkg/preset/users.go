// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// requestKey names a request of a claim, by the index of the claim in the input.
type requestKey struct {
	claim   int
	request string
}

// usersOf returns the containers of the pod that use each request, including init containers. It returns nil without a pod.
func usersOf(in Input) map[requestKey][]*corev1.Container {
	if in.Pod == nil {
		return nil
	}
	users := map[requestKey][]*corev1.Container{}
	for i := range in.Claims {
		for _, container := range containersOf(in.Pod) {
			used := slices.Clone(requestsOf(in.Pod, container, &in.Claims[i]))
			slices.Sort(used)
			for _, request := range slices.Compact(used) {
				key := requestKey{i, request}
				users[key] = append(users[key], container)
			}
		}
	}
	return users
}

// Containers lists the names of the containers of a pod that use a request of the claim, init containers first.
func Containers(pod *corev1.Pod, c *Claim, request string) []string {
	var out []string
	for _, container := range containersOf(pod) {
		if slices.Contains(requestsOf(pod, container, c), request) {
			out = append(out, container.Name)
		}
	}
	return out
}

func containersOf(pod *corev1.Pod) []*corev1.Container {
	var out []*corev1.Container
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

// requestsOf lists the requests of the claim that a container uses: those that it names, all if it names the claim, or those that its
// extended resources became.
func requestsOf(pod *corev1.Pod, container *corev1.Container, c *Claim) []string {
	var out []string
	for _, use := range container.Resources.Claims {
		if claimOfEntry(pod, use.Name) != c.Name {
			continue
		}
		if use.Request == "" {
			return c.requests()
		}
		out = append(out, use.Request)
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName == c.Name {
		for _, mapping := range s.RequestMappings {
			if mapping.ContainerName == container.Name {
				out = append(out, mapping.RequestName)
			}
		}
	}
	return out
}

// claimOfEntry returns the ResourceClaim that an entry of the pod stands for, or "" if it does not exist yet.
func claimOfEntry(pod *corev1.Pod, entry string) string {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == entry && s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.Name == entry && c.ResourceClaimName != nil {
			return *c.ResourceClaimName
		}
	}
	return ""
}

// shareContainer reports whether a container may have both requests. Without a pod any container may.
func (r *resolver) shareContainer(a, b requestKey) bool {
	if a == b || r.users == nil {
		return true
	}
	return slices.ContainsFunc(r.users[a], func(c *corev1.Container) bool { return slices.Contains(r.users[b], c) })
}

// groupsOf groups the requests that containers use together, also by a chain of containers. One container stands for each group. Within a
// group a variable has one value: a request is injected into all its containers unchanged, so any two requests of one container must agree.
func groupsOf(users map[requestKey][]*corev1.Container) map[requestKey]*corev1.Container {
	parent := map[*corev1.Container]*corev1.Container{}
	top := func(c *corev1.Container) *corev1.Container {
		for parent[c] != nil {
			c = parent[c]
		}
		return c
	}
	for _, containers := range users {
		for _, c := range containers[1:] {
			if a, b := top(containers[0]), top(c); a != b {
				parent[b] = a
			}
		}
	}
	groups := map[requestKey]*corev1.Container{}
	for key, containers := range users {
		groups[key] = top(containers[0])
	}
	return groups
}

// inGroup reports whether one of the requests is in the group of key. Without a pod all are.
func (r *resolver) inGroup(key requestKey, others []requestKey) bool {
	return slices.ContainsFunc(others, func(o requestKey) bool {
		return o == key || r.users == nil || r.groups[key] != nil && r.groups[key] == r.groups[o]
	})
}

// ClaimsOf lists the names of all claims of a pod, sorted.
func ClaimsOf(pod *corev1.Pod) []string {
	var names []string
	for _, entry := range pod.Spec.ResourceClaims {
		if name := claimOfEntry(pod, entry.Name); name != "" {
			names = append(names, name)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// OfClaim converts an allocated claim. published finds a device of the driver as it is published now, or returns nil.
func OfClaim(c *resourceapi.ResourceClaim, driver string, owned bool, published func(pool, name string) *resourceapi.Device) Claim {
	out := Claim{ResourceClaim: c, Owned: owned}
	if c.Status.Allocation == nil {
		return out
	}
	classes := askedBy(c)
	for _, result := range c.Status.Allocation.Devices.Results {
		class := classes[result.Request]
		if class != "" && !slices.Contains(out.Classes, class) {
			out.Classes = append(out.Classes, class)
		}
		if result.Driver != driver {
			continue
		}
		d := Device{Request: resourceclaim.BaseRequestRef(result.Request), Class: class}
		if p := published(result.Pool, result.Device); p != nil {
			d.Attributes, d.Capacity = p.Attributes, p.Capacity
		}
		out.Devices = append(out.Devices, d)
	}
	return out
}

// askedBy returns the class that each request asked for, by the whole name of an alternative.
func askedBy(c *resourceapi.ResourceClaim) map[string]string {
	classes := map[string]string{}
	for _, request := range c.Spec.Devices.Requests {
		if request.Exactly != nil {
			classes[request.Name] = request.Exactly.DeviceClassName
		}
		for _, alternative := range request.FirstAvailable {
			classes[request.Name+"/"+alternative.Name] = alternative.DeviceClassName
		}
	}
	return classes
}

// requests lists the requests of a claim that hold a device of the driver, sorted.
func (c *Claim) requests() []string {
	var out []string
	for i := range c.Devices {
		out = append(out, c.Devices[i].Request)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
