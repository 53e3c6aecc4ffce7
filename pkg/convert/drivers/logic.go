// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

func (t *translator) boolean(value bool) ast.Expr { return t.factory.NewLiteral(0, types.Bool(value)) }

func isTrue(e ast.Expr) bool { return isBoolean(e, types.True) }

func isFalse(e ast.Expr) bool { return isBoolean(e, types.False) }

func isBoolean(e ast.Expr, value types.Bool) bool {
	return e.Kind() == ast.LiteralKind && e.AsLiteral() == value
}

func (t *translator) both(a, b ast.Expr) ast.Expr {
	switch {
	case isTrue(a) || isFalse(b):
		return b
	case isTrue(b) || isFalse(a):
		return a
	}
	return t.factory.NewCall(0, operators.LogicalAnd, a, b)
}

func (t *translator) either(a, b ast.Expr) ast.Expr {
	switch {
	case isFalse(a) || isTrue(b):
		return b
	case isFalse(b) || isTrue(a):
		return a
	}
	return t.factory.NewCall(0, operators.LogicalOr, a, b)
}

// not negates, with ! as far inside as it goes. An error stays an error: !(a == b) and a != b are the same in CEL, and so on.
func (t *translator) not(e ast.Expr) ast.Expr {
	switch function, args := call(e); {
	case isTrue(e) || isFalse(e):
		return t.boolean(isFalse(e))
	case function == operators.LogicalNot:
		return args[0]
	case function == operators.LogicalAnd:
		return t.either(t.not(args[0]), t.not(args[1]))
	case function == operators.LogicalOr:
		return t.both(t.not(args[0]), t.not(args[1]))
	case function == operators.Equals:
		return t.factory.NewCall(0, operators.NotEquals, args...)
	case function == operators.NotEquals:
		return t.factory.NewCall(0, operators.Equals, args...)
	}
	return t.factory.NewCall(0, operators.LogicalNot, e)
}

func (t *translator) choice(condition, then, otherwise ast.Expr) ast.Expr {
	switch {
	case isTrue(condition):
		return then
	case isFalse(condition):
		return otherwise
	}
	return t.factory.NewCall(0, operators.Conditional, condition, then, otherwise)
}

// equal says whether two expressions are written alike.
func equal(a, b ast.Expr) bool {
	left, err := render(a)
	if err != nil {
		return false
	}
	right, err := render(b)
	return err == nil && left == right
}

// comparedCondition recognizes CONDITION == true and the like. same says that the whole is true where the condition is.
func comparedCondition(function string, args []ast.Expr) (condition ast.Expr, same, ok bool) {
	for i, one := range args {
		if other := args[1-i]; (isTrue(other) || isFalse(other)) && isCondition(one) {
			return one, isTrue(other) == (function == operators.Equals), true
		}
	}
	return nil, false, false
}

// isCondition says whether an expression is true or false by its form.
func isCondition(e ast.Expr) bool {
	function, args := call(e)
	switch function {
	case operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Equals, operators.NotEquals, operators.In,
		operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals, operators.Has:
		return true
	case operators.Conditional:
		return isCondition(args[1]) && isCondition(args[2])
	}
	return isTrue(e) || isFalse(e)
}

// tested are the keys of the attributes that are there wherever an expression has the value, true or false.
func tested(e ast.Expr, value bool) []string {
	if a, ok := presence(e); ok && value {
		return []string{a.key()}
	}
	switch function, args := call(e); {
	case function == operators.LogicalNot:
		return tested(args[0], !value)
	case function == operators.LogicalAnd && value, function == operators.LogicalOr && !value:
		return append(tested(args[0], value), tested(args[1], value)...)
	}
	return nil
}
