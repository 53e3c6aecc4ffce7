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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// The older API of caches.
const (
	oldCachePrefix      = "gkm.io/"
	oldCacheKind        = "GKMCache"
	oldClusterCacheKind = "ClusterGKMCache"
	signatureLabel      = oldCachePrefix + "signature-format"
	mutationLabel       = oldCachePrefix + "pvc-mutation"
)

// oldCache is a cache of the input, as pods find it.
type oldCache struct {
	// kind and name are those of the object that it becomes, was is the name that it had.
	kind, name, was string
	// perNode says that it has a volume for each node, where it has volumes.
	perNode bool
	// namespaces are those whose pods may have it.
	namespaces []string
	// paths are where containers of the input mount it, sorted.
	paths []string
}

// oldCacheObject is an object of either kind.
type oldCacheObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Image              string                              `json:"image"`
		PodTemplate        *v1alpha1.CachePodTemplate          `json:"podTemplate"`
		StorageClassName   *string                             `json:"storageClassName"`
		AccessModes        []corev1.PersistentVolumeAccessMode `json:"accessModes"`
		WorkloadNamespaces []string                            `json:"workloadNamespaces"`
	} `json:"spec"`
	Status any `json:"status"`
}

// isOldCache says whether an object is one. The kinds that only tell of nodes are none.
func isOldCache(n *node) (bool, error) {
	apiVersion := value(n, "apiVersion")
	version, ok := strings.CutPrefix(apiVersion, oldCachePrefix)
	if kind := value(n, "kind"); !ok || kind != oldCacheKind && kind != oldClusterCacheKind {
		return false, nil
	}
	if version != "v1alpha1" {
		return false, fmt.Errorf("%s: apiVersion %.80q: expected %sv1alpha1", titleOf(n), apiVersion, oldCachePrefix)
	}
	return true, nil
}

// oldCaches are the caches of the input, and where its pods mount them.
type oldCaches struct {
	*notes
	options Options
	// byName has the caches, NAMESPACE/NAME or /NAME.
	byName map[string]*oldCache
	// claims are the PersistentVolumeClaims of the input.
	claims map[string]bool
	// mounts are where containers of the input have claims.
	mounts []claimMount
}

// reserve notes a cache of the input before anything is converted: pods may stand before it.
func (c *oldCaches) reserve(n *node) (faults []error) {
	if is, err := isOldCache(n); err != nil || !is {
		return nil // object says it
	}
	was := value(child(n, "metadata"), "name")
	cache := &oldCache{kind: v1alpha1.KindGPUKernelCache, was: was, name: legalName(was)}
	cache.namespaces = []string{namespaceOf(n, c.options.Namespace)}
	cache.perNode = !slices.ContainsFunc(items(child(child(n, "spec"), "accessModes")), func(mode *node) bool {
		return mode.Value == string(corev1.ReadOnlyMany)
	})
	key := cache.namespaces[0] + "/" + was
	if value(n, "kind") == oldClusterCacheKind {
		cache.kind, cache.namespaces, key = v1alpha1.KindClusterGPUKernelCache, nil, "/"+was
		if list := child(child(n, "spec"), "workloadNamespaces"); isSequence(list) {
			for _, namespace := range list.Content {
				cache.namespaces = append(cache.namespaces, namespace.Value)
			}
		}
	}
	for other, known := range c.byName {
		if other != key && known.kind == cache.kind && known.name == cache.name && strings.HasSuffix(other, "/"+known.was) &&
			strings.TrimSuffix(other, known.was) == strings.TrimSuffix(key, was) {
			faults = append(faults, fmt.Errorf("%s: %s would have its name, %s: rename one", titleOf(n), known.was, cache.name))
		}
	}
	c.byName[key] = cache
	return faults
}

// of is the cache whose volume a claim's name means in a namespace: the namespace's own before one of the cluster. Nil: none.
func (c *oldCaches) of(namespace, claim string) *oldCache {
	if cache := c.byName[namespace+"/"+claim]; cache != nil {
		return cache
	}
	if cache := c.byName["/"+claim]; cache != nil && slices.Contains(cache.namespaces, namespace) {
		return cache
	}
	return nil
}

// legalName makes a name that Kubernetes takes of one that it does not.
func legalName(name string) string {
	legal := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-', r == '.':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '-'
		}
	}, name)
	return strings.Trim(legal, "-.")
}

