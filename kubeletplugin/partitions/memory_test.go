// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/check"
)

// TestMemoryAfterDestroy: what an emptied node forgot is on disk again once it serves, and not before.
func TestMemoryAfterDestroy(t *testing.T) {
	path := filepath.Join(t.TempDir(), memoryFile)
	m := openMemory(path)
	now := remembered{Counters: partition.FormSeparate, Cards: map[string]rememberedCard{"gpu0": {Policy: "halves"}}}
	check.Must(t, m.keep(now, false), m.destroy(), m.keep(now, false))
	if next := openMemory(path); next.Cards["gpu0"].Policy != "halves" {
		t.Errorf("the next process knows %+v after the node serves again", next.remembered)
	}
	check.Must(t, m.destroy())
	now.Cards = map[string]rememberedCard{"gpu0": {Policy: "quarters"}}
	for range 2 {
		check.Must(t, m.keep(now, true))
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) || m.Cards["gpu0"].Policy != "quarters" {
			t.Errorf("on an emptied node: %v, and in memory %+v", err, m.Cards)
		}
	}
	check.Must(t, m.keep(now, false))
	if next := openMemory(path); next.Cards["gpu0"].Policy != "quarters" {
		t.Errorf("the next process knows %+v", next.remembered)
	}
}
