// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"maps"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/google/cel-go/common/ast"
	resourceapi "k8s.io/api/resource/v1"
)

// Reads are the attributes that expressions read of a device by their names. The zero value has none.
type Reads struct {
	// everything is set if an expression does something else with the attributes than to read what it names.
	everything bool
	names      map[resourceapi.FullyQualifiedName]bool
}

// ReadsOf returns what the expression of a syntax tree reads. A nil tree reads everything.
func ReadsOf(tree *ast.AST) Reads {
	r := Reads{everything: tree == nil, names: map[resourceapi.FullyQualifiedName]bool{}}
	if tree != nil {
		r.visit(tree.Expr())
	}
	return r
}

// Add has r read what other reads, too.
func (r *Reads) Add(other Reads) {
	r.everything = r.everything || other.everything
	if r.names == nil {
		r.names = map[resourceapi.FullyQualifiedName]bool{}
	}
	maps.Copy(r.names, other.names)
}

// AddAttribute has r read an attribute, by which a constraint compares devices. Nil is none.
func (r *Reads) AddAttribute(name *resourceapi.FullyQualifiedName) {
	if name != nil {
		r.Add(Reads{names: map[resourceapi.FullyQualifiedName]bool{*name: true}})
	}
}

// Everything says whether the expressions may read more than can be told from their text: that there is an attribute, or how many.
func (r *Reads) Everything() bool { return r.everything }

// visit notes what an expression reads. What is not one of the ways to read a name is taken apart, until the device itself is left, or its
// attributes, of which everything may be read.
func (r *Reads) visit(e ast.Expr) {
	if operand, name, named := nameRead(e); named {
		if source, domain, is := domainOf(operand); is && source == "attributes" {
			r.names[resourceapi.FullyQualifiedName(domain+"/"+name)] = true
			return
		}
	}
	switch {
	case isField(e, isDevice, "driver", "allowMultipleAllocations", "capacity"):
	case e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == "device":
		r.everything = true
	default:
		for _, part := range partsOf(e) {
			r.visit(part)
		}
	}
}

// nameRead recognizes the ways to read a name of a map, or to ask whether it is there: m.name, has(m.name), m["name"], m.?name, m[?"name"]
// and "name" in m.
func nameRead(e ast.Expr) (operand ast.Expr, name string, ok bool) {
	if e.Kind() == ast.SelectKind {
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	}
	if e.Kind() != ast.CallKind || len(e.AsCall().Args()) != 2 {
		return nil, "", false
	}
	args := e.AsCall().Args()
	switch e.AsCall().FunctionName() {
	case callIndex, callOptionalIndex, callOptionalField:
		name, ok = textOf(args[1])
		return args[0], name, ok
	case callIn:
		name, ok = textOf(args[0])
		return args[1], name, ok
	}
	return nil, "", false
}

// partsOf lists the expressions that one is made of.
func partsOf(e ast.Expr) (parts []ast.Expr) {
	switch e.Kind() {
	case ast.SelectKind:
		parts = append(parts, e.AsSelect().Operand())
	case ast.CallKind:
		if e.AsCall().IsMemberFunction() {
			parts = append(parts, e.AsCall().Target())
		}
		parts = append(parts, e.AsCall().Args()...)
	case ast.ListKind:
		parts = append(parts, e.AsList().Elements()...)
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			parts = append(parts, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			parts = append(parts, field.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		parts = append(parts, c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result())
	case ast.IdentKind, ast.LiteralKind, ast.UnspecifiedExprKind:
	}
	return parts
}

// Attributes returns those of a device of the driver that are read, and those that no expression can be evaluated with. It returns all of
// them, not a copy, if everything is read.
func (r *Reads) Attributes(
	driver string, all map[resourceapi.QualifiedName]resourceapi.DeviceAttribute,
) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	if r.everything {
		return all
	}
	out := make(map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, len(r.names))
	for name, attribute := range all {
		if r.names[qualified(driver, name)] || !isPlain(attribute) {
			out[name] = attribute
		}
	}
	return out
}

func qualified(driver string, name resourceapi.QualifiedName) resourceapi.FullyQualifiedName {
	if strings.Contains(string(name), "/") {
		return resourceapi.FullyQualifiedName(name)
	}
	return resourceapi.FullyQualifiedName(driver + "/" + string(name))
}

// isPlain says whether an attribute has one value that CEL can read. The scheduler's evaluation of any expression fails on a device with
// another one, or where its cluster knows no lists.
func isPlain(a resourceapi.DeviceAttribute) bool {
	switch {
	case a.IntValues != nil, a.BoolValues != nil, a.StringValues != nil, a.VersionValues != nil:
		return false
	case a.VersionValue != nil:
		_, err := semver.Parse(*a.VersionValue)
		return err == nil
	}
	return a.IntValue != nil || a.BoolValue != nil || a.StringValue != nil
}
