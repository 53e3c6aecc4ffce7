// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// walker gives texts that may not stay to a function, and replaces them by what it returns.
type walker func(c category, text string) string

// walk goes through all texts of a snapshot.
func walk(s plan.Snapshot, w walker) {
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if v.Field(i).Kind() != reflect.Slice { // the version and the gates
			continue
		}
		for j := range v.Field(i).Len() {
			o := v.Field(i).Index(j).Elem()
			name := objectName
			if of, found := kindName[o.Type()]; found {
				name = of
			}
			w.value(o, field{name: name})
		}
	}
}

// field is where a value is.
type field struct {
	// path is TYPE.FIELD, in is the category of what is in the field, unless its type says another.
	path string
	in   category
	// name is the category of ObjectMeta.Name, driver that of the slice.
	name   category
	driver string
}

// value goes through a value, which can be set.
func (w walker) value(v reflect.Value, at field) {
	switch {
	case numbers[v.Type()]:
	case v.Kind() == reflect.String:
		v.SetString(w.text(w.categoryOf(v.Type(), at), v.String()))
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			w.value(v.Elem(), at)
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		v.SetZero() // what somebody encoded
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for i := range v.Len() {
			w.value(v.Index(i), at)
		}
	case v.Kind() == reflect.Map:
		w.mapping(v, at)
	case v.Kind() == reflect.Struct:
		w.structure(v, at)
	case v.Kind() == reflect.Interface:
		v.SetZero()
	}
}

// structure goes through the fields of a struct. Requirements of labels and attributes are judged by their names.
func (w walker) structure(v reflect.Value, at field) {
	if requirement, ok := v.Addr().Interface().(*corev1.NodeSelectorRequirement); ok {
		for i, value := range requirement.Values {
			requirement.Values[i] = w.label(requirement.Key, value)
		}
		requirement.Key = w.text(labelKey, requirement.Key)
		requirement.Operator = corev1.NodeSelectorOperator(w.text(word, string(requirement.Operator)))
		return
	}
	if requirement, ok := v.Addr().Interface().(*metav1.LabelSelectorRequirement); ok {
		for i, value := range requirement.Values {
			requirement.Values[i] = w.label(requirement.Key, value)
		}
		requirement.Key = w.text(labelKey, requirement.Key)
		requirement.Operator = metav1.LabelSelectorOperator(w.text(word, string(requirement.Operator)))
		return
	}
	if slice, ok := v.Addr().Interface().(*resourceapi.ResourceSliceSpec); ok {
		at.driver = slice.Driver
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		path := v.Type().Name() + "." + f.Name
		if !f.IsExported() {
			continue
		}
		w.value(v.Field(i), field{path: path, in: fieldCategory[path], name: at.name, driver: at.driver})
	}
}

// categoryOf is that of a text.
func (w walker) categoryOf(t reflect.Type, at field) category {
	if c, found := typeCategory[t]; found {
		return c
	}
	switch {
	case at.in != "":
		return at.in
	case at.path == "ObjectMeta.Name":
		return at.name
	case t != reflect.TypeFor[string]():
		return word
	}
	return anyText
}

// mapping replaces the keys and values of a map.
func (w walker) mapping(v reflect.Value, at field) {
	if v.IsNil() {
		return
	}
	out := reflect.MakeMap(v.Type())
	for _, key := range v.MapKeys() {
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(v.MapIndex(key))
		newKey := reflect.New(v.Type().Key()).Elem()
		newKey.Set(key)
		switch content := value.Addr().Interface().(type) {
		case *string: // labels, annotations and what a pod wants of the labels of nodes
			*content = w.pair(at, key.String(), *content)
			newKey.SetString(w.text(labelKey, key.String()))
		case *resourceapi.DeviceAttribute:
			// Earlier users of the map may share what its values point to.
			*content = *w.attribute(at.driver, key.String(), content.DeepCopy())
			w.value(newKey, field{})
		default:
			w.value(value, field{path: at.path, name: at.name, driver: at.driver})
			w.value(newKey, field{})
		}
		out.SetMapIndex(newKey, value)
	}
	v.Set(out)
}

// pair replaces the value of a label or an annotation. The annotations that are left name claims of pods.
func (w walker) pair(at field, key, value string) string {
	if at.path == "ObjectMeta.Annotations" {
		if tellsNothing(value) {
			return value
		}
		return w.text(objectName, value)
	}
	return w.label(key, value)
}

