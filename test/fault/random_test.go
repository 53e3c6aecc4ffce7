// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// player does random operations, of which many fail.
type player struct {
	*rand.Rand
	fsys disk.FS
	dir  string
	open []disk.File
}

func (p *player) pick(names ...string) string {
	return filepath.Join(p.dir, names[p.IntN(len(names))])
}

func (p *player) name() string { return p.pick("a", "b", "d/a", "d/b", "d/e/a", "e/a") }

func (p *player) subdir() string { return p.pick("d", "e", "d/e", "d/d") }

// step does one operation; that it may fail is part of the game.
func (p *player) step() {
	if len(p.open) > 0 && p.IntN(2) == 0 {
		p.onFile(p.open[p.IntN(len(p.open))])
		return
	}
	flags := []int{os.O_CREATE | os.O_EXCL, os.O_CREATE, os.O_CREATE | os.O_TRUNC, os.O_TRUNC, os.O_APPEND, os.O_CREATE | os.O_APPEND}
	switch p.IntN(10) {
	case 0, 1, 2:
		f, err := p.fsys.OpenFile(p.name(), os.O_WRONLY|flags[p.IntN(len(flags))], 0o600)
		if err == nil {
			p.open = append(p.open, f)
		}
	case 3:
		_ = p.fsys.Mkdir(p.subdir(), 0o700)
	case 4:
		_ = p.fsys.Symlink("target", p.pick("l", "d/l"))
	case 5:
		_ = p.fsys.Rename(p.name(), p.name())
	case 6:
		_ = p.fsys.Rename(p.pick("d", "e", "d/e", "l"), p.pick("e", "d", "d/l", "d/d"))
	case 7:
		_ = p.fsys.Remove(p.name())
	case 8:
		_ = p.fsys.Remove(p.subdir())
	case 9:
		_ = p.fsys.SyncDir(p.pick(".", "d", "e", "d/e"))
	}
}

func (p *player) onFile(f disk.File) {
	switch p.IntN(7) {
	case 0, 1, 2:
		_, _ = f.Write([]byte(strings.Repeat(string(rune('A'+p.IntN(26))), 1+p.IntN(4))))
	case 3:
		_ = f.Truncate(p.Int64N(6))
	case 4:
		_ = f.Chmod([]os.FileMode{0o600, 0o640, 0o444}[p.IntN(3)])
	case 5:
		_ = f.Datasync()
	case 6:
		_ = f.Sync()
	}
}

// TestRandom compares replays with the disk, for random operations:
//   - the first state is what the disk holds;
//   - what it held at any time since the last sync is a state too, since a journal keeps the order;
//   - a sync rules states out and adds none;
//   - after all is synced there is one state.
func TestRandom(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { random(t, uint64(seed)) })
	}
}

func random(t *testing.T, seed uint64) {
	const steps = 30
	dir := t.TempDir()
	check.Must(t, os.MkdirAll(filepath.Join(dir, "d", "e"), 0o700))
	check.Must(t, os.WriteFile(filepath.Join(dir, "d", "a"), []byte("start"), 0o600))
	start, err := fault.Snapshot(dir)
	check.Must(t, err)
	in := fault.New()
	in.Quick = true
	p := &player{Rand: rand.New(rand.NewPCG(seed, 0)), fsys: in.FS(disk.OS{}), dir: dir}
	since := map[string]int{} // what the disk held since the last sync, and after which step
	for n := range steps {
		p.step()
		log := in.Log()
		last := log[len(log)-1]
		states := all(t, start, log, fault.Options{Limit: limit})
		now := strings.Join(look(t, dir), "\n")
		if diff := cmp.Diff(now, strings.Join(lines(states[0]), "\n")); diff != "" || states[0].Lost != "" {
			t.Fatalf("step %d, lost %q (-disk +replay):\n%s\n%s", n, states[0].Lost, diff, log)
		}
		if last.Kind.Sync() && last.Done {
			clear(since)
			if before, ok := few(t, start, log[:len(log)-1]); ok && !subset(sums(states), before) {
				t.Fatalf("step %d added states:\n%s", n, log)
			}
		}
		since[now] = n
	}
	wantEach(t, since, all(t, start, in.Log(), fault.Options{Limit: limit}), in.Log())
	syncAll(t, p)
	if states := all(t, start, in.Log(), fault.Options{}); len(states) != 1 {
		t.Errorf("%d states after all was synced, the second lost %s:\n%s", len(states), states[1].Lost, in.Log())
	}
}

const limit = 100

func sums(states []fault.State) map[[32]byte]bool {
	set := map[[32]byte]bool{}
	for _, s := range states {
		set[s.Sum] = true
	}
	return set
}

// few are the states, if they are few enough to look at all.
func few(t *testing.T, start *fault.Tree, log fault.Log) (map[[32]byte]bool, bool) {
	t.Helper()
	states, err := fault.Replay(start, log, fault.Options{Limit: 100 * limit})
	check.Must(t, err)
	set := map[[32]byte]bool{}
	for s := range states {
		set[s.Sum] = true
		if len(set) == 8*limit { // a sample would have more
			return nil, false
		}
	}
	return set, true
}

func subset(a, b map[[32]byte]bool) bool {
	for sum := range a {
		if !b[sum] {
			return false
		}
	}
	return true
}

func wantEach(t *testing.T, since map[string]int, states []fault.State, log fault.Log) {
	t.Helper()
	for _, s := range states {
		delete(since, strings.Join(lines(s), "\n"))
	}
	for held, n := range since {
		t.Errorf("what the disk held after step %d is no state:\n%s\n%s", n, held, log)
	}
}

// syncAll syncs every file and directory that has a name.
func syncAll(t *testing.T, p *player) {
	t.Helper()
	check.Must(t, filepath.WalkDir(p.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return p.fsys.SyncDir(path)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		f, err := p.fsys.OpenFile(path, os.O_WRONLY, 0)
		check.Must(t, err)
		check.Must(t, f.Sync())
		return f.Close()
	}))
}
