// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fettle-dev/fettle/test/check"
)

// FuzzDecode: whatever a file holds, it is refused as damaged or foreign, or is a record that can be written and read again.
func FuzzDecode(f *testing.F) {
	whole := read(f, goldenVersion2)
	f.Add(whole, fullUID)
	data, _ := newer(f)
	f.Add(data, fullUID)
	f.Add(bytes.Replace(data, []byte(`"reader":2`), []byte(`"reader":3`), 1), fullUID)
	f.Add(append(whole[:len(whole)-9], make([]byte, 9)...), fullUID)
	f.Add([]byte(`{"version":1,"uid":""}`), "")
	for _, body := range []string{
		`{"uid":"a","phase":"renewing","steps":[{"kind":"k","target":"t","params":{ "b":"<" },"state":"intended"}]}`,
		`{"uid":"a","phase":"releasing","steps":[{"params":null,"state":"undone"},{"state":"done"}]}`,
	} {
		f.Add(framed(f, `{"format":2,"reader":2}`, body), "a")
	}
	f.Fuzz(func(t *testing.T, data []byte, uid string) {
		r, err := decode(data, uid)
		if err != nil {
			if errors.Is(err, ErrDamaged) == errors.Is(err, ErrForeign) {
				t.Fatalf("%v, want one of ErrDamaged and ErrForeign", err)
			}
			return
		}
		if r.UID != uid {
			t.Errorf("claim %q, want %q", r.UID, uid)
		}
		checkLength(t, data, r)
		again, err := rewrite(r)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := decode(again, uid)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, again)
		}
		if diff := cmp.Diff(compacted(t, r), compacted(t, back), stored, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("read again (-first +second):\n%s", diff)
		}
		if twice, err := rewrite(back); err != nil || !bytes.Equal(twice, again) {
			t.Errorf("not stable: %s, then %s (%v)", again, twice, err)
		}
	})
}

// checkLength: what counts is a whole file by itself.
func checkLength(t *testing.T, data []byte, r *Record) {
	t.Helper()
	if length := int64(len(said(data))); r.valid == 0 || r.valid > length || r.torn != (r.valid < length) {
		t.Fatalf("torn %v, valid up to %d of %d", r.torn, r.valid, len(data))
	}
	part, err := decode(data[:r.valid], r.UID)
	if err != nil || part.torn || part.valid != r.valid {
		t.Fatalf("without the torn end: %+v, %v", part, err)
	}
	same(t, "without the torn end", r, part)
}

// compacted has parameters as they are written: no white space, and something where there was nothing.
func compacted(t *testing.T, r *Record) *Record {
	t.Helper()
	c := r.Clone()
	for i := range c.Steps {
		params, err := json.Marshal(c.Steps[i].Params)
		check.Must(t, err)
		c.Steps[i].Params = params
	}
	return c
}
