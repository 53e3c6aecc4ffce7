// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// podPresetKind is what Kubernetes had from 1.6 to 1.19 in alpha.
const podPresetKind = "PodPreset"

// podPreset is one, with the selector by resources that was proposed for it.
type podPreset struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Selector         *metav1.LabelSelector  `json:"selector"`
		ResourceSelector []string               `json:"resourceSelector"`
		Env              []corev1.EnvVar        `json:"env"`
		EnvFrom          []corev1.EnvFromSource `json:"envFrom"`
		Volumes          []corev1.Volume        `json:"volumes"`
		VolumeMounts     []corev1.VolumeMount   `json:"volumeMounts"`
	} `json:"spec"`
}

// isPodPreset says whether an object is one. A group that only shares the kind's name is none.
func isPodPreset(n *node) (bool, error) {
	if value(n, "kind") != podPresetKind {
		return false, nil
	}
	apiVersion := value(n, "apiVersion")
	group, version, _ := strings.Cut(apiVersion, "/")
	switch {
	case group != "settings" && group != "settings.k8s.io":
		return false, nil
	case version != "v1alpha1":
		return false, fmt.Errorf("%s: apiVersion %.80q: expected settings.k8s.io/v1alpha1", titleOf(n), apiVersion)
	}
	return true, nil
}

// readStrict reads an object of a kind that Kubernetes has no type for. YAML's older rules, by which the API server's clients make JSON,
// would make a boolean of y.
func readStrict(n *node, into any) error {
	var content any
	asText(n)
	if err := n.Decode(&content); err != nil {
		return fmt.Errorf("expected YAML: %s", oneLine(err))
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("expected only strings as keys: %s", oneLine(err))
	}
	unknown, err := strictjson.UnmarshalStrict(raw, into)
	if err != nil {
		return fmt.Errorf("a field has a value of the wrong type: %s", oneLine(manifest.WithoutTypes(err)))
	}
	return errors.Join(unknown...)
}

// asText makes a string of what is the value of a variable or a label, however it looks. What is true or false by its field may be written
// as YAML's older rules have it.
func asText(n *node) {
	for _, p := range pairs(n) {
		if v := p.value; slices.Contains([]string{"readOnly", "optional"}, p.key.Value) && isScalar(v) && v.Style == 0 &&
			olderBoolean.MatchString(v.Value) {
			v.Tag, v.Value = "!!bool", strconv.FormatBool(strings.ContainsAny(v.Value[:1], "yY") || strings.EqualFold(v.Value, "on"))
		}
		texts := []*node{p.value}
		if p.key.Value == "matchLabels" {
			texts = p.value.Content
		} else if p.key.Value != "value" {
			texts = nil
		}
		for _, t := range texts {
			if isScalar(t) && !isNull(t) {
				t.Tag = "!!str"
			}
		}
	}
	for _, part := range n.Content {
		asText(part)
	}
}

// presetConversion is that of one PodPreset.
type presetConversion struct {
	*notes
	*meanings
	from  podPreset
	title string
	rules v1alpha1.PresetRules
	// taken are the names of ClusterDevicePresets.
	taken map[string]bool
	// hostPaths says that it mounts files of the node, configMaps are those that it reads.
	hostPaths  bool
	configMaps []string
	faults     []error
}

func (p *presetConversion) faultf(format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf(p.title+": "+format, args...))
}

func (p *presetConversion) note(format string, args ...any) {
	p.notef("%s: %s", p.title, fmt.Sprintf(format, args...))
}

// podPreset converts one.
func (c *conversion) podPreset(n *node) ([]byte, error) {
	p := presetConversion{notes: c.notes, meanings: c.meanings, taken: c.clusterPresets, title: titleOf(n)}
	if err := readStrict(n, &p.from); err != nil {
		return nil, fmt.Errorf("%s: %w", p.title, err)
	}
	if p.from.Name == "" {
		p.faultf("metadata.name: expected a name")
	}
	p.selectors()
	for i := range p.from.Spec.Env {
		p.env(&p.from.Spec.Env[i], fmt.Sprintf("spec.env[%d]", i))
	}
	for i := range p.from.Spec.EnvFrom {
		p.envFrom(&p.from.Spec.EnvFrom[i], fmt.Sprintf("spec.envFrom[%d]", i))
	}
	p.mounts()
	object, wrong := p.object(n)
	if len(p.faults) == 0 { // what could not be converted has said so
		for _, fault := range wrong {
			p.faultf("%w", fault)
		}
	}
	if err := errors.Join(p.faults...); err != nil {
		return nil, err
	}
	return renderObject(object)
}

