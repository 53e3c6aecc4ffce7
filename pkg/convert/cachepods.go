// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
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
}

// claimMount is where a container of the input has a claim whole.
type claimMount struct{ namespace, claim, path string }

// reserveMounts notes where the containers of an object mount claims, before anything is converted: caches may stand before pods.
func (c *conversion) reserveMounts(n *node) {
	w, err := c.workloadOf(n)
	if err != nil || w == nil {
		return // object says it
	}
	claims := map[string]string{}
	for _, v := range items(child(w.spec, "volumes")) {
		if claim := value(child(v, "persistentVolumeClaim"), "claimName"); claim != "" {
			claims[value(v, "name")] = claim
		}
	}
	for _, container := range items(child(w.spec, "containers")) {
		for _, m := range items(child(container, "volumeMounts")) {
			if claim := claims[value(m, "name")]; claim != "" && value(m, "subPath")+value(m, "subPathExpr") == "" {
				c.mounts = append(c.mounts, claimMount{cmp.Or(w.namespace, c.options.Namespace), claim, path.Clean(value(m, "mountPath"))})
			}
		}
	}
}

// placeCaches tells the caches where they are mounted.
func (c *conversion) placeCaches() {
	for _, m := range c.mounts {
		if cache := c.cacheOf(m.namespace, m.claim); cache != nil {
			cache.paths = append(cache.paths, m.path)
			slices.Sort(cache.paths)
			cache.paths = slices.Compact(cache.paths)
		}
	}
}

// cachePods converts a pod's spec, and says whether it did. It gives the template of its claim, unless caches keep their volumes.
func (c *conversion) cachePods(w *workload) (template []byte, changed bool, err error) {
	volumes, err := c.cacheVolumes(w)
	if err != nil || len(volumes) == 0 {
		return nil, false, err
	}
	if c.options.KernelCacheVolumes {
		return nil, c.keepVolumes(w, volumes), nil
	}
	c.rename(w)
	c.dropPermissions(w, volumes)
	users, err := c.cacheUsers(w, volumes)
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
	c.unlabel(w)
	if value(w.spec, "nodeName") != "" {
		c.notef("%s: nodeName passes by the scheduler, which allocates claims: use a nodeSelector", w.title)
	}
	template, err = c.cacheTemplate(w, users)
	return template, true, err
}

// cacheVolumes are a pod's volumes of caches, by their name in the pod.
func (c *conversion) cacheVolumes(w *workload) (map[string]*oldCache, error) {
	volumes := map[string]*oldCache{}
	list := child(w.spec, "volumes")
	if !isNull(list) && !isSequence(list) {
		return nil, fmt.Errorf("%s: volumes: expected a list", w.title)
	}
	namespace := cmp.Or(w.namespace, c.options.Namespace)
	for _, v := range items(list) {
		claim := value(child(v, "persistentVolumeClaim"), "claimName")
		if claim == "" {
			continue
		}
		if cache := c.cacheOf(namespace, claim); cache != nil {
			volumes[value(v, "name")] = cache
			continue
		}
		c.strayClaim(w, namespace, claim)
	}
	return volumes, nil
}

// strayClaim says that a claim's name is that of no cache, where it was perhaps meant to be.
func (c *conversion) strayClaim(w *workload, namespace, claim string) {
	if c.claims[namespace+"/"+claim] || len(c.caches) == 0 && value(child(w.meta, "labels"), mutationLabel) != "true" {
		return
	}
	var near []string
	for _, key := range slices.Sorted(maps.Keys(c.caches)) {
		if cache := c.caches[key]; slices.Contains(cache.namespaces, namespace) {
			near = append(near, cache.was)
		}
	}
	hint := "no cache of the input is for the namespace"
	if len(near) > 0 {
		hint = "for the namespace there are " + strings.Join(near, ", ")
	}
	c.notef("%s: claimName %s is no cache's of the input in namespace %s, and left as it is: %s", w.title, clip(claim), namespace, hint)
}

// keepVolumes leaves a pod as it is, but for names that Kubernetes would not take.
func (c *conversion) keepVolumes(w *workload, volumes map[string]*oldCache) bool {
	changed := c.rename(w)
	for _, v := range child(w.spec, "volumes").Content {
		cache := volumes[value(v, "name")]
		if cache == nil || cache.name == cache.was {
			continue
		}
		child(child(v, "persistentVolumeClaim"), "claimName").Value = cache.name
		changed = true
	}
	for _, n := range items(child(w.spec, "initContainers")) {
		if onlyPermissions(n, mountedAt(n, volumes)) {
			c.notef("%s: container %s is not needed: the cache's files may be read by anybody", w.title, clip(value(n, "name")))
		}
	}
	return changed
}

// rename gives the object a name that Kubernetes takes.
func (c *conversion) rename(w *workload) bool {
	legal := legalName(w.name)
	name := child(child(w.object, "metadata"), "name")
	if legal == w.name || !isScalar(name) {
		return false
	}
	c.renamed(w.title, "name", w.name, legal)
	name.Value, w.name = legal, legal
	return true
}

// unlabel takes the label of the older webhook away, unless a selector counts on it.
func (c *conversion) unlabel(w *workload) {
	labels := child(w.meta, "labels")
	selector := child(child(child(w.object, "spec"), "selector"), "matchLabels")
	if child(labels, mutationLabel) == nil || child(selector, mutationLabel) != nil {
		return
	}
	removeKey(labels, mutationLabel)
	if len(labels.Content) == 0 {
		removeKey(w.meta, "labels")
	}
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
			u := &cacheUser{node: n, access: access, title: fmt.Sprintf("%s: %s[%d]", w.title, list, i)}
			if name := value(n, "name"); name != "" {
				u.title = w.title + ": container " + clip(name)
			}
			if err := c.takeMounts(u, volumes); err != nil {
				faults = append(faults, err)
			} else if len(u.caches) > 0 {
				faults = append(faults, c.takeGPUs(u))
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
