// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// smallDisks mount disks that are soon full: of bytes, of inodes, or of both.
func smallDisks() map[string]func(t *testing.T, at string) {
	inMemory := func(options string) func(*testing.T, string) {
		return func(t *testing.T, at string) { mount(t, at, check.Tmpfs(options)) }
	}
	return map[string]func(t *testing.T, at string){
		"tmpfs of few inodes":        inMemory("size=16m,nr_inodes=300"),
		"tmpfs of few bytes":         inMemory("size=256k,nr_inodes=10000"),
		"ext4 as it is made":         func(t *testing.T, at string) { attach(t, newDisk(t), at) },
		"ext4 of few inodes":         func(t *testing.T, at string) { attach(t, newDisk(t, "-N", "256"), at) },
		"ext4 without room for root": func(t *testing.T, at string) { attach(t, newDisk(t, "-m", "0", "-N", "4096", "-b", "1024"), at) },
	}
}

// filler leaves what a workload may leave, until nothing more fits.
type filler struct {
	*rand.Rand
	root        string
	dirs, files []string
}

func (f *filler) path() string {
	name := fmt.Sprint(f.Uint32())
	if f.IntN(8) == 0 {
		name += strings.Repeat("n", f.IntN(240)) // directories fill up, too
	}
	return filepath.Join(f.dirs[f.IntN(len(f.dirs))], name)
}

// one makes one thing. How likely each is depends on the weights.
func (f *filler) one(weights []int) error {
	total := 0
	for _, w := range weights {
		total += w
	}
	pick, at := f.IntN(total), f.path()
	for i, w := range weights {
		if pick -= w; pick >= 0 {
			continue
		}
		switch i {
		case 0:
			f.files = append(f.files, at)
			return os.WriteFile(at, make([]byte, f.IntN(64<<10)), 0o600)
		case 1:
			f.files = append(f.files, at)
			return os.WriteFile(at, nil, 0o600)
		case 2:
			at = filepath.Join(f.dirs[len(f.dirs)-1-f.IntN(min(3, len(f.dirs)))], fmt.Sprint(f.IntN(1000))) // deeper and deeper
			err := os.Mkdir(at, 0o755)
			if err == nil && len(at) < 3000 {
				f.dirs = append(f.dirs, at)
			}
			return err
		case 3:
			return os.Symlink(strings.Repeat("l", 1+f.IntN(300)), at)
		case 4:
			if len(f.files) == 0 {
				return nil
			}
			return os.Link(f.files[f.IntN(len(f.files))], at)
		}
	}
	return nil
}

// fill goes on until the smallest things do not fit any more.
func (f *filler) fill() error {
	weights := make([]int, 5)
	for i := range weights {
		weights[i] = f.IntN(4) * f.IntN(4)
	}
	weights[f.IntN(3)]++
	full, refused := 0, 0
	for full < 50 {
		err := f.one(weights)
		if err != nil {
			refused++
		}
		switch {
		case errors.Is(err, syscall.ENOSPC):
			full++
			weights = []int{1, 1, 1, 1, 1}
		case refused > 1000: // nothing but directories, which are as deep and as full as they get
			refused, weights = 0, []int{1, 1, 1, 1, 1}
		case err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.EMLINK):
			return err
		}
	}
	return f.lastBlock()
}

// lastBlock goes to a file that is there already.
func (f *filler) lastBlock() error {
	if len(f.files) == 0 {
		return nil
	}
	file, err := os.OpenFile(f.files[f.IntN(len(f.files))], os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, os.ErrNotExist) { // it was the first that did not fit
		return nil
	}
	for err == nil {
		_, err = file.Write(make([]byte, 1024))
	}
	return file.Close()
}

// TestFullDisk: whatever a workload filled its disk with, its claim ends at the first try, and the next one finds nothing.
func TestFullDisk(t *testing.T) {
	const rounds = 2
	random, full := seed.New(t), 0
	for name, mountSmall := range smallDisks() {
		for round := range rounds {
			own := rand.New(rand.NewPCG(random.Uint64(), 0))
			t.Run(fmt.Sprintf("%s %d", name, round), func(t *testing.T) {
				root := t.TempDir()
				path := filepath.Join(root, "lent")
				mountSmall(t, path)
				kind := Kind(root, OpenRoot)
				s, err := Plan(root, "/lent", "u1")
				check.Must(t, err)
				check.Must(t, kind.Apply(t.Context(), s.Params))
				check.Must(t, (&filler{Rand: own, root: path, dirs: []string{path}}).fill())
				if os.Mkdir(filepath.Join(path, "x"), 0o700) != nil {
					full++
				}
				check.Must(t, kind.Undo(t.Context(), s.Params))
				for _, left := range names(t, path) {
					if !isTrash(left) {
						t.Errorf("%q is in its place", left)
					}
				}
				check.Must(t, kind.Finish(t.Context(), s.Params))
				d, err := Open(path)
				check.Must(t, err)
				check.Must(t, d.Purge(t.Context()), d.Close())
				if left := names(t, path); len(left) > 0 {
					t.Errorf("left %q", left)
				}
			})
		}
	}
	if full == 0 && os.Geteuid() == 0 && !t.Failed() {
		t.Log("no disk refused another directory: was anything mounted?")
	}
}

// TestNoRoomBesides: others filled the disk that the directory is on, so nothing that is deleted here makes room.
func TestNoRoomBesides(t *testing.T) {
	for name, full := range map[string]noRoomFor{"nothing": {mkdir: true, rename: true}, "a name": {rename: true}} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			check.Must(t, os.MkdirAll(filepath.Join(p.lent, "a", "b", "c", "d"), 0o755))
			check.Must(t, os.MkdirAll(filepath.Join(p.lent, trashPrefix+"u0-0", "a", "b", "c", "d"), 0o755))
			check.Must(t, os.WriteFile(filepath.Join(p.lent, "f"), make([]byte, small+1), 0o600))
			d, err := openWith(full.open, p.lent)
			check.Must(t, err)
			defer d.Close()
			check.Must(t, d.SetAside(t.Context(), "u1"))
			for _, left := range names(t, p.lent) {
				if !isTrash(left) {
					t.Errorf("%q is in its place", left)
				}
			}
			check.Must(t, os.MkdirAll(filepath.Join(p.lent, trashPrefix+"u1-0"), 0o700))
			makeDeep(t, filepath.Join(p.lent, trashPrefix+"u1-0"), 100)
			check.Must(t, d.Purge(t.Context()))
			if left := names(t, p.lent); len(left) > 0 {
				t.Errorf("left %q", left)
			}
			p.untouched(t)
		})
	}
}

// noRoomFor is a directory of a disk that has no room for something, whatever is deleted.
type noRoomFor struct {
	Root
	mkdir, rename bool
}

func (n noRoomFor) open(path string) (root Root, err error) {
	n.Root, err = OpenRoot(path)
	return n, err
}

func (n noRoomFor) Mkdir(name string, perm os.FileMode) error {
	if n.mkdir {
		return &os.PathError{Op: "mkdir", Path: name, Err: syscall.EDQUOT}
	}
	return n.Root.Mkdir(name, perm)
}

func (n noRoomFor) Rename(from, to string) error {
	if _, err := n.Lstat(from); err == nil && n.rename {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.ENOSPC}
	}
	return n.Root.Rename(from, to)
}

// OpenRoot opens a directory of the same disk.
func (n noRoomFor) OpenRoot(name string) (root Root, err error) {
	n.Root, err = n.Root.OpenRoot(name)
	return n, err
}
