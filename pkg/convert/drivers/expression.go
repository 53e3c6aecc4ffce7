// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Expression is what a selector became.
type Expression struct {
	Text string
	// Changed: the selector named another driver.
	Changed bool
	// Always: it is true of every device now, so that it may be left out.
	Always bool
	// Types are the types of devices, in Fettle's words, that the selector asks for, sorted.
	Types []string
	// Notes say what changed its meaning.
	Notes []string
	// Unknown are the domains of attributes that no known driver has, sorted.
	Unknown []string
}

// longest is far above the longest expression that the API server takes (10 KiB).
const longest = 64 << 10

// Convert rewrites a CEL selector, in which a device is the variable device, for Fettle's devices. A selector that reads an attribute
// which not every device has is false where it is not there: without that, the scheduler gives the pod up. A selector that names none of
// the known drivers comes back as it is. The error has all that cannot be converted.
func Convert(text string) (Expression, error) {
	root, err := parse(text)
	if err != nil {
		return Expression{}, err
	}
	t := &translator{factory: ast.NewExprFactory(), types: map[string]bool{}, unknown: map[string]bool{}}
	out := t.condition(root, nil)
	if err := errors.Join(t.faults...); err != nil {
		return Expression{}, err
	}
	unknown := slices.Sorted(maps.Keys(t.unknown))
	if !t.changed {
		return Expression{Text: text, Unknown: unknown}, nil
	}
	rendered, err := render(out)
	if err != nil {
		return Expression{}, err
	}
	return Expression{
		Text: rendered, Changed: true, Always: isTrue(out), Types: slices.Sorted(maps.Keys(t.types)), Notes: t.notes,
		Unknown: unknown,
	}, nil
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

// translator rewrites one expression.
type translator struct {
	factory ast.ExprFactory
	changed bool
	types   map[string]bool
	unknown map[string]bool
	notes   []string
	faults  []error
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

func (t *translator) boolean(value bool) ast.Expr { return t.factory.NewLiteral(0, types.Bool(value)) }

// condition rewrites an expression whose value is true or false, part by part, so that the test for what a part reads stands before that
// part. present are the keys of what is there already.
func (t *translator) condition(e ast.Expr, present []string) ast.Expr {
	function, args := call(e)
	switch function {
	case operators.LogicalAnd:
		left := t.condition(args[0], present)
		return t.both(left, t.condition(args[1], append(slices.Clone(present), tested(args[0])...)))
	case operators.LogicalOr:
		return t.either(t.condition(args[0], present), t.condition(args[1], present))
	case operators.LogicalNot:
		return t.factory.NewCall(0, operators.LogicalNot, t.condition(args[0], present))
	case operators.Conditional:
		then := append(slices.Clone(present), tested(args[0])...)
		return t.factory.NewCall(0, operators.Conditional, t.condition(args[0], present), t.condition(args[1], then),
			t.condition(args[2], present))
	}
	if bound, ok := t.bound(e); ok {
		return t.condition(bound, present)
	}
	return t.leaf(e, present)
}

func isTrue(e ast.Expr) bool {
	return e.Kind() == ast.LiteralKind && e.AsLiteral() == types.True
}

func (t *translator) both(a, b ast.Expr) ast.Expr {
	switch {
	case isTrue(a):
		return b
	case isTrue(b):
		return a
	}
	return t.factory.NewCall(0, operators.LogicalAnd, a, b)
}

func (t *translator) either(a, b ast.Expr) ast.Expr {
	if isTrue(a) || isTrue(b) {
		return t.boolean(true)
	}
	return t.factory.NewCall(0, operators.LogicalOr, a, b)
}

// bound expands cel.bind(NAME, device.attributes["DOMAIN"], EXPRESSION) of a known driver.
func (t *translator) bound(e ast.Expr) (ast.Expr, bool) {
	function, args := call(e)
	if function != "bind" || len(args) != 3 || !e.AsCall().IsMemberFunction() || !isIdent(e.AsCall().Target(), "cel") {
		return nil, false
	}
	_, domain, ok := domainOf(args[1])
	if !ok || Lookup(domain) == nil || args[0].Kind() != ast.IdentKind {
		return nil, false
	}
	return substituted(t.factory, args[2], args[0].AsIdent(), args[1]), true
}

// leaf rewrites a comparison or another part that is no combination of conditions.
func (t *translator) leaf(e ast.Expr, present []string) ast.Expr {
	needed := map[string]rule{}
	out, ok := t.special(e, needed)
	if !ok {
		out = t.value(e, needed)
	}
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(needed))) {
		r := needed[key]
		if !r.always && !slices.Contains(present, key) {
			out = t.both(t.ours(fmt.Sprintf("%q in %s", r.name, r.path())), out)
		}
	}
	return out
}

