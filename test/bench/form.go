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
	// watched are the levels at which a containerd watches too.
	watched []int
	// parallel are the numbers of calls at once, 1 first. Each divides the last.
	parallel []int
	// passes is how often a cell goes through its claims, rounds how many bursts it measures at least.
	passes, rounds int
	// limit ends a cell that has taken so long, after leastSamples.
	limit time.Duration
	// starts is how often a start is measured, idle how long a plugin rests before its memory is read.
	starts int
	idle   time.Duration
	// images are the sizes of FPGA images in bytes, loads how often each is loaded at most.
	images []int
	loads  int
	// caches are the sizes of caches of kernels.
	caches []cacheSize
	// shares are the numbers of shares of one device that are held, ascending.
	shares []int
	// publications is how many nodes with divided GPUs are published, allocation how many claims are allocated on how many of them.
	publications int
	allocation   allocationForm
	plan         planForm
}

// leastSamples is what a cell measures however long it takes.
const leastSamples = 16

func full() form {
	levels := []int{0, 100, 1000, 5000}
	return form{
		levels: levels, watched: levels, parallel: []int{1, 16, 64}, passes: 3, rounds: 8, limit: 4 * time.Second,
		// A look at the machine is every 30 s.
		starts: 3, idle: 40 * time.Second,
		images: []int{1 << 20, 16 << 20, 64 << 20}, loads: 48,
		caches: []cacheSize{
			{bytes: 15e6, files: 480, pulls: 10}, {bytes: 250e6, files: 4000, pulls: 3}, {bytes: 1e9, files: 20_000, pulls: 3},
		},
		shares:       []int{1, 10, 100},
		publications: 20, allocation: allocationForm{nodes: 100, claims: 500}, plan: planForm{nodes: 500, claims: 5000},
	}
}

func short() form {
	return form{
		levels: []int{0, 1000}, watched: []int{1000}, parallel: []int{1, 64}, passes: 1, rounds: 3, limit: time.Second / 2,
		starts: 1, images: []int{1 << 20, 16 << 20}, loads: 8,
		caches:       []cacheSize{{bytes: 15e6, files: 480, pulls: 10}, {bytes: 250e6, files: 4000, pulls: 2}},
		shares:       []int{1, 10, 100},
		publications: 3, allocation: allocationForm{nodes: 100, claims: 50}, plan: planForm{nodes: 100, claims: 1000},
	}
}

// more says whether an image is to be loaded once more, after n times.
func (f form) more(n int, begin time.Time) bool {
	return n < min(f.loads, leastLoads) || n < f.loads && time.Since(begin) < f.limit
}

// leastLoads is how often an image is loaded however long it takes.
const leastLoads = 8

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
