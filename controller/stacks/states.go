// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// nodesOf returns a stack's nodes with all that is known of them but extra states.
func (j *judge) nodesOf(s *v1alpha1.AcceleratorStack, names []string, seen *stack.Observed, driver engine) []stack.Node {
	nodes := make([]stack.Node, 0, len(names))
	for _, name := range names {
		n := seen.Node(name)
		n.Delivered, n.Checks = driver.deliver(&n), j.checks(s)
		nodes = append(nodes, n)
	}
	return nodes
}
