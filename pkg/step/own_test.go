// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// own are the parameters of a step of one's own: plain data.
type own struct {
	Path string `json:"path"`
	// Before is what the file held, which Undo writes back.
	Before string `json:"before"`
	Text   string `json:"text"`
}

// ownKinds follows the recipe of docs/design/adding.md.
func ownKinds() Kinds {
	write := func(path, text string) error {
		now, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && string(now) == text {
			return nil // the device is gone, or it was done before
		}
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), 0o600)
	}
	return Kinds{"test.own": {
		Apply: Do(func(_ context.Context, p *own) error { return write(p.Path, p.Text) }),
		Undo:  Do(func(_ context.Context, p *own) error { return write(p.Path, p.Before) }),
	}}
}

// TestStepOfOnesOwn: a step is read from disk as it was written, may run twice, and is undone whether it was applied or not.
func TestStepOfOnesOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attribute")
	check.Must(t, os.WriteFile(path, []byte("before"), 0o600))
	made, err := New("test.own", path, own{Path: path, Before: "before", Text: "after"})
	check.Must(t, err)
	kept, err := json.Marshal(made)
	check.Must(t, err)
	var s Step
	check.Must(t, json.Unmarshal(kept, &s))

	kinds := ownKinds()
	holds := func(want string) {
		t.Helper()
		got, err := os.ReadFile(path)
		check.Must(t, err)
		if string(got) != want {
			t.Fatalf("the file holds %q, want %q", got, want)
		}
	}
	check.Must(t, kinds.Undo(t.Context(), s)) // never applied
	holds("before")
	for range 2 {
		check.Must(t, kinds.Apply(t.Context(), s))
		holds("after")
	}
	check.Must(t, kinds.Verify(t.Context(), s))
	for range 2 {
		check.Must(t, kinds.Undo(t.Context(), s))
		holds("before")
	}
	check.Must(t, os.Remove(path))
	check.Must(t, kinds.Undo(t.Context(), s))
}
