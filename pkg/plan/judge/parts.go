// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// reading finds out which parts of an evaluated expression decide its value.
type reading struct {
	tree  *ast.AST
	state interpreter.EvalState
	parts []Part
}

// collect adds the smallest parts because of which an expression is not what is wanted of it.
func (r *reading) collect(e ast.Expr, want bool) {
	if r.is(e, want) {
		return
	}
	if e.Kind() == ast.CallKind {
		args := e.AsCall().Args()
		switch e.AsCall().FunctionName() {
		case operators.LogicalNot:
			r.collect(args[0], !want)
			return
		case operators.LogicalAnd, operators.LogicalOr:
			for _, arg := range args {
				r.collect(arg, want)
			}
			return
		case operators.Conditional:
			if r.is(args[0], true) {
				r.collect(args[1], want)
				return
			}
			if r.is(args[0], false) {
				r.collect(args[2], want)
				return
			}
		}
	}
	part := Part{Expression: r.text(e), Result: r.result(e)}
	r.values(e, &part.Values)
	r.parts = append(r.parts, part)
}

func (r *reading) is(e ast.Expr, want bool) bool {
	value, found := r.state.Value(e.ID())
	return found && value == types.Bool(want)
}

// text returns the source of an expression.
func (r *reading) text(e ast.Expr) string {
	text, err := cel.ExprToString(e, r.tree.SourceInfo())
	if err != nil {
		return "(an expression that cannot be shown)"
	}
	return text
}

// result says what an expression gives: a value, or why it has none.
func (r *reading) result(e ast.Expr) string {
	value, found := r.state.Value(e.ID())
	if !found {
		return "not evaluated"
	}
	if failed, ok := value.(*types.Err); ok {
		return "error: " + failed.Error()
	}
	return valueText(value)
}

// values adds what an expression reads of the device.
func (r *reading) values(e ast.Expr, to *[]Value) {
	if readsDevice(e) {
		if value, ok := r.value(e); ok && !slices.Contains(*to, value) {
			*to = append(*to, value)
		}
		return
	}
	if e.Kind() == ast.ListKind {
		for _, element := range e.AsList().Elements() {
			r.values(element, to)
		}
	}
	if e.Kind() == ast.ComprehensionKind {
		r.values(e.AsComprehension().IterRange(), to)
	}
	if e.Kind() != ast.CallKind {
		return
	}
	if e.AsCall().IsMemberFunction() {
		r.values(e.AsCall().Target(), to)
	}
	for _, arg := range e.AsCall().Args() {
		r.values(arg, to)
	}
}

// value returns what an expression was evaluated to.
func (r *reading) value(e ast.Expr) (Value, bool) {
	found, ok := r.state.Value(e.ID())
	_, isMap := found.(traits.Mapper)
	return Value{Expression: r.text(e), Value: r.result(e), Names: isMap}, ok
}

// readsDevice recognizes what is read of the device by names alone: device.driver, device.attributes["fettle.dev"].type.
func readsDevice(e ast.Expr) bool {
	if e.Kind() == ast.SelectKind {
		operand := e.AsSelect().Operand()
		return !e.AsSelect().IsTestOnly() && (isDevice(operand) || readsDevice(operand))
	}
	if e.Kind() != ast.CallKind {
		return false
	}
	switch e.AsCall().FunctionName() {
	case operators.Index, operators.OptIndex, operators.OptSelect:
		return len(e.AsCall().Args()) == 2 && readsDevice(e.AsCall().Args()[0]) && e.AsCall().Args()[1].Kind() == ast.LiteralKind
	}
	return false
}

func isDevice(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "device" }

// valueText shows a value as one would write it in an expression.
func valueText(value ref.Val) string {
	switch v := value.(type) {
	case types.String:
		return strconv.Quote(string(v))
	case *types.Optional:
		if !v.HasValue() {
			return "absent"
		}
		return valueText(v.GetValue())
	case traits.Mapper:
		return strings.Join(keys(v), ", ")
	case fmt.Stringer:
		return v.String()
	}
	switch v := value.Value().(type) {
	case fmt.Stringer:
		return v.String()
	case []string:
		return "[" + strings.Join(v, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// keys lists the keys of a map, sorted.
func keys(m traits.Mapper) []string {
	var out []string
	for i := m.Iterator(); i.HasNext() == types.True; {
		out = append(out, fmt.Sprint(i.Next().Value()))
	}
	slices.Sort(out)
	return out
}
