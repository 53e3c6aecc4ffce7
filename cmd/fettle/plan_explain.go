// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

const (
	// explainedPods is for how many pods a plan says what would help: that takes as long as hundreds of claims.
	explainedPods = 20
	// explainedNodes is how many nodes are looked at for that.
	explainedNodes = 50
)

// whatWouldHelp returns what adds to a pod's reason the one change that would help most, for the first pods that find no devices.
func whatWouldHelp(ctx context.Context, c *plan.Cluster) func(plan.Attempt) string {
	left := explainedPods
	options := explain.Options{MaxNodes: explainedNodes, Alone: true, Now: time.Now(), Expressions: judge.NewExpressions(c.Gates.Features())}
	return func(a plan.Attempt) string {
		if left == 0 || a.Meaning != "" {
			return ""
		}
		explanation := explain.Pod(ctx, a.Cluster, a.Pod, options)
		if explanation.Reason == explain.NoDevicesAsked {
			return ""
		}
		left--
		return explanation.First
	}
}
