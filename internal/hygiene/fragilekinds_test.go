// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"time"
)

// shortest is the least real time that a test may give anything. A process that starts, or a FUSE file that is opened, takes seconds on a
// loaded machine.
const shortest = 5 * time.Second

// The kinds of chance in tests that can be recognised in their source.
const (
	shortDeadline   = "a real deadline below 5 s: use testing/synctest, an injected clock, an event, or the suite's patience"
	wallClock       = "an upper bound of wall clock: count what was done, or use testing/synctest"
	sleeps          = "a pause in real time: wait for what is to happen, with a deadline, or use testing/synctest"
	unseeded        = "random numbers that cannot be had again: make them from a seed that the test prints and takes back"
	closeThenListen = "a port that is free no more once it is known: hand on a listener that stays open"
)

// finding is one place that depends on chance.
type finding struct {
	node ast.Node
	kind string
}

// scanner looks for chance in one file.
type scanner struct {
	*typed
	found []finding
	// elapsed has the variables that hold how long something took. deadlines has those that are compared with the present time.
	elapsed, deadlines map[types.Object]bool
	// stack has the nodes around the one that is looked at, the innermost last.
	stack []ast.Node
}

// findChance lists what depends on chance in the files of a package that hold code of tests, in their order.
func findChance(p *typed, f goFile) []finding {
	s := &scanner{typed: p, elapsed: map[types.Object]bool{}, deadlines: map[types.Object]bool{}}
	ast.Inspect(f.syntax, s.collect)
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if n == nil {
			s.stack = s.stack[:len(s.stack)-1]
			return true
		}
		switch n := n.(type) {
		case *ast.FuncDecl:
			s.lookForRaces(n.Body)
		case *ast.FuncLit:
			s.lookForRaces(n.Body)
		}
		if !s.inBubble(n) {
			s.look(n)
		}
		s.stack = append(s.stack, n)
		return true
	})
	slices.SortStableFunc(s.found, func(a, b finding) int { return int(a.node.Pos() - b.node.Pos()) })
	return s.found
}

func (s *scanner) add(n ast.Node, kind string) { s.found = append(s.found, finding{n, kind}) }

// collect notes which variables hold a time that passed or a deadline.
func (s *scanner) collect(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, right := range n.Rhs {
			if len(n.Rhs) == len(n.Lhs) && s.isElapsed(right) {
				s.elapsed[s.object(n.Lhs[i])] = true
			}
		}
	case *ast.CallExpr:
		// time.Now().After(x), time.Now().Before(x), x.Before(time.Now()) and time.Until(x).
		if name := nameOf(n.Fun); len(n.Args) == 1 && (name == "After" || name == "Before") {
			if selector, ok := n.Fun.(*ast.SelectorExpr); ok && s.calls(selector.X, "time.Now") {
				s.deadlines[s.object(n.Args[0])] = true
			} else if ok && s.calls(n.Args[0], "time.Now") {
				s.deadlines[s.object(selector.X)] = true
			}
		}
		if s.calls(n, "time.Until") {
			s.deadlines[s.object(n.Args[0])] = true
		}
	}
	delete(s.elapsed, nil)
	delete(s.deadlines, nil)
	return true
}

// isElapsed says whether an expression is how long something took in real time.
func (s *scanner) isElapsed(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return s.elapsed[s.object(e)]
	case *ast.BinaryExpr:
		arithmetic := slices.Contains([]token.Token{token.ADD, token.SUB, token.MUL, token.QUO}, e.Op)
		return arithmetic && (s.isElapsed(e.X) || s.isElapsed(e.Y))
	case *ast.CallExpr:
		if s.calls(e, "time.Since") {
			return true
		}
		selector, method := e.Fun.(*ast.SelectorExpr)
		switch nameOf(e.Fun) {
		case "max", "min", "float64", "int", "int64":
			return slices.ContainsFunc(e.Args, s.isElapsed)
		case "Sub":
			return method && s.calls(selector.X, "time.Now")
		case "Round", "Truncate", "Seconds", "Milliseconds", "Nanoseconds", "Microseconds", "Minutes":
			return method && s.isElapsed(selector.X)
		}
	}
	return false
}

