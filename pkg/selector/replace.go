// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	apiservercel "k8s.io/apiserver/pkg/cel"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// typePrefix begins the names of the types that stand for a domain's attributes. The type checker prints them.
const typePrefix = "fettle.device."

// The functions of CEL's operators.
const (
	callIndex         = "_[_]"
	callOptionalIndex = "_[?_]"
	callOptionalField = "_?._"
	callIn            = "@in"
	callEquals        = "_==_"
)

// sources are the two maps of a device and what is in them.
func sources() map[string]table {
	return map[string]table{"attributes": newTable(published()), "capacity": newTable(capacities())}
}

// variable names the variable that stands for device.attributes["DOMAIN"] or device.capacity["DOMAIN"], and its type.
func variable(source, domain string) string {
	return "fettle_" + source + "_" + strings.NewReplacer(".", "_", "-", "_").Replace(domain)
}

// unknownVariable stands for a value that the device does not have. It has any type, so that one fault is reported once.
const unknownVariable = "fettle_unknown"

// extend returns the environment with a variable for each domain of each source, whose type has the names as fields.
func extend(env *cel.Env) (*cel.Env, error) {
	var declared []*apiservercel.DeclType
	options := []cel.EnvOption{cel.Variable(unknownVariable, cel.DynType)}
	for source, t := range sources() {
		for domain, names := range t {
			fields := map[string]*apiservercel.DeclField{}
			for name, of := range names {
				fields[name] = apiservercel.NewDeclField(name, declTypeOf(of), false, nil, nil)
			}
			object := apiservercel.NewObjectType(typePrefix+variable(source, domain), fields)
			declared = append(declared, object)
			options = append(options, cel.Variable(variable(source, domain), object.CelType()))
		}
	}
	provided, err := apiservercel.NewDeclTypeProvider(declared...).EnvOptions(env.CELTypeProvider())
	if err != nil {
		return nil, err
	}
	return env.Extend(append(provided, options...)...)
}

func declTypeOf(of valueType) *apiservercel.DeclType {
	switch of {
	case typeText:
		return apiservercel.StringType
	case typeInt:
		return apiservercel.IntType
	case typeBool:
		return apiservercel.BoolType
	case typeVersion:
		return apiservercel.NewSimpleTypeWithMinSize("semver", apiservercel.SemverType, apiservercel.Semver{}, 1)
	case typeQuantity:
		return apiservercel.QuantityDeclType
	case typeAny:
	}
	return apiservercel.DynType
}

// replacer puts typed variables in the place of a device's maps, and notes what it finds on the way.
type replacer struct {
	expressions ast.ExprFactory
	sources     map[string]table
	// domains are the source and domain of each variable that was put in.
	domains map[string][2]string
	// unknown says which names the expression reads, or asks for, that no device has.
	unknown []string
	// read are domains that no device has and that are read, guarded those whose presence is asked for. drivers are those that
	// device.driver is compared with.
	read, guarded, drivers map[string]bool
}

// newReplacer changes the tree in place.
func newReplacer(tree *ast.AST) *replacer {
	r := &replacer{
		expressions: ast.NewExprFactory(), sources: sources(), domains: map[string][2]string{},
		read: map[string]bool{}, guarded: map[string]bool{}, drivers: map[string]bool{},
	}
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(r.visit))
	return r
}

// foreign returns the domains that are read although no device of this driver has them, unless the expression asks for the domain or the
// driver first.
func (r *replacer) foreign() []string {
	var faults []string
	for _, domain := range slices.Sorted(maps.Keys(r.read)) {
		if !r.guarded[domain] && len(r.drivers) == 0 {
			faults = append(faults, fmt.Sprintf("no device of %s has attributes or capacities of %s, so the scheduler gets an error: "+
				"use those of %s", v1alpha1.DriverName, domain, strings.Join(newTable(published()).domains(), " or ")))
		}
	}
	return faults
}

// visit sees an expression after its parts.
func (r *replacer) visit(e ast.Expr) {
	if e.Kind() == ast.SelectKind {
		s := e.AsSelect()
		r.name(e, s.Operand(), s.FieldName(), s.IsTestOnly())
	} else if e.Kind() == ast.CallKind {
		r.call(e)
	}
}

