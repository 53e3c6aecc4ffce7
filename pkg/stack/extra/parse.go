// SPDX-License-Identifier: Apache-2.0

// Package extra reads the manifests of the extra states of an AcceleratorStack. It parses them first and puts the values of a platform into
// the texts of the objects afterwards, so that no value can change what an object is. It refuses what a stack may not make.
package extra

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// The budget of one state's manifests.
const (
	MaxObjects = 64
	MaxBytes   = 256 << 10
	// maxExpanded is how long the objects may be as JSON: a few bytes of YAML can stand for many.
	maxExpanded = 1 << 20
	maxDepth    = 64
	// maxName leaves room for what the name of an object for one platform ends with, below the 63 characters of a Service.
	maxName = 48
)

// kind is a kind that a stack makes.
type kind struct {
	schema.GroupVersionKind
	// typed is an object of the kind with the fields that there are.
	typed func() any
}

func kinds() []kind {
	return []kind{
		{corev1.SchemeGroupVersion.WithKind("ConfigMap"), func() any { return &corev1.ConfigMap{} }},
		{corev1.SchemeGroupVersion.WithKind("Service"), func() any { return &corev1.Service{} }},
		{corev1.SchemeGroupVersion.WithKind("ServiceAccount"), func() any { return &corev1.ServiceAccount{} }},
		{appsv1.SchemeGroupVersion.WithKind("DaemonSet"), func() any { return &appsv1.DaemonSet{} }},
		{appsv1.SchemeGroupVersion.WithKind("Deployment"), func() any { return &appsv1.Deployment{} }},
		{batchv1.SchemeGroupVersion.WithKind("Job"), func() any { return &batchv1.Job{} }},
	}
}

// Kinds returns the kinds that a stack makes, in the order in which it makes them.
func Kinds() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for _, k := range kinds() {
		out = append(out, k.GroupVersionKind)
	}
	return out
}

// Manifest is an object as its administrator wrote it.
type Manifest struct {
	Kind schema.GroupVersionKind
	// Name is what the object is called, before what tells platforms apart.
	Name string
	// PerPlatform says that there is one for each platform, since a text of it has a variable of a platform.
	PerPlatform bool
	// NeedsOS and NeedsVersion say that a text has ${OS}, or ${DRIVER_VERSION}.
	NeedsOS, NeedsVersion bool
	// object is not changed.
	object map[string]any
}

