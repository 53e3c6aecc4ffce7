// SPDX-License-Identifier: Apache-2.0

package check

import "runtime"

// Heap returns how many bytes of the heap are in use, without what nothing refers to.
func Heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
