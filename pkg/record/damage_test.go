// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// upTo is what is certain of a file of which a number of bytes are as they were: nil where not even the record is.
func upTo(chapters []chapter, length int) *chapter {
	var last *chapter
	for i := range chapters {
		if chapters[i].end <= length {
			last = &chapters[i]
		}
	}
	return last
}

// TestFlippedBits: a byte that changed is found out, wherever it is. A record that was prepared is never taken for one that was
// about to be, which would undo it under its pods.
func TestFlippedBits(t *testing.T) {
	data, chapters := story(t)
	masks := []byte{1, 2, 4, 8, 16, 32, 64, 128, 0xff, 0x03, 0x18}
	counts := map[string]int{}
	for i, c := range chapters {
		begin := 0
		if i > 0 && c.end < len(data) {
			begin = chapters[i-1].end // what is before is tried with the whole file
		}
		for at := begin; at < c.end; at++ {
			for _, mask := range masks {
				damaged := bytes.Clone(data[:c.end])
				damaged[at] ^= mask
				counts[judge(t, fmt.Sprintf("byte %d of %d ^ %#x", at, c.end, mask), damaged, c.state)]++
			}
		}
	}
	t.Log(counts)
	if counts["damaged"] == 0 || counts["same"] == 0 { // the head says some things that do not matter
		t.Errorf("%v: expected some of each", counts)
	}
}

// TestLostAndAddedBytes: so are bytes that went missing or came in between. Only the end may have been torn off.
func TestLostAndAddedBytes(t *testing.T) {
	data, chapters := story(t)
	last := chapters[len(chapters)-1].state
	for at := range len(data) - 1 {
		lost := slices.Delete(bytes.Clone(data), at, at+1)
		judge(t, fmt.Sprintf("without byte %d", at), lost, last)
		for _, b := range []byte("x0\n\"} ") {
			judge(t, fmt.Sprintf("%q before byte %d", b, at), slices.Insert(bytes.Clone(data), at, b), last)
		}
	}
	for _, c := range chapters[1 : len(chapters)-1] {
		begin := upTo(chapters, c.end-1).end
		judge(t, "without a change", slices.Delete(bytes.Clone(data), begin, c.end), last)
		judge(t, "with a change twice", slices.Insert(bytes.Clone(data), c.end, data[begin:c.end]...), last)
	}
}

// judge decodes what is damaged, with room and without, and wants the record that it was, or ErrDamaged.
func judge(t *testing.T, what string, damaged []byte, state *Record) string {
	t.Helper()
	verdict := judgeOne(t, what, damaged, state)
	if roomy := judgeOne(t, what+", with room", append(bytes.Clone(damaged), make([]byte, 100)...), state); roomy != verdict {
		t.Errorf("%s: %s, with room %s", what, verdict, roomy)
	}
	return verdict
}

func judgeOne(t *testing.T, what string, damaged []byte, state *Record) string {
	t.Helper()
	r, err := decode(damaged, fullUID)
	switch {
	case errors.Is(err, ErrDamaged) && !errors.Is(err, ErrForeign):
		return "damaged"
	case err != nil:
		t.Errorf("%s: %v", what, err)
	case !cmp.Equal(r, state, stored):
		t.Fatalf("%s: read as %s with %s, was %s with %s", what, r.Phase, stepStates(r), state.Phase, stepStates(state))
	}
	return "same"
}

// TestTornEnd: of a write that was cut off, by the end of the process or of the power, there is a part, or zeros, or zeros with
// something whole behind them that was written later. Whatever was there before counts, and nothing that was not written.
func TestTornEnd(t *testing.T) {
	data, chapters := story(t)
	look := func(what string, torn []byte, want *chapter) {
		t.Helper()
		r, err := decode(torn, fullUID)
		if want == nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v, want ErrDamaged", what, err)
			}
			return
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		same(t, what, want.state, r)
		if r.valid != int64(want.end) || r.torn != (len(said(torn)) > want.end) {
			t.Errorf("%s: torn %v, valid up to %d, want %d", what, r.torn, r.valid, want.end)
		}
	}
	for length := range len(data) + 1 {
		want := upTo(chapters, length)
		look(fmt.Sprintf("cut at %d", length), data[:length], want)
		if length < len(data) {
			zeros := append(bytes.Clone(data[:length]), make([]byte, len(data)-length)...)
			look(fmt.Sprintf("zeros from %d", length), zeros, want)
		}
	}
	for i, c := range chapters[1:] {
		hole := bytes.Clone(data)
		clear(hole[chapters[i].end:c.end])
		look(fmt.Sprintf("zeros for change %d", i), hole, &chapters[i])
		front := append(bytes.Clone(data[:c.end]), make([]byte, 100)...)
		clear(front[chapters[i].end : (chapters[i].end+c.end)/2])
		look(fmt.Sprintf("zeros for the first half of change %d", i), front, &chapters[i])
	}
}

