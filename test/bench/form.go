// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"
)

// form says how much is measured.
type form struct {
	// levels are the numbers of claims that are held, ascending.
	levels []int
	// parallel are the numbers of calls at once, 1 first. Each divides the last.
	parallel []int
	// passes is how often a cell goes through its claims, rounds how many bursts it measures at least.
	passes, rounds int
	// limit ends a cell that has taken so long, after leastSamples.
	limit time.Duration
	// claims is how often a claim of an instance or of a cache is measured at most.
	claims int
	// caches are the sizes of caches of kernels.
	caches []cacheSize
	// shares are the numbers of shares of one device that are held, ascending.
	shares []int
	plan   planForm
	// idle is how long a plugin is watched that has nothing to do.
	idle time.Duration
}

// leastSamples is what a cell measures however long it takes.
const leastSamples = 16

func full() form {
	return form{
		// fragile: leastSamples are measured however long it takes
		limit: 4 * time.Second, levels: []int{0, 100, 1000, 5000}, parallel: []int{1, 16, 64}, passes: 3, rounds: 8, claims: 48,
		caches: []cacheSize{
			{bytes: 15e6, files: 480, pulls: 10}, {bytes: 250e6, files: 4000, pulls: 3}, {bytes: 1e9, files: 20_000, pulls: 3},
		},
		shares: []int{1, 10, 100}, plan: planForm{nodes: 500, claims: 5000}, idle: driverIdleTime,
	}
}

func short() form {
	return form{
		// fragile: leastSamples are measured however long it takes
		limit: time.Second / 2, levels: []int{0, 1000}, parallel: []int{1, 64}, passes: 1, rounds: 3, claims: 8,
		caches: []cacheSize{{bytes: 15e6, files: 480, pulls: 10}, {bytes: 250e6, files: 4000, pulls: 2}},
		shares: []int{1, 10, 100}, plan: planForm{nodes: 100, claims: 1000}, idle: driverIdleTime / 6,
	}
}

// width is how many claims of one shape there are: all of the largest burst.
func (f form) width() int { return slices.Max(f.parallel) }

// passesOf is how often a cell of n claims goes through them.
func (f form) passesOf(parallel, n int) int {
	if parallel == 1 {
		return f.passes
	}
	return max(f.passes, (f.rounds*parallel+n-1)/n)
}

// top is the highest level.
func (f form) top() int { return slices.Max(f.levels) }

// more says whether a claim of an instance or of a cache is to be measured once more, after n times.
func (f form) more(n int, begin time.Time, limit time.Duration) bool {
	return n < min(f.claims, leastSamples) || n < f.claims && time.Since(begin) < limit
}
