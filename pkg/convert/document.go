// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/convert/drivers"
	"github.com/fettle-dev/fettle/pkg/convert/shares"
	"github.com/fettle-dev/fettle/pkg/convert/traces"
	"github.com/fettle-dev/fettle/pkg/manifest"
	"github.com/fettle-dev/fettle/pkg/message"
)

// document is one of a stream.
type document struct {
	// file is the name of its input, place where it begins: a line, and the file too if there are several.
	file, place string
	// line is where its content begins, counted from 1.
	line int
	text []byte
	// before are the comments of documents without content that stand before it.
	before []byte
}

func split(in Input) []document {
	var documents []document
	for _, d := range manifest.Split(in.Data) {
		documents = append(documents, document{in.Name, fmt.Sprintf("line %d", d.Line), d.Line, d.Text[d.Blank:], d.Before})
	}
	return documents
}

// verbatim is the document as it came, with a line's end.
func (d document) verbatim() []byte {
	return append(bytes.TrimRight(d.text, " \t\r\n"), '\n')
}

// expanded writes out what the document's aliases stand for, unless that is too long.
func (d document) expanded(n *node) (*node, error) {
	if err := manifest.CheckAliases(d.text, maxInput); err != nil {
		return nil, err
	}
	return expanded(n)
}

// reserve notes the names that templates and presets of the input have.
func (c *conversion) reserve(d document) {
	n, err := parse(d.text)
	if err == nil && !isPlain(n) {
		n, err = d.expanded(n)
	}
	if err != nil {
		return // document says it
	}
	for _, object := range objectsOf(n) {
		name := value(child(object, "metadata"), "name")
		switch value(object, "kind") {
		case "ResourceClaimTemplate":
			c.taken[namespaceOf(object, c.options.Namespace)+"/"+name] = true
		case v1alpha1.KindClusterDevicePreset:
			c.clusterPresets[name] = true
		case "PersistentVolumeClaim":
			c.caches.claims[namespaceOf(object, c.options.Namespace)+"/"+name] = true
		case "DeviceClass":
			if resource := value(child(object, "spec"), "extendedResourceName"); resource != "" {
				c.offered[resource] = name
			}
		case oldCacheKind, oldClusterCacheKind:
			c.faults = append(c.faults, c.caches.reserve(object)...)
		}
		c.caches.reserveMounts(object)
	}
}

// objectsOf are the items of a v1 List, or the one object.
func objectsOf(n *node) []*node {
	if items := child(n, "items"); value(n, "kind") == "List" && isSequence(items) {
		return items.Content
	}
	return []*node{n}
}

// usesOld says whether a document may have something to convert.
func (c *conversion) usesOld(raw []byte) bool {
	words := append([]string{resourcePrefix, envPrefix, oldCachePrefix, `"kind":"` + podPresetKind + `"`}, gpuWords()...)
	words = append(words, `"`+resourceGroup+"v1beta", `"`+resourceGroup+"v1alpha")
	for name := range c.options.Classes {
		words = append(words, `"`+name+`"`)
	}
	if len(c.caches.byName) > 0 {
		words = append(words, `"persistentVolumeClaim":`)
	}
	if drivers.Mentioned(string(raw)) {
		return true
	}
	return slices.ContainsFunc(words, func(word string) bool { return bytes.Contains(raw, []byte(word)) })
}

// document converts one. What has nothing older in it is left as it is.
func (c *conversion) document(d document) ([][]byte, error) {
	raw, err := manifest.JSON(d.text)
	if _, invalid := yaml.YAMLToJSON(d.text); invalid != nil {
		hint := ""
		if bytes.Contains(d.text, []byte("{{")) {
			hint = ": a template of Helm: convert what helm template writes"
		}
		return nil, fmt.Errorf("invalid YAML: %s%s", oneLine(invalid), hint)
	}
	if err != nil {
		return nil, fmt.Errorf("expected YAML with each key once: %s", oneLine(err))
	}
	if !c.usesOld(raw) {
		for _, note := range strayNotes(d, c.offered) {
			c.notef("%s", note)
		}
		return [][]byte{d.verbatim()}, nil
	}
	root, err := parse(d.text)
	if err == nil && !isPlain(root) {
		c.notef("%s: anchors, aliases and tags are written out", d.place)
		root, err = d.expanded(root)
	}
	if err != nil {
		return nil, fmt.Errorf("invalid YAML: %s", oneLine(err))
	}
	var out [][]byte
	var faults []error
	changed := false
	for _, object := range objectsOf(root) {
		texts, did, err := c.object(object)
		faults = append(faults, unjoin(err)...)
		changed = changed || did
		out = append(out, texts...)
	}
	if !changed {
		return [][]byte{d.verbatim()}, errors.Join(faults...)
	}
	c.converted = true
	return out, errors.Join(faults...)
}

