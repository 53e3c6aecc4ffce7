// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// leaf is a value of an object that is neither a mapping nor a list.
type leaf struct {
	// path has the keys on the way; an item of a list has its name or key, as the API's merge keys are, or its number.
	path []string
	// word is what a note that accounts for the leaf has to say: its key, and that of its item where the key is a field of all items.
	word  string
	value string
}

func (l leaf) String() string { return strings.Join(l.path, "/") + "=" + l.value }

// leavesOf lists the leaves of a decoded object.
func leavesOf(content any) (all []leaf) {
	walkLeaves(content, nil, "", func(l leaf) { all = append(all, l) })
	return all
}

func walkLeaves(content any, path []string, word string, visit func(leaf)) {
	below := func(key string) []string { return append(slices.Clone(path), key) }
	switch v := content.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			named := key
			if slices.Contains([]string{"name", "key", "value", "operator", "effect", "path", "values"}, key) && word != "" {
				named = word
			}
			walkLeaves(v[key], below(key), named, visit)
		}
		return
	case []any:
		seen := map[string]int{}
		for i, item := range v {
			name, own := fmt.Sprint(i), word
			if fields, ok := item.(map[string]any); ok {
				for _, key := range []string{"name", "key"} {
					if text, ok := fields[key].(string); ok {
						name, own = text, text
						break
					}
				}
			}
			if seen[name]++; seen[name] > 1 {
				name = fmt.Sprintf("%s#%d", name, seen[name])
			}
			walkLeaves(item, below(name), own, visit)
		}
		return
	}
	visit(leaf{path, word, fmt.Sprint(content)})
}

// objectsIn decodes a stream.
func objectsIn(t *testing.T, text []byte) (all []map[string]any) {
	t.Helper()
	for _, d := range split(Input{Data: text}) {
		var object map[string]any
		check.Must(t, yaml.Unmarshal(d.text, &object))
		if object != nil {
			all = append(all, object)
		}
	}
	return all
}

// lost lists the leaves of an object that its successor does not have and that no note names.
func lost(before, after any, notes []string) (all []leaf) {
	have := map[string]bool{}
	for _, l := range leavesOf(after) {
		have[l.String()] = true
	}
	for _, l := range leavesOf(before) {
		if !have[l.String()] && !named(notes, l.word) {
			all = append(all, l)
		}
	}
	return all
}

// named reports whether a note has a word, which is not only a part of a longer one.
func named(notes []string, word string) bool {
	inside := func(text string, at int) bool {
		return at >= 0 && at < len(text) && (text[at] == '/' || text[at] == '_' || text[at] == '-' ||
			'a' <= text[at]|0x20 && text[at]|0x20 <= 'z' || '0' <= text[at] && text[at] <= '9')
	}
	return slices.ContainsFunc(notes, func(note string) bool {
		for from := 0; ; {
			at := strings.Index(note[from:], word)
			if at < 0 {
				return false
			}
			if at += from; !inside(note, at-1) && !inside(note, at+len(word)) {
				return true
			}
			from = at + 1
		}
	})
}

// losesNothing fails the test for each leaf of an input that is not accounted for.
func losesNothing(t *testing.T, what string, leaves []leaf, out Result, accounted func(leaf, Result) bool) {
	t.Helper()
	for _, l := range leaves {
		if !accounted(l, out) {
			t.Errorf("%s: %v is lost", what, l)
		}
	}
}

// checkConverted checks that what an input became is valid, and shows both if anything of it failed.
func checkConverted(t *testing.T, in []byte, out Result) {
	t.Helper()
	checkOutput(t, out.YAML, Options{})
	if t.Failed() {
		t.Fatalf("in:\n%s\nout:\n%s\nnotes:\n%s", in, out.YAML, strings.Join(out.Notes, "\n"))
	}
}
