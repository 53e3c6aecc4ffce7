// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"time"
)

// series are measurements in milliseconds.
type series []float64

func (s *series) add(d time.Duration) { *s = append(*s, milliseconds(d)) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile is the smallest value that a share q of the series does not exceed.
func (s series) quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(rank, 0)]
}

// median is the quantile that ratios are made of.
func (s series) median() float64 { return s.quantile(0.5) }

// samples are the series of one cell by the name of what was measured.
type samples map[string]*series

func (s samples) add(name string, d time.Duration) {
	if s[name] == nil {
		s[name] = &series{}
	}
	s[name].add(d)
}

// of is a series, empty where nothing was measured.
func (s samples) of(name string) series {
	if s[name] == nil {
		return nil
	}
	return *s[name]
}

func (s samples) median(name string) float64 { return s.of(name).median() }
