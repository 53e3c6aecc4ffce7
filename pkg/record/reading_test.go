// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// TestReading: a record that is read again is what is on the disk, whatever was read before and whatever became of that.
func TestReading(t *testing.T) {
	s, err := Open(disk.OS{}, t.TempDir())
	check.Must(t, err)
	made := &Record{Namespace: "n", Name: "c", UID: "u1", Phase: Intended, Steps: []Step{
		{Step: step.Step{Kind: "k", Target: "t"}, State: step.Intended},
	}}
	check.Must(t, s.Create(made))
	var last Reading
	first, err := last.Load(s, "u1")
	check.Must(t, err)
	again := func(what string) *Record {
		t.Helper()
		got, err := last.Load(s, "u1")
		check.Must(t, err)
		want, err := s.Load("u1")
		check.Must(t, err)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Record{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		return got
	}
	first.Phase, first.Steps[0].State = Releasing, step.Undone // of the caller's alone
	again("a record that the caller changed")
	check.Must(t, s.Advance(again("before a change"), Change{State: step.Done}, Change{Phase: Prepared}))
	again("a changed record")
	check.Must(t, s.Create(&Record{Namespace: "n", Name: "other", UID: "u1", Phase: Prepared}))
	again("another record")
	check.Must(t, s.Create(&Record{Namespace: "n", Name: "c", UID: "u2", Phase: Prepared}))
	if other, err := last.Load(s, "u2"); err != nil || other.UID != "u2" {
		t.Errorf("got %+v, %v", other, err)
	}
}
