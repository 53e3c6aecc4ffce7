// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestRulesLookAtExponentsBeforeTheyReadQuantities: to read or to compare a quantity is to compute its power of ten, with ten digits of
// exponent in more memory than an API server has. A pattern of the schema is no help: the rules are checked although it is violated.
func TestRulesLookAtExponentsBeforeTheyReadQuantities(t *testing.T) {
	rules := 0
	for _, d := range definitions(t) {
		for _, version := range d.Spec.Versions {
			walk(version.Schema.OpenAPIV3Schema, d.Spec.Names.Kind, func(at string, s *apiextensionsv1.JSONSchemaProps) {
				read := false
				for _, rule := range s.XValidations {
					if !readsQuantity.MatchString(rule.Rule) {
						continue
					}
					rules++
					read = true
					if !looksFirst(rule.Rule) {
						t.Errorf("%s: the rule reads a quantity before it looks for an exponent: %s", at, rule.Rule)
					}
				}
				if s.XIntOrString && strings.Contains(s.Pattern, "[eE]") && !read {
					t.Errorf("%s: a quantity of any exponent: expected a rule that bounds it", at)
				}
			})
		}
	}
	if rules < 10 {
		t.Errorf("%d rules read quantities, expected those of presets, caches and policies", rules)
	}
}

// readsQuantity matches the functions that compute a power of ten, but for those of a constant.
var readsQuantity = regexp.MustCompile(`[qQ]uantity\([^')]`)

// looksFirst says whether a rule looks for an exponent before it reads the first quantity.
func looksFirst(rule string) bool {
	return strings.Contains(rule[:readsQuantity.FindStringIndex(rule)[0]], ".matches('[eE]")
}

// walk calls do for a schema and those in it.
func walk(s *apiextensionsv1.JSONSchemaProps, at string, do func(at string, s *apiextensionsv1.JSONSchemaProps)) {
	do(at, s)
	for name := range s.Properties {
		inner := s.Properties[name]
		walk(&inner, fmt.Sprintf("%s.%s", at, name), do)
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(s.Items.Schema, at+"[]", do)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		walk(s.AdditionalProperties.Schema, at+"{}", do)
	}
}
