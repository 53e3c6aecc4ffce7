// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/health"
)

// Health is how the node's devices are watched.
type Health struct {
	// Rules come before the shipped table: the first that matches counts.
	Rules []health.Rule `json:"rules,omitempty"`
	// Interval is how often counters and states are read. Events need no interval. Default 10s.
	Interval metav1.Duration `json:"interval,omitempty"`
	// DisabledSources are not asked, and what they said before is forgotten: aer, nvml, ras, rival.
	DisabledSources []string `json:"disabledSources,omitempty"`
	// DisableEviction keeps pods on a device that failed: its taint is NoSchedule instead of NoExecute.
	DisableEviction bool `json:"disableEviction,omitempty"`
}

func (c Health) withDefaults() Health {
	c.Interval.Duration = cmp.Or(c.Interval.Duration, defaultHealthInterval)
	return c
}

func (c Health) validate() []error {
	var errs []error
	if c.Interval.Duration < minInterval {
		errs = append(errs, fmt.Errorf("health.interval: %s is too short, at least %s", c.Interval.Duration, minInterval))
	}
	for i, rule := range c.Rules {
		if err := rule.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("health.rules[%d]: %w", i, err))
		}
	}
	for i, source := range c.DisabledSources {
		if !slices.Contains([]string{health.SourceAER, health.SourceNVML, health.SourceRAS, health.SourceRival}, source) {
			errs = append(errs, fmt.Errorf("health.disabledSources[%d]: %q, want %s, %s, %s or %s",
				i, source, health.SourceAER, health.SourceNVML, health.SourceRAS, health.SourceRival))
		}
	}
	return errs
}

// disabled are the ledger's names of what is switched off: Xids come with the library's state.
func (c Health) Disabled() []string {
	if slices.Contains(c.DisabledSources, health.SourceNVML) {
		return append(slices.Clone(c.DisabledSources), health.SourceXid)
	}
	return c.DisabledSources
}