// special rewrites what has another form for Fettle: tests for the driver, tests for presence, and comparisons of values that Fettle writes
// in another way.
func (t *translator) special(e ast.Expr, needed map[string]rule) (ast.Expr, bool) {
	if a, ok := presence(e); ok && Lookup(a.domain) != nil {
		return t.present(a), true
	}
	function, args := call(e)
	if function == operators.Equals || function == operators.NotEquals {
		for i := range args {
			if out, ok := t.compare(args[i], args[1-i], needed); ok {
				if function == operators.NotEquals {
					out = t.factory.NewCall(0, operators.LogicalNot, out)
				}
				return out, true
			}
		}
	}
	if function == operators.In && len(args) == 2 && args[1].Kind() == ast.ListKind {
		return t.among(args[0], args[1].AsList().Elements(), needed)
	}
	return t.flag(e, needed)
}

// flag rewrites an attribute that is true or false and stands alone.
func (t *translator) flag(e ast.Expr, needed map[string]rule) (ast.Expr, bool) {
	a, ok := accessOf(e)
	if !ok || Lookup(a.domain) == nil {
		return nil, false
	}
	if r, ok := a.rule(Lookup(a.domain)); !ok || r.flag == "" && r.ignored == "" {
		return nil, false
	}
	return t.compare(e, t.boolean(true), needed)
}

// present rewrites a test for presence.
func (t *translator) present(a access) ast.Expr {
	r, ok := t.lookup(a)
	switch {
	case !ok:
		return t.boolean(false)
	case r.ignored != "" || r.flag != "":
		return t.boolean(true)
	}
	return t.ours(fmt.Sprintf("%q in %s", r.name, r.path()))
}

// among rewrites ATTRIBUTE in [VALUES], if the attribute's values have another form.
func (t *translator) among(left ast.Expr, values []ast.Expr, needed map[string]rule) (ast.Expr, bool) {
	var out ast.Expr
	for _, value := range values {
		one, ok := t.compare(left, value, needed)
		if !ok {
			return nil, false
		}
		if out == nil {
			out = one
			continue
		}
		out = t.either(out, one)
	}
	return out, out != nil
}

// compare rewrites ATTRIBUTE == VALUE. It is false for what [translator.value] can rewrite.
func (t *translator) compare(left, value ast.Expr, needed map[string]rule) (ast.Expr, bool) {
	if left.Kind() == ast.SelectKind && left.AsSelect().FieldName() == "driver" && isIdent(left.AsSelect().Operand(), "device") {
		return t.driver(value)
	}
	a, ok := accessOf(left)
	if !ok || Lookup(a.domain) == nil {
		return nil, false
	}
	r, ok := a.rule(Lookup(a.domain))
	if !ok || r.equals == nil && r.flag == "" && r.ignored == "" || value.Kind() != ast.LiteralKind {
		return nil, false
	}
	t.changed = true
	switch {
	case r.ignored != "":
		t.notef("%s of %s is not compared: %s", a.name, a.domain, r.ignored)
		return t.boolean(true), true
	case r.flag != "":
		out := t.ours(r.flag)
		if value.AsLiteral() == types.False {
			out = t.factory.NewCall(0, operators.LogicalNot, out)
		}
		return out, true
	}
	return t.equals(a, r, value, needed), true
}

