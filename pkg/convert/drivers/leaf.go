// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// reads are the attributes and capacities that a part of an expression reads.
type reads struct {
	// rules are by the attribute's key.
	rules map[string]rule
	// present are the keys of what was tested before.
	present []string
}

func (r *reads) add(a access, what rule) {
	if !slices.Contains(r.present, a.key()) {
		r.rules[a.key()] = what
	}
}

// guards are the tests that must be true before the attributes are read, each once.
func (t *translator) guards(r *reads) []ast.Expr {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(r.rules)) {
		for _, guard := range t.guardsOf(r.rules[key]) {
			if !slices.Contains(list, guard) {
				list = append(list, guard)
			}
		}
	}
	out := make([]ast.Expr, 0, len(list))
	for _, guard := range list {
		out = append(out, t.ours(guard))
	}
	return out
}

// guardsOf are the tests for one attribute. In a selector for several drivers, a device of one of them has no attributes of the others.
func (t *translator) guardsOf(r rule) []string {
	var list []string
	if len(t.domains) > 1 && r.vendor != "" {
		list = append(list, vendorIs(r.vendor))
	}
	if r.only != "" {
		list = append(list, r.only)
	}
	if r.name != "" && !r.always && !r.total {
		list = append(list, fmt.Sprintf("%q in %s", r.name, r.path()))
	}
	return list
}

// special rewrites what has another form for Fettle: tests for the driver, tests for presence, and comparisons of values that Fettle writes
// in another way.
func (t *translator) special(e ast.Expr, p polarity, r *reads) (ast.Expr, bool) {
	if a, ok := presence(e); ok && Lookup(a.domain) != nil {
		return t.present(a), true
	}
	function, args := call(e)
	switch {
	case function == operators.Equals:
		return t.equal(args, p == positive, r)
	case function == operators.NotEquals:
		out, ok := t.equal(args, false, r)
		if ok {
			out = t.not(out)
		}
		return out, ok
	case function == operators.In && args[1].Kind() == ast.ListKind && len(args[1].AsList().OptionalIndices()) == 0:
		return t.among(args[0], args[1].AsList().Elements(), p == positive, r)
	}
	return nil, false
}

// equal rewrites the comparison of an attribute, on either side, with a value.
func (t *translator) equal(sides []ast.Expr, positive bool, r *reads) (ast.Expr, bool) {
	for i := range sides {
		if out, ok := t.compare(sides[i], sides[1-i], positive, r); ok {
			return out, true
		}
	}
	return nil, false
}

// present rewrites a test for presence.
func (t *translator) present(a access) ast.Expr {
	r, ok := t.lookup(a)
	if !ok {
		return t.boolean(false)
	}
	out := t.boolean(true)
	for _, guard := range t.guardsOf(r) {
		out = t.both(out, t.ours(guard))
	}
	return out
}

