// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxNodeTaints = 8
	maxTaintKey   = 253

	maxPriorityClasses   = 8
	maxPriorityClassName = 253
	maxPriorityClassText = 1024
	maxPriorityValue     = 1_000_000_000
	maxReclaimNamespaces = 128
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	taintKey = regexp.MustCompile(
		`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	taintValue    = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
	priorityName  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	kubernetesKey = regexp.MustCompile(`^([^/]*[.])?(kubernetes|k8s)[.]io/`)
)

func (n *NodePartition) validate(path *field.Path) field.ErrorList {
	if n.Taints == nil && n.PriorityClasses == nil && n.Reclaim == "" {
		return field.ErrorList{field.Required(path, "say who may use the nodes: set taints, priorityClasses or reclaim")}
	}
	faults := validateTaints(n.Taints, path.Child("taints"))
	faults = append(faults, validatePriorityClasses(n.PriorityClasses, path.Child("priorityClasses"))...)
	if modes := []ReclaimMode{ReclaimNone, ReclaimEvict}; n.Reclaim != "" && !slices.Contains(modes, n.Reclaim) {
		faults = append(faults, field.NotSupported(path.Child("reclaim"), n.Reclaim, modes))
	}
	return faults
}

func validatePriorityClasses(classes []NodePriorityClass, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if classes != nil && len(classes) == 0 {
		faults = append(faults, emptyList(path))
	}
	faults = append(faults, atMost(len(classes), maxPriorityClasses, path)...)
	defaults := 0
	for i, c := range classes {
		faults = append(faults, c.validate(path.Index(i))...)
		if slices.ContainsFunc(classes[:i], func(other NodePriorityClass) bool { return other.Name == c.Name }) {
			faults = append(faults, field.Duplicate(path.Index(i), c.Name))
		}
		if c.Default {
			defaults++
		}
	}
	if defaults > 1 {
		faults = append(faults, field.Invalid(path, defaults, "at most one class may be the default"))
	}
	return faults
}

func (c NodePriorityClass) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	at := path.Child("name")
	switch {
	case len(c.Name) > maxPriorityClassName || !priorityName.MatchString(c.Name):
		faults = append(faults, field.Invalid(at, c.Name, "must be lower-case letters, digits, dashes and dots"))
	case strings.HasPrefix(c.Name, "system-"):
		faults = append(faults, field.Forbidden(at, "names that begin with system- are Kubernetes' own"))
	}
	if c.Value < -maxPriorityValue || c.Value > maxPriorityValue {
		faults = append(faults, field.Invalid(path.Child("value"), c.Value, fmt.Sprintf("must be from -%d to %[1]d", maxPriorityValue)))
	}
	faults = append(faults, noLonger(c.Description, maxPriorityClassText, path.Child("description"))...)
	return append(faults, c.validateReclaim(path.Child("reclaimNamespaces"))...)
}

func (c NodePriorityClass) validateReclaim(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if c.ReclaimNamespaces != nil && len(c.ReclaimNamespaces) == 0 {
		faults = append(faults, emptyList(path))
	}
	faults = append(faults, atMost(len(c.ReclaimNamespaces), maxReclaimNamespaces, path)...)
	faults = append(faults, validateSet(c.ReclaimNamespaces, path)...)
	for i, namespace := range c.ReclaimNamespaces {
		if namespace != everyNamespace {
			faults = append(faults, labelFaults(namespace, path.Index(i))...)
		}
	}
	return faults
}

func validateTaints(taints []NodeTaint, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if taints != nil && len(taints) == 0 {
		faults = append(faults, emptyList(path))
	}
	faults = append(faults, atMost(len(taints), maxNodeTaints, path)...)
	for i, t := range taints {
		faults = append(faults, t.validate(path.Index(i))...)
		same := func(other NodeTaint) bool { return other.Key == t.Key && other.Effect == t.Effect }
		if slices.ContainsFunc(taints[:i], same) {
			faults = append(faults, field.Duplicate(path.Index(i), t.Key+":"+string(t.Effect)))
		}
	}
	return faults
}

func (t NodeTaint) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	at := path.Child("key")
	switch {
	case len(t.Key) > maxTaintKey || !taintKey.MatchString(t.Key):
		faults = append(faults, field.Invalid(at, t.Key, "must be a name of at most 63 letters, digits, dashes, dots and underscores, "+
			"or a domain, a slash and such a name: example.com/gpu"))
	case kubernetesKey.MatchString(t.Key):
		faults = append(faults, field.Forbidden(at, "keys below kubernetes.io and k8s.io are Kubernetes' own: use a domain of yours"))
	}
	if !taintValue.MatchString(t.Value) {
		faults = append(faults, field.Invalid(path.Child("value"), t.Value, "must be at most 63 letters, digits, dashes, dots and underscores"))
	}
	if t.Effect == "" {
		return append(faults, field.Required(path.Child("effect"), "one of NoSchedule, PreferNoSchedule, NoExecute"))
	}
	return append(faults, oneOf(t.Effect, path.Child("effect"),
		corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
}
