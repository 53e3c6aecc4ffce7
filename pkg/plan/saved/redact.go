// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// Redact changes the objects of a trimmed snapshot so that they do not tell whose cluster it is, and a plan of it is the same but for the
// names. Every text is replaced, unless it is in the list of what may stay (see rules.go): a field that this function does not know is
// replaced, too. The same texts get the same replacement, and keep their order. CEL expressions are replaced by lists of groups of devices
// that they select. Opaque configurations, annotations that no plan needs, and conditions go.
func Redact(ctx context.Context, s plan.Snapshot) {
	prune(s)
	found := map[category]map[string]bool{}
	walk(s, func(c category, text string) string {
		if found[c] == nil {
			found[c] = map[string]bool{}
		}
		found[c][text] = true
		return text
	})
	selected := newSelectors(ctx, s, slices.Sorted(maps.Keys(found[celSelector])), slices.Sorted(maps.Keys(found[celDerived])))
	selected.findValues(found)
	other := map[category]map[string]string{}
	for c, texts := range found {
		other[c] = aliases(c, texts)
	}
	other[celSelector], other[celDerived] = selected.texts, selected.derivedTexts
	was := map[*resourceapi.Device]string{}
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			was[&slice.Spec.Devices[i]] = where(slice, &slice.Spec.Devices[i])
		}
	}
	replace := func(c category, text string) string { return other[c][text] }
	walk(s, replace)
	selected.addGroups(s, was, replace)
}

// RedactProblems keeps which kinds of objects could not be read, and not what the API server said.
func RedactProblems(problems []plan.Problem) []plan.Problem {
	var out []plan.Problem
	for _, p := range problems {
		out = append(out, plan.Problem{Object: kindOf(p.Object), Message: "the message was removed"})
	}
	return out
}

// aliases numbers texts in their order, so that what is decided by the order of names stays as it is: a text after one that may stay gets a
// name after that.
func aliases(c category, texts map[string]bool) map[string]string {
	sorted := slices.Sorted(maps.Keys(texts))
	width := len(strconv.Itoa(len(sorted)))
	out := map[string]string{}
	after := ""
	for i, text := range sorted {
		switch number := i + 1; {
		case stays[c].Has(text):
			out[text], after = text, text+"-"
		case c == versionValue:
			out[text] = fmt.Sprintf("0.0.%d", number)
		case c == intValue:
			out[text] = strconv.Itoa(number)
		case c == resourceName:
			out[text] = fmt.Sprintf("example.com/%s-%0*d", c, width, number)
		default:
			out[text] = fmt.Sprintf("%s%s-%0*d", after, c, width, number)
		}
	}
	return out
}
