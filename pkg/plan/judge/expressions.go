// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/selector"
)

// cacheSize is how many compiled selectors the allocator keeps: more than [Kept] lets there be.
const cacheSize = 1000

// Expressions compiles selectors, each once while the memory that they take is bounded. Several goroutines may use it.
type Expressions struct {
	features dracel.Features

	mutex sync.Mutex
	kept  Kept
	// cache is the allocator's.
	cache    *dracel.Cache
	compiled map[string]*expression
	// env compiles selectors so that their parts can be shown.
	env *cel.Env
}

// NewExpressions returns an empty one for the features of a scheduler.
func NewExpressions(f structured.Features) *Expressions {
	features := dracel.Features{EnableConsumableCapacity: f.ConsumableCapacity, EnableListTypeAttributes: f.ListTypeAttributes}
	e := &Expressions{features: features}
	e.forget()
	return e
}

func (e *Expressions) forget() {
	e.cache, e.compiled = dracel.NewCache(cacheSize, e.features), map[string]*expression{}
}

// cacheFor returns the cache of an allocator for claims. What was compiled for others is forgotten once it is too much.
func (e *Expressions) cacheFor(claims []*resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass) *dracel.Cache {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if !e.kept.Add(claims, classes) {
		e.forget()
	}
	return e.cache
}

// expression is a selector, and a second program for it that evaluates every part.
type expression struct {
	compiled   dracel.CompilationResult
	tree       *ast.AST
	exhaustive cel.Program
	reads      selector.Reads
}

// get returns a compiled selector.
func (e *Expressions) get(text string) (*expression, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	x, found := e.compiled[text]
	if !found {
		x = e.compile(text)
		e.compiled[text] = x
	}
	if x.compiled.Error != nil {
		return nil, fmt.Errorf("CEL compile error: %w", x.compiled.Error)
	}
	return x, nil
}

func (e *Expressions) compile(text string) *expression {
	x := &expression{compiled: e.cache.GetOrCompile(text), reads: selector.ReadsOf(nil)}
	if x.compiled.Error != nil {
		return x
	}
	if e.env == nil {
		env, err := x.compiled.Environment.Extend(cel.EnableMacroCallTracking())
		if err != nil {
			return x
		}
		e.env = env
	}
	checked, issues := e.env.Compile(text)
	if issues.Err() != nil {
		return x
	}
	if program, err := e.env.Program(checked, cel.EvalOptions(cel.OptExhaustiveEval)); err == nil {
		x.tree, x.exhaustive = checked.NativeRep(), program
		x.reads = selector.ReadsOf(x.tree)
	}
	return x
}

// matches evaluates a selector as the scheduler does. The device is without the attributes that make no difference, each of which takes
// longer than the evaluation.
func (x *expression) matches(ctx context.Context, device dracel.Device) (bool, error) {
	device.Attributes = x.reads.Attributes(device.Driver, device.Attributes)
	match, _, err := x.compiled.DeviceMatches(ctx, device)
	if err != nil {
		return false, fmt.Errorf("CEL runtime error: %w", dracel.EnhanceRuntimeError(err))
	}
	return match, nil
}

// explain returns the parts that make a selector false for a device, or an error.
func (x *expression) explain(ctx context.Context, device dracel.Device) []Part {
	if x.exhaustive == nil {
		return nil
	}
	again := x.compiled
	again.Program = x.exhaustive
	_, details, _ := again.DeviceMatches(ctx, device) // an error is among the values
	if details == nil || details.State() == nil {
		return nil
	}
	r := reading{tree: x.tree, state: details.State()}
	r.collect(x.tree.Expr(), true)
	return r.parts
}
