// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// BenchmarkDiscover looks at each machine: what a re-discovery costs a node.
func BenchmarkDiscover(b *testing.B) {
	for _, file := range machines(b) {
		b.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(b *testing.B) {
			tree, err := sysfs.Open(expand(b, parseMachine(b, file)))
			check.Must(b, err)
			defer tree.Close()
			for b.Loop() {
				Discover(b.Context(), tree, machineOptions())
			}
		})
	}
}
