// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/parser"
)

// Expression is what a selector became.
type Expression struct {
	Text string
	// Changed: the selector named another driver.
	Changed bool
	// Always: it is true of every device now, so that it may be left out.
	Always bool
	// Types has the one type of devices, in Fettle's words, of which the selector can be true. Empty: the selector does not test the type,
	// or it can be true of several types.
	Types []string
	// Notes say what changed its meaning.
	Notes []string
	// Unknown are the domains of attributes that no known driver has, sorted.
	Unknown []string
}

const (
	// longest is far above the longest expression that the API server takes (10 KiB).
	longest = 64 << 10
	// mostConditions bounds the work: the condition of a ?: is written twice.
	mostConditions = 10_000
)

// Convert rewrites a CEL selector, in which a device is the variable device, for Fettle's devices. The result is true of a device exactly
// where the selector is true of the other driver's device. It is false where the selector is false, and also where the selector is an
// error because an attribute is missing: an error makes the scheduler give the pod up. What cannot be rewritten so is refused, and the
// error has all of it. A selector that names none of the known drivers comes back as it is.
func Convert(text string) (Expression, error) {
	root, err := parse(text)
	if err != nil {
		return Expression{}, err
	}
	t := newTranslator(root)
	if len(t.domains) > 1 && t.domains[Example] {
		t.faultf("the selector is for %s and for other drivers, but no vendor tells the devices of the first from the others: write a "+
			"selector for each", Example)
	}
	out := t.condition(root, positive, nil)
	t.checkRest(root, out)
	if err := errors.Join(t.faults...); err != nil {
		return Expression{}, err
	}
	unknown := slices.Sorted(maps.Keys(t.unknown))
	if !t.changed {
		return Expression{Text: text, Notes: t.notes, Unknown: unknown}, nil
	}
	rendered, err := render(out)
	if err != nil {
		return Expression{}, err
	}
	asked := t.typesOf(root)
	return Expression{Text: rendered, Changed: true, Always: isTrue(out), Types: asked, Notes: t.notes, Unknown: unknown}, nil
}

// parse reads an expression without expanding its macros, so that it can be written again.
func parse(text string) (ast.Expr, error) {
	p, err := parser.NewParser(parser.EnableOptionalSyntax(true), parser.EnableIdentEscapeSyntax(true),
		parser.ExpressionSizeCodePointLimit(longest))
	if err != nil {
		return nil, fmt.Errorf("parse CEL: %w", err)
	}
	parsed, faults := p.Parse(common.NewTextSource(text))
	if list := faults.GetErrors(); len(list) > 0 {
		return nil, fmt.Errorf("CEL expression, column %d: %s", list[0].Location.Column()+1, list[0].Message)
	}
	return parsed.Expr(), nil
}

// render writes an expression on one line.
func render(e ast.Expr) (string, error) {
	text, err := parser.Unparse(e, ast.NewSourceInfo(nil), parser.WrapOnColumn(2*longest))
	if err != nil {
		return "", fmt.Errorf("write CEL: %w", err)
	}
	return text, nil
}

// polarity says what a condition becomes where the original is an error because an attribute is missing.
type polarity int

const (
	// positive conditions become false: the selector as a whole, and what && and || join in it.
	positive polarity = iota
	// negative conditions become true, because they are below an odd number of !.
	negative
)

func (p polarity) opposite() polarity { return negative - p }

// translator rewrites one expression.
type translator struct {
	factory ast.ExprFactory
	changed bool
	// domains are the known drivers that the expression names.
	domains    map[string]bool
	unknown    map[string]bool
	notes      []string
	faults     []error
	conditions int
}

func newTranslator(root ast.Expr) *translator {
	return &translator{factory: ast.NewExprFactory(), domains: knownDrivers(root), unknown: map[string]bool{}}
}

func (t *translator) faultf(format string, args ...any) {
	if fault := fmt.Errorf(format, args...); !slices.ContainsFunc(t.faults, func(e error) bool { return e.Error() == fault.Error() }) {
		t.faults = append(t.faults, fault)
	}
}

