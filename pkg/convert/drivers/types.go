// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
)

// outcome says which values an expression may have. An error counts as false in a selector, and none makes a selector true.
type outcome struct{ yes, no bool }

// typesOf finds the type of device that a selector asks for: the one of which it can be true. A class may only be chosen by that type,
// since the devices of all other types are lost.
func (t *translator) typesOf(root ast.Expr) []string {
	if len(t.domains) != 1 {
		return nil
	}
	d := Lookup(slices.Collect(maps.Keys(t.domains))[0])
	var possible []string
	mentioned := false
	for _, theirs := range slices.Sorted(maps.Keys(d.types)) {
		q := typeQuestion{translator: t, driver: d, kind: theirs}
		if q.outcome(root).yes {
			possible = append(possible, d.types[theirs])
		}
		mentioned = mentioned || q.mentioned
	}
	switch {
	case !mentioned || len(possible) == 0:
		return nil
	case len(possible) == 1:
		return possible
	case d.Name != NVIDIA:
		// NVIDIA's classes have one type each.
		slices.Sort(possible)
		t.notef("%s: it takes devices of the types %s, and each class of Fettle has one type: in a claim, write firstAvailable with one entry "+
			"for each class", written(root), strings.Join(possible, ", "))
	}
	return nil
}

// typeQuestion asks whether a selector can be true of a driver's devices of one type.
type typeQuestion struct {
	*translator
	driver *Driver
	kind   string
	// mentioned: the selector compares the type.
	mentioned bool
}

func (q *typeQuestion) outcome(e ast.Expr) outcome {
	function, args := call(e)
	if known, ok := q.combined(function, args); ok {
		return known
	}
	switch function {
	case operators.Equals, operators.NotEquals:
		inner, same, ok := comparedCondition(function, args)
		switch {
		case !ok:
			return q.comparison(function, args)
		case same:
			return q.outcome(inner)
		}
		return q.outcome(inner).negated()
	case operators.In:
		return q.among(args)
	}
	if bound, ok := q.bound(e); ok {
		return q.outcome(bound)
	}
	return outcome{yes: !isFalse(e), no: !isTrue(e)}
}

// combined is the outcome of what is made of conditions.
func (q *typeQuestion) combined(function string, args []ast.Expr) (o outcome, ok bool) {
	switch function {
	case operators.LogicalAnd:
		a, b := q.outcome(args[0]), q.outcome(args[1])
		return outcome{yes: a.yes && b.yes, no: a.no || b.no}, true
	case operators.LogicalOr:
		a, b := q.outcome(args[0]), q.outcome(args[1])
		return outcome{yes: a.yes || b.yes, no: a.no && b.no}, true
	case operators.LogicalNot:
		return q.outcome(args[0]).negated(), true
	case operators.Conditional:
		condition, then, otherwise := q.outcome(args[0]), q.outcome(args[1]), q.outcome(args[2])
		return outcome{
			yes: condition.yes && then.yes || condition.no && otherwise.yes,
			no:  condition.yes && then.no || condition.no && otherwise.no,
		}, true
	}
	return outcome{}, false
}

func (o outcome) negated() outcome { return outcome{yes: o.no, no: o.yes} }

func (q *typeQuestion) comparison(function string, args []ast.Expr) outcome {
	for i := range args {
		actual, ok := q.known(args[i])
		text, isText := textOf(args[1-i])
		if ok && isText {
			same := (actual == text) == (function == operators.Equals)
			return outcome{yes: same, no: !same}
		}
	}
	return outcome{yes: true, no: true}
}

func (q *typeQuestion) among(args []ast.Expr) outcome {
	actual, ok := q.known(args[0])
	if !ok || args[1].Kind() != ast.ListKind {
		return outcome{yes: true, no: true}
	}
	found := false
	for _, element := range args[1].AsList().Elements() {
		text, isText := textOf(element)
		if !isText {
			return outcome{yes: true, no: true}
		}
		found = found || text == actual
	}
	return outcome{yes: found, no: !found}
}

// known is the value of the driver's name and of the type.
func (q *typeQuestion) known(e ast.Expr) (string, bool) {
	if isDriver(e) {
		return q.driver.Name, true
	}
	a, ok := accessOf(e)
	if !ok || a.domain != q.driver.Name || a.name != "type" || a.collection != collectionAttributes || a.optional {
		return "", false
	}
	q.mentioned = true
	return q.kind, true
}
