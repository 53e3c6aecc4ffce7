// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// setLater is the kind of chance that the race detector sees only when both happen at once.
const setLater = "what a goroutine uses gets another value after that has begun, and nothing between them waits or locks"

// lookForRaces looks at each goroutine that a function begins itself. What its code names, and the function writes to further down, is
// found unless something between them orders the two.
func (s *scanner) lookForRaces(body *ast.BlockStmt) {
	if body == nil {
		return
	}
	var begun []ast.Node
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.GoStmt:
			begun = append(begun, n)
			return false
		case *ast.CallExpr: // of a WaitGroup or an errgroup
			if len(n.Args) == 1 && nameOf(n.Fun) == "Go" {
				begun = append(begun, n)
				return false
			}
		}
		return true
	})
	for _, goroutine := range begun {
		if write := s.writtenAfter(body, goroutine); write != nil {
			s.add(write, setLater)
		}
	}
}

// writtenAfter is the first write, after a goroutine begins and before anything orders the two, to a variable that it shares with the
// function that began it.
func (s *scanner) writtenAfter(body *ast.BlockStmt, goroutine ast.Node) (write ast.Node) {
	ordered := false
	ast.Inspect(body, func(n ast.Node) bool {
		if n == nil || ordered || write != nil || n.End() <= goroutine.End() {
			return false
		}
		if n.Pos() < goroutine.End() { // it is around the goroutine
			return true
		}
		switch n := n.(type) {
		case *ast.FuncLit, *ast.DeferStmt: // when they run is not known
			return false
		case *ast.CallExpr:
			ordered = orders(n)
		case *ast.UnaryExpr:
			ordered = n.Op == token.ARROW
		case *ast.SendStmt, *ast.SelectStmt, *ast.ReturnStmt:
			ordered = true
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if s.sharedBy(goroutine, left) {
					write = n
				}
			}
		case *ast.IncDecStmt:
			if s.sharedBy(goroutine, n.X) {
				write = n
			}
		}
		return true
	})
	return write
}

// orders says whether a call waits for another goroutine, or has one wait for it.
func orders(call *ast.CallExpr) bool {
	return slices.Contains([]string{"Wait", "Lock", "Unlock", "close", "cancel", "Done", "Sleep"}, nameOf(call.Fun))
}

// sharedBy says whether a goroutine sees a write to what is left of "=": its code names the variable, or, if a field or an element is
// written, the value that it is in.
func (s *scanner) sharedBy(goroutine ast.Node, left ast.Expr) bool {
	whole := true
	for {
		switch e := ast.Unparen(left).(type) {
		case *ast.SelectorExpr:
			left, whole = e.X, false
			continue
		case *ast.IndexExpr:
			left, whole = e.X, false
			continue
		case *ast.StarExpr:
			left, whole = e.X, false
			continue
		case *ast.Ident:
			o, isVar := s.info.Uses[e].(*types.Var)
			return isVar && s.reaches(goroutine, o, whole)
		}
		return false
	}
}

// reaches says whether the code of a goroutine names a variable. Arguments were copied when it began: a write to such a variable as a
// whole is not seen, nor is one to another field than that which was handed on.
func (s *scanner) reaches(goroutine ast.Node, o *types.Var, whole bool) bool {
	call, isCall := goroutine.(*ast.CallExpr)
	if !isCall {
		call = goroutine.(*ast.GoStmt).Call
	}
	found := false
	ast.Inspect(call, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			found = found || s.names(n.Body, o)
			return false
		case *ast.SelectorExpr:
			return n == call.Fun
		case *ast.Ident:
			found = found || !whole && s.info.Uses[n] == o
		}
		return true
	})
	return found
}
