// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// usualMemory bounds what a program keeps together with its garbage. Without a bound, a program takes twice what it keeps, and more while
// pages of objects come faster than they are collected.
const usualMemory = 400 << 20

// boundMemory bounds the memory of this program. The bound grows with what the last collection found in use, so that a larger cluster does
// not make the program slow. A bound that is set from outside holds.
func boundMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	memory.Lock()
	defer memory.Unlock()
	if want := memoryFor(live[0].Value.Uint64()); want > memory.bound {
		memory.bound = want
		debug.SetMemoryLimit(want)
	}
}

// memory has the bound that was set.
var memory struct {
	sync.Mutex

	bound int64
}

// memoryFor returns the bound for a program that keeps so much. It grows in steps.
func memoryFor(live uint64) int64 {
	bound := int64(usualMemory)
	for bound/3*2 < int64(live) {
		bound *= 2
	}
	return bound
}
