// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/fusetree"
)

// Command is one line of input.
type Command struct {
	// Fault adds a fault, Set changes a port.
	Fault *Fault `json:"fault,omitempty"`
	Set   *Set   `json:"set,omitempty"`
	// Go ends all that is held.
	Go bool `json:"go,omitempty"`
	// Trace asks for the trace.
	Trace bool `json:"trace,omitempty"`
}

// Answer is one line of output. The first comes once the machine is there.
type Answer struct {
	Error string  `json:"error,omitempty"`
	Trace []Event `json:"trace,omitempty"`
}

// Serve mounts the machine at root and obeys commands until there are no more; then the machine is gone.
func Serve(root string, m Machine, in io.Reader, out io.Writer) (err error) {
	s := newModel(m)
	err = fusetree.Mount(root, "fpgasim", m.Base, func(ctx context.Context, grown *fusetree.Tree) {
		s.tree = &tree{Tree: grown, dev: m.Dev}
		s.tree.grow(ctx, m, s)
	})
	if err != nil {
		return err
	}
	defer func() {
		s.resume()
		if m.Shared {
			err = errors.Join(err, unix.Unmount(root, unix.MNT_DETACH))
			return
		}
		err = errors.Join(err, fusetree.Unmount(root))
	}()
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
		a.Trace = s.events()
	}
	if err := errors.Join(errs...); err != nil {
		a.Error = err.Error()
	}
	return a
}
