// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// Compiled keeps compiled selectors, since compiling takes a hundred times as long as evaluating. What it keeps is bounded by memory, since
// tenants write expressions of any length. The zero value is ready, and may be used by several goroutines at once.
type Compiled struct {
	mu      sync.Mutex
	results map[string]dracel.CompilationResult
	// weight is about how much memory the results take.
	weight int
}

// maxWeight is the most that a Compiled keeps, in bytes: some hundred expressions of a line, and some ten of the longest. A cluster has
// fewer, and more than this are from edited objects.
const maxWeight = 8 << 20

// weight is about how much memory an expression takes when it is compiled: up to 55 bytes for each of its own, and a program.
func weight(expression string) int { return 20<<10 + 64*len(expression) }

// Get returns an expression compiled as the API server does.
func (c *Compiled) Get(expression string) dracel.CompilationResult {
	return c.GetWithin(expression, resourceapi.CELSelectorExpressionMaxCost)
}

// GetWithin is Get with another limit of what an evaluation may cost. All expressions of a Compiled have the same.
func (c *Compiled) GetWithin(expression string, limit uint64) dracel.CompilationResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	if result, ok := c.results[expression]; ok {
		return result
	}
	result, more := compileWithin(expression, limit), weight(expression)
	if c.results == nil || c.weight+more > maxWeight {
		c.results, c.weight = map[string]dracel.CompilationResult{}, 0
	}
	if more <= maxWeight {
		c.results[expression] = result
		c.weight += more
	}
	return result
}
