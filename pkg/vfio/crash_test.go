// SPDX-License-Identifier: Apache-2.0

package vfio_test

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vfio"
	"github.com/fettle-dev/fettle/test/pcisim"
	"github.com/fettle-dev/fettle/test/stepcrash"
)

func kinds(tree *sysfs.Tree, w sysfs.AttrWriter, points *restorepoint.Store) step.Kinds {
	return vfio.New(vfio.Config{Tree: tree, Write: w, Points: points, Clock: pcisim.NewClock()}).Kinds()
}

func TestChildBind(t *testing.T) { stepcrash.Child(t, kinds) }

// TestCrashPoints kills the process before and after every write of the bind and of its Undo, and at every operation on the restore
// point: each function is again what it was, with another program's override, and nothing else was touched.
func TestCrashPoints(t *testing.T) {
	n := start(t)
	n.Set(pcisim.Set{Function: audio().String(), Override: new("snd_hda_intel")})
	points, kills := stepcrash.Case{
		Child: "TestChildBind", Kinds: kinds, Root: n.Root, Dir: n.dir, Boot: thisBoot,
		Plan: func() step.Step { return n.plan(gpu(), ours) }, State: n.state,
	}.Every(t)
	t.Logf("%d points, %d kills", points, kills)
	// 6 writes bind the two functions, 7 give them back; the restore point is made with 6 operations and removed with 2.
	if want := 6 + 7 + 6 + 2; points != want {
		t.Errorf("%d points, want %d: say here what a change adds", points, want)
	}
}