func (t *translator) notef(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(t.notes, note) {
		t.notes = append(t.notes, note)
	}
}

// ours reads an expression of this package's own.
func (t *translator) ours(text string) ast.Expr {
	e, err := parse(text)
	if err != nil {
		t.faults = append(t.faults, fmt.Errorf("%s: %w", text, err))
		return t.boolean(false)
	}
	return e
}

// condition rewrites an expression whose value is true or false, part by part, so that the test for what a part reads stands before that
// part. present are the keys of the attributes that were tested already.
func (t *translator) condition(e ast.Expr, p polarity, present []string) ast.Expr {
	if t.conditions++; t.conditions > mostConditions {
		t.faultf("the selector has too many conditions in conditions: write it with && and || for Fettle's attributes")
		return t.boolean(false)
	}
	function, args := call(e)
	switch function {
	case operators.LogicalAnd:
		left := t.condition(args[0], p, present)
		return t.both(left, t.condition(args[1], p, slices.Concat(present, tested(args[0], true))))
	case operators.LogicalOr:
		left := t.condition(args[0], p, present)
		return t.either(left, t.condition(args[1], p, slices.Concat(present, tested(args[0], false))))
	case operators.LogicalNot:
		return t.not(t.condition(args[0], p.opposite(), present))
	case operators.Conditional:
		return t.conditional(args, p, present)
	case operators.Equals, operators.NotEquals:
		if inner, same, ok := comparedCondition(function, args); ok {
			if same {
				return t.condition(inner, p, present)
			}
			return t.not(t.condition(inner, p.opposite(), present))
		}
	}
	if bound, ok := t.bound(e); ok {
		return t.condition(bound, p, present)
	}
	return t.leaf(e, p, present)
}

// conditional rewrites IF ? THEN : ELSE. If IF may be an error, then so is the whole, whatever THEN and ELSE are; with && and || the two
// cases can be told apart.
func (t *translator) conditional(args []ast.Expr, p polarity, present []string) ast.Expr {
	then := t.condition(args[1], p, slices.Concat(present, tested(args[0], true)))
	otherwise := t.condition(args[2], p, slices.Concat(present, tested(args[0], false)))
	isTrue, notFalse := t.condition(args[0], positive, present), t.condition(args[0], negative, present)
	if equal(isTrue, notFalse) {
		return t.choice(isTrue, then, otherwise)
	}
	if p == positive {
		return t.either(t.both(isTrue, then), t.both(t.not(notFalse), otherwise))
	}
	return t.both(t.either(t.not(isTrue), then), t.either(notFalse, otherwise))
}

// leaf rewrites a comparison or another part that is no combination of conditions.
func (t *translator) leaf(e ast.Expr, p polarity, present []string) ast.Expr {
	r := &reads{rules: map[string]rule{}, present: present}
	out, ok := t.special(e, p, r)
	if !ok {
		out, ok = t.bare(e, r)
	}
	if !ok {
		out = t.value(e, r)
	}
	for _, guard := range slices.Backward(t.guards(r)) {
		if p == positive {
			out = t.both(guard, out)
		} else {
			out = t.either(t.not(guard), out)
		}
	}
	return out
}

// bound expands cel.bind(NAME, VALUE, EXPRESSION), if the value is of a known driver.
func (t *translator) bound(e ast.Expr) (ast.Expr, bool) {
	function, args := call(e)
	if function != "bind" || len(args) != 3 || !e.AsCall().IsMemberFunction() || !isIdent(e.AsCall().Target(), "cel") {
		return nil, false
	}
	if len(knownDrivers(args[1])) == 0 || args[0].Kind() != ast.IdentKind || declares(args[2], args[0].AsIdent()) {
		return nil, false
	}
	return substituted(t.factory, args[2], args[0].AsIdent(), args[1]), true
}