// strayNotes say that a document is for another kind of input, or none of Kubernetes: without an apiVersion a field may be misspelt.
// offered are the resources that classes of the input give out.
func strayNotes(d document, offered map[string]string) (notes []string) {
	n, err := parse(d.text)
	if err != nil {
		return nil
	}
	if value(n, "kind") != "" && child(n, "apiVersion") == nil {
		notes = append(notes, fmt.Sprintf("%s: %s has no field apiVersion, so Kubernetes does not take it", d.place, titleOf(n)))
	}
	for _, object := range objectsOf(n) {
		notes = append(notes, policyFiles(object)...)
		if w, err := workloadOf(object); err == nil && w == nil {
			notes = append(notes, untouched(object)...)
		} else if err == nil {
			for _, note := range leftNotes(w, offered, false) {
				notes = append(notes, w.title+": "+note)
			}
		}
	}
	return notes
}

// object converts one object, if it is a PodPreset or an older cache, a claim for devices of another driver, or has pods that use a device
// plugin or such a cache.
func (c *conversion) object(n *node) (texts [][]byte, changed bool, err error) {
	preset, presetErr := isPodPreset(n)
	cache, cacheErr := isOldCache(n)
	if err := errors.Join(presetErr, cacheErr); err != nil {
		return nil, false, err
	}
	if preset || cache {
		become := c.podPreset
		if cache {
			become = c.caches.convert
		}
		text, err := become(n)
		return [][]byte{text}, true, err
	}
	if isResource(n) {
		text, changed, err := c.resourceObject(n)
		return [][]byte{text}, changed, err
	}
	w, err := workloadOf(n)
	if err != nil {
		return nil, false, err
	}
	if w == nil {
		text, err := render(n)
		if others := policyFiles(n); len(others) > 0 {
			for _, other := range others {
				c.notef("%s", other)
			}
			return [][]byte{text}, false, err
		}
		for _, note := range untouched(n) {
			c.notef("%s", note)
		}
		for _, prefix := range []string{resourcePrefix, oldCachePrefix} {
			if err == nil && bytes.Contains(text, []byte(prefix)) && len(untouched(n)) == 0 {
				c.notef("%s names %s... and is left as it is: only pods and what has a template for them are converted", titleOf(n), prefix)
			}
		}
		return [][]byte{text}, false, err
	}
	return c.pods(n, w)
}

// pods converts an object with pods.
func (c *conversion) pods(n *node, w *workload) (texts [][]byte, changed bool, err error) {
	template, didFPGAs, err := c.workload(w)
	ofCaches, didCaches, cacheErr := c.cachePods(w)
	if err := errors.Join(err, cacheErr); err != nil {
		return nil, false, err
	}
	ofGPUs, didGPUs, err := c.gpuPods(w)
	if err != nil {
		return nil, false, err
	}
	changed = didFPGAs || didCaches || didGPUs
	text, err := render(n)
	if err == nil && changed {
		err = w.check(text)
	}
	if err != nil {
		return nil, false, err
	}
	if template != nil && bytes.Contains(text, []byte(resourcePrefix)) {
		c.notef("%s: it still names %s... outside of the containers' resources", w.title, resourcePrefix)
	}
	c.notesOf(w.title, leftNotes(w, c.offered, c.options.KernelCacheVolumes))
	for _, one := range [][]byte{template, ofCaches, ofGPUs} {
		if one != nil {
			texts = append(texts, one)
		}
	}
	return append(texts, text), changed, nil
}

// untouched names the resources of an object that has no pods, or has them in a way that is not known.
func untouched(n *node) []string {
	names := append(traces.Resources(n), sharesIn(n)...)
	if len(names) == 0 {
		return nil
	}
	return []string{clip(fmt.Sprintf("%s names %s and is left as it is: only pods and what has a template for them are converted", titleOf(n),
		strings.Join(names, ", ")))}
}

