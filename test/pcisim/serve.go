// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/fusetree"
)

// Serve mounts the machine's sys at root and obeys commands until there are no more; then it is gone.
func Serve(root string, m Machine, in io.Reader, out io.Writer) (err error) {
	s := newModel(m)
	err = fusetree.Mount(root, "pcisim", "sys", func(ctx context.Context, tree *fusetree.Tree) {
		s.tree = tree
		s.grow(ctx)
	})
	if err != nil {
		return err
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
		a.Trace, a.Held = slices.Clone(s.trace), s.held
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
