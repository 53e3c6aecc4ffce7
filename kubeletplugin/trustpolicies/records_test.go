// SPDX-License-Identifier: Apache-2.0

package trustpolicies

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

type note struct {
	Key, Text string
}

func notes(dir string) *Records[note] {
	return NewRecords(dir, func(n *note) string { return n.Key })
}

func (r *Records[R]) missing(keys ...string) (out []string) {
	for _, key := range keys {
		if r.Get(key) == nil {
			out = append(out, key)
		}
	}
	return out
}

// TestRecords: a record outlives the process, and a file that is damaged or of another key counts as none.
func TestRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	r := notes(dir)
	if got := r.missing("a", "b"); len(got) != 2 {
		t.Errorf("missing %v", got)
	}
	check.Must(t, r.Keep(func(string) bool { return false })) // there is no directory
	for _, key := range []string{"a", "b", "c", "d"} {
		check.Must(t, r.Save(&note{key, "text of " + key}))
	}
	if err := r.Save(&note{"../x", ""}); err == nil {
		t.Error("a path as a key is accepted")
	}
	check.Must(t, os.WriteFile(filepath.Join(dir, "b.json"), []byte(`{"Key":`), 0o600))
	check.Must(t, os.WriteFile(filepath.Join(dir, "c.json"), []byte(`{"Key":"a"}`), 0o600))
	r = notes(dir)
	if got := r.Get("a"); got == nil || got.Text != "text of a" {
		t.Errorf("after a restart: %+v", got)
	}
	if got := fmt.Sprint(r.missing("a", "b", "c", "d")); got != "[b c]" {
		t.Errorf("missing %v", got)
	}
	if got := r.Find(func(n *note) bool { return n.Text == "text of d" }); got == nil || got.Key != "d" {
		t.Errorf("found %+v", got)
	}
	check.Must(t, r.Keep(func(key string) bool { return key == "a" }))
	if got := fmt.Sprint(r.missing("a", "d"), notes(dir).missing("a", "d")); got != "[d] [d]" {
		t.Errorf("missing after all others were forgotten: %v", got)
	}
	check.Must(t, r.Destroy())
	if _, err := os.Stat(dir); !os.IsNotExist(err) || len(r.missing("a")) == 0 {
		t.Errorf("after it was destroyed: %v", err)
	}
}

// TestMissesAreNotKept: a tenant chooses which images are asked about. Those that are refused have no record, and are nothing to remember.
func TestMissesAreNotKept(t *testing.T) {
	r := notes(filepath.Join(t.TempDir(), "records"))
	for i := range 2000 {
		r.missing(fmt.Sprintf("%x", i))
	}
	if kept := len(r.known); kept > 0 {
		t.Errorf("%d keys are kept that have no record", kept)
	}
}

// TestTrim: the oldest records go first, and what is only in memory is limited too.
func TestTrim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	r := notes(dir)
	check.Must(t, r.Trim(2))
	for i, key := range []string{"c", "a", "b"} {
		check.Must(t, r.Save(&note{Key: key}))
		at := time.Unix(int64(1000+i), 0)
		check.Must(t, os.Chtimes(filepath.Join(dir, key+".json"), at, at))
	}
	check.Must(t, r.Trim(3))
	if got := r.missing("a", "b", "c"); got != nil {
		t.Errorf("missing %v", got)
	}
	check.Must(t, r.Trim(2))
	if got := fmt.Sprint(r.missing("a", "b", "c"), notes(dir).missing("a", "b", "c")); got != "[c] [c]" {
		t.Errorf("missing %v", got)
	}
	for i := range 10 {
		r.Get(fmt.Sprint("unknown-", i))
	}
	check.Must(t, r.Trim(5))
	if len(r.known) > 5 {
		t.Errorf("%d in memory", len(r.known))
	}
}
