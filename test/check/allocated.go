// SPDX-License-Identifier: Apache-2.0

package check

import "runtime"

// Allocated returns how many bytes do allocates in all, whether they are freed or not.
func Allocated(do func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}
