// SPDX-License-Identifier: Apache-2.0

// Package selector judges the CEL of device selectors before a scheduler evaluates it. The API server compiles an expression, but it knows
// no driver's attributes: `device.attributes["fettle.dev"].vender` compiles, and then no pod with the claim is ever scheduled. Here the
// expression is compiled once more, against the names and types that this driver publishes.
package selector

import (
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Checker judges selectors. It keeps the CEL environments, which take longer to make than an expression to check. The zero value is ready,
// and may be used by several goroutines at once.
type Checker struct {
	once sync.Once
	// plain is the API server's environment, typed the same with the types of this driver's attributes.
	plain, typed *cel.Env
	err          error
}

// Check returns what is wrong with a selector, in the order of the expression. Driver is the one that all devices which the selector sees
// are of, and empty if that is unknown. An expression about this driver's attributes is judged in both cases. For another driver's devices
// it only has to compile.
func (c *Checker) Check(expression, driver string) []string {
	if result := compile(expression); result.Error != nil {
		return []string{oneLine(result.Error.Detail) + hint(result.Error.Detail)}
	} else if result.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		return []string{"may cost too much to evaluate, by the estimate of the API server: shorten it"}
	}
	if driver != "" && driver != v1alpha1.DriverName {
		return nil
	}
	parsed, err := c.parse(expression)
	if err != nil {
		return []string{err.Error()}
	}
	r := newReplacer(parsed.NativeRep())
	faults := r.unknown
	checked, issues := c.typed.Check(parsed)
	if issues.Err() == nil && !checked.OutputType().IsAssignableType(cel.BoolType) {
		faults = append(faults, "must be true or false, and is of type "+typeNames(checked.OutputType().String()))
	}
	for _, e := range issues.Errors() {
		if fault := typeFault(e); fault != "" {
			faults = append(faults, fault)
		}
	}
	if driver == v1alpha1.DriverName {
		faults = append(faults, r.foreign()...)
	}
	return faults
}

// Attribute returns what is wrong with the name of an attribute in a constraint, such as matchAttribute: "fettle.dev/vendor". Driver is as
// in Check.
func Attribute(name resourceapi.FullyQualifiedName, driver string) string {
	domain, id, _ := strings.Cut(string(name), "/")
	attributes := newTable(published())
	_, known := attributes[domain]
	switch {
	case known && attributes[domain][id] == "":
		return fmt.Sprintf("no device of %s has this attribute: use one of %s", v1alpha1.DriverName, strings.Join(attributes.names(domain), ", "))
	case !known && driver == v1alpha1.DriverName:
		return fmt.Sprintf("no device of %s has attributes of %s: use one of %s", v1alpha1.DriverName, domain,
			strings.Join(attributes.domains(), ", "))
	}
	return ""
}

// compile compiles a selector as the API server does.
func compile(expression string) dracel.CompilationResult {
	return compileWithin(expression, resourceapi.CELSelectorExpressionMaxCost)
}

// compileWithin compiles a selector of which an evaluation ends with an error once it costs more.
func compileWithin(expression string, limit uint64) dracel.CompilationResult {
	return dracel.GetCompiler(dracel.Features{}).CompileCELExpression(expression, dracel.Options{CostLimit: &limit})
}

// parse returns the syntax tree of a selector that compiles.
func (c *Checker) parse(expression string) (*cel.Ast, error) {
	c.once.Do(c.open)
	if c.err != nil {
		return nil, c.err
	}
	parsed, issues := c.plain.Parse(expression)
	return parsed, issues.Err()
}

// open makes the environments.
func (c *Checker) open() {
	result := compile("true")
	if result.Error != nil {
		c.err = result.Error
		return
	}
	c.plain = result.Environment
	if c.typed, c.err = extend(c.plain); c.err != nil {
		c.err = fmt.Errorf("declare the attributes of %s in CEL: %w", v1alpha1.DriverName, c.err)
	}
}

// Facts returns what a selector demands of every device that it selects, as far as it says so in a conjunction of comparisons with text:
// "driver" is the driver's name, "DOMAIN/NAME" an attribute's value. An expression that does not compile demands nothing.
func (c *Checker) Facts(expression string) map[string]string {
	parsed, err := c.parse(expression)
	if err != nil {
		return nil
	}
	facts := map[string]string{}
	addFacts(parsed.NativeRep().Expr(), facts)
	return facts
}

// Reads returns the attributes that a selector, or another expression on a device, reads. Of one that does not compile all are kept.
func (c *Checker) Reads(expression string) Reads {
	parsed, err := c.parse(expression)
	if err != nil {
		return ReadsOf(nil)
	}
	return ReadsOf(parsed.NativeRep())
}

// typeFault puts an error of the type checker into words. It is empty for an error that the substitution of types alone made: what has
// fields here is a map to the scheduler.
func typeFault(e *common.Error) string {
	message := oneLine(e.Message)
	if name, found := strings.CutPrefix(message, "undefined field '"); found {
		return fmt.Sprintf("no device of %s has %s: use one of %s", v1alpha1.DriverName, strings.TrimSuffix(name, "'"),
			strings.Join(newTable(published()).names(v1alpha1.DriverName), ", "))
	}
	if !strings.HasPrefix(message, "found no matching overload for ") || strings.Contains(message, typePrefix) {
		return ""
	}
	words := strings.NewReplacer("found no matching overload for ", "", " applied to ", " does not fit ", "'_", "'", "_'", "'")
	what := words.Replace(typeNames(message)) + hint(message)
	return fmt.Sprintf("column %d: the types do not fit each other: %s", e.Location.Column()+1, what)
}

// typeNames puts plain names in the place of those of Kubernetes' types.
func typeNames(message string) string {
	return strings.NewReplacer("kubernetes.Semver", "version", "kubernetes.Quantity", "quantity").Replace(message)
}

// hint says how values of a type are compared, if an operator or function does not take them.
func hint(message string) string {
	switch {
	case !strings.Contains(message, "found no matching overload"):
	case strings.Contains(message, "kubernetes.Semver"):
		return `; compare versions by compareTo(semver("1.2.3"))`
	case strings.Contains(message, "kubernetes.Quantity"):
		return `; compare quantities by compareTo(quantity("40Gi"))`
	}
	return ""
}

// oneLine joins the lines of a message.
func oneLine(message string) string { return strings.Join(strings.Fields(message), " ") }

// addFacts walks the conjunction at the top of an expression.
func addFacts(e ast.Expr, facts map[string]string) {
	if e.Kind() != ast.CallKind {
		return
	}
	args := e.AsCall().Args()
	switch e.AsCall().FunctionName() {
	case "_&&_":
		for _, arg := range args {
			addFacts(arg, facts)
		}
	case callEquals:
		for i, side := range args {
			name := factName(side)
			if value, ok := textOf(args[1-i]); ok && name != "" {
				facts[name] = value
			}
		}
	}
}

// factName returns "driver" for device.driver, "DOMAIN/NAME" for an attribute, and nothing for other expressions.
func factName(e ast.Expr) string {
	if isField(e, isDevice, "driver") {
		return "driver"
	}
	if e.Kind() != ast.SelectKind || e.AsSelect().IsTestOnly() {
		return ""
	}
	if of, domain, ok := domainOf(e.AsSelect().Operand()); ok && of == "attributes" {
		return domain + "/" + e.AsSelect().FieldName()
	}
	return ""
}
