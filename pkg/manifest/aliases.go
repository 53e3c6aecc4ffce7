// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
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