// sharesIn lists the annotations of an object by which its pods ask for shares, wherever the pods are.
func sharesIn(n *node) []string {
	if n == nil {
		return nil
	}
	var names []string
	for name := range textsOf(child(n, "annotations")) {
		if name == shares.KAIFraction || name == shares.KAIMemory {
			names = append(names, name)
		}
	}
	for _, part := range n.Content {
		names = append(names, sharesIn(part)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// leftNotes names what a pod keeps of the software that gave it GPUs before. offered are the resources that classes of the input give out.
// Where caches keep their volumes, pods keep what these need, and their resources.
func leftNotes(w *workload, offered map[string]string, volumes bool) (notes []string) {
	for _, name := range traces.Of(child(w.object, "metadata"), w.meta, w.spec) {
		if name.Place == traces.Resource && (volumes || offered[name.Name] != "") || volumes && strings.HasPrefix(name.Name, oldCachePrefix) {
			continue
		}
		name.Name, name.Container = clip(name.Name), clip(name.Container)
		if note := traces.Note(name); note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// workload is an object with a pod in it.
type workload struct {
	title, namespace, name string
	// object is all of it, spec the pod's and meta the pod's metadata.
	object, spec, meta *node
	// typed is an empty object of the kind.
	typed any
}

// podKind is a kind that has a pod's spec at a path.
type podKind struct {
	apiVersion string
	path       string
	typed      func() any
}

func podKinds() map[string]podKind {
	const template = "spec.template.spec"
	return map[string]podKind{
		"Pod":                   {"v1", "spec", func() any { return &corev1.Pod{} }},
		"Deployment":            {"apps/v1", template, func() any { return &appsv1.Deployment{} }},
		"DaemonSet":             {"apps/v1", template, func() any { return &appsv1.DaemonSet{} }},
		"StatefulSet":           {"apps/v1", template, func() any { return &appsv1.StatefulSet{} }},
		"PodTemplate":           {"v1", "template.spec", func() any { return &corev1.PodTemplate{} }},
		"ReplicationController": {"v1", template, func() any { return &corev1.ReplicationController{} }},
		"ReplicaSet":            {"apps/v1", template, func() any { return &appsv1.ReplicaSet{} }},
		"Job":                   {"batch/v1", template, func() any { return &batchv1.Job{} }},
		"CronJob":               {"batch/v1", "spec.jobTemplate." + template, func() any { return &batchv1.CronJob{} }},
	}
}

// workloadOf is nil for kinds without pods, and for groups that only share a kind's name.
func workloadOf(n *node) (*workload, error) {
	kind := value(n, "kind")
	known, ok := podKinds()[kind]
	apiVersion := value(n, "apiVersion")
	group, _, _ := strings.Cut(known.apiVersion, "/")
	switch {
	case !ok:
		return nil, nil //nolint:nilnil // nothing to convert is no fault
	case apiVersion == known.apiVersion:
	case apiVersion == "" || strings.HasPrefix(apiVersion, group+"/") || strings.HasPrefix(apiVersion, "extensions/"):
		return nil, fmt.Errorf("%s: apiVersion %.80q: expected %s", titleOf(n), apiVersion, known.apiVersion)
	default:
		return nil, nil //nolint:nilnil // nothing to convert is no fault
	}
	spec, holder := n, n
	for key := range strings.SplitSeq(known.path, ".") {
		spec, holder = child(spec, key), spec
	}
	if !isMapping(spec) {
		return nil, fmt.Errorf("%s: %s: expected a pod's spec", titleOf(n), known.path)
	}
	meta := child(n, "metadata")
	name := cmp.Or(value(meta, "name"), strings.TrimRight(value(meta, "generateName"), "-."))
	if name == "" {
		return nil, fmt.Errorf("%s: metadata.name: expected a name, which that of the claim's template is made from", titleOf(n))
	}
	return &workload{
		title: titleOf(n), namespace: value(meta, "namespace"), name: name,
		object: n, spec: spec, meta: child(holder, "metadata"), typed: known.typed(),
	}, nil
}

// check wants every field of the converted object to be one of its kind: a misspelt one would be lost in the cluster.
func (w *workload) check(text []byte) error {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return fmt.Errorf("%s: expected YAML with each key once: %s", w.title, oneLine(err))
	}
	strict, err := strictjson.UnmarshalStrict(raw, w.typed)
	if err != nil {
		return fmt.Errorf("%s: a field has a value of the wrong type: %s", w.title, oneLine(manifest.WithoutTypes(err)))
	}
	var faults []error
	for _, fault := range strict {
		faults = append(faults, fmt.Errorf("%s: %w", w.title, fault))
	}
	return errors.Join(faults...)
}

// namespaceOf is where an object goes, which is the default if it names none.
func namespaceOf(n *node, byDefault string) string {
	return cmp.Or(value(child(n, "metadata"), "namespace"), byDefault)
}

// titleOf is "Pod team-a/work".
func titleOf(n *node) string {
	meta := child(n, "metadata")
	name := cmp.Or(value(meta, "name"), value(meta, "generateName"))
	if namespace := value(meta, "namespace"); namespace != "" {
		name = namespace + "/" + name
	}
	return clip(strings.TrimSpace(value(n, "kind") + " " + name))
}

// oneLine joins the lines of an error of a library.
func oneLine(err error) string { return clip(strings.Join(strings.Fields(err.Error()), " ")) }

const longestQuote = 300

// clip keeps foreign text from filling the screen.
func clip(s string) string {
	return message.Clip(s, longestQuote)
}
