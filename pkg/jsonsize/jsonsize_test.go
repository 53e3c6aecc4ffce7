// SPDX-License-Identifier: Apache-2.0

package jsonsize

import (
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestCheckCountsValuesAndDepth: what is in strings does not count.
func TestCheckCountsValuesAndDepth(t *testing.T) {
	for _, test := range []struct {
		name, text string
		values     int
		refused    bool
	}{
		{"empty objects", "[" + strings.Repeat("{},", 1000) + "{}]", 1000, true},
		{"numbers", "[" + strings.Repeat("1,", 1000) + "1]", 1000, true},
		{"members", "{" + strings.Repeat(`"a":1,`, 1000) + `"b":1}`, 1000, true},
		{"as many as are allowed", "[" + strings.Repeat("1,", 999) + "1]", 1000, false},
		{"in a string", `["` + strings.Repeat("{},", 1000) + `"]`, 2, false},
		{"behind an escaped quote", `["\"` + strings.Repeat("{},", 1000) + `"]`, 2, false},
		{"string that ends with a backslash", `["a\\",{},{},{}]`, 3, true},
		{"string without an end", `["a\`, 2, false},
		{"64 deep", strings.Repeat("[", 64), 100, false},
		{"65 deep", strings.Repeat("[", 65), 100, true},
		{"nothing", "", 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Check([]byte(test.text), test.values)
			if !test.refused {
				check.Must(t, err)
				return
			}
			check.WantErr(t, err, nil, "expected at most")
		})
	}
}
