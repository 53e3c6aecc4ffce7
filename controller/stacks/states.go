// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/stackstates"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// statesOf makes the objects of a stack's extra states, as far as its nodes have come, and says how far they are with them.
func (j *judge) statesOf(
	ctx context.Context, s *v1alpha1.AcceleratorStack, names []string, seen *stack.Observed, driver engine,
) (stackstates.Result, error) {
	nodes := make([]stack.Node, 0, len(names))
	for _, name := range names {
		n := seen.Node(name)
		n.Delivered, n.Checks = driver.deliver(&n), j.checks(s)
		nodes = append(nodes, n)
	}
	return j.states.Keep(ctx, s, nodes)
}

// sooner returns the shorter of two times, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
