// SPDX-License-Identifier: Apache-2.0

package manifest

import (
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
