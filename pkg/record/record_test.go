// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/step"
)

var update = flag.Bool("update", false, "write the golden files anew")

const golden = "testdata/format-1.json"

// full is a record with every field set.
func full() *Record {
	return &Record{
		Version: FormatVersion, Namespace: "team-a", Name: "train", UID: "0b0d6d1c-5f0e-4b43-8a47-6f1f0e9d7c11",
		BootID: "5a1c0b2e-1111-2222-3333-444455556666",
		Devices: []Device{
			{
				Request: "gpu/large", Pool: "node-1/gpu", Name: "nvidia-0000-1b-00-0", CDIDevice: "fettle.dev/common=0123456789abcdef",
				Edits: device.Edits{Nodes: []device.Node{{Path: "/dev/nvidia0", Major: 195, Minor: 0, Permissions: "rw"}}},
			},
			{
				Request: "disk", Pool: "node-1/host", Name: "localssd-ssd0", AdminAccess: true, CDIDevice: "fettle.dev/common=fedcba9876543210",
				Edits: device.Edits{Mounts: []device.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/mnt/scratch/ssd0", ReadOnly: true}}},
			},
		},
		Steps: []step.Step{{Kind: "host.scratch", Params: []byte(`{"path":"/mnt/disks/ssd0"}`)}},
	}
}

// TestFormat holds the bytes of format version 1: a released version must read what an older one wrote. A change of this file is a
// new format version.
func TestFormat(t *testing.T) {
	got, err := encode(full())
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("format (-want +got):\n%s", diff)
	}
	back, err := decode(want, full().UID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full(), back); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// TestUnreadable damages a record in every way that a disk or another version can, and wants an error that names the file.
func TestUnreadable(t *testing.T) {
	whole, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]string{
		"other version":     strings.Replace(string(whole), `"version":1`, `"version":2`, 1),
		"no version":        strings.Replace(string(whole), `"version":1,`, ``, 1),
		"other claim":       strings.Replace(string(whole), `"uid":"0b0d`, `"uid":"ffff`, 1),
		"wrong type":        strings.Replace(string(whole), `"devices":[`, `"devices":[7,`, 1),
		"something after":   string(whole) + "{}",
		"zeros":             strings.Repeat("\x00", len(whole)),
		"json null":         "null",
		"array":             "[]",
		"unknown field":     strings.Replace(string(whole), `"bootID"`, `"tombstone":true,"bootID"`, 1),
		"negative overflow": strings.Replace(string(whole), `"major":195`, `"major":1e400`, 1),
	}
	// The last byte is the newline, which JSON does not need.
	for length := range len(whole) - 1 {
		contents["cut at "+string(rune('a'+length%26))+"-"+strings.Repeat("x", length/26)] = string(whole[:length])
	}
	s := open(t)
	path := filepath.Join(s.dir, claimsDir, full().UID+suffix)
	for name, content := range contents {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := s.Load(full().UID)
		if err == nil {
			t.Errorf("%s: read as %+v", name, r)
			continue
		}
		if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %q does not name the file", name, err)
		}
		if errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: error %q counts as no record: the claim's devices would be free", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	whole, err := os.ReadFile(golden)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, full().UID)
	f.Add([]byte(`{"version":1,"uid":""}`), "")
	f.Add([]byte(`{"version":1,"uid":"a","devices":null,"steps":[{}]}`), "a")
	f.Fuzz(func(t *testing.T, data []byte, uid string) {
		r, err := decode(data, uid)
		if err != nil {
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := decode(again, r.UID)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if twice, err := encode(back); err != nil || string(twice) != string(again) {
			t.Errorf("not stable: %s, then %s (%v)", again, twice, err)
		}
	})
}