func (s *scanner) look(n ast.Node) {
	switch n := n.(type) {
	case *ast.CallExpr:
		s.lookAtCall(n)
	case *ast.Ident:
		if f, ok := s.info.Uses[n].(*types.Func); ok && strings.HasPrefix(pathOf(f), "math/rand") && f.Signature().Recv() == nil &&
			!strings.HasPrefix(f.Name(), "New") && !s.isTold() {
			s.add(n, unseeded)
		}
	case *ast.AssignStmt:
		for i, right := range n.Rhs {
			if len(n.Rhs) == len(n.Lhs) {
				s.lookAtSetting(nameOf(n.Lhs[i]), right)
				s.lookAtEnd(s.object(n.Lhs[i]), right)
			}
		}
	case *ast.ValueSpec:
		// A constant counts where it is used.
		if outer, ok := s.around(1).(*ast.GenDecl); ok && outer.Tok == token.VAR {
			for i, right := range n.Values {
				s.lookAtSetting(n.Names[min(i, len(n.Names)-1)].Name, right)
			}
		}
	case *ast.CompositeLit:
		s.lookAtSettings(n)
	case *ast.BinaryExpr:
		s.lookAtComparison(n)
	case *ast.FuncDecl:
		s.lookForFreePort(n.Type, n.Body)
	case *ast.FuncLit:
		s.lookForFreePort(n.Type, n.Body)
	}
}

func pathOf(o types.Object) string {
	if o.Pkg() == nil {
		return ""
	}
	return o.Pkg().Path()
}

// around is the nth node around the one that is looked at.
func (s *scanner) around(n int) ast.Node {
	if len(s.stack) < n {
		return nil
	}
	return s.stack[len(s.stack)-n]
}

// waitWord matches names of settings and parameters that limit how long something may take. A pause between two tries, or the longest such
// pause, limits nothing.
var waitWord = regexp.MustCompile(`(?i)^(wait|grace|settle|budget|soon|readyin|within|.*(timeout|deadline|patience|limit))$`)

func (s *scanner) isShort(e ast.Expr) bool {
	d, ok := s.duration(e)
	return ok && 0 < d && time.Duration(d) < shortest
}

func (s *scanner) lookAtCall(call *ast.CallExpr) {
	argument := -1
	switch {
	case s.calls(call, "time.Sleep"):
		s.add(call, sleeps)
	case s.calls(call, "time.After", "time.NewTimer"):
		switch {
		case s.isInterval():
		case s.isPause():
			s.add(call, sleeps)
		case s.isShort(call.Args[0]):
			s.add(call, shortDeadline)
		}
	case s.calls(call, "time.AfterFunc"):
		argument = 0
	case s.calls(call, "context.WithTimeout", "context.WithTimeoutCause"):
		argument = 1
	case s.calls(call, "context.WithDeadline", "context.WithDeadlineCause"), strings.HasPrefix(nameOf(call.Fun), "Set") &&
		strings.HasSuffix(nameOf(call.Fun), "Deadline"):
		if d := s.fromNow(call.Args[len(call.Args)-1]); d != nil && s.isShort(d) {
			s.add(call, shortDeadline)
		}
	case s.calls(call, "math/rand.NewSource", "math/rand/v2.NewPCG", "math/rand/v2.NewChaCha8"):
		if slices.ContainsFunc(call.Args, s.isOfTheTime) {
			s.add(call, unseeded)
		}
	default:
		s.lookAtWaiter(call)
	}
	if argument >= 0 && s.isShort(call.Args[argument]) {
		s.add(call, shortDeadline)
	}
}

// lookAtWaiter looks at calls of our own functions with a parameter that limits how long they wait, and at what the suites wait with.
func (s *scanner) lookAtWaiter(call *ast.CallExpr) {
	name := nameOf(call.Fun)
	switch {
	case slices.Contains([]string{"Eventually", "NodeTimeout", "SpecTimeout", "PollUntilContextTimeout", "WithTimeout", "Within"}, name):
		arguments := call.Args
		if name == "PollUntilContextTimeout" && len(arguments) > 2 {
			arguments = arguments[2:]
		}
		for _, argument := range arguments {
			if _, ok := s.duration(argument); ok { // a second one is the interval
				if s.isShort(argument) {
					s.add(call, shortDeadline)
				}
				return
			}
		}
		return
	case name == "To" && s.expectsQuick(call):
		s.add(call, wallClock)
		return
	}
	f := s.function(call.Fun)
	if f == nil || name == "Patient" || !within(pathOf(f), modulePath) {
		return
	}
	parameters := f.Signature().Params()
	for i, argument := range call.Args {
		if i < parameters.Len() && waitWord.MatchString(parameters.At(i).Name()) && s.isShort(argument) {
			s.add(call, shortDeadline)
		}
	}
}