// convert converts one cache.
func (c *oldCaches) convert(n *node) ([]byte, error) {
	title := titleOf(n)
	var from oldCacheObject
	if err := readStrict(n, &from); err != nil {
		return nil, fmt.Errorf("%s: %w", title, err)
	}
	meta, err := c.metadata(&from, title)
	c.notesOf(title, leftOut(n, meta))
	spec, specErr := c.spec(&from, title)
	if err := errors.Join(err, specErr); err != nil {
		return nil, err
	}
	types := metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUKernelCache}
	if from.Kind == oldCacheKind {
		if len(from.Spec.WorkloadNamespaces) > 0 {
			c.notef("%s: workloadNamespaces has no meaning for a cache of one namespace and is left out", title)
		}
		return renderObject(&v1alpha1.GPUKernelCache{TypeMeta: types, ObjectMeta: meta, Spec: spec})
	}
	if len(from.Spec.WorkloadNamespaces) == 0 {
		return nil, fmt.Errorf("%s: spec.workloadNamespaces: expected the namespaces whose pods use it", title)
	}
	types.Kind, meta.Namespace = v1alpha1.KindClusterGPUKernelCache, ""
	return renderObject(&v1alpha1.ClusterGPUKernelCache{TypeMeta: types, ObjectMeta: meta, Spec: v1alpha1.ClusterGPUKernelCacheSpec{
		GPUKernelCacheSpec: spec, WorkloadNamespaces: from.Spec.WorkloadNamespaces,
	}})
}

// metadata is the object's metadata without what the other operator and the API server put there.
func (c *oldCaches) metadata(from *oldCacheObject, title string) (metav1.ObjectMeta, error) {
	old := func(key, _ string) bool {
		return strings.HasPrefix(key, oldCachePrefix) || strings.HasPrefix(key, "kyverno.io/") || key == corev1.LastAppliedConfigAnnotation
	}
	meta := metav1.ObjectMeta{
		Name: legalName(from.Name), Namespace: from.Namespace, Labels: maps.Clone(from.Labels), Annotations: maps.Clone(from.Annotations),
	}
	maps.DeleteFunc(meta.Labels, old)
	maps.DeleteFunc(meta.Annotations, old)
	if faults := validation.IsDNS1123Subdomain(meta.Name); len(faults) > 0 {
		return meta, fmt.Errorf("%s: metadata.name: %s", title, faults[0])
	}
	c.renamed(title, "name", from.Name, meta.Name)
	return meta, nil
}

// leftOut names what an object has and its successor, with other metadata, has not: what the API server and operators put there.
func leftOut(n *node, meta metav1.ObjectMeta) []string {
	var left []string
	before := child(n, "metadata")
	for _, p := range pairs(before) {
		if !slices.Contains([]string{"name", "namespace", "labels", "annotations"}, p.key.Value) {
			left = append(left, "metadata."+clip(p.key.Value))
		}
	}
	for key, kept := range map[string]map[string]string{"labels": meta.Labels, "annotations": meta.Annotations} {
		for _, p := range pairs(child(before, key)) {
			if _, ok := kept[p.key.Value]; !ok && p.key.Value != signatureLabel {
				left = append(left, key+" "+clip(p.key.Value))
			}
		}
	}
	if child(n, "status") != nil {
		left = append(left, "status")
	}
	if slices.Sort(left); len(left) == 0 {
		return nil
	}
	return []string{"left out, since the API server and the older software put it there: " + strings.Join(left, ", ")}
}

// renamed says that a name became another.
func (c *oldCaches) renamed(title, what, from, to string) {
	if from != to {
		c.notef("%s: %s %s is none that Kubernetes takes: it becomes %s wherever it is named here", title, what, clip(from), to)
	}
}

func (c *oldCaches) spec(from *oldCacheObject, title string) (v1alpha1.GPUKernelCacheSpec, error) {
	spec := v1alpha1.GPUKernelCacheSpec{Image: withRegistry(from.Spec.Image)}
	if from.Spec.Image == "" {
		return spec, fmt.Errorf("%s: spec.image: expected an image", title)
	}
	if spec.Image != from.Spec.Image {
		c.notef("%s: image %s names no registry: it becomes %s", title, clip(from.Spec.Image), clip(spec.Image))
	}
	c.notef("%s: a TrustPolicy has to name who signs %s", title, clip(spec.Image))
	switch format := from.Labels[signatureLabel]; format {
	case "":
	case "cosign-v2":
		c.notef("%s: the label %s is verification.format now", title, signatureLabel)
		spec.Verification = &v1alpha1.CacheVerification{Format: v1alpha1.SignatureCosignV2}
	case "cosign-v3":
		c.notef("%s: the label %s is verification.format now", title, signatureLabel)
		spec.Verification = &v1alpha1.CacheVerification{Format: v1alpha1.SignatureCosignV3}
	default:
		return spec, fmt.Errorf("%s: label %s: %.80q: expected cosign-v2 or cosign-v3", title, signatureLabel, format)
	}
	if c.options.KernelCacheVolumes {
		return spec, c.volumeSpec(&spec, from, title)
	}
	var unneeded []string
	for name, is := range map[string]bool{
		"accessModes": len(from.Spec.AccessModes) > 0, "podTemplate": from.Spec.PodTemplate != nil,
		"storageClassName": from.Spec.StorageClassName != nil,
	} {
		if is {
			unneeded = append(unneeded, name)
		}
	}
	if slices.Sort(unneeded); len(unneeded) > 0 {
		c.notef("%s: not needed, and left out: %s: no volume is made and no Job runs (--kernel-caches=volumes keeps them)", title,
			strings.Join(unneeded, ", "))
	}
	return spec, nil
}

