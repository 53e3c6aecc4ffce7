// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// at is a request of a claim, by the claim's place in the input.
type at struct {
	claim   int
	request string
}

// usersOf says which containers of the pod use each request, init containers included. It is nil without a pod.
func usersOf(in Input) map[at][]*corev1.Container {
	if in.Pod == nil {
		return nil
	}
	users := map[at][]*corev1.Container{}
	for i := range in.Claims {
		c := &in.Claims[i]
		for _, container := range containersOf(in.Pod) {
			for _, request := range requestsOf(in.Pod, container, c) {
				key := at{i, request}
				if !slices.Contains(users[key], container) {
					users[key] = append(users[key], container)
				}
			}
		}
	}
	return users
}

// Containers are the names of the containers of a pod that use a request of the claim, init containers first.
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

// requestsOf are the requests of the claim that a container uses: those that it names, or all where it names the claim, or those that
// its extended resources became.
func requestsOf(pod *corev1.Pod, container *corev1.Container, c *Claim) []string {
	var out []string
	for _, use := range container.Resources.Claims {
		if claimOf(pod, use.Name) != c.Name {
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

// claimOf is the ResourceClaim that an entry of the pod stands for; empty where there is none yet.
func claimOf(pod *corev1.Pod, entry string) string {
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

// meet says whether a container may have both requests. Without a pod any may.
func (r *resolver) meet(a, b at) bool {
	if a == b || r.users == nil {
		return true
	}
	return slices.ContainsFunc(r.users[a], func(c *corev1.Container) bool { return slices.Contains(r.users[b], c) })
}

// groupsOf joins the requests that containers use together, be it by a chain of them, under one container that stands for the group.
// Within a group a variable has one value: a request is injected into all its containers as it is, so whatever two requests of one
// container say, they have to say the same.
func groupsOf(users map[at][]*corev1.Container) map[at]*corev1.Container {
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
	groups := map[at]*corev1.Container{}
	for key, containers := range users {
		groups[key] = top(containers[0])
	}
	return groups
}

// grouped says whether any of the requests is in the group of another. Without a pod all are.
func (r *resolver) grouped(key at, others []at) bool {
	return slices.ContainsFunc(others, func(o at) bool {
		return o == key || r.users == nil || r.groups[key] != nil && r.groups[key] == r.groups[o]
	})
}

// ClaimsOf are the names of all claims that a pod has, sorted.
func ClaimsOf(pod *corev1.Pod) []string {
	var names []string
	for _, entry := range pod.Spec.ResourceClaims {
		if name := claimOf(pod, entry.Name); name != "" {
			names = append(names, name)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
