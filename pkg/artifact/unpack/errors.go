// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// The kinds of an Error, for errors.Is. Reading the same image again gives the same kind.
var (
	// ErrRefused: the image holds what no image may.
	ErrRefused = errors.New("refused")
	// ErrMismatch: the bytes are not those that were declared.
	ErrMismatch = errors.New("not what was declared")
	// ErrLimit: the image holds more than is allowed.
	ErrLimit = errors.New("too much")
)

// Rule names a rule that an image broke.
type Rule string

// The rules.
const (
	RuleName      Rule = "names"
	RulePath      Rule = "paths"
	RuleType      Rule = "types"
	RuleMode      Rule = "modes"
	RuleXattr     Rule = "extended attributes"
	RulePAX       Rule = "PAX headers"
	RuleSparse    Rule = "sparse files"
	RuleDuplicate Rule = "duplicates"
	RuleWhiteout  Rule = "whiteouts"
	RuleTar       Rule = "tar"
	RuleStream    Rule = "compression"
	RuleTrailing  Rule = "trailing data"
	RuleMedia     Rule = "media types"
	RuleDigest    Rule = "digest"
	RuleDiffID    Rule = "diffID"
	RuleSize      Rule = "size of the layer"
	RuleFileSize  Rule = "size of a file"
	RuleTotal     Rule = "size of all files"
	RuleRatio     Rule = "ratio"
	RuleEntries   Rule = "number of entries"
	RuleNames     Rule = "length of all names"
)

// kind returns the sentinel that a rule belongs to.
func (r Rule) kind() error {
	switch r {
	case RuleDigest, RuleDiffID, RuleSize:
		return ErrMismatch
	case RuleFileSize, RuleTotal, RuleRatio, RuleEntries, RuleNames:
		return ErrLimit
	default:
		return ErrRefused
	}
}

// Error says which rule an image broke, and where.
type Error struct {
	// Layer counts from 1.
	Layer int
	// Entry is the name as the layer has it. It is empty if the layer as a whole is wrong.
	Entry string
	Rule  Rule
	// Why says what is wrong and what was expected.
	Why string
	// cause is the error of a decompressor or of the tar reader that Why ends with, if there is one.
	cause error
}

func (e *Error) Error() string {
	where := fmt.Sprintf("layer %d", e.Layer)
	if e.Entry != "" {
		where += ", entry " + quote(e.Entry)
	}
	return fmt.Sprintf("%s: %v by the rule on %s: %s", where, e.Rule.kind(), e.Rule, e.Why)
}

func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Rule.kind()}
	}
	return []error{e.Rule.kind(), e.cause}
}

// violation makes an Error without layer and entry, which Extract adds. The format may wrap a cause with %w.
func violation(rule Rule, format string, args ...any) *Error {
	why := fmt.Errorf(format, args...)
	return &Error{Rule: rule, Why: why.Error(), cause: errors.Unwrap(why)}
}

const longestQuote = 200

// quote makes a foreign name fit for a message: one line of bounded length without control characters.
func quote(s string) string {
	if len(s) <= longestQuote {
		return strconv.Quote(s)
	}
	cut := longestQuote
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "..."
}
