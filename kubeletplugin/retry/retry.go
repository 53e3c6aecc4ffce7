// SPDX-License-Identifier: Apache-2.0

// Package retry says how long a loop waits after the API server failed it. All nodes fail together when an API server restarts, so what
// each of them tries again becomes rare, and not all try at once.
package retry

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const first = time.Second

// Pauses are the times between tries that fail one after the other: a second, two, four, up to the longest, each up to half longer.
type Pauses struct {
	longest time.Duration
	backoff wait.Backoff
}

// New returns pauses that begin with a second and are at most longest, plus half of that.
func New(longest time.Duration) *Pauses {
	p := &Pauses{longest: longest}
	p.Reset()
	return p
}

// Next returns how long to wait after a try that failed.
func (p *Pauses) Next() time.Duration { return p.backoff.Step() }

// Reset begins anew, after a try that did not fail.
func (p *Pauses) Reset() {
	const steps, factor, spread = 16, 2, 0.5
	p.backoff = wait.Backoff{Duration: first, Factor: factor, Jitter: spread, Steps: steps, Cap: p.longest}
}
