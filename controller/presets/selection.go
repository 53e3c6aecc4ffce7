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

// selection is whom a preset is for, in a form that two of them can be compared by.
type selection struct {
	namespaces, pods labels
	rule             v1alpha1.PresetDeviceSelector
	absent           v1alpha1.PresetAbsent
	// may are the makers whose devices it may be for, without those that surely keep it away.
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

// meets says whether both may be for one request of a claim. Where that cannot be told it says yes. Presets for different requests of a
// claim are left out: that a container uses both is the pod's doing.
func (s *selection) meets(o *selection) bool {
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

// narrows says whether what s is for is part of what o is for, as a look at both shows.
func (s *selection) narrows(o *selection) bool {
	return s.namespaces.implies(o.namespaces) && s.pods.implies(o.pods) &&
		contains(s.rule.DeviceClassNames, o.rule.DeviceClassNames) &&
		(o.rule.CEL == "" || o.rule.CEL == s.rule.CEL) &&
		ptr.Deref(o.rule.MinCount, 1) <= ptr.Deref(s.rule.MinCount, 1) &&
		contains(s.absent.DeviceClassNames, o.absent.DeviceClassNames) &&
		(o.absent.CEL == "" || o.absent.CEL == s.absent.CEL)
}

func common(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

// contains says whether all of b is in a.
func contains(a, b []string) bool {
	return !slices.ContainsFunc(b, func(x string) bool { return !slices.Contains(a, x) })
}

// labels is what a selector wants, by the label's key.
type labels map[string]want

// want is what one label must be.
type want struct {
	// in are the values that it may have; nil: any. notIn are those that it may not have.
	in, notIn []string
	// there and missing say that the label must be there, or must not.
	there, missing bool
}

func labelsOf(s *metav1.LabelSelector) labels {
	if s == nil {
		return nil
	}
	out := labels{}
	for key, value := range s.MatchLabels {
		out[key] = out[key].and(want{in: []string{value}, there: true})
	}
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			out[e.Key] = out[e.Key].and(want{in: e.Values, there: true})
		case metav1.LabelSelectorOpNotIn:
			out[e.Key] = out[e.Key].and(want{notIn: e.Values})
		case metav1.LabelSelectorOpExists:
			out[e.Key] = out[e.Key].and(want{there: true})
		case metav1.LabelSelectorOpDoesNotExist:
			out[e.Key] = out[e.Key].and(want{missing: true})
		}
	}
	return out
}

// and wants both.
func (w want) and(o want) want {
	out := want{in: w.in, notIn: slices.Concat(w.notIn, o.notIn), there: w.there || o.there, missing: w.missing || o.missing}
	switch {
	case w.in == nil:
		out.in = o.in
	case o.in != nil:
		out.in = []string{}
		for _, v := range w.in {
			if slices.Contains(o.in, v) {
				out.in = append(out.in, v)
			}
		}
	}
	return out
}

// excludes says whether no label is as both want.
func (w want) excludes(o want) bool {
	if w.missing || o.missing {
		return w.there || o.there
	}
	if w.in == nil {
		w, o = o, w
	}
	for _, v := range w.in {
		if (o.in == nil || slices.Contains(o.in, v)) && !slices.Contains(w.notIn, v) && !slices.Contains(o.notIn, v) {
			return false
		}
	}
	return w.in != nil
}

// excludes says whether nothing can be as both want.
func (l labels) excludes(o labels) bool {
	for key, w := range l {
		if other, ok := o[key]; ok && w.excludes(other) {
			return true
		}
	}
	return false
}

// implies says whether all that is as l wants is as o wants.
func (l labels) implies(o labels) bool {
	for key, other := range o {
		if w, ok := l[key]; !ok || !w.implies(other) {
			return false
		}
	}
	return true
}

func (w want) implies(o want) bool {
	switch {
	case o.missing && !w.missing, o.there && !w.there:
		return false
	case o.in != nil && (w.in == nil || !contains(o.in, w.in)):
		return false
	case w.missing:
		return true
	case w.in != nil:
		return !common(w.in, o.notIn)
	}
	return contains(w.notIn, o.notIn)
}
