// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	goyaml "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// node is a part of a document that keeps its comments and the order of its keys. All functions take nil for what is not there.
type node = goyaml.Node

// parse gives a document's content.
func parse(text []byte) (*node, error) {
	var d node
	if err := goyaml.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	if d.Kind != goyaml.DocumentNode || len(d.Content) != 1 {
		return nil, errors.New("a document without content")
	}
	content := d.Content[0]
	content.HeadComment = joined(d.HeadComment, content.HeadComment)
	content.FootComment = joined(content.FootComment, d.FootComment)
	return content, nil
}

// joined puts two comments one after the other, with an empty line between.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}

// isPlain says that editing one part changes no other, and that every key is where it seems to be.
func isPlain(n *node) bool {
	if n.Kind == goyaml.AliasNode || n.Anchor != "" || n.Style&goyaml.TaggedStyle != 0 || n.Tag == "!!merge" {
		return false
	}
	return !slices.ContainsFunc(n.Content, func(c *node) bool { return !isPlain(c) })
}

// olderBoolean matches what YAML 1.1, by which the API server's clients read, takes for true or false, and YAML 1.2 for a text.
//
//nolint:gochecknoglobals // a constant that Go cannot express as one
var olderBoolean = regexp.MustCompile(`^([yYnN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)$`)

// unflow makes JSON look like YAML. Texts that YAML's older rules take for true or false stay in quotes.
func unflow(n *node) {
	if n == nil {
		return
	}
	if n.Style = 0; n.Tag == "!!str" && olderBoolean.MatchString(n.Value) {
		n.Style = goyaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		unflow(c)
	}
}

// render writes a document.
func render(n *node) ([]byte, error) {
	var out bytes.Buffer
	e := goyaml.NewEncoder(&out)
	e.SetIndent(2)
	e.CompactSeqIndent()
	if err := errors.Join(e.Encode(n), e.Close()); err != nil {
		return nil, fmt.Errorf("write the document: %w", err)
	}
	return out.Bytes(), nil
}

// renderObject writes an object of the API.
func renderObject(object any) ([]byte, error) {
	text, err := yaml.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("write the object: %w", err)
	}
	return text, nil
}

// nodeOf makes a part of a document.
func nodeOf(content any) (*node, error) {
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	n, err := parse(raw)
	unflow(n)
	return n, err
}

// expanded writes aliases, merged keys and tags out. What was in quotes stays so, and what was not is read as the API server's clients read
// it.
func expanded(n *node) (*node, error) {
	switch {
	case n.Kind == goyaml.AliasNode:
		return expanded(n.Alias)
	case isScalar(n):
		return untagged(n)
	case isMapping(n):
		n = withMerged(n)
	}
	out := *n
	out.Anchor, out.Style, out.Content = "", n.Style&^goyaml.TaggedStyle, nil
	for _, part := range n.Content {
		written, err := expanded(part)
		if err != nil {
			return nil, err
		}
		out.Content = append(out.Content, written)
	}
	return &out, nil
}

// untagged returns a scalar without its anchor and tag.
func untagged(n *node) (*node, error) {
	out := *n
	out.Anchor, out.Style = "", n.Style&^goyaml.TaggedStyle
	switch {
	case n.Style&goyaml.TaggedStyle == 0:
	case n.Tag == "!!str":
		out.Style = goyaml.DoubleQuotedStyle
	default:
		var content any
		if err := n.Decode(&content); err != nil {
			return nil, err
		}
		return nodeOf(content)
	}
	return &out, nil
}

// withMerged returns a mapping with the keys of those that it merges. As the API server's clients read it, a key takes the place of one
// that stands before it, whichever of the two was merged.
func withMerged(n *node) *node {
	out := *n
	out.Content = nil
	at := map[string]int{}
	for _, p := range pairs(n) {
		written := []pair{p}
		if p.key.Tag == "!!merge" {
			written = mergedPairs(p.value)
		}
		for _, one := range written {
			if i, before := at[one.key.Value]; before {
				out.Content[i+1] = one.value
				continue
			}
			at[one.key.Value] = len(out.Content)
			out.Content = append(out.Content, one.key, one.value)
		}
	}
	return &out
}

// mergedPairs are the keys of the mapping, or of the mappings, that a merge names. Of several mappings the first one wins.
func mergedPairs(n *node) []pair {
	switch {
	case n.Kind == goyaml.AliasNode:
		return mergedPairs(n.Alias)
	case isSequence(n):
		var all []pair
		for _, one := range slices.Backward(n.Content) {
			all = append(all, mergedPairs(one)...)
		}
		return all
	}
	return pairs(withMerged(n))
}

func isMapping(n *node) bool { return n != nil && n.Kind == goyaml.MappingNode }

func isSequence(n *node) bool { return n != nil && n.Kind == goyaml.SequenceNode }

func isScalar(n *node) bool { return n != nil && n.Kind == goyaml.ScalarNode }

// isNull says that there is nothing, or a key with nothing.
func isNull(n *node) bool { return n == nil || isScalar(n) && n.Tag == "!!null" }

// pair is a key of a mapping with its value.
type pair struct{ key, value *node }

func pairs(n *node) []pair {
	if !isMapping(n) {
		return nil
	}
	var all []pair
	for kv := range slices.Chunk(n.Content, 2) {
		all = append(all, pair{kv[0], kv[1]})
	}
	return all
}

// child is the value of a key.
func child(n *node, key string) *node {
	for _, p := range pairs(n) {
		if p.key.Value == key {
			return p.value
		}
	}
	return nil
}

// value is the text of a key's scalar, as it was written.
func value(n *node, key string) string {
	if c := child(n, key); isScalar(c) && !isNull(c) {
		return c.Value
	}
	return ""
}

// remove takes keys away.
func remove(n *node, gone func(key string) bool) {
	if !isMapping(n) {
		return
	}
	var content []*node
	for _, p := range pairs(n) {
		if !gone(p.key.Value) {
			content = append(content, p.key, p.value)
		}
	}
	n.Content = content
}

func removeKey(n *node, key string) { remove(n, func(k string) bool { return k == key }) }

// extend appends to the list at a key, which is made where there is none.
func extend(n *node, key string, items []*node) error {
	list := child(n, key)
	if isNull(list) {
		removeKey(n, key)
		list = &node{Kind: goyaml.SequenceNode, Tag: "!!seq"}
		n.Content = append(n.Content, scalar(key), list)
	}
	if !isSequence(list) {
		return fmt.Errorf("%s: expected a list", key)
	}
	if len(list.Content) == 0 {
		list.Style = 0
	}
	list.Content = append(list.Content, items...)
	return nil
}

// items are those of a list.
func items(n *node) []*node {
	if !isSequence(n) {
		return nil
	}
	return n.Content
}

// mapping is the mapping at a key, which is made where there is none.
func mapping(n *node, key string) (*node, error) {
	m := child(n, key)
	if isNull(m) {
		removeKey(n, key)
		m = &node{Kind: goyaml.MappingNode, Tag: "!!map"}
		n.Content = append(n.Content, scalar(key), m)
	}
	if !isMapping(m) {
		return nil, fmt.Errorf("%s: expected a mapping", key)
	}
	return m, nil
}

// scalar is a string, in quotes where it would be something else without.
func scalar(text string) *node { return &node{Kind: goyaml.ScalarNode, Tag: "!!str", Value: text} }

// toList makes a mapping a list.
func toList(n *node, items []*node) {
	n.Kind, n.Tag, n.Style, n.Content = goyaml.SequenceNode, "!!seq", 0, items
}
