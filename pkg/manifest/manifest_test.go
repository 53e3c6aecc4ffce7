// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
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

// TestSplitStreams: a stream of JSON objects needs no markers, and a file of Windows may have UTF-16. Nothing of either is lost.
func TestSplitStreams(t *testing.T) {
	utf16 := func(text string) string {
		out := "\xff\xfe"
		for _, r := range text {
			out += string([]byte{byte(r), byte(r >> 8)})
		}
		return out
	}
	for _, tc := range []struct{ name, in, want string }{
		{"JSON", "{\"a\":1}\n{\"b\":2}\n\n{\"c\":\n3}\n", "1:{\"a\":1} 2:{\"b\":2} 4:{\"c\": 3}"},
		{"JSON on a line", `{"a":1}{"b":2} {"c":3}`, `1:{"a":1} 1:{"b":2} 1:{"c":3}`},
		{"JSON between comments", "# x\n{\"a\":1}\n# y\n{\"b\":2}\n# z\n", "2:# x {\"a\":1} 4:{\"b\":2} # z"},
		{"JSON and a marker", "{\"a\":1}\n---\n{\"b\":2}\n{\"c\":3}", `1:{"a":1} 3:{"b":2} 4:{"c":3}`},
		{"JSON and something else", "{\"a\":1}\nb: 2\n", "1:{\"a\":1} 2:b: 2"},
		{"one object", "{\"a\":\n1}\n", "1:{\"a\": 1}"},
		{"flow of YAML", "{a: 1}\n", "1:{a: 1}"},
		{"UTF-16", utf16("a: 1\n---\nb: ü\n"), "1:a: 1 3:b: ü"},
		{"UTF-16, the other order", "\xfe\xff\x00a\x00:\x00 \x001\x00\n\x00-\x00-\x00-\x00\n\x00b\x00:\x00 \x002", "1:a: 1 3:b: 2"},
		{"mark of UTF-8", "\xef\xbb\xbf# x\n---\na: 1\n", "3:a: 1"},
	} {
		var have []string
		for _, d := range Split([]byte(tc.in)) {
			have = append(have, fmt.Sprint(d.Line, ":", strings.Join(strings.Fields(string(d.Text)), " ")))
		}
		if got := strings.Join(have, " "); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestJSON: a key beside a merge that has it too is what people mean by a merge. The same key twice is a mistake, and so is what no parser
// would read.
func TestJSON(t *testing.T) {
	const base = "base: &base {a: 1, b: 2}\n"
	for _, tc := range []struct{ name, in, want, wantErr string }{
		{name: "plain", in: "a: 1", want: `{"a":1}`},
		{name: "merge", in: base + "x: {<<: *base, b: 3}", want: `{"base":{"a":1,"b":2},"x":{"a":1,"b":3}}`},
		{name: "merge behind", in: base + "x: {b: 3, <<: *base}", want: `{"base":{"a":1,"b":2},"x":{"a":1,"b":2}}`},
		{name: "twice", in: "a: 1\na: 2", wantErr: `key "a" already set in map`},
		{name: "twice beside a merge", in: base + "x: {<<: *base, b: 3, b: 4}", wantErr: "already set in map"},
		{name: "two objects", in: "{a: 1}\n{b: 2}", wantErr: "write --- between two"},
		{name: "more behind an object", in: "{\"a\": 1}\nb: 2", wantErr: "write --- between two"},
		{name: "comments behind an object", in: "{a: 1}\n# b", want: `{"a":1}`},
		{name: "no YAML", in: "a: [", wantErr: "yaml: "},
	} {
		raw, err := JSON([]byte(tc.in))
		if tc.wantErr != "" {
			check.WantErr(t, err, nil, tc.wantErr)
		} else if err != nil || string(raw) != tc.want {
			t.Errorf("%s: got %s, %v; want %s", tc.name, raw, err, tc.want)
		}
	}
}