// object is the preset. One that names files of the node is for the whole cluster unless somebody says otherwise: in a namespace such
// paths are refused but for those that the administrator allowed there.
func (p *presetConversion) object(n *node) (any, field.ErrorList) {
	namespace := cmp.Or(p.from.Namespace, p.options.Namespace)
	meta := metav1.ObjectMeta{Name: p.from.Name, Namespace: p.from.Namespace, Labels: p.from.Labels, Annotations: p.from.Annotations}
	delete(meta.Annotations, corev1.LastAppliedConfigAnnotation)
	p.notesOf(p.title, leftOut(n, meta))
	types := metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String()}
	ofCluster := p.hostPaths
	if p.options.ClusterPresets != nil {
		ofCluster = *p.options.ClusterPresets
	}
	p.closing(namespace, ofCluster)
	if !ofCluster {
		types.Kind = v1alpha1.KindDevicePreset
		out := &v1alpha1.DevicePreset{TypeMeta: types, ObjectMeta: meta, Spec: v1alpha1.DevicePresetSpec{PresetRules: p.rules}}
		return out, out.Spec.Validate(field.NewPath("spec"))
	}
	types.Kind = v1alpha1.KindClusterDevicePreset
	meta.Namespace, meta.Name = "", p.clusterName(namespace)
	out := &v1alpha1.ClusterDevicePreset{TypeMeta: types, ObjectMeta: meta, Spec: v1alpha1.ClusterDevicePresetSpec{
		PresetRules:       p.rules,
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
	}}
	return out, out.Spec.Validate(field.NewPath("spec"))
}

// clusterName has the namespace in it, since names of two namespaces may be the same.
func (p *presetConversion) clusterName(namespace string) string {
	name := free(namespace+"-"+p.from.Name, func(name string) bool { return p.taken[name] })
	p.taken[name] = true
	return name
}

// closing are the notes about the whole.
func (p *presetConversion) closing(namespace string, ofCluster bool) {
	switch {
	case ofCluster && p.options.ClusterPresets == nil:
		p.note("it mounts files of the host, which a DevicePreset may do only below the driver's allowedHostPaths: it becomes a "+
			"ClusterDevicePreset for namespace %s (--cluster-presets=false: a DevicePreset)", namespace)
	case !ofCluster && p.hostPaths:
		p.note("it mounts files of the host: they must be below the driver's allowedHostPaths")
	}
	if ofCluster {
		for _, name := range p.configMaps {
			p.note("a ClusterDevicePreset reads ConfigMaps of the driver's namespace: copy %s/%s there", namespace, name)
		}
	}
	if p.byDefault() {
		p.note("a variable that the pod sets keeps the pod's value (mode default), which takes a claim that one pod has alone; before, such a " +
			"pod was given nothing of the PodPreset at all")
	}
	p.note("it is for the containers that use a claim of Fettle's, not for all of a pod")
}

// byDefault says whether any variable backs off.
func (p *presetConversion) byDefault() bool {
	return len(p.rules.EnvFrom) > 0 ||
		slices.ContainsFunc(p.rules.Env, func(e v1alpha1.PresetEnv) bool { return e.Mode == v1alpha1.EnvDefault })
}

// env converts a variable.
func (p *presetConversion) env(e *corev1.EnvVar, at string) {
	out := v1alpha1.PresetEnv{Name: e.Name, Mode: v1alpha1.EnvDefault}
	if e.Name == v1alpha1.EnvPath || e.Name == v1alpha1.EnvLibraryPath {
		out.Mode = v1alpha1.EnvAppend
	}
	if slices.ContainsFunc(p.rules.Env, func(o v1alpha1.PresetEnv) bool { return o.Name == e.Name }) {
		p.faultf("%s: %.80q is there twice: leave one", at, e.Name)
		return
	}
	switch from := e.ValueFrom; {
	case from == nil:
		// kubelet made one of two dollars, and put variables in. A preset's value is taken as it is.
		if strings.Contains(strings.ReplaceAll(e.Value, "$$", ""), "$(") {
			p.faultf("%s: %.80q refers to other variables, which a preset's value does not: write it out", at, e.Name)
			return
		}
		out.Value = new(strings.ReplaceAll(e.Value, "$$", "$"))
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		out.ValueFrom = &v1alpha1.PresetEnvSource{ConfigMapKeyRef: v1alpha1.PresetConfigMapKey{
			Name: ref.Name, Key: ref.Key, Optional: ref.Optional != nil && *ref.Optional,
		}}
		p.configMap(ref.Name)
	case from.SecretKeyRef != nil:
		p.faultf("%s: %.80q is from a Secret, which a preset never reads: give it in the pod's env", at, e.Name)
		return
	default:
		p.faultf("%s: %.80q is from a field of the pod: give it in the pod's env", at, e.Name)
		return
	}
	p.rules.Env = append(p.rules.Env, out)
}

func (p *presetConversion) envFrom(e *corev1.EnvFromSource, at string) {
	switch {
	case e.SecretRef != nil:
		p.faultf("%s: Secret %.80q: a preset never reads Secrets: give it in the pod's envFrom", at, e.SecretRef.Name)
	case e.ConfigMapRef == nil:
		p.faultf("%s: expected configMapRef", at)
	default:
		ref := e.ConfigMapRef
		p.rules.EnvFrom = append(p.rules.EnvFrom, v1alpha1.PresetEnvFrom{
			ConfigMapRef: v1alpha1.PresetConfigMap{Name: ref.Name, Optional: ref.Optional != nil && *ref.Optional},
			Prefix:       e.Prefix, Mode: v1alpha1.EnvDefault,
		})
		p.configMap(ref.Name)
	}
}

func (p *presetConversion) configMap(name string) {
	if !slices.Contains(p.configMaps, name) {
		p.configMaps = append(p.configMaps, name)
	}
}