// label replaces the value of a label. The hostname is that of the node, the API server names a namespace by a label, and what a machine is
// made of tells nothing.
func (w walker) label(key, value string) string {
	switch key {
	case corev1.LabelHostname, metav1.ObjectNameField:
		return w.text(place, value)
	case corev1.LabelMetadataName:
		return w.text(namespaceName, value)
	case corev1.LabelArchStable, corev1.LabelOSStable:
		if machines.Has(value) {
			return value
		}
	}
	return w.text(labelValue, value)
}

// attribute replaces the value of an attribute of a driver's device.
func (w walker) attribute(driver, name string, a *resourceapi.DeviceAttribute) *resourceapi.DeviceAttribute {
	domain, short := splitName(name)
	if stays[driverName].Has(cmp.Or(domain, driver)) && modelAttributes.Has(resourceapi.QualifiedName(short)) {
		return a
	}
	texts := func(c category, one *string, list []string) {
		if one != nil {
			*one = w.text(c, *one)
		}
		for i := range list {
			list[i] = w.text(c, list[i])
		}
	}
	number := func(n *int64) { *n, _ = strconv.ParseInt(w.text(intValue, strconv.FormatInt(*n, 10)), 10, 64) }
	texts(identity, a.StringValue, a.StringValues)
	texts(versionValue, a.VersionValue, a.VersionValues)
	if a.IntValue != nil {
		number(a.IntValue)
	}
	for i := range a.IntValues {
		number(&a.IntValues[i])
	}
	return a
}

// text replaces a text, unless it is a number that tells nothing. The function leaves those that may stay.
func (w walker) text(c category, text string) string {
	switch {
	case text == "":
		return text
	case c == labelValue && tellsNothing(text):
		return text
	case c == versionValue && plainVersion.MatchString(text):
		return text
	case c == attributeName:
		return w.qualified(text)
	case c == resourceName:
		return w.resource(text)
	case c == requestName:
		if request, alternative, found := strings.Cut(text, "/"); found {
			return w(c, request) + "/" + w(c, alternative)
		}
	}
	return w(c, text)
}

// qualified replaces the name of an attribute or a capacity. Its domain is that of a driver.
func (w walker) qualified(name string) string {
	domain, short := splitName(name)
	short = w(attributeName, short)
	switch domain {
	case "":
		return short
	case standardDomain:
		return domain + "/" + short
	}
	return w(driverName, domain) + "/" + short
}

// resource replaces the name of a resource, which may name a class of devices.
func (w walker) resource(name string) string {
	if class, found := strings.CutPrefix(name, resourceapi.ResourceDeviceClassPrefix); found {
		return resourceapi.ResourceDeviceClassPrefix + w(className, class)
	}
	if class, found := strings.CutSuffix(name, corev1.ResourceClaimsPerClass); found {
		return w(className, class) + corev1.ResourceClaimsPerClass
	}
	for _, prefix := range []string{corev1.DefaultResourceRequestsPrefix, "limits."} {
		if rest, found := strings.CutPrefix(name, prefix); found {
			return prefix + w.text(resourceName, rest)
		}
	}
	if domain, _ := splitName(name); domain == "" && !stays[resourceName].Has(name) {
		return w(anyText, name)
	}
	return w(resourceName, name)
}

// prune removes what no plan needs.
func prune(s plan.Snapshot) {
	if !slices.ContainsFunc(s.Pods, selectsNamespaces) {
		for _, o := range s.Namespaces {
			o.Labels = onlyAdmin(o.Labels)
		}
	}
	for _, o := range s.Classes {
		o.Spec.Config = nil
	}
	for _, o := range s.Pods {
		if o.Spec.Affinity != nil && o.Spec.Affinity.NodeAffinity != nil {
			o.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = nil
		}
		infeasible := resourcehelper.IsPodResizeInfeasible(o)
		if o.Status.Conditions = nil; infeasible {
			o.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible,
			}}
		}
	}
	for _, o := range s.Claims {
		o.Spec.Devices.Config = nil
		if o.Status.Allocation != nil {
			o.Status.Allocation.Devices.Config = nil
		}
		for i := range o.Status.Devices {
			for j := range o.Status.Devices[i].Conditions {
				o.Status.Devices[i].Conditions[j].Message = ""
			}
		}
	}
	for _, o := range s.Templates {
		o.Spec.Spec.Devices.Config = nil
	}
}

// onlyAdmin keeps of a namespace's labels the one that allows administrators' access: others decide only where pods select namespaces.
func onlyAdmin(labels map[string]string) map[string]string {
	if value, set := labels[resourceapi.DRAAdminNamespaceLabelKey]; set {
		return map[string]string{resourceapi.DRAAdminNamespaceLabelKey: value}
	}
	return nil
}

// selectsNamespaces says whether a pod requires something of pods of namespaces that it selects by labels.
func selectsNamespaces(pod *corev1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return t.NamespaceSelector != nil })
}
