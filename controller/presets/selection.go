// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// selection says which requests a preset is for, in a form in which two presets can be compared.
type selection struct {
	namespaces, pods labelRequirements
	rule             v1alpha1.PresetDeviceSelector
	absent           v1alpha1.PresetAbsent
	// may are the makers whose devices it may be for. away are those whose devices certainly exclude it.
	may, away kinds
}

func selectionOf(ctx context.Context, p *preset.Preset, c *preset.Conditions) selection {
	s := selection{pods: labelsOf(p.Rules.PodSelector), rule: ptr.Deref(p.Rules.DeviceSelector, v1alpha1.PresetDeviceSelector{})}
	s.absent = ptr.Deref(s.rule.Absent, v1alpha1.PresetAbsent{})
	s.namespaces = labelsOf(p.NamespaceSelector)
	if p.Namespace != "" {
		s.namespaces = labelsOf(&metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: p.Namespace}})
	}
	s.may, _ = selected(ctx, c, s.rule.CEL)
	if s.absent.CEL != "" {
		_, s.away = selected(ctx, c, s.absent.CEL)
	}
	return s
}

// overlaps says whether both may be for one request of a claim. It returns true if that is not known. Presets for different requests of a
// claim do not count: the pod decides whether a container uses both requests.
func (s *selection) overlaps(o *selection) bool {
	a, b := s.rule.DeviceClassNames, o.rule.DeviceClassNames
	switch {
	case s.namespaces.excludes(o.namespaces), s.pods.excludes(o.pods):
		return false
	case len(a) > 0 && len(b) > 0 && !common(a, b):
		return false
	case common(s.absent.DeviceClassNames, b), common(o.absent.DeviceClassNames, a):
		return false
	}
	may := s.may & o.may
	return may&^s.away&^o.away != 0
}

// narrowerThan says whether the requests of s are a part of those of o, as far as the two selectors show.
func (s *selection) narrowerThan(o *selection) bool {
	return s.namespaces.implies(o.namespaces) && s.pods.implies(o.pods) &&
		contains(s.rule.DeviceClassNames, o.rule.DeviceClassNames) &&
		(o.rule.CEL == "" || o.rule.CEL == s.rule.CEL) &&
		ptr.Deref(o.rule.MinCount, 1) <= ptr.Deref(s.rule.MinCount, 1) &&
		contains(s.absent.DeviceClassNames, o.absent.DeviceClassNames) &&
		(o.absent.CEL == "" || o.absent.CEL == s.absent.CEL)
}

func common(a, b []string) bool { return slices.ContainsFunc(a, isIn(b)) }

// contains says whether all of b is in a.
func contains(a, b []string) bool {
	in := isIn(a)
	return !slices.ContainsFunc(b, func(x string) bool { return !in(x) })
}

// isIn says of texts whether a list has them. Tenants write lists of ten thousand values, and each is asked for each of another list.
func isIn(list []string) func(string) bool {
	const few = 16
	if len(list) <= few {
		return func(x string) bool { return slices.Contains(list, x) }
	}
	set := make(map[string]bool, len(list))
	for _, x := range list {
		set[x] = true
	}
	return func(x string) bool { return set[x] }
}

// labelRequirements are the requirements of a selector, by the label's key.
type labelRequirements map[string]requirement

// requirement is the requirement on one label.
type requirement struct {
	// in are the values that the label may have; nil is any. notIn are the values that it may not have.
	in, notIn []string
	// present and missing say that the label must be present, or must not be.
	present, missing bool
}

func labelsOf(s *metav1.LabelSelector) labelRequirements {
	if s == nil {
		return nil
	}
	out := labelRequirements{}
	for key, value := range s.MatchLabels {
		out[key] = out[key].and(requirement{in: []string{value}, present: true})
	}
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			out[e.Key] = out[e.Key].and(requirement{in: e.Values, present: true})
		case metav1.LabelSelectorOpNotIn:
			out[e.Key] = out[e.Key].and(requirement{notIn: e.Values})
		case metav1.LabelSelectorOpExists:
			out[e.Key] = out[e.Key].and(requirement{present: true})
		case metav1.LabelSelectorOpDoesNotExist:
			out[e.Key] = out[e.Key].and(requirement{missing: true})
		}
	}
	return out
}

// and returns the requirement to meet both.
func (r requirement) and(o requirement) requirement {
	out := requirement{in: r.in, notIn: slices.Concat(r.notIn, o.notIn), present: r.present || o.present, missing: r.missing || o.missing}
	switch {
	case r.in == nil:
		out.in = o.in
	case o.in != nil:
		out.in = []string{}
		also := isIn(o.in)
		for _, v := range r.in {
			if also(v) {
				out.in = append(out.in, v)
			}
		}
	}
	return out
}

// excludes says whether no label can meet both.
func (r requirement) excludes(o requirement) bool {
	if r.missing || o.missing {
		return r.present || o.present
	}
	if r.in == nil {
		r, o = o, r
	}
	also, not, neither := isIn(o.in), isIn(r.notIn), isIn(o.notIn)
	for _, v := range r.in {
		if (o.in == nil || also(v)) && !not(v) && !neither(v) {
			return false
		}
	}
	return r.in != nil
}

// excludes says whether no set of labels can meet both.
func (l labelRequirements) excludes(o labelRequirements) bool {
	for key, r := range l {
		if other, ok := o[key]; ok && r.excludes(other) {
			return true
		}
	}
	return false
}

// implies says whether all labels that meet l meet o.
func (l labelRequirements) implies(o labelRequirements) bool {
	for key, other := range o {
		if r, ok := l[key]; !ok || !r.implies(other) {
			return false
		}
	}
	return true
}

func (r requirement) implies(o requirement) bool {
	switch {
	case o.missing && !r.missing, o.present && !r.present:
		return false
	case o.in != nil && (r.in == nil || !contains(o.in, r.in)):
		return false
	case r.missing:
		return true
	case r.in != nil:
		return !common(r.in, o.notIn)
	}
	return contains(r.notIn, o.notIn)
}
