// SPDX-License-Identifier: Apache-2.0

// Package jsonsize bounds JSON of strangers before it is decoded. What a text becomes may take fifty times its bytes: "[{},{},{}" has an
// object for each three. It judges no syntax, which is the decoder's.
package jsonsize

import "fmt"

// maxDepth is deeper than any format nests that Fettle reads.
const maxDepth = 64

// Check refuses a text with more values than values, or with objects and lists in each other more than 64 deep. A value is a member of an
// object or of a list.
func Check(text []byte, values int) error {
	found, depth := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = stringEnd(text, i)
		case '{', '[':
			depth++
			found++
		case '}', ']':
			depth--
		case ',':
			found++
		}
		if depth > maxDepth {
			return fmt.Errorf("objects and lists lie too deep in each other: expected at most %d", maxDepth)
		}
		if found > values {
			return fmt.Errorf("too many values: expected at most %d", values)
		}
	}
	return nil
}

// stringEnd returns the index of the quote that ends the string that begins at i, or of the last byte.
func stringEnd(text []byte, i int) int {
	for i++; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i
}
