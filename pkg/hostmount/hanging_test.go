// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// TestUndoAsksNoServer: a mount goes away although the file system behind it, such as NFS, does not answer.
func TestUndoAsksNoServer(t *testing.T) {
	n := newNode(t)
	at, s := n.plan(below("team", true))
	check.Must(t, os.MkdirAll(at, 0o700))
	check.HangingMount(t, at)
	check.Ends(t, "Undo", func() {
		if err := (step.Kinds{StepKind: n.Kind()}).Undo(t.Context(), s); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Lstat(at); !os.IsNotExist(err) {
		t.Errorf("after it was undone: %v", err)
	}
}

// TestApplyOfHangingServer: a copy of a directory whose server does not answer fails in time, so that nobody waits for the claim's devices
// for ever. It is made when the server is back.
func TestApplyOfHangingServer(t *testing.T) {
	n := newNode(t)
	patience := testingclock.NewFakeClock(time.Unix(0, 0))
	n.copies = sysfs.NewReads(patience, copyPatience)
	_, s := n.plan(below("team", true))
	team := filepath.Join(n.host, "data/team")
	check.HangingMount(t, team)
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = step.Kinds{StepKind: n.Kind()}.Apply(t.Context(), s)
	}()
	check.Wind(t, "Apply ends", patience, copyPatience, check.Received(done))
	check.WantErr(t, err, sysfs.ErrNoAnswer, "/data/team")
	check.WantErr(t, step.Kinds{StepKind: n.Kind()}.Apply(t.Context(), s), sysfs.ErrNoAnswer)
	check.Must(t, unix.Unmount(team, unix.MNT_FORCE|unix.MNT_DETACH)) // FUSE's answer to all that wait is an error
	check.Eventually(t, "the copy is made", func() bool { return step.Kinds{StepKind: n.Kind()}.Apply(t.Context(), s) == nil })
	n.undo(s)
}

// TestMounted: what is mounted is told by the mount point alone.
func TestMounted(t *testing.T) {
	n := newNode(t)
	for name, want := range map[string]bool{
		"data/team": false, "data/team/file": false, "data/nowhere": false, "data/team/file/x": false, "etc": true,
	} {
		at := filepath.Join(n.host, name)
		if want {
			check.Mount(t, at, check.Tmpfs("size=1m"))
		}
		if got, err := mounted(at); got != want || err != nil {
			t.Errorf("%s: mounted %v, %v", name, got, err)
		}
	}
}
