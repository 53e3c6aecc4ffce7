// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// takeGPUs makes requests of the GPUs that a container asks for as resources: the cache has to fit them, so they are the claim's.
func (c *conversion) takeGPUs(u *cacheUser) error {
	resources := child(u.node, "resources")
	asked := map[string]string{}
	for _, key := range []string{"requests", "limits"} {
		list := child(resources, key)
		for _, p := range pairs(list) {
			if gpuResource(p.key.Value) != nil {
				asked[p.key.Value] = p.value.Value
			}
		}
		isGPU := func(name string) bool { return gpuResource(name) != nil }
		if remove(list, isGPU); isMapping(list) && len(list.Content) == 0 {
			removeKey(resources, key)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		count, err := wholeQuantity(asked[name], maxRegions, "GPUs")
		if err != nil {
			return fmt.Errorf("%s: resource %s: %w", u.title, clip(name), err)
		}
		if count == 0 {
			continue
		}
		r := gpuResource(name)
		u.gpus = append(u.gpus, resourceapi.DeviceRequest{Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: c.options.GPUClass, Selectors: []resourceapi.DeviceSelector{attributeIs(r.attribute, r.value)},
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count),
		}})
		c.notef("%s: resource %s is a request of the claim now, for %d of class %s with %s %s", u.title, clip(name), count,
			c.options.GPUClass, r.attribute, r.value)
		if strings.HasSuffix(r.name, "-") {
			c.notef("%s: %s named a profile: add a selector for it to the template", u.title, clip(name))
		}
	}
	return nil
}

// gpuResource is what is known of a resource that is a GPU. Nil: it is none.
func gpuResource(name string) *resourceClass {
	for _, r := range resourceClasses() {
		if string(r.kind)+"."+v1alpha1.DriverName == DefaultGPUClass && r.matches(name) {
			return &r
		}
	}
	return nil
}

// cacheTemplate makes the claim's template, and has the containers name its requests. Containers that have the same caches at the same
// paths share the GPUs of those among them that asked for some.
func (c *conversion) cacheTemplate(w *workload, users []*cacheUser) ([]byte, error) {
	if faults := validation.IsDNS1123Subdomain(w.name); len(faults) > 0 {
		return nil, fmt.Errorf("%s: metadata.name: %s", w.title, faults[0])
	}
	name, claim := c.templateName(w, "-gpu"), freeClaimName(w.spec, "gpu")
	t := resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace},
	}
	devices := &t.Spec.Spec.Devices
	for _, group := range cacheGroups(users) {
		if err := c.cacheGroup(w, devices, claim, group); err != nil {
			return nil, err
		}
	}
	if len(devices.Requests) > maxRegions {
		return nil, fmt.Errorf("%s: %d requests, expected at most %d in a pod", w.title, len(devices.Requests), maxRegions)
	}
	entry, err := nodeOf(corev1.PodResourceClaim{Name: claim, ResourceClaimTemplateName: &name})
	if err == nil {
		err = extend(w.spec, "resourceClaims", []*node{entry})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.title, err)
	}
	return renderTemplate(t)
}

// cacheGroups are the containers that have the same caches at the same paths, in the order of the pod.
func cacheGroups(users []*cacheUser) [][]*cacheUser {
	var groups [][]*cacheUser
	for _, u := range users {
		at := slices.IndexFunc(groups, func(g []*cacheUser) bool { return slices.Equal(g[0].caches, u.caches) })
		if at < 0 {
			groups = append(groups, nil)
			at = len(groups) - 1
		}
		groups[at] = append(groups[at], u)
	}
	return groups
}

// cacheGroup adds the requests and the configuration of a group.
func (c *conversion) cacheGroup(w *workload, devices *resourceapi.DeviceClaim, claim string, group []*cacheUser) error {
	config := v1alpha1.GPUConfig{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUConfig"}, KernelCaches: group[0].caches,
	}
	if faults := config.Validate(false, field.NewPath("")); len(faults) > 0 {
		return fmt.Errorf("%s: %w", group[0].title, faults.ToAggregate())
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("%s: %w", w.title, err)
	}
	names := map[*cacheUser][]string{}
	var first []string
	add := func(u *cacheUser, request resourceapi.DeviceRequest) {
		if request.Name = "gpu"; len(devices.Requests) > 0 {
			request.Name = fmt.Sprintf("gpu-%d", len(devices.Requests)+1)
		}
		devices.Requests = append(devices.Requests, request)
		names[u] = append(names[u], request.Name)
		first = append(first, request.Name)
	}
	for _, u := range group {
		for _, request := range u.gpus {
			add(u, request)
		}
	}
	if len(first) == 0 {
		add(nil, resourceapi.DeviceRequest{Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: c.options.GPUClass}})
		c.notef("%s: it asks for no GPU: its claim asks for one of class %s, which the cache is compared with", group[0].title,
			c.options.GPUClass)
	}
	devices.Config = append(devices.Config, resourceapi.DeviceClaimConfiguration{
		Requests: first,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: raw},
		}},
	})
	var faults []error
	for _, u := range group {
		mine := names[u]
		if len(mine) == 0 {
			mine = first[:1]
		}
		if err := nameRequests(u.node, claim, mine); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", u.title, err))
		}
	}
	return errors.Join(faults...)
}

// nameRequests has a container use requests of a claim.
func nameRequests(n *node, claim string, requests []string) error {
	resources, err := mapping(n, "resources")
	if err != nil {
		return err
	}
	var entries []*node
	for _, request := range requests {
		entry, err := nodeOf(corev1.ResourceClaim{Name: claim, Request: request})
		if err != nil {
			return err
		}
		entries = append(entries, entry)
	}
	return extend(resources, "claims", entries)
}