func (r *replacer) call(e ast.Expr) {
	function, args := e.AsCall().FunctionName(), e.AsCall().Args()
	if len(args) != 2 {
		return
	}
	switch function {
	case callEquals:
		for i, side := range args {
			if value, ok := textOf(args[1-i]); ok && isField(side, isDevice, "driver") && value != v1alpha1.DriverName {
				r.drivers[value] = true
			}
		}
	case callIn:
		if name, ok := textOf(args[0]); ok {
			if isField(args[1], isDevice, "attributes", "capacity") {
				r.guarded[name] = true
			}
			r.name(e, args[1], name, true)
		}
	case callIndex, callOptionalIndex, callOptionalField:
		if name, ok := textOf(args[1]); ok {
			r.index(e, function, args[0], name)
		}
	}
}

// index handles a domain, or a name of a domain, in brackets or after ".?".
func (r *replacer) index(e ast.Expr, function string, operand ast.Expr, name string) {
	if source, domain, ok := domainOf(e); ok {
		if _, known := r.sources[source][domain]; known {
			r.domains[variable(source, domain)] = [2]string{source, domain}
			e.SetKindCase(r.expressions.NewIdent(e.ID(), variable(source, domain)))
		}
		return
	}
	if function == callIndex {
		r.name(e, operand, name, false)
		return
	}
	if isField(operand, isDevice, "attributes", "capacity") {
		r.guarded[name] = true
	}
	r.optional(e, operand, name)
}

// name handles the read, or the question for the presence, of a name in what may be a domain's map.
func (r *replacer) name(e, operand ast.Expr, name string, presence bool) {
	if _, domain, ok := domainOf(operand); ok { // one that is not known here
		if presence {
			r.guarded[domain] = true
		} else {
			r.read[domain] = true
		}
		return
	}
	switch {
	case !r.known(e, operand, name):
	case presence:
		e.SetKindCase(r.expressions.NewPresenceTest(e.ID(), operand, name))
	default:
		e.SetKindCase(r.expressions.NewSelect(e.ID(), operand, name))
	}
}

// known reports whether operand is a domain's map that has the name. If only the name is missing, it notes that, and puts a value
// of any type in the place of the expression.
func (r *replacer) known(e, operand ast.Expr, name string) bool {
	if operand.Kind() != ast.IdentKind {
		return false
	}
	of, ok := r.domains[operand.AsIdent()]
	if !ok {
		return false
	}
	if r.sources[of[0]][of[1]][name] == "" {
		r.missing(of, name)
		e.SetKindCase(r.expressions.NewIdent(e.ID(), unknownVariable))
		return false
	}
	return true
}

// optional handles the read of a name that may be absent.
func (r *replacer) optional(e, operand ast.Expr, name string) {
	if _, domain, ok := domainOf(operand); ok {
		r.guarded[domain] = true
		return
	}
	if r.known(e, operand, name) {
		e.SetKindCase(r.expressions.NewCall(e.ID(), callOptionalField, operand, r.expressions.NewLiteral(e.ID(), types.String(name))))
	}
}

// missing notes a name that no device has.
func (r *replacer) missing(of [2]string, name string) {
	source, domain := of[0], of[1]
	fault := fmt.Sprintf("no device of %s has %s in device.%s[%q]: use one of %s",
		v1alpha1.DriverName, name, source, domain, strings.Join(r.sources[source].names(domain), ", "))
	if !slices.Contains(r.unknown, fault) {
		r.unknown = append(r.unknown, fault)
	}
}

// domainOf recognizes device.attributes["DOMAIN"] and device.capacity["DOMAIN"].
func domainOf(e ast.Expr) (source, domain string, ok bool) {
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != callIndex || len(e.AsCall().Args()) != 2 {
		return "", "", false
	}
	args := e.AsCall().Args()
	domain, ok = textOf(args[1])
	if !ok || !isField(args[0], isDevice, "attributes", "capacity") {
		return "", "", false
	}
	return args[0].AsSelect().FieldName(), domain, true
}

// isField reports whether an expression reads one of the fields of an operand.
func isField(e ast.Expr, operand func(ast.Expr) bool, fields ...string) bool {
	return e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() && slices.Contains(fields, e.AsSelect().FieldName()) &&
		operand(e.AsSelect().Operand())
}

func isDevice(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "device" }

// textOf returns the value of a text literal.
func textOf(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	value, ok := e.AsLiteral().Value().(string)
	return value, ok
}
