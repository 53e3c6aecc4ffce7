// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
)

// The members of a device that an expression reads.
const (
	collectionAttributes = "attributes"
	collectionCapacity   = "capacity"
)

// access is an attribute or a capacity that an expression reads.
type access struct {
	// collection is attributes or capacity.
	collection, domain, name string
	// optional: the expression says what holds where it is not there, with .? or [?].
	optional bool
}

// key tells one attribute or capacity from all others.
func (a access) key() string { return a.collection + "/" + a.domain + "/" + a.name }

// rule finds what a driver's attribute or capacity is for Fettle.
func (a access) rule(d *Driver) (rule, bool) {
	rules := d.attributes
	if a.collection == collectionCapacity {
		rules = d.capacities
	}
	r, ok := rules[a.name]
	return r, ok
}

// accessOf recognizes device.attributes["DOMAIN"].NAME, with brackets or .? as well.
func accessOf(e ast.Expr) (access, bool) {
	var holder ast.Expr
	a := access{}
	switch e.Kind() {
	case ast.SelectKind:
		holder, a.name = e.AsSelect().Operand(), e.AsSelect().FieldName()
	case ast.CallKind:
		c := e.AsCall()
		read := []string{operators.Index, operators.OptSelect, operators.OptIndex}
		if !slices.Contains(read, c.FunctionName()) || len(c.Args()) != 2 {
			return access{}, false
		}
		name, ok := textOf(c.Args()[1])
		if !ok {
			return access{}, false
		}
		holder, a.name, a.optional = c.Args()[0], name, c.FunctionName() != operators.Index
	default:
		return access{}, false
	}
	var ok bool
	a.collection, a.domain, ok = domainOf(holder)
	return a, ok
}

// domainOf recognizes device.attributes["DOMAIN"] and device.capacity["DOMAIN"].
func domainOf(e ast.Expr) (collection, domain string, ok bool) {
	if e.Kind() != ast.CallKind {
		return "", "", false
	}
	c := e.AsCall()
	if name := c.FunctionName(); name != operators.Index && name != operators.OptIndex || len(c.Args()) != 2 {
		return "", "", false
	}
	domain, ok = textOf(c.Args()[1])
	if !ok || c.Args()[0].Kind() != ast.SelectKind {
		return "", "", false
	}
	s := c.Args()[0].AsSelect()
	collection = s.FieldName()
	known := collection == collectionAttributes || collection == collectionCapacity
	return collection, domain, known && isIdent(s.Operand(), "device")
}

func isIdent(e ast.Expr, name string) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == name }

// textOf is a constant string.
func textOf(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	text, ok := e.AsLiteral().Value().(string)
	return text, ok
}

// call is what an expression calls; an empty one where it calls nothing.
func call(e ast.Expr) (function string, args []ast.Expr) {
	if e.Kind() != ast.CallKind {
		return "", nil
	}
	return e.AsCall().FunctionName(), e.AsCall().Args()
}

// presence recognizes "NAME" in device.attributes["DOMAIN"] and has(device.attributes["DOMAIN"].NAME).
func presence(e ast.Expr) (access, bool) {
	function, args := call(e)
	switch {
	case function == operators.In && len(args) == 2:
		name, ok := textOf(args[0])
		if !ok {
			return access{}, false
		}
		collection, domain, ok := domainOf(args[1])
		return access{collection: collection, domain: domain, name: name}, ok
	case function == operators.Has && len(args) == 1:
		return accessOf(args[0])
	case function == "hasValue" && len(args) == 0 && e.AsCall().IsMemberFunction():
		a, ok := accessOf(e.AsCall().Target())
		return a, ok && a.optional
	}
	return access{}, false
}

// substituted puts an expression in the place of a variable, as cel.bind(NAME, EXPRESSION, ...) does.
func substituted(f ast.ExprFactory, e ast.Expr, name string, by ast.Expr) ast.Expr {
	if isIdent(e, name) {
		return by
	}
	return rebuilt(f, e, func(part ast.Expr) ast.Expr { return substituted(f, part, name, by) })
}

// rebuilt makes an expression anew from what its parts become.
func rebuilt(f ast.ExprFactory, e ast.Expr, part func(ast.Expr) ast.Expr) ast.Expr {
	each := func(list []ast.Expr) []ast.Expr {
		out := make([]ast.Expr, 0, len(list))
		for _, one := range list {
			out = append(out, part(one))
		}
		return out
	}
	switch e.Kind() {
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			return f.NewMemberCall(e.ID(), c.FunctionName(), part(c.Target()), each(c.Args())...)
		}
		return f.NewCall(e.ID(), c.FunctionName(), each(c.Args())...)
	case ast.SelectKind:
		return f.NewSelect(e.ID(), part(e.AsSelect().Operand()), e.AsSelect().FieldName())
	case ast.ListKind:
		return f.NewList(e.ID(), each(e.AsList().Elements()), e.AsList().OptionalIndices())
	case ast.MapKind:
		var entries []ast.EntryExpr
		for _, entry := range e.AsMap().Entries() {
			m := entry.AsMapEntry()
			entries = append(entries, f.NewMapEntry(entry.ID(), part(m.Key()), part(m.Value()), m.IsOptional()))
		}
		return f.NewMap(e.ID(), entries)
	default:
		return e
	}
}
