// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

func TestOpenNodes(t *testing.T) {
	tree, dir := newTree(t, map[string]string{
		"proc/7/fd/0": "-> ../../../dev/a", "proc/7/fd/1": "-> ../../../dev/b", "proc/7/fd/2": "-> ../../../dev/a",
		"proc/7/fd/3": "-> ../../../plain", "proc/7/fd/4": "-> closed", "plain": "", "dev/x": "", "dev/link": "-> b",
	})
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	if err := errors.Join(unix.Mknod(filepath.Join(dir, "dev/a"), unix.S_IFBLK, int(unix.Mkdev(259, 1))),
		unix.Mknod(filepath.Join(dir, "dev/b"), unix.S_IFCHR, int(unix.Mkdev(195, 300)))); err != nil {
		t.Fatal(err)
	}
	got, err := tree.OpenNodes("7")
	want := []sysfs.Number{{Major: 195, Minor: 300}, {Block: true, Major: 259, Minor: 1}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := tree.OpenNodes("8"); got != nil || err != nil {
		t.Errorf("of a process that ended: %v, %v", got, err)
	}
	if n, err := tree.Number("dev/link"); n != want[0] || n.String() != "c 195:300" || err != nil {
		t.Errorf("through a link: %s, %v", n, err)
	}
	if n, err := tree.Number("dev/a"); n.String() != "b 259:1" || err != nil {
		t.Errorf("of a disk: %s, %v", n, err)
	}
	if _, err := tree.Number("plain"); !errors.Is(err, sysfs.ErrMalformed) {
		t.Errorf("of a plain file: %v", err)
	}
	if _, err := tree.Number("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	tree, _ := newTree(t, map[string]string{"many": strings.Repeat("line\n", 50000) + "last", "long": "a\n" + long})
	var lines []string
	if err := tree.Lines("many", func(line string) bool { lines = append(lines, line); return true }); err != nil {
		t.Error(err)
	}
	if len(lines) != 50001 || lines[50000] != "last" {
		t.Errorf("%d lines", len(lines))
	}
	n := 0
	if err := tree.Lines("many", func(string) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("ended after %d, %v", n, err)
	}
	if err := tree.Lines("long", func(string) bool { return true }); err == nil {
		t.Error("a line of 100 KiB is accepted")
	}
	if err := tree.Lines("none", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}

// slow is a writer that answers when it is told to.
type slow struct {
	mu     sync.Mutex
	asked  []string
	answer chan error
}

func (s *slow) WriteAttr(name, value string) error {
	s.mu.Lock()
	s.asked = append(s.asked, name+"="+value)
	s.mu.Unlock()
	return <-s.answer
}

func (s *slow) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

// TestBounded: a write that the driver does not answer ends for its caller, and the next caller waits for the same answer.
func TestBounded(t *testing.T) {
	s := &slow{answer: make(chan error)}
	c := testingclock.NewFakeClock(time.Unix(1700000000, 0))
	b := sysfs.NewBounded(s, c, time.Minute)
	errs := make(chan error, 2)
	write := func(ctx context.Context) { errs <- b.Write(ctx, "sys/d/unbind", "x") }

	go write(t.Context())
	check.Eventually(t, "the write is waited for", c.HasWaiters)
	c.Step(time.Minute)
	if err := <-errs; !errors.Is(err, sysfs.ErrNoAnswer) || !strings.Contains(err.Error(), "/sys/d/unbind") {
		t.Errorf("after a minute: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go write(ctx)
	check.Eventually(t, "the write is waited for", c.HasWaiters)
	stop := errors.New("stop")
	cancel(stop)
	if err := <-errs; !errors.Is(err, sysfs.ErrNoAnswer) || !errors.Is(err, stop) {
		t.Errorf("after its context: %v", err)
	}
	go write(t.Context())
	check.Eventually(t, "the write is waited for", c.HasWaiters)
	refused := errors.New("refused")
	s.answer <- refused
	if err := <-errs; !errors.Is(err, refused) {
		t.Errorf("answered: %v", err)
	}
	if s.count() != 1 {
		t.Errorf("asked %v, want once", s.asked)
	}
	go write(t.Context())
	s.answer <- nil
	if err := <-errs; err != nil || s.count() != 2 {
		t.Errorf("asked %v, %v, want anew", s.asked, err)
	}
	if !slices.Equal(s.asked, []string{"sys/d/unbind=x", "sys/d/unbind=x"}) {
		t.Errorf("asked %v", s.asked)
	}
}
