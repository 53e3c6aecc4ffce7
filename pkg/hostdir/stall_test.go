// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// server answers one kind of operation only after it is back. It notes what it was asked then.
type server struct {
	stalls string
	back   chan struct{}
	// away is closed once it does not answer.
	away chan struct{}
	once sync.Once

	mu   sync.Mutex
	late []string
}

func (s *server) asked(what string) {
	select {
	case <-s.back:
	default:
		if what == s.stalls {
			s.once.Do(func() { close(s.away) })
			<-s.back
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = append(s.late, what)
}

// asks is what it was asked and has answered.
func (s *server) asks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.late)
}

// remote is a directory of a server.
type remote struct {
	Root
	*server
}

func (s *server) open(path string) (Root, error) {
	root, err := OpenRoot(path)
	return remote{root, s}, err
}

func (r remote) Chmod(name string, mode fs.FileMode) error {
	r.asked("chmod")
	return r.Root.Chmod(name, mode)
}

func (r remote) Mkdir(name string, perm fs.FileMode) error {
	r.asked("mkdir")
	return r.Root.Mkdir(name, perm)
}

func (r remote) Rename(from, to string) error {
	r.asked("rename")
	return r.Root.Rename(from, to)
}

func (r remote) Remove(name string) error {
	r.asked("remove")
	return r.Root.Remove(name)
}

func (r remote) SyncDir(name string) error {
	r.asked("sync")
	return r.Root.SyncDir(name)
}

// TestServerStalls: a server that stops answering in the midst of a step, as when a directory is emptied, holds up no claim for ever. When
// it is back, what was given up changes nothing any more, and the next try does the rest.
func TestServerStalls(t *testing.T) {
	undo := func(k step.Kind, s step.Step) error { return k.Undo(t.Context(), s.Params) }
	for stalls, do := range map[string]func(step.Kind, step.Step) error{
		"chmod":  func(k step.Kind, s step.Step) error { return k.Apply(t.Context(), s.Params) },
		"mkdir":  undo,
		"rename": undo,
		"remove": undo,
		"sync":   func(k step.Kind, s step.Step) error { return k.Finish(t.Context(), s.Params) },
	} {
		t.Run(stalls, func(t *testing.T) {
			p := newPlace(t)
			whole, s := lend(t, p)
			check.Must(t, whole.Apply(t.Context(), s.Params))
			check.Must(t, os.WriteFile(filepath.Join(p.lent, "small"), nil, 0o600))
			for i := range 3 {
				check.Must(t, os.MkdirAll(filepath.Join(p.lent, fmt.Sprint("data", i), "below"), 0o700))
			}
			if stalls == "sync" {
				check.Must(t, whole.Undo(t.Context(), s.Params))
			}
			patient := clocktesting.NewFakeClock(time.Unix(0, 0))
			away := &server{stalls: stalls, back: make(chan struct{}), away: make(chan struct{})}
			k := kind{hostRoot: filepath.Dir(p.lent), open: away.open, reads: sysfs.NewReads(patient, patience)}.step()
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				err = do(k, s)
			}()
			<-away.away // given up before, it would ask nothing
			check.Wind(t, "the step ends", patient, patience, check.Received(done))
			check.WantErr(t, err, sysfs.ErrNoAnswer, "/lent")
			check.WantErr(t, k.Undo(t.Context(), s.Params), sysfs.ErrNoAnswer, "/lent")
			before := len(away.asks())
			close(away.back)
			check.Eventually(t, "the answer comes", func() bool { return !errors.Is(k.Verify(t.Context(), s.Params), sysfs.ErrNoAnswer) })
			if late := away.asks()[before:]; len(late) > 0 {
				t.Errorf("after it was given up: %q", late)
			}
			check.Must(t, Undo(t.Context(), k, s.Params), p.open(t).Purge(t.Context()))
			if left := names(t, p.lent); len(left) > 0 {
				t.Errorf("left %v", left)
			}
			p.untouched(t)
		})
	}
}
