// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// cacheTemplate makes the claim's template, and has the containers name its requests. Containers that have the same caches at the same
// paths share the GPUs of those among them that asked for some.
func (c *conversion) cacheTemplate(w *workload, users []*cacheUser) ([]byte, error) {
	return c.ownTemplate(w, func(devices *resourceapi.DeviceClaim, claim string) error {
		for _, group := range cacheGroups(users) {
			if err := c.cacheGroup(w, devices, claim, group); err != nil {
				return err
			}
		}
		return nil
	})
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
	names := make([][]string, len(group))
	var first []string
	requests, notes := requestsOf(group)
	c.notesOf(w.title, notes)
	for _, r := range requests {
		name := addRequest(devices, r.DeviceRequest)
		first = append(first, name)
		for _, i := range r.users {
			names[i] = append(names[i], name)
		}
	}
	if len(first) == 0 {
		first = append(first, addRequest(devices, resourceapi.DeviceRequest{
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: c.options.GPUClass},
		}))
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
	for i, u := range group {
		mine := names[i]
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
