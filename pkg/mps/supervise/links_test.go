// SPDX-License-Identifier: Apache-2.0

package supervise_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/test/check"
)

// TestTakenOverDaemonLeadsTheSupervisorNowhere: a daemon of root puts a link to another claim's directory in the place of its own. The
// supervisor neither empties that one nor changes its mode, and says what is wrong.
func TestTakenOverDaemonLeadsTheSupervisorNowhere(t *testing.T) {
	for _, name := range []string{mps.PipeName, mps.LogName, "."} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.start()
			d := limited()
			other := filepath.Join(mps.HostDir(n.root), "other", mps.PipeName)
			own := filepath.Join(mps.HostDir(n.root), d.ID, name)
			check.Must(t, errors.Join(os.MkdirAll(other, 0o700), os.WriteFile(filepath.Join(other, "control"), nil, 0o600),
				os.MkdirAll(filepath.Dir(own), 0o755), os.Symlink(other, own)))
			_, err := n.s.Run(*d)
			check.Must(t, err)
			check.Eventually(t, "the daemon started or is refused", func() bool { return n.status(d.ID).State != mps.Starting })
			if reason := n.status(d.ID).Reason; !strings.Contains(reason, "too many levels of symbolic links") {
				t.Errorf("it says %q", reason)
			}
			info, err := os.Stat(other)
			check.Must(t, err)
			if _, err := os.Stat(filepath.Join(other, "control")); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("another claim's directory has mode %s: %v", info.Mode(), err)
			}
		})
	}
}

// TestLinkOfAContainerLeadsItsDaemonNowhere: a container puts a link to another claim's file in the place of the daemon's log pipe, and the
// daemon opens it. It has no right to what the link leads to.
func TestLinkOfAContainerLeadsItsDaemonNowhere(t *testing.T) {
	if version, err := confine.Landlock(); err != nil || version == 0 {
		t.Skip("this kernel has no Landlock")
	}
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	other := filepath.Join(mps.HostDir(n.root), "other")
	check.Must(t, errors.Join(os.MkdirAll(other, 0o755), os.WriteFile(filepath.Join(other, "file"), []byte("x"), 0o600)))
	link := filepath.Join(n.pipes(d.ID), "log")
	// A chroot leads an absolute link into the daemon's root.
	check.Must(t, errors.Join(os.Remove(link), os.Symlink(filepath.Join(mps.ClaimsDir, "other/file"), link)))
	if said, _ := n.client(d.ID, 0); strings.Contains(said, toldLimits) {
		t.Errorf("its server wrote through the link: %q", said)
	}
	if text, err := os.ReadFile(filepath.Join(other, "file")); err != nil || string(text) != "x" {
		t.Errorf("another claim's file has %q, %v", text, err)
	}
}

// deepen makes a tree of so many levels in the pipe directory of a daemon.
func (n *node) deepen(id string, depth int) {
	n.t.Helper()
	at, err := os.OpenRoot(n.pipes(id))
	check.Must(n.t, err)
	for range depth {
		check.Must(n.t, at.Mkdir("deep", 0o755))
		next, err := at.OpenRoot("deep")
		check.Must(n.t, errors.Join(err, at.Close()))
		at = next
	}
	check.Must(n.t, at.Close())
}

// TestDeepTreeOfAContainer: a tree in the pipe directory that is deeper than the supervisor may have open files is deleted with the
// directory.
func TestDeepTreeOfAContainer(t *testing.T) {
	const depth, limit = 1500, 256
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	n.deepen(d.ID, depth)
	var before syscall.Rlimit
	check.Must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	check.Must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: before.Max}))
	err := c.Stop(t.Context(), d.ID)
	check.Must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	check.Must(t, err)
	if _, err := os.Lstat(filepath.Dir(n.pipes(d.ID))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the daemon's directory: %v, want none", err)
	}
}

// TestRemovalKeepsNobodyWaiting: while the directory of one claim is deleted, which a container can make take long, the supervisor answers
// about others.
func TestRemovalKeepsNobodyWaiting(t *testing.T) {
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	n.deepen(d.ID, 5_000) // some tenths of a second
	stopped := make(chan error, 2)
	for range cap(stopped) {
		go func() { stopped <- n.s.Stop(t.Context(), d.ID) }()
	}
	check.Eventually(t, "the directory is being deleted", func() bool {
		_, err := os.Lstat(n.pipes(d.ID))
		return errors.Is(err, os.ErrNotExist)
	})
	_ = n.s.List()
	select {
	case err := <-stopped:
		t.Errorf("the supervisor answered only after the directory was deleted: %v", err)
		stopped <- err
	default:
	}
	for range cap(stopped) {
		check.Must(t, <-stopped)
	}
	if list := n.s.List(); len(list) > 0 {
		t.Errorf("there remain %v", list)
	}
}
