// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// Redact changes the objects of a trimmed snapshot so that they do not tell whose cluster it is, and a plan of it is the same but for the
// names. Namespaces, nodes, pools, pods, claims, templates, quotas, owners, values of labels and taints, and attributes that name one
// device of the world get other names, the same ones everywhere, in the same order. Opaque configurations, annotations and conditions go.
// Names of classes, drivers, devices, requests, labels and attributes stay, since they say what the devices are.
func Redact(s plan.Snapshot) {
	found := map[category]map[string]bool{}
	walk(s, func(c category, text string) string {
		if found[c] == nil {
			found[c] = map[string]bool{}
		}
		found[c][text] = true
		return text
	})
	other := map[category]map[string]string{}
	for c, texts := range found {
		other[c] = aliases(c, texts)
	}
	walk(s, func(c category, text string) string { return other[c][text] })
	replaceInSelectors(s, other[identity])
}

// RedactProblems keeps which kinds of objects could not be read, and not what the API server said.
func RedactProblems(problems []plan.Problem) []plan.Problem {
	var out []plan.Problem
	for _, p := range problems {
		kind, rest, _ := strings.Cut(p.Object, " ")
		if kind == plan.HeaderKind {
			kind += " " + rest
		}
		out = append(out, plan.Problem{Object: kind, Message: "the message was removed"})
	}
	return out
}

// category is what a text names. Texts of one category that are the same stay the same.
type category string

const (
	namespaceName category = "namespace"
	// place is a node or a pool, which often has the name of its node.
	place category = "node"
	// objectName is that of everything else.
	objectName category = "name"
	// labelValue is the value of a label or taint.
	labelValue category = "value"
	// identity tells one device of the world from all others.
	identity category = "id"
)

// aliases numbers texts in their order, so that what is decided by the order of names stays as it is.
func aliases(c category, texts map[string]bool) map[string]string {
	sorted := slices.Sorted(maps.Keys(texts))
	width := len(strconv.Itoa(len(sorted)))
	out := map[string]string{}
	for i, text := range sorted {
		out[text] = fmt.Sprintf("%s-%0*d", c, width, i+1)
	}
	return out
}

// tellsNothing says whether the value of a label may stay: numbers, which affinity may compare, and yes or no.
func tellsNothing(value string) bool {
	_, noNumber := strconv.Atoi(value)
	_, noBool := strconv.ParseBool(value)
	return noNumber == nil || noBool == nil
}

// identifies says whether an attribute is that of one device of the world: its name has a word for that in it.
func identifies(name resourceapi.QualifiedName) bool {
	lower := strings.ToLower(string(name))
	return slices.ContainsFunc([]string{"uuid", "guid", "serial", "uniqueid", "macaddress"}, func(word string) bool {
		return strings.Contains(lower, word)
	})
}

// replaceInSelectors replaces in CEL the texts that name one device.
func replaceInSelectors(s plan.Snapshot, other map[string]string) {
	var replacements []string
	for _, text := range slices.Sorted(maps.Keys(other)) {
		replacements = append(replacements, `"`+text+`"`, `"`+other[text]+`"`, `'`+text+`'`, `'`+other[text]+`'`)
	}
	replacer := strings.NewReplacer(replacements...)
	replace := func(selectors []resourceapi.DeviceSelector) {
		for _, selector := range selectors {
			if selector.CEL != nil {
				selector.CEL.Expression = replacer.Replace(selector.CEL.Expression)
			}
		}
	}
	for _, o := range s.Classes {
		replace(o.Spec.Selectors)
	}
	eachSpec(s, func(spec *resourceapi.ResourceClaimSpec) {
		for _, request := range spec.Devices.Requests {
			if request.Exactly != nil {
				replace(request.Exactly.Selectors)
			}
			for _, sub := range request.FirstAvailable {
				replace(sub.Selectors)
			}
		}
	})
}

// eachSpec calls a function for what each claim and each template asks for.
func eachSpec(s plan.Snapshot, each func(*resourceapi.ResourceClaimSpec)) {
	for _, o := range s.Claims {
		each(&o.Spec)
	}
	for _, o := range s.Templates {
		each(&o.Spec.Spec)
	}
}

// onlyAdmin keeps of a namespace's labels the one that allows administrators' access.
func onlyAdmin(labels map[string]string) map[string]string {
	if value, set := labels[resourceapi.DRAAdminNamespaceLabelKey]; set {
		return map[string]string{resourceapi.DRAAdminNamespaceLabelKey: value}
	}
	return nil
}

// categoryOf is that of the value of a label, "" if the value stays. The hostname is that of the node, and what a machine is made of
// tells nothing.
func categoryOf(key, value string) category {
	switch {
	case key == corev1.LabelHostname:
		return place
	case key == corev1.LabelArchStable || key == corev1.LabelOSStable || tellsNothing(value):
		return ""
	}
	return labelValue
}
