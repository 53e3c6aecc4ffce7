// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

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

// claimMount is where a container of the input has a claim whole.
type claimMount struct{ namespace, claim, path string }

// reserveMounts notes where the containers of an object mount claims, before anything is converted: caches may stand before pods.
func (c *conversion) reserveMounts(n *node) {
	w, err := workloadOf(n)
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

// keepVolumes leaves a pod as it is, but for names that Kubernetes would not take, and for containers that take the volume from the Job
// that fills it: files that belong to another user keep the Job from writing.
func (c *conversion) keepVolumes(w *workload, volumes map[string]*oldCache) bool {
	changed := c.rename(w)
	changed = c.dropPermissions(w, volumes) || changed
	for _, v := range child(w.spec, "volumes").Content {
		cache := volumes[value(v, "name")]
		if cache == nil {
			continue
		}
		if cache.perNode && (value(w.object, "kind") != "DaemonSet" || value(child(w.meta, "labels"), mutationLabel) != "true") {
			c.notef("%s: cache %s has a volume for each node, and only pods of DaemonSets with the label %s: \"true\" get that of their node "+
				"by the name of the cache: write claimName %s-NODE, give the cache accessModes with ReadOnlyMany, or convert to claims",
				w.title, cache.name, mutationLabel, cache.name)
		}
		if cache.name == cache.was {
			continue
		}
		child(child(v, "persistentVolumeClaim"), "claimName").Value = cache.name
		changed = true
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

// permissionLine is a command that changes owner or mode of files, and nothing else.
var permissionLine = regexp.MustCompile(`^(?:chown|chmod)(?: -[A-Za-z]+)* [0-9A-Za-z:+=,-]+((?: /[A-Za-z0-9._/-]+)+)$`)

// dropPermissions removes the init containers that only make a volume readable: files of a cache are readable by anybody. It says whether
// there were any.
func (c *conversion) dropPermissions(w *workload, volumes map[string]*oldCache) bool {
	list := child(w.spec, "initContainers")
	var kept []*node
	for _, n := range items(list) {
		if !onlyPermissions(n, mountedAt(n, volumes)) {
			kept = append(kept, n)
			continue
		}
		c.notef("%s: init container %s is left out: it only set owner and mode of the cache's files, which anybody may read", w.title,
			clip(value(n, "name")))
	}
	if len(kept) == len(items(list)) {
		return false
	}
	if list.Content = kept; len(kept) == 0 {
		removeKey(w.spec, "initContainers")
	}
	return true
}

// mountedAt are the paths at which a container has caches.
func mountedAt(n *node, volumes map[string]*oldCache) []string {
	var paths []string
	for _, m := range items(child(n, "volumeMounts")) {
		if volumes[value(m, "name")] != nil {
			paths = append(paths, path.Clean(value(m, "mountPath")))
		}
	}
	return paths
}

// onlyPermissions says that all that a container does is to change owner and mode of files below paths.
func onlyPermissions(n *node, below []string) bool {
	var words []string
	for _, key := range []string{"command", "args"} {
		for _, word := range items(child(n, key)) {
			words = append(words, word.Value)
		}
	}
	lines := []string{strings.Join(words, " ")}
	if len(words) == 3 && slices.Contains([]string{"sh", "/bin/sh", "bash", "/bin/bash"}, words[0]) && words[1] == "-c" {
		lines = strings.FieldsFunc(strings.ReplaceAll(words[2], "&&", "\n"), func(r rune) bool { return r == '\n' || r == ';' })
	}
	found := false
	for _, line := range lines {
		line = strings.Join(strings.Fields(line), " ")
		if line == "" || line == "set -e" || strings.HasPrefix(line, "#") {
			continue
		}
		m := permissionLine.FindStringSubmatch(line)
		if m == nil || !allBelow(strings.Fields(m[1]), below) {
			return false
		}
		found = true
	}
	return found
}

// allBelow says that each path is one of the directories or in it.
func allBelow(paths, directories []string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool {
		p = path.Clean(p)
		return !slices.ContainsFunc(directories, func(d string) bool { return p == d || strings.HasPrefix(p, strings.TrimSuffix(d, "/")+"/") })
	})
}
