// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestReference: the page of other drivers' attributes and capacities has each of them, with what it becomes. -update writes it.
func TestReference(t *testing.T) {
	var out strings.Builder
	out.WriteString("<!-- Made from the code by: go test ./pkg/convert/drivers -run TestReference -update -->\n\n" +
		"# Attributes of other drivers\n\nWhat `fettle convert` makes of them in selectors and constraints.\n")
	for _, name := range []string{NVIDIA, AMD, Intel} {
		d := Lookup(name)
		fmt.Fprintf(&out, "\n## %s\n\n", name)
		for _, rules := range []map[string]rule{d.attributes, d.capacities} {
			for _, attribute := range slices.Sorted(maps.Keys(rules)) {
				fmt.Fprintf(&out, "- `%s`: %s\n", attribute, fate(rules[attribute]))
			}
		}
	}
	check.Golden(t, "../../../docs/user/reference/convert-attributes.md", out.String())
}

// fate says in words what becomes of an attribute or a capacity.
func fate(r rule) string {
	switch {
	case r.refused != "":
		return "refused: " + r.refused
	case r.constant != nil:
		return fmt.Sprintf("always %v: %s", r.constant, r.ignored)
	case r.flag != "":
		return strings.TrimSuffix("`"+r.flag+"`; "+r.ignored, "; ")
	case r.name == "":
		return cmp.Or(r.ignored, "left out")
	}
	text := "`" + strings.TrimPrefix(r.domain+"/", "/") + r.name + "`"
	if r.equals != nil {
		text += ", compared with constants only"
	}
	return text
}
