// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
)

// walk visits an expression and its parts. Parts are left out where visit is false.
func walk(e ast.Expr, visit func(ast.Expr) bool) {
	if visit(e) {
		rebuilt(ast.NewExprFactory(), e, func(part ast.Expr) ast.Expr {
			walk(part, visit)
			return part
		})
	}
}

// knownDrivers are the known drivers that constants of an expression name.
func knownDrivers(e ast.Expr) map[string]bool {
	found := map[string]bool{}
	walk(e, func(part ast.Expr) bool {
		if text, ok := textOf(part); ok && Lookup(text) != nil {
			found[text] = true
		}
		return true
	})
	return found
}

// isDriver recognizes device.driver.
func isDriver(e ast.Expr) bool { return isMember(e, "driver") }

func isMember(e ast.Expr, name string) bool {
	return e.Kind() == ast.SelectKind && e.AsSelect().FieldName() == name && isIdent(e.AsSelect().Operand(), "device")
}

// declares says whether a macro in an expression, such as all(x, ...), has a variable of the name. Any call that could be one counts.
func declares(e ast.Expr, name string) bool {
	found := false
	walk(e, func(part ast.Expr) bool {
		if _, args := call(part); len(args) > 1 && part.AsCall().IsMemberFunction() {
			found = found || slices.ContainsFunc(args[:len(args)-1], func(arg ast.Expr) bool { return isIdent(arg, name) })
		}
		return true
	})
	return found
}

// checkRest looks for what else may depend on the driver: its name in another place, or attributes whose domain is computed. A selector
// that is rewritten for the rest must not keep it; a selector that is kept gets a note.
func (t *translator) checkRest(root, out ast.Expr) {
	for name := range knownDrivers(out) {
		t.faultf("%s: the selector names %s in a way that is not converted: compare device.driver with ==, != or in, and write each attribute "+
			"as device.attributes[%q].NAME", written(root), name, name)
	}
	for _, part := range opaque(out) {
		switch {
		case t.changed:
			t.faultf("%s: what it reads depends on the driver and cannot be converted: compare device.driver with ==, != or in, and write each "+
				"attribute as device.attributes[\"DRIVER\"].NAME", written(part))
		case !isDriver(part) || resemblesDriver(root):
			t.notef("%s is kept: %s depends on the driver: write it for Fettle's driver and attributes", written(root), written(part))
		}
	}
}

// opaque finds what reads a device in another way than by constants.
func opaque(e ast.Expr) []ast.Expr {
	var found []ast.Expr
	walk(e, func(part ast.Expr) bool {
		if _, _, ok := domainOf(part); ok || isMember(part, "allowMultipleAllocations") {
			return false
		}
		if function, args := call(part); function == operators.Equals || function == operators.NotEquals {
			_, left := textOf(args[0])
			_, right := textOf(args[1])
			if isDriver(args[0]) && right || isDriver(args[1]) && left {
				return false
			}
		}
		if isDriver(part) || isIdent(part, "device") {
			found = append(found, part)
			return false
		}
		return true
	})
	return found
}

// resemblesDriver says whether a constant of an expression is a part of a known driver's name, such as "gpu.nvidia", or has one in it.
func resemblesDriver(e ast.Expr) bool {
	found := false
	walk(e, func(part ast.Expr) bool {
		text, ok := textOf(part)
		found = found || ok && slices.ContainsFunc([]string{NVIDIA, AMD, Intel, Example}, func(name string) bool {
			return strings.Contains(name, text) || strings.Contains(text, strings.TrimSuffix(name, ".com"))
		})
		return true
	})
	return found
}