// volumeSpec keeps the volumes: one for all nodes where ReadOnlyMany is among the modes, else one a node.
func (c *oldCaches) volumeSpec(spec *v1alpha1.GPUKernelCacheSpec, from *oldCacheObject, title string) error {
	known := []corev1.PersistentVolumeAccessMode{
		corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod,
	}
	for i, mode := range from.Spec.AccessModes {
		if !slices.Contains(known, mode) {
			return fmt.Errorf("%s: spec.accessModes[%d]: %.80q: expected one of %v", title, i, mode, known)
		}
	}
	spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheRWOPerNode}
	if slices.Contains(from.Spec.AccessModes, corev1.ReadOnlyMany) {
		spec.Distribution.Type = v1alpha1.CacheROXVolume
	}
	spec.StorageClassName, spec.AccessModes, spec.PodTemplate = from.Spec.StorageClassName, from.Spec.AccessModes, from.Spec.PodTemplate
	spec.Mount = c.volumeMount(from, title)
	c.notef("%s: it has volumes, which the driver makes with kernelCaches.volumes.enabled of its chart", title)
	return nil
}

// volumeMount is where the pods of the input mount a cache, if that is one place: programs write absolute paths into their files.
func (c *oldCaches) volumeMount(from *oldCacheObject, title string) *v1alpha1.CacheMount {
	key := "/" + from.Name
	if from.Kind == oldCacheKind {
		key = cmp.Or(from.Namespace, c.options.Namespace) + key
	}
	var paths []string
	if cache := c.byName[key]; cache != nil {
		paths = cache.paths
	}
	if len(paths) == 1 && mountpath.Check(paths[0]) == nil {
		return &v1alpha1.CacheMount{Path: paths[0]}
	}
	if len(paths) > 0 {
		c.notef("%s: pods mount it at %s: the files of Triton and vLLM are right for one place, the producer's unless mount.path names another",
			title, strings.Join(paths, ", "))
	}
	return nil
}

// withRegistry names the registry that other programs mean where an image names none.
func withRegistry(image string) string {
	host, rest, ok := strings.Cut(image, "/")
	switch {
	case image == "" || ok && (host == "localhost" || strings.ContainsAny(host, ".:")):
		return image
	case ok && rest != "":
		return "docker.io/" + image
	default:
		return "docker.io/library/" + image
	}
}

// claimMount is where a container of the input has a claim whole.
type claimMount struct{ namespace, claim, path string }

// reserveMounts notes where the containers of an object mount claims, before anything is converted: caches may stand before pods.
func (c *oldCaches) reserveMounts(n *node) {
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

// place tells the caches where they are mounted.
func (c *oldCaches) place() {
	for _, m := range c.mounts {
		if cache := c.of(m.namespace, m.claim); cache != nil {
			cache.paths = append(cache.paths, m.path)
			slices.Sort(cache.paths)
			cache.paths = slices.Compact(cache.paths)
		}
	}
}

// volumesOf are a pod's volumes of caches, by their name in the pod.
func (c *oldCaches) volumesOf(w *workload) (map[string]*oldCache, error) {
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
		if cache := c.of(namespace, claim); cache != nil {
			volumes[value(v, "name")] = cache
			continue
		}
		c.strayClaim(w, namespace, claim)
	}
	return volumes, nil
}

// strayClaim says that a claim's name is that of no cache, where it was perhaps meant to be.
func (c *oldCaches) strayClaim(w *workload, namespace, claim string) {
	if c.claims[namespace+"/"+claim] || len(c.byName) == 0 && value(child(w.meta, "labels"), mutationLabel) != "true" {
		return
	}
	var near []string
	for _, key := range slices.Sorted(maps.Keys(c.byName)) {
		if cache := c.byName[key]; slices.Contains(cache.namespaces, namespace) {
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
func (c *oldCaches) keepVolumes(w *workload, volumes map[string]*oldCache) bool {
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
func (c *oldCaches) rename(w *workload) bool {
	legal := legalName(w.name)
	name := child(child(w.object, "metadata"), "name")
	if legal == w.name || !isScalar(name) {
		return false
	}
	c.renamed(w.title, "name", w.name, legal)
	name.Value, w.name = legal, legal
	return true
}

// permissionLine is a command that changes owner or mode of files, and nothing else.
var permissionLine = regexp.MustCompile(`^(?:chown|chmod)(?: -[A-Za-z]+)* [0-9A-Za-z:+=,-]+((?: /[A-Za-z0-9._/-]+)+)$`)

// dropPermissions removes the init containers that only make a volume readable: files of a cache are readable by anybody. It says whether
// there were any.
func (c *oldCaches) dropPermissions(w *workload, volumes map[string]*oldCache) bool {
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
