// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTwoClaims(t *testing.T) {
	s := open(t)
	first := holding("u1", "gpu-1")
	save(t, s, first)
	second := holding("u2", "gpu-0", "gpu-1")
	if err := s.Save(second); err != nil {
		t.Fatal(err)
	}
	err := s.Acquire(second)
	inUse, ok := errors.AsType[*InUseError](err)
	if !ok {
		t.Fatalf("error %v, want an InUseError", err)
	}
	if inUse.Pool != "node-1/gpu" || inUse.Device != "gpu-1" || inUse.Owner.UID != "u1" {
		t.Errorf("error %+v names the wrong device or claim", inUse)
	}
	if !strings.Contains(err.Error(), "team-a/claim-u1") || !strings.Contains(err.Error(), "until") {
		t.Errorf("error %q does not say who holds the device and what ends that", err)
	}
	if owner, err := s.Owner("node-1/gpu", "gpu-0"); err == nil {
		t.Errorf("gpu-0 was taken by %s although gpu-1 is held: all or none", owner)
	}
	if err := s.Acquire(first); err != nil {
		t.Errorf("the holder's second call: %v", err)
	}
	if err := s.Remove(first); err != nil {
		t.Fatal(err)
	}
	if err := s.Acquire(second); err != nil {
		t.Errorf("after the holder left: %v", err)
	}
}

// TestStaleOwners: what an interrupted Remove or another allocation leaves must not block a device for ever.
func TestStaleOwners(t *testing.T) {
	tests := []struct {
		name string
		// holder is the record that the link of gpu-0 points to, nil for none.
		holder *Record
		held   bool
		want   string
	}{
		{name: "no record", holder: nil},
		{name: "record of another device", holder: holding("u1", "gpu-7"), held: true},
		{name: "record that only looks", holder: looking("u1", "gpu-0"), held: true},
		{name: "unreadable record", holder: &Record{UID: "u1"}, held: true, want: "may be held"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t)
			if err := os.Symlink("u1", s.ownerPath("node-1/gpu", "gpu-0")); err != nil {
				t.Fatal(err)
			}
			if tt.holder != nil {
				if err := s.Save(tt.holder); err != nil {
					t.Fatal(err)
				}
			}
			if tt.want != "" {
				if err := os.WriteFile(filepath.Join(s.dir, claimsDir, "u1.json"), []byte("{"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if held := s.Held("node-1/gpu", "gpu-0"); held != tt.held {
				t.Errorf("held %v, want %v", held, tt.held)
			}
			taker := holding("u2", "gpu-0")
			if err := s.Save(taker); err != nil {
				t.Fatal(err)
			}
			err := s.Acquire(taker)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if owner, err := s.Owner("node-1/gpu", "gpu-0"); err != nil || owner != "u2" {
				t.Errorf("owner %q, %v", owner, err)
			}
		})
	}
}

func looking(uid string, gpus ...string) *Record {
	r := holding(uid, gpus...)
	for i := range r.Devices {
		r.Devices[i].AdminAccess = true
	}
	return r
}

// TestAdminAccess holds nothing (KEP-5018): it neither blocks a holder nor is blocked by one.
func TestAdminAccess(t *testing.T) {
	s := open(t)
	look := looking("u1", "gpu-0")
	save(t, s, look)
	if s.Held("node-1/gpu", "gpu-0") {
		t.Error("a look holds the device")
	}
	save(t, s, holding("u2", "gpu-0"))
	save(t, s, looking("u3", "gpu-0"))
	for _, r := range []*Record{look, looking("u3", "gpu-0")} {
		if err := s.Remove(r); err != nil {
			t.Fatal(err)
		}
	}
	if !s.Held("node-1/gpu", "gpu-0") {
		t.Error("the end of a look freed the device")
	}
}

// TestLongNames: a node's name may be long enough to make the name of a link longer than a file's.
func TestLongNames(t *testing.T) {
	s := open(t)
	node := strings.Repeat("n", 240)
	r := holding("u1", "gpu-0", "gpu-1")
	for i := range r.Devices {
		r.Devices[i].Pool = node + "/gpu"
		r.Devices[i].Name += strings.Repeat("x", 50)
	}
	save(t, s, r)
	if s.ownerPath(r.Devices[0].Pool, r.Devices[0].Name) == s.ownerPath(r.Devices[1].Pool, r.Devices[1].Name) {
		t.Error("two devices have one link")
	}
	if !s.Held(r.Devices[1].Pool, r.Devices[1].Name) {
		t.Error("not held")
	}
}
