// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options bound a Replay.
type Options struct {
	// Limit is how many states are enumerated or sampled, 1024 where it is 0. The extremes are beside it.
	Limit int
	// Seed makes another sample.
	Seed uint64
	// Volatile are directories, absolute as in the log, that are empty after a power loss.
	Volatile []string
}

// errBehind: the log does not follow from the snapshot.
var errBehind = errors.New("does not fit what was there before: expected every change to go through the seam")

// Replay yields the states in which the directory of start may be after the operations of the log and a power loss, each once and
// first that in which everything survives. Operations elsewhere are passed over. Start is not changed. An error says which operation
// does not fit, as where something was changed behind the seam's back.
func Replay(start *Tree, log Log, o Options) (iter.Seq[State], error) {
	r := &replay{base: start.base, root: start.root.clone(), handles: map[int]*handle{}, volatile: o.Volatile}
	for _, dir := range o.Volatile {
		if n, err := r.find(dir); err == nil && n.mode.IsDir() {
			n.names, n.live = map[string]*node{}, map[string]*node{}
		}
	}
	for i := range log {
		if err := r.step(i, &log[i]); err != nil {
			return nil, fmt.Errorf("replay %s: %w", log[i], err)
		}
	}
	return newChooser(r, o).states, nil
}

// handle is an open file; one elsewhere has no node.
type handle struct {
	*node
	pos    int64
	append bool
}

type replay struct {
	base     string
	root     *node
	handles  map[int]*handle
	volatile []string
	changes  []*change
}

// step does one operation as the running system did.
func (r *replay) step(at int, op *Op) error {
	switch {
	case op.Kind == Call || op.Kind == Effect:
		return nil
	case op.Handle > 0 && op.Kind != Create && op.Kind != Open:
		return r.onFile(at, op)
	case !op.Done:
		return nil
	case op.Kind == Rename && r.inside(op.Path) != r.inside(op.To):
		return fmt.Errorf("it leaves or enters %s, or a volatile directory: expected a rename on one side", r.base)
	case !r.inside(op.Path):
		r.handles[op.Handle] = &handle{}
		return nil
	}
	return r.onPath(at, op)
}

func (r *replay) onPath(at int, op *Op) error {
	switch op.Kind {
	case Create, Open:
		return r.open(at, op)
	case Mkdir:
		return r.make(at, op, (&node{attributes: own(fs.ModeDir | op.Mode)}).clone())
	case Symlink:
		return r.make(at, op, &node{attributes: own(fs.ModeSymlink | fs.ModePerm), target: op.To})
	case Rename:
		return r.rename(at, op)
	case Remove:
		return r.make(at, op, nil)
	case Chmod, Chown:
		n, err := r.find(op.Path)
		if err == nil {
			n.attribute(at, op)
		}
		return err
	case SyncDir:
		n, err := r.find(op.Path)
		if err == nil {
			r.syncDir(n)
		}
		return err
	case SyncFS:
		r.syncFS()
		return nil
	default:
		return nil // it read
	}
}

// inside says whether a path is below the base, and not on what forgets everything.
func (r *replay) inside(path string) bool {
	if !within(path, r.base) {
		return false
	}
	return !slices.ContainsFunc(r.volatile, func(dir string) bool { return path != dir && within(path, dir) })
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// find is the node at a path for the running system.
func (r *replay) find(path string) (*node, error) {
	n := r.root
	if path == r.base {
		return n, nil
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(path, strings.TrimSuffix(r.base, "/")+"/"), "/") {
		if n.mode.Type() == fs.ModeSymlink {
			return nil, fmt.Errorf("the way to %s leads through a symbolic link: expected the path without it", path)
		}
		next, ok := n.live[name]
		if !ok {
			return nil, errBehind
		}
		n = next
	}
	return n, nil
}

func (r *replay) parent(path string) (*node, string, error) {
	dir, err := r.find(filepath.Dir(path))
	if err == nil && !dir.mode.IsDir() {
		err = fmt.Errorf("%s is no directory", filepath.Dir(path))
	}
	return dir, filepath.Base(path), err
}

// own is a new file's owner: this process stands for the one that wrote the log.
func own(mode fs.FileMode) attributes {
	return attributes{mode: mode, uid: os.Geteuid(), gid: os.Getegid()}
}

func (r *replay) open(at int, op *Op) error {
	if op.Handle == 0 {
		return nil // a host directory, or a file in it that is read
	}
	dir, name, err := r.parent(op.Path)
	if errors.Is(err, errBehind) && op.Kind == Open {
		dir, err = &node{}, nil
	}
	if err != nil {
		return err
	}
	n, ok := dir.live[name]
	switch {
	case ok && n.mode.Type() == fs.ModeSymlink:
		return fmt.Errorf("%s is a symbolic link: expected the file itself", op.Path)
	case !ok && op.Kind == Open:
		n = nil // made elsewhere and only read, or the first write will tell
	case !ok:
		n = &node{attributes: own(op.Mode)}
		r.change(at, op, set{dir, name, n})
	case op.Flag&os.O_TRUNC != 0:
		n.write(write{at: at, op: op, truncate: true})
	}
	r.handles[op.Handle] = &handle{node: n, append: op.Flag&os.O_APPEND != 0}
	return nil
}

// make gives a name to a new node, or to none.
func (r *replay) make(at int, op *Op, n *node) error {
	dir, name, err := r.parent(op.Path)
	if err == nil && (dir.live[name] != nil) == (n != nil) {
		err = errBehind
	}
	if err != nil {
		return err
	}
	r.change(at, op, set{dir, name, n})
	return nil
}

func (r *replay) rename(at int, op *Op) error {
	n, err := r.find(op.Path)
	if err != nil {
		return err
	}
	from, oldName, err := r.parent(op.Path)
	if err != nil {
		return err
	}
	to, newName, err := r.parent(op.To)
	if err != nil || to.live[newName] == n {
		return err
	}
	r.change(at, op, set{from, oldName, nil}, set{to, newName, n})
	return nil
}

// onFile does an operation on an open file.
func (r *replay) onFile(at int, op *Op) error {
	h, ok := r.handles[op.Handle]
	if !ok || h.node == nil {
		if ok && !r.inside(op.Path) {
			return nil
		}
		return errBehind
	}
	if !op.Done {
		failed := op.Kind.Sync() && op.Error != ""
		h.spoilt = h.spoilt || failed
		return nil
	}
	switch op.Kind {
	case Write:
		if op.Off != nil {
			h.write(write{at: at, op: op, off: *op.Off})
			return nil
		}
		if h.append {
			h.pos = h.size
		}
		h.write(write{at: at, op: op, off: h.pos})
		h.pos += int64(len(op.Data))
	case Truncate:
		h.write(write{at: at, op: op, off: op.Size, truncate: true})
	case Chmod:
		h.attribute(at, op)
	case Datasync:
		h.syncContent()
	default:
		h.syncContent()
		h.syncAttributes()
	}
	return nil
}
