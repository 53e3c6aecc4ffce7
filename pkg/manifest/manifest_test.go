// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []Document
	}{
		{name: "empty"},
		{name: "comments only", in: "# a\n---\n# b\n"},
		{name: "one without a marker", in: "\n# a\nb: 1", want: []Document{{Line: 3, Text: []byte("\n# a\nb: 1")}}},
		{name: "two", in: "a: 1\n---\nb: 1\n", want: []Document{
			{Line: 1, Text: []byte("a: 1\n")}, {Line: 3, Text: []byte("\nb: 1\n"), Blank: 1},
		}},
		{name: "content beside the marker", in: "--- {a: 1}", want: []Document{{Line: 1, Text: []byte(" {a: 1}"), Blank: 1}}},
		{name: "a marker without content", in: "---\n---\t\na: 1\n", want: []Document{{Line: 3, Text: []byte("\t\na: 1\n"), Blank: 2}}},
		{name: "no marker", in: "a: |\n  ---\n---b: 1\n", want: []Document{{Line: 1, Text: []byte("a: |\n  ---\n---b: 1\n")}}},
		{name: "Windows", in: "a: 1\r\n---\r\nb: 1\r\n", want: []Document{
			{Line: 1, Text: []byte("a: 1\r\n")}, {Line: 3, Text: []byte("\r\nb: 1\r\n"), Blank: 2},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Split([]byte(tc.in))); diff != "" {
				t.Errorf("wrong documents (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCheckAliases: what a text becomes counts, and not how it is written.
func TestCheckAliases(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		refused  string
	}{
		{"none", strings.Repeat("a", 200), ""},
		{"few", "a: &a aaaaaaaaaa\nb: [*a, *a]", ""},
		{"many", "a: &a aaaaaaaaaa\nb: [*a, *a, *a, *a, *a, *a, *a, *a, *a]", "want at most 100 bytes"},
		{"of each other", "a: &a [x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a]\nc: [*b, *b]", "want at most 100 bytes"},
		{"of itself", "a: &a {b: *a}", "want at most 100 bytes"},
		{"merged", "a: &a {k: v}\nb: {<<: *a}", ""},
		{"not aliases", "a: 'R&D'\nb: '*'", ""},
		{"no YAML", "a: &a [*a", "anchors and aliases"},
	} {
		err := CheckAliases([]byte(tc.in), 100)
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.refused)
		}
	}
}