// expectsQuick says whether a call is Expect(took).To(BeNumerically("<", bound)).
func (s *scanner) expectsQuick(to *ast.CallExpr) bool {
	selector, ok := to.Fun.(*ast.SelectorExpr)
	if !ok || len(to.Args) == 0 {
		return false
	}
	expect, ok := selector.X.(*ast.CallExpr)
	if !ok || nameOf(expect.Fun) != "Expect" || len(expect.Args) == 0 || !s.isElapsed(expect.Args[0]) {
		return false
	}
	matcher, ok := to.Args[0].(*ast.CallExpr)
	if !ok || nameOf(matcher.Fun) != "BeNumerically" || len(matcher.Args) == 0 {
		return false
	}
	operator, ok := matcher.Args[0].(*ast.BasicLit)
	return ok && strings.HasPrefix(operator.Value, `"<`)
}

// lookAtSetting looks at the value that a variable or field gets which limits how long something may take.
func (s *scanner) lookAtSetting(name string, value ast.Expr) {
	if waitWord.MatchString(name) && s.isShort(value) {
		s.add(value, shortDeadline)
	}
}

// lookAtSettings looks at the fields of a literal. If it has a clock, its times are that clock's.
func (s *scanner) lookAtSettings(literal *ast.CompositeLit) {
	named := map[string]ast.Expr{}
	for _, e := range literal.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			named[nameOf(pair.Key)] = pair.Value
		}
	}
	if named["Clock"] != nil {
		return
	}
	for name, value := range named {
		s.lookAtSetting(name, value)
	}
}

// lookAtEnd looks at the time that a variable gets which is compared with the present. What has such a time in a field plays something.
func (s *scanner) lookAtEnd(o types.Object, value ast.Expr) {
	v, ok := o.(*types.Var)
	if d := s.fromNow(value); ok && !v.IsField() && s.deadlines[o] && d != nil && s.isShort(d) {
		s.add(value, shortDeadline)
	}
}

// fromNow is the d of time.Now().Add(d).
func (s *scanner) fromNow(e ast.Expr) ast.Expr {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok || len(call.Args) != 1 || nameOf(call.Fun) != "Add" {
		return nil
	}
	if selector, ok := call.Fun.(*ast.SelectorExpr); !ok || !s.calls(selector.X, "time.Now") {
		return nil
	}
	return call.Args[0]
}

// poll is the loop around a node that tries until something is so: any but one over a range or with a counter. It is nil where a function
// begins inside of the loop.
func (s *scanner) poll() *ast.ForStmt {
	for _, outer := range slices.Backward(s.stack) {
		switch outer := outer.(type) {
		case *ast.FuncLit, *ast.FuncDecl, *ast.RangeStmt:
			return nil
		case *ast.ForStmt:
			if _, counts := outer.Post.(*ast.IncDecStmt); !counts {
				return outer
			}
			return nil
		}
	}
	return nil
}

// isInterval says whether a timer is the pause between two tries: it is in a loop that tries until something is so, and when it goes off
// the loop goes on. What ends such a loop is a deadline that is looked at by itself.
func (s *scanner) isInterval() bool {
	if s.poll() == nil {
		return false
	}
	for _, outer := range slices.Backward(s.stack) {
		switch outer := outer.(type) {
		case *ast.CommClause:
			return !leaves(outer)
		case *ast.ForStmt:
			return true
		}
	}
	return true
}

// leaves says whether what a case does leaves the loop around it, or makes the test fail.
func leaves(clause *ast.CommClause) bool {
	found := false
	for _, statement := range clause.Body {
		ast.Inspect(statement, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ReturnStmt:
				found = true
			case *ast.BranchStmt:
				found = found || n.Tok != token.CONTINUE && n.Label != nil
			case *ast.CallExpr:
				found = found || fails(n)
			}
			return true
		})
	}
	return found
}

// isPause says whether a timer is all that is waited for: "<-time.After(d)" by itself, which is a sleep.
func (s *scanner) isPause() bool {
	statement, ok := s.around(2).(*ast.ExprStmt)
	if !ok {
		return false
	}
	clause, ok := s.around(3).(*ast.CommClause)
	return !ok || clause.Comm != statement
}

// fails says whether a call makes a test fail.
func fails(call *ast.CallExpr) bool {
	return slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow", "panic"}, nameOf(call.Fun))
}

// lookAtComparison looks for times that passed, as an upper bound that must hold or as the end of a loop.
func (s *scanner) lookAtComparison(e *ast.BinaryExpr) {
	took, bound := e.X, e.Y
	over := e.Op == token.GTR || e.Op == token.GEQ
	if !over && e.Op != token.LSS && e.Op != token.LEQ {
		return
	}
	if s.isElapsed(e.Y) {
		took, bound, over = e.Y, e.X, !over
	}
	if !s.isElapsed(took) {
		return
	}
	loop := s.poll()
	switch inCondition := loop != nil && encloses(loop.Cond, e); {
	case loop != nil && (over || inCondition):
		if s.isShort(bound) {
			s.add(e, shortDeadline)
		}
	case over && s.failsBy(e):
		s.add(e, wallClock)
	}
}