// among rewrites ATTRIBUTE in [VALUES], if the attribute's values have another form.
func (t *translator) among(left ast.Expr, values []ast.Expr, positively bool, r *reads) (ast.Expr, bool) {
	var out ast.Expr
	for _, value := range values {
		one, ok := t.compare(left, value, positively, r)
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

// compare rewrites ATTRIBUTE == VALUE. It is false for what [translator.value] can rewrite. positively says that the result is not negated.
func (t *translator) compare(left, value ast.Expr, positively bool, r *reads) (ast.Expr, bool) {
	if isDriver(left) {
		return t.driver(left, value)
	}
	a, ok := accessOf(left)
	if !ok || Lookup(a.domain) == nil || a.optional || value.Kind() != ast.LiteralKind {
		return nil, false
	}
	if !comparesWholly(a, value) {
		return nil, false
	}
	what, ok := t.lookup(a)
	if !ok {
		return t.boolean(false), true
	}
	if what.total && positively {
		// The comparison is false on the devices that the other driver gives no such attribute, as it has to be.
		what.only = ""
	}
	r.add(a, what)
	switch {
	case what.constant != nil:
		t.notef("%s of %s is not compared: %s", a.name, a.domain, what.ignored)
		return t.boolean(types.DefaultTypeAdapter.NativeToValue(what.constant).Equal(value.AsLiteral()) == types.True), true
	case what.equals != nil:
		return t.equals(a, what, value), true
	case isTrue(value):
		return t.ours(what.flag), true
	case isFalse(value):
		return t.not(t.ours(what.flag)), true
	}
	return t.boolean(false), true
}

// comparesWholly says whether the attribute's rule has an answer to every comparison with a value like this.
func comparesWholly(a access, value ast.Expr) bool {
	_, isText := textOf(value)
	known, ok := a.rule(Lookup(a.domain))
	return ok && (known.wholly() || known.as != "" && !isText)
}

// bare rewrites an attribute that is a condition by itself.
func (t *translator) bare(e ast.Expr, r *reads) (ast.Expr, bool) {
	if a, ok := accessOf(e); !ok || a.optional {
		return nil, false
	}
	return t.compare(e, t.boolean(true), false, r)
}

// equals rewrites the comparison of an attribute whose values Fettle writes in another way.
func (t *translator) equals(a access, r rule, value ast.Expr) ast.Expr {
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
	return t.ours(condition)
}

// driver rewrites device.driver == VALUE. Fettle has FPGAs of the vendors too.
func (t *translator) driver(left, value ast.Expr) (ast.Expr, bool) {
	name, ok := textOf(value)
	if !ok {
		return nil, false
	}
	d := Lookup(name)
	if d == nil {
		return t.factory.NewCall(0, operators.Equals, left, value), true
	}
	t.changed = true
	out := t.ours(fmt.Sprintf("device.driver == %q", v1alpha1.DriverName))
	if d.Vendor != "" {
		out = t.both(out, t.ours(vendorIs(d.Vendor)))
	}
	if d.Vendor != "" && d.Name != NVIDIA {
		out = t.both(out, t.ours(isNot("fpga")))
	}
	return out, true
}

// lookup finds the rule of an attribute, or says why it cannot be converted.
func (t *translator) lookup(a access) (rule, bool) {
	t.changed = true
	d := Lookup(a.domain)
	r, ok := a.rule(d)
	switch {
	case !ok:
		t.faultf("%s of %s: Fettle has nothing that is the same; docs/user/attributes.md lists what there is", a.name, a.domain)
	case r.refused != "":
		t.faultf("%s of %s: %s", a.name, a.domain, r.refused)
	}
	r.vendor = d.Vendor
	return r, ok && r.refused == ""
}

// value rewrites what an expression reads, wherever it stands.
func (t *translator) value(e ast.Expr, r *reads) ast.Expr {
	if out, ok := t.special(e, negative, r); ok {
		return out
	}
	if a, ok := accessOf(e); ok && Lookup(a.domain) != nil {
		return t.read(a, r)
	}
	if _, domain, ok := domainOf(e); ok {
		return t.domain(e, domain)
	}
	if bound, ok := t.bound(e); ok {
		return t.value(bound, r)
	}
	switch function, _ := call(e); function {
	case operators.LogicalAnd, operators.LogicalOr, operators.Conditional:
		return t.nested(e, r)
	}
	return rebuilt(t.factory, e, func(part ast.Expr) ast.Expr { return t.value(part, r) })
}

// nested rewrites a condition inside a value, such as a function's argument. An attribute that may be missing cannot be tested there: the
// test would have to stand before the whole, which is not an error where the other side of && or || decides.
func (t *translator) nested(e ast.Expr, r *reads) ast.Expr {
	inner := &reads{rules: map[string]rule{}, present: r.present}
	out := rebuilt(t.factory, e, func(part ast.Expr) ast.Expr { return t.value(part, inner) })
	if len(t.guards(inner)) > 0 {
		t.faultf("%s: it reads attributes that a device may lack, inside another value: write it as conditions joined by && and ||", written(e))
	}
	return out
}

// written is an expression for a message.
func written(e ast.Expr) string {
	text, err := render(e)
	if err != nil {
		return "a part of the selector"
	}
	return fmt.Sprintf("%.120s", text)
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
func (t *translator) read(a access, reads *reads) ast.Expr {
	r, ok := t.lookup(a)
	switch {
	case !ok:
		return t.boolean(false)
	case r.wholly():
		t.faultf("%s of %s: only ==, != and in with constants are converted, because Fettle writes it in another way", a.name, a.domain)
		return t.boolean(false)
	case a.optional && (r.as != "" || r.only != "" || len(t.domains) > 1):
		t.faultf("%s of %s: write it without .? and Fettle's form is found", a.name, a.domain)
		return t.boolean(false)
	case a.optional:
		return t.ours(r.path() + ".?" + r.name)
	}
	reads.add(a, r)
	if r.as != "" {
		return t.ours(strings.Replace(r.as, "%s", r.ours(), 1))
	}
	return t.ours(r.ours())
}