// TestAdvanceAfterATornEnd: what was torn off is gone for good when the record goes on.
func TestAdvanceAfterATornEnd(t *testing.T) {
	data, chapters := story(t)
	s := open(t)
	for length := chapters[0].end; length <= len(data); length++ {
		check.Must(t, os.WriteFile(path(s, fullUID), data[:length], 0o600))
		r := load(t, s, fullUID)
		certain := upTo(chapters, length)
		next := Change{Phase: Releasing}
		if r.Phase == Releasing {
			next = Change{Step: 0, State: step.Undone}
		}
		advance(t, s, r, next)
		line, err := encodeFrame(head{}, next)
		check.Must(t, err)
		want := append(bytes.Clone(data[:certain.end]), line...)
		if got := read(t, path(s, fullUID)); !bytes.Equal(got, want) {
			t.Fatalf("cut at %d: %s", length, got)
		}
		same(t, fmt.Sprintf("cut at %d", length), r, load(t, s, fullUID))
	}
}

// TestDamageHurtsOneClaim damages each byte of one record and wants all others to live on, and the claim's devices to stay its own.
func TestDamageHurtsOneClaim(t *testing.T) {
	s := open(t)
	hurt, other := holding("u1", "gpu-0", "gpu-1"), stepping("u2", 1)
	put(t, s, hurt, other)
	data := read(t, path(s, "u1"))
	for at := range data {
		damaged := bytes.Clone(data)
		damaged[at] ^= 4
		check.Must(t, os.WriteFile(path(s, "u1"), damaged, 0o600))
		same(t, "the other", other, load(t, s, "u2"))
		for _, gpu := range []string{"gpu-0", "gpu-1"} {
			if uids := holders(t, s, gpu); !slices.Equal(uids, []string{"u1"}) {
				t.Errorf("byte %d: %s is held by %v", at, gpu, uids)
			}
			inUse, ok := errors.AsType[*InUseError](s.Acquire(holding("u3", gpu)))
			if !ok || inUse.Owner.UID != "u1" {
				t.Errorf("byte %d: %s: %v, want it in use by u1", at, gpu, inUse)
			}
		}
		check.Must(t, s.SweepOwners())
	}
	advance(t, s, other, Change{State: step.Done}, Change{Phase: Prepared})
	same(t, "the other", other, load(t, s, "u2"))
	if uids, err := s.UIDs(); err != nil || !slices.Equal(uids, []string{"u1", "u2"}) {
		t.Errorf("claims %v, %v", uids, err)
	}
}

// TestSetAside: a claim whose record was lost holds its devices until it is settled what becomes of it.
func TestSetAside(t *testing.T) {
	s := open(t)
	put(t, s, holding("u1", "gpu-0"), sharing("a", "u2", "gpu-1"), holding("u3", "gpu-2"))
	for _, uid := range []string{"u1", "u2"} {
		check.Must(t, os.WriteFile(path(s, uid), []byte("rubbish"), 0o600))
		if s.InDoubt(uid) {
			t.Errorf("%s is in doubt before it is set aside", uid)
		}
		check.Must(t, s.SetAside(uid))
		if _, err := s.Load(uid); !errors.Is(err, fs.ErrNotExist) || !s.InDoubt(uid) {
			t.Errorf("%s: %v, in doubt %v", uid, err, s.InDoubt(uid))
		}
	}
	if uids, err := s.Damaged(); err != nil || !slices.Equal(uids, []string{"u1", "u2"}) {
		t.Errorf("damaged %v, %v", uids, err)
	}
	if uids, err := s.UIDs(); err != nil || !slices.Equal(uids, []string{"u3"}) {
		t.Errorf("claims %v, %v", uids, err)
	}
	check.Must(t, s.SweepOwners())
	for gpu, uid := range map[string]string{"gpu-0": "u1", "gpu-1": "u2", "gpu-2": "u3"} {
		if uids := holders(t, s, gpu); !slices.Equal(uids, []string{uid}) {
			t.Errorf("%s is held by %v, want %s", gpu, uids, uid)
		}
	}
	// The links tell what the claim held.
	all := holding("", "gpu-0", "gpu-1", "gpu-2").Devices
	linked, others, err := s.LinkedTo("u1", all)
	check.Must(t, err)
	if diff := cmp.Diff(all[:1], linked); diff != "" || others {
		t.Errorf("linked (-want +got):\n%s", diff)
	}
	for range 2 {
		check.Must(t, s.ForgetDamaged("u1"))
	}
	if s.InDoubt("u1") || !s.InDoubt("u2") {
		t.Errorf("in doubt: u1 %v, u2 %v", s.InDoubt("u1"), s.InDoubt("u2"))
	}
	if uids := holders(t, s, "gpu-0"); len(uids) > 0 {
		t.Errorf("gpu-0 is held by %v after all was settled", uids)
	}
	check.Must(t, s.SweepOwners())
	if linked, others, err = s.LinkedTo("u1", all); err != nil || len(linked) > 0 || others {
		t.Errorf("linked after all was settled: %v, others %v, error %v", linked, others, err)
	}
	if err := s.SetAside("u9"); err == nil {
		t.Error("set aside what is not there")
	}
}