// equals rewrites the comparison of an attribute whose values Fettle writes in another way.
func (t *translator) equals(a access, r rule, value ast.Expr, needed map[string]rule) ast.Expr {
	text, ok := textOf(value)
	if !ok {
		t.faultf("%s of %s: expected a comparison with a text", a.name, a.domain)
		return t.boolean(false)
	}
	condition, err := r.equals(text)
	if err != nil {
		t.faultf("%s of %s: %w", a.name, a.domain, err)
		return t.boolean(false)
	}
	if a.name == "type" {
		t.types[Lookup(a.domain).types[text]] = true
	}
	needed[a.key()] = r
	return t.ours(condition)
}

// driver rewrites device.driver == VALUE.
func (t *translator) driver(value ast.Expr) (ast.Expr, bool) {
	name, _ := textOf(value)
	d := Lookup(name)
	if d == nil {
		return nil, false
	}
	t.changed = true
	out := t.ours(fmt.Sprintf("device.driver == %q", v1alpha1.DriverName))
	if d.Vendor != "" {
		out = t.both(out, t.ours(fmt.Sprintf("%s == %q", rule{name: "vendor"}.ours(), d.Vendor)))
	}
	return out, true
}

// lookup finds the rule of an attribute, or notes why it cannot be converted.
func (t *translator) lookup(a access) (rule, bool) {
	t.changed = true
	r, ok := a.rule(Lookup(a.domain))
	switch {
	case !ok:
		t.faultf("%s of %s: Fettle has nothing that is the same; docs/user/attributes.md lists what there is", a.name, a.domain)
	case r.refused != "":
		t.faultf("%s of %s: %s", a.name, a.domain, r.refused)
	}
	return r, ok && r.refused == ""
}

// value rewrites what an expression reads, wherever it stands.
func (t *translator) value(e ast.Expr, needed map[string]rule) ast.Expr {
	if a, ok := accessOf(e); ok && Lookup(a.domain) != nil {
		return t.read(a, needed)
	}
	if _, domain, ok := domainOf(e); ok {
		return t.domain(e, domain)
	}
	if bound, ok := t.bound(e); ok {
		return t.value(bound, needed)
	}
	if a, ok := presence(e); ok && Lookup(a.domain) != nil {
		return t.present(a)
	}
	return rebuilt(t.factory, e, func(part ast.Expr) ast.Expr { return t.value(part, needed) })
}

// domain leaves all attributes of a domain as they are, which is a fault if they are a known driver's.
func (t *translator) domain(e ast.Expr, domain string) ast.Expr {
	switch {
	case Lookup(domain) != nil:
		t.changed = true
		t.faultf("all attributes of %s at once: write each as device.attributes[%s].NAME", domain, strconv.Quote(domain))
	case domain != v1alpha1.DriverName && domain != "resource.kubernetes.io":
		t.unknown[domain] = true
	}
	return e
}

// read rewrites one attribute or capacity.
func (t *translator) read(a access, needed map[string]rule) ast.Expr {
	r, ok := t.lookup(a)
	switch {
	case !ok:
		return t.boolean(false)
	case r.name == "" || r.equals != nil:
		t.faultf("%s of %s: only ==, != and in with constants are converted, because Fettle writes it in another way", a.name, a.domain)
		return t.boolean(false)
	case a.optional && r.as != "":
		t.faultf("%s of %s: write it without .? and Fettle's form is found", a.name, a.domain)
		return t.boolean(false)
	case a.optional:
		return t.ours(r.path() + ".?" + r.name)
	}
	needed[a.key()] = r
	if r.as != "" {
		return t.ours(strings.Replace(r.as, "%s", r.ours(), 1))
	}
	return t.ours(r.ours())
}
