// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/convert/peak"
)

// cacheUser is a container with what it mounts of caches.
type cacheUser struct {
	node  *node
	title string
	// caches are where it has them, in the order of the volumes.
	caches []v1alpha1.KernelCacheSource
	// access is how its pod can have them, so that it may add to them.
	access v1alpha1.CacheAccess
	// gpus are the requests for the GPUs that it asked for as resources.
	gpus []resourceapi.DeviceRequest
	// phase is when it runs.
	phase peak.Phase
}

// cachePods converts a pod's spec, and says whether it did. It gives the template of its claim, unless caches keep their volumes.
func (c *conversion) cachePods(w *workload) (template []byte, changed bool, err error) {
	volumes, err := c.caches.volumesOf(w)
	if err != nil || len(volumes) == 0 {
		return nil, false, err
	}
	if c.options.KernelCacheVolumes {
		return nil, c.caches.keepVolumes(w, volumes), nil
	}
	c.caches.rename(w)
	c.caches.dropPermissions(w, volumes)
	users, err := c.cacheUsers(w, volumes)
	if err == nil {
		err = c.shareOfCaches(w, users)
	}
	if err != nil {
		return nil, false, err
	}
	if len(users) == 0 {
		names := strings.Join(slices.Sorted(maps.Keys(volumes)), ", ")
		return nil, false, fmt.Errorf("%s: no container mounts its volumes of caches: %s", w.title, names)
	}
	list := child(w.spec, "volumes")
	list.Content = slices.DeleteFunc(list.Content, func(v *node) bool { return volumes[value(v, "name")] != nil })
	if len(list.Content) == 0 {
		removeKey(w.spec, "volumes")
	}
	if unlabel(w) {
		c.notef("%s: the label %s is left out: no volume is looked for", w.title, mutationLabel)
	}
	c.dropRuntime(w, users)
	if value(w.spec, "nodeName") != "" {
		c.notef("%s: nodeName passes by the scheduler, which allocates claims: use a nodeSelector", w.title)
	}
	template, err = c.cacheTemplate(w, users)
	return template, true, err
}

// unlabel takes the label of the older webhook away, unless a selector counts on it. It says whether it did.
func unlabel(w *workload) bool {
	labels := child(w.meta, "labels")
	selector := child(child(child(w.object, "spec"), "selector"), "matchLabels")
	if child(labels, mutationLabel) == nil || child(selector, mutationLabel) != nil {
		return false
	}
	removeKey(labels, mutationLabel)
	if len(labels.Content) == 0 {
		removeKey(w.meta, "labels")
	}
	return true
}

// cacheUsers are the containers that mount caches, without those mounts.
func (c *conversion) cacheUsers(w *workload, volumes map[string]*oldCache) ([]*cacheUser, error) {
	var users []*cacheUser
	var faults []error
	access := v1alpha1.CacheAccessOverlay
	if value(w.spec, "hostUsers") == "false" {
		access = v1alpha1.CacheAccessSeed
	}
	for _, list := range []string{"initContainers", "containers"} {
		for i, n := range items(child(w.spec, list)) {
			u := &cacheUser{node: n, access: access, phase: phaseOf(list, n), title: fmt.Sprintf("%s: %s[%d]", w.title, list, i)}
			if name := value(n, "name"); name != "" {
				u.title = w.title + ": container " + clip(name)
			}
			if err := c.takeMounts(u, volumes); err != nil {
				faults = append(faults, err)
			} else if len(u.caches) > 0 {
				_, err := c.takeGPUs(u)
				faults = append(faults, err)
				users = append(users, u)
			}
		}
	}
	return users, errors.Join(faults...)
}

// takeMounts takes a container's mounts of caches.
func (c *conversion) takeMounts(u *cacheUser, volumes map[string]*oldCache) error {
	list := child(u.node, "volumeMounts")
	var kept []*node
	var faults []error
	for _, m := range items(list) {
		cache := volumes[value(m, "name")]
		if cache == nil {
			kept = append(kept, m)
			continue
		}
		source := v1alpha1.KernelCacheSource{Name: cache.name, Kind: cache.kind, MountPath: path.Clean(value(m, "mountPath"))}
		switch {
		case value(m, "subPath") != "" || value(m, "subPathExpr") != "":
			faults = append(faults, fmt.Errorf("%s: volumeMounts %s: subPath: a claim mounts a cache whole: mount it without",
				u.title, value(m, "name")))
		case slices.ContainsFunc(u.caches, func(k v1alpha1.KernelCacheSource) bool { return k.Kind == source.Kind && k.Name == source.Name }):
			faults = append(faults, fmt.Errorf("%s: volumeMounts %s: %s is mounted twice, and a claim has it once: leave one",
				u.title, value(m, "name"), cache.was))
		}
		if value(m, "readOnly") == "true" {
			c.notef("%s: readOnly of %s is left out: programs end with an error where they miss a kernel and cannot add it, so each claim "+
				"has %s of its own; what is written goes with the claim", u.title, source.MountPath, accessText()[u.access])
		}
		source.Access = u.access
		u.caches = append(u.caches, source)
	}
	if len(u.caches) == 0 {
		return nil
	}
	if list.Content = kept; len(kept) == 0 {
		removeKey(u.node, "volumeMounts")
	}
	return errors.Join(faults...)
}

// accessText names what a claim has of its own.
func accessText() map[v1alpha1.CacheAccess]string {
	return map[v1alpha1.CacheAccess]string{v1alpha1.CacheAccessOverlay: "an overlay", v1alpha1.CacheAccessSeed: "a seed"}
}

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
	first := []string{}
	requests, notes := requestsOf(group)
	c.notesOf(w.title, notes)
	for _, r := range requests {
		name := addRequest(devices, r.DeviceRequest)
		first = append(first, name)
		for _, i := range r.users {
			names[i] = append(names[i], name)
		}
	}
	c.apart(devices, group, requests, first)
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
