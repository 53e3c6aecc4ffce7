// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// ErrExpanded: a document has too many bytes with what its aliases stand for.
var ErrExpanded = errors.New("too long with what its aliases stand for")

// CheckAliases refuses a YAML document that would have more than most bytes, about, with a copy in place of each of its aliases. A decoder
// makes all of these copies: 128 KiB of text may become some GiB. It judges no other syntax, which is the decoder's.
func CheckAliases(text []byte, most int) error {
	if bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("read the anchors and aliases: %w", err)
	}
	c := copies{most: most, known: map[*yaml.Node]int{}}
	if c.size(&document) > most {
		return fmt.Errorf("it is %w: want at most %d bytes", ErrExpanded, most)
	}
	return nil
}

// copies counts the bytes of nodes with a copy in place of each alias.
type copies struct {
	most int
	// known has the nodes that were counted or are being counted. A node within itself has no end.
	known map[*yaml.Node]int
}

// size returns the bytes of a node, or any number above most.
func (c *copies) size(n *yaml.Node) int {
	if size, known := c.known[n]; known {
		return size
	}
	c.known[n] = c.most + 1
	size := len(n.Value) + 1
	if n.Kind == yaml.AliasNode {
		size = c.size(n.Alias)
	}
	for _, part := range n.Content {
		if size > c.most {
			break
		}
		size += c.size(part)
	}
	c.known[n] = size
	return size
}

// JSON makes JSON of a YAML document, by the rules of the API server's clients. A key that is written twice in a mapping is an error. A key
// that stands beside a merge (<<) which has it too is not: it takes the place of the merged one.
func JSON(text []byte) ([]byte, error) {
	raw, err := sigsyaml.YAMLToJSONStrict(text)
	if err == nil {
		return raw, wholly(text)
	}
	if !bytes.Contains(text, []byte("<<")) {
		return raw, err
	}
	var content any
	if yaml.Unmarshal(text, &content) != nil {
		return nil, err
	}
	return sigsyaml.YAMLToJSON(text)
}

// wholly wants that nothing follows what a parser takes for the document: in "{a: 1} {b: 2}" that is the first alone.
func wholly(text []byte) error {
	if begin := contentAt(text); begin == len(text) || !bytes.ContainsAny(text[begin:begin+1], "{[\"'") || json.Valid(text[begin:]) {
		return nil // what does not begin so ends where the text does
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	err := decoder.Decode(&document)
	if err == nil {
		err = decoder.Decode(&document)
	}
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("more follows what ends like a document: write --- between two: %w", err)
}