// Parse reads the manifests of the files of a ConfigMap, sorted by kind and name. namespace is the one where a stack makes objects. An
// error names the file, the line and the object of each fault.
func Parse(files map[string]string, namespace string) ([]Manifest, error) {
	size := 0
	for _, text := range files {
		size += len(text)
	}
	if size > MaxBytes {
		return nil, fmt.Errorf("the manifests have %d bytes, at most %d: make a ConfigMap for a state of its own of some", size, MaxBytes)
	}
	var out []Manifest
	var errs []error
	expanded := 0
	for _, file := range slices.Sorted(maps.Keys(files)) {
		for _, d := range manifest.Split([]byte(files[file])) {
			if len(out)+len(errs) >= MaxObjects {
				return nil, fmt.Errorf("the manifests have more than %d objects: make a ConfigMap for a state of its own of some", MaxObjects)
			}
			m, length, err := parse(d.Text, namespace)
			if expanded += length; expanded > maxExpanded {
				return nil, fmt.Errorf("%s line %d: the objects have more than %d bytes once they are read", file, d.Line, maxExpanded)
			}
			if err == nil && slices.ContainsFunc(out, func(other Manifest) bool { return other.Kind == m.Kind && other.Name == m.Name }) {
				err = fmt.Errorf("%s %s is there twice", m.Kind.Kind, m.Name)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s line %d: %w", file, d.Line, err))
				continue
			}
			out = append(out, m)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(out) == 0 {
		return nil, errors.New("there is no object in the manifests")
	}
	order := Kinds()
	slices.SortFunc(out, func(a, b Manifest) int {
		if by := slices.Index(order, a.Kind) - slices.Index(order, b.Kind); by != 0 {
			return by
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

func parse(text []byte, namespace string) (m Manifest, length int, err error) {
	switch err := manifest.CheckAliases(text, maxExpanded); {
	case errors.Is(err, manifest.ErrExpanded):
		return m, maxExpanded + 1, nil // which the caller refuses
	case err != nil:
		return m, 0, err
	}
	data, err := manifest.JSON(text)
	if err != nil {
		return m, 0, fmt.Errorf("read the object: %w", err)
	}
	if len(data) > maxExpanded {
		return m, len(data), nil
	}
	if err := json.Unmarshal(data, &m.object); err != nil {
		return m, len(data), errors.New("expected an object with apiVersion, kind and metadata")
	}
	if depth(m.object) > maxDepth {
		return m, len(data), fmt.Errorf("is nested more than %d deep", maxDepth)
	}
	version, _ := m.object["apiVersion"].(string)
	name, _ := m.object["kind"].(string)
	m.Kind = schema.FromAPIVersionAndKind(version, name)
	all := kinds()
	at := slices.IndexFunc(all, func(k kind) bool { return k.GroupVersionKind == m.Kind })
	if at < 0 {
		return m, len(data), fmt.Errorf("%s %q is no kind that a stack makes: the controller has rights for %s only, in the namespace %s",
			version, name, kindNames(all), namespace)
	}
	typed := all[at].typed()
	if err := yaml.UnmarshalStrict(data, typed); err != nil {
		return m, len(data), fmt.Errorf("read the %s: %w", m.Kind.Kind, err)
	}
	meta, ok := typed.(metav1.Object)
	if !ok {
		return m, len(data), fmt.Errorf("%s has no metadata", m.Kind.Kind)
	}
	m.Name = meta.GetName()
	m.notice()
	if err := errors.Join(metadataFault(meta, namespace), m.fault(typed)); err != nil {
		return m, len(data), fmt.Errorf("%s %s: %w", m.Kind.Kind, m.Name, err)
	}
	return m, len(data), nil
}

func kindNames(all []kind) string {
	var out []string
	for _, k := range all {
		out = append(out, k.Kind)
	}
	return strings.Join(out, ", ")
}

func depth(value any) int {
	deepest := 0
	switch v := value.(type) {
	case map[string]any:
		for _, of := range v {
			deepest = max(deepest, depth(of))
		}
	case []any:
		for _, of := range v {
			deepest = max(deepest, depth(of))
		}
	default:
		return 0
	}
	return deepest + 1
}

// metadataFault wants metadata that the controller can take over.
func metadataFault(o metav1.Object, namespace string) error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, detail := range validation.IsDNS1123Label(o.GetName()) {
		refuse("metadata.name: %s", detail)
	}
	if len(o.GetName()) > maxName {
		refuse("metadata.name is longer than %d characters", maxName)
	}
	if of := o.GetNamespace(); of != "" && of != namespace {
		refuse("is for the namespace %s: a stack makes objects in %s only, leave metadata.namespace out", of, namespace)
	}
	if o.GetGenerateName() != "" || len(o.GetOwnerReferences()) > 0 || len(o.GetFinalizers()) > 0 || o.GetUID() != "" ||
		o.GetResourceVersion() != "" || len(o.GetManagedFields()) > 0 {
		refuse("metadata: leave out generateName, ownerReferences, finalizers, and what the API server writes")
	}
	for _, of := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
		for _, key := range slices.Sorted(maps.Keys(of)) {
			if strings.HasPrefix(key, v1alpha1.GroupName+"/") {
				refuse("%s is a label or an annotation of Fettle's own", key)
			}
		}
	}
	if _, hook := o.GetAnnotations()["helm.sh/hook"]; hook {
		refuse("is a hook of Helm, which only Helm runs at its time: render the chart with --no-hooks")
	}
	return errors.Join(errs...)
}

// fault says what of an object a stack cannot do.
func (m *Manifest) fault(typed any) error {
	if _, has := m.object["status"]; has {
		return errors.New("leave status out")
	}
	var pod *corev1.PodSpec
	switch o := typed.(type) {
	case *appsv1.DaemonSet:
		pod = &o.Spec.Template.Spec
	case *appsv1.Deployment:
		pod = &o.Spec.Template.Spec
		if m.PerPlatform {
			return errors.New("a Deployment cannot be for one platform: its pods would be replaced whenever a node comes or goes; " +
				"use a DaemonSet or a Job, or leave ${KERNEL}, ${OS}, ${ARCH} and ${PLATFORM} out")
		}
	case *batchv1.Job:
		pod = &o.Spec.Template.Spec
		if o.Spec.TTLSecondsAfterFinished != nil {
			return errors.New("leave ttlSecondsAfterFinished out: the Job would be made again each time that it is gone")
		}
		if o.Spec.ManualSelector != nil || o.Spec.Selector != nil {
			return errors.New("leave the selector of a Job out")
		}
	default:
		return nil
	}
	if pod.NodeName != "" {
		return errors.New("leave nodeName out: the stack says on which nodes pods run")
	}
	required := pod.Affinity != nil && pod.Affinity.NodeAffinity != nil &&
		pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
	if required && m.Placed() {
		return errors.New("leave the required nodeAffinity out, it is the stack's: use a nodeSelector")
	}
	return nil
}

// Placed says that the stack says on which nodes the object's pods run: those of DaemonSets, and of Jobs for one platform.
func (m *Manifest) Placed() bool {
	return m.Kind.Kind == "DaemonSet" || m.Kind.Kind == "Job" && m.PerPlatform
}
