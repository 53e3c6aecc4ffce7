// SPDX-License-Identifier: Apache-2.0

// Package podspec says what of a pod decides about its node beside devices and quantities: the ports of the host that it takes, the pods
// that it may not be beside, and the fields of its spec that are not judged. It knows every field of a spec: one that it does not know may
// keep the pod from a node, and an eviction for such a pod might be for nothing.
package podspec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// OnNode is how the scheduler sums what a pod has of its node: while its resources are changed in place, those of its containers or those
// of the whole pod, the larger of what it has and what it asks for.
func OnNode() resourcehelper.PodResourcesOptions {
	return resourcehelper.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
}

// Ended reports whether none of a pod's containers runs, or ever will again: the pod takes nothing of its node any more. A pod that is
// being deleted has not ended.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Unjudged lists the fields that are set and may keep a pod from a node without being looked at, sorted, like
// "spec.volumes[].persistentVolumeClaim", with the value where that decides.
func Unjudged(spec *corev1.PodSpec) []string {
	w := walker{rules: rules()}
	w.structure(reflect.ValueOf(spec).Elem(), "spec")
	if spec.HostNetwork && spec.HostUsers != nil && !*spec.HostUsers {
		w.found = append(w.found, "spec.hostUsers: false with spec.hostNetwork")
	}
	slices.Sort(w.found)
	return slices.Compact(w.found)
}

// walker looks at all fields of a spec that are set.
type walker struct {
	rules map[string]rule
	found []string
}

func (w *walker) structure(v reflect.Value, path string) {
	of := v.Type()
	for i := range of.NumField() {
		value := v.Field(i)
		if value.IsZero() {
			continue
		}
		name := jsonName(of.Field(i))
		if name == "" { // its fields are written as those of the structure
			w.structure(value, path)
			continue
		}
		w.field(w.rules[of.Name()+"."+name], value, path+"."+name)
	}
}

// field looks at one field by its rule, into what it has if there is none.
func (w *walker) field(r rule, v reflect.Value, path string) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case r.class == unjudged, r.class == unknown && !deep(v.Type()):
		w.found = append(w.found, path)
	case r.class == unknown && v.Kind() == reflect.Slice:
		for i := range v.Len() {
			w.structure(reflect.Indirect(v.Index(i)), path+"[]")
		}
	case r.class == unknown:
		w.structure(v, path)
	case r.only != nil && !slices.Contains(r.only, v.String()):
		w.found = append(w.found, fmt.Sprintf("%s: %s", path, v.String()))
	}
}

// jsonName is how a field is written, empty for one whose own fields are.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// deep says whether a type is a structure of the core API, or a list of them: other types are one value.
func deep(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[corev1.PodSpec]().PkgPath()
}