// encloses says whether a node is inside of another one.
func encloses(outer, n ast.Node) bool {
	return outer != nil && outer.Pos() <= n.Pos() && n.End() <= outer.End()
}

// failsBy says whether a test fails if the condition is true that an expression is in.
func (s *scanner) failsBy(e ast.Expr) bool {
	for _, outer := range slices.Backward(s.stack) {
		switch outer := outer.(type) {
		case *ast.IfStmt:
			found := false
			ast.Inspect(outer.Body, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				found = found || ok && fails(call)
				return true
			})
			return found && encloses(outer.Cond, e)
		case ast.Stmt:
			return false
		}
	}
	return false
}

// isOfTheTime says whether a seed is the present time.
func (s *scanner) isOfTheTime(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		if inner, ok := n.(ast.Expr); ok && s.calls(inner, "time.Now") {
			found = true
		}
		return true
	})
	return found
}

// isTold says whether a random number is a seed that its function prints: a variable gets it that is an argument both of a call that logs
// and of one that makes a source of random numbers.
func (s *scanner) isTold() bool {
	var gets []types.Object
	for _, outer := range slices.Backward(s.stack) {
		switch outer := outer.(type) {
		case *ast.AssignStmt:
			for _, left := range outer.Lhs {
				gets = append(gets, s.object(left))
			}
		case *ast.FuncDecl:
			return slices.ContainsFunc(gets, func(o types.Object) bool {
				return o != nil && s.isHanded(outer, o, "Log", "Logf", "Print", "Printf", "Println", "Fprintf") &&
					s.isHanded(outer, o, "NewPCG", "NewChaCha8", "NewSource")
			})
		}
	}
	return false
}

// isHanded says whether a function hands a variable to another of some names.
func (s *scanner) isHanded(f *ast.FuncDecl, o types.Object, names ...string) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && slices.Contains(names, nameOf(call.Fun)) {
			found = found || slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return s.names(e, o) })
		}
		return true
	})
	return found
}

// lookForFreePort looks for a listener on a port that the kernel chooses, of which a function only asks the address before it closes it.
// One that is closed when a test ends stays open as long as it should.
func (s *scanner) lookForFreePort(kind *ast.FuncType, body *ast.BlockStmt) {
	if body == nil {
		return
	}
	ast.Inspect(body, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if ok && len(assign.Rhs) == 1 && s.listensAnywhere(assign.Rhs[0]) {
			if listener := s.object(assign.Lhs[0]); listener != nil && s.onlyAsked(body, listener, kind.Results != nil) {
				s.add(assign, closeThenListen)
			}
		}
		_, inner := n.(*ast.FuncLit)
		return !inner
	})
}

// onlyAsked says whether a function asks a listener for its address, closes it, and does nothing else with it.
func (s *scanner) onlyAsked(body *ast.BlockStmt, listener types.Object, returns bool) bool {
	asked, closed, other := false, false, false
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.DeferStmt:
			if selector, ok := n.Call.Fun.(*ast.SelectorExpr); ok && s.object(selector.X) == listener && selector.Sel.Name == "Close" {
				closed = closed || returns
				return false
			}
		case *ast.SelectorExpr:
			if s.object(n.X) == listener {
				asked = asked || n.Sel.Name == "Addr" || n.Sel.Name == "LocalAddr"
				closed = closed || n.Sel.Name == "Close"
				other = other || !slices.Contains([]string{"Addr", "LocalAddr", "Close"}, n.Sel.Name)
				return false
			}
		case *ast.FuncLit:
			other = other || s.names(n, listener)
			return false
		case *ast.Ident:
			other = other || s.info.Uses[n] == listener
		}
		return true
	})
	return asked && closed && !other
}

// names says whether something is named anywhere below a node.
func (s *scanner) names(n ast.Node, o types.Object) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		ident, ok := n.(*ast.Ident)
		found = found || ok && s.info.Uses[ident] == o
		return true
	})
	return found
}

// listensAnywhere says whether an expression listens on port 0.
func (s *scanner) listensAnywhere(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	f := s.function(call.Fun)
	if f == nil || pathOf(f) != "net" || !strings.HasPrefix(f.Name(), "Listen") {
		return false
	}
	v := s.info.Types[call.Args[len(call.Args)-1]].Value
	return v != nil && v.Kind() == constant.String && strings.HasSuffix(constant.StringVal(v), ":0")
}
