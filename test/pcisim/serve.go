// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/fusetree"
)

// Serve mounts the machine's sys at root and obeys commands until there are no more; then it is gone.
func Serve(root string, m Machine, in io.Reader, out io.Writer) (err error) {
	s := newModel(m)
	top := &fs.Inode{}
	none := time.Duration(0)
	_, err = fs.Mount(root, top, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: "pcisim", Name: "pcisim"},
		EntryTimeout: &none, AttrTimeout: &none,
		OnAdd: func(ctx context.Context) {
			s.tree = fusetree.New(top, "sys")
			s.grow(ctx)
		},
	})
	if err != nil {
		return fmt.Errorf("mount the simulated machine at %s: %w", root, err)
	}
	// What is under way ends with this process, so that it need not be waited for.
	defer func() { err = errors.Join(err, unix.Unmount(root, unix.MNT_DETACH)) }()
	answers := json.NewEncoder(out)
	if err := answers.Encode(Answer{}); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	commands := json.NewDecoder(in)
	commands.DisallowUnknownFields()
	for {
		var c Command
		if err := commands.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a command: %w", err)
		}
		if err := answers.Encode(s.obey(c)); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

func (s *model) obey(c Command) (a Answer) {
	var errs []error
	if c.Fault != nil {
		errs = append(errs, s.addFault(*c.Fault))
	}
	if c.Set != nil {
		errs = append(errs, s.set(*c.Set))
	}
	if c.Go {
		s.resume()
	}
	if c.Trace {
		s.mu.Lock()
		a.Trace = slices.Clone(s.trace)
		s.mu.Unlock()
	}
	if err := errors.Join(errs...); err != nil {
		a.Error = err.Error()
	}
	return a
}

// addFault refuses what could never happen, so that a test with a slip does not pass by it.
func (s *model) addFault(f Fault) error {
	if f.Errno != "" && errnoOf(f.Errno) == 0 {
		return fmt.Errorf("fault with errno %q, want one such as EIO", f.Errno)
	}
	if f.Path == "" {
		return errors.New("fault without a path")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
	return nil
}

// resume ends what is held.
func (s *model) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumes++
	s.changed.Broadcast()
}
