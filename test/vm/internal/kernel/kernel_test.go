// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestNewest(t *testing.T) {
	for _, tt := range []struct {
		name     string
		releases []string
		want     string
	}{
		{name: "none"},
		{name: "by number, not by letter", releases: []string{"6.1.0-9-amd64", "6.1.0-47-amd64", "6.1.0-10-amd64"}, want: "6.1.0-47-amd64"},
		{name: "backports", releases: []string{"6.1.0-47-amd64", "6.12.9+deb12-amd64", "6.12.117+deb12-amd64"}, want: "6.12.117+deb12-amd64"},
		{name: "backports with a revision", releases: []string{"6.12.9+deb12-amd64", "6.12.9+deb12-1-amd64"}, want: "6.12.9+deb12-1-amd64"},
		{name: "no variants and no meta packages", releases: []string{
			"amd64", "6.12-amd64", "6.12.1-cloud-amd64", "6.12.1-rt-amd64", "6.12.1-amd64-dbg", "6.12.1-amd64-unsigned", "6.12.1-arm64",
			"6.1.0-1-amd64",
		}, want: "6.1.0-1-amd64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := newest(tt.releases)
			if got != tt.want || ok != (tt.want != "") {
				t.Errorf("newest is %q, %t; want %q", got, ok, tt.want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	cache := t.TempDir()
	if k, err := Find(cache); !errors.Is(err, ErrNone) {
		t.Errorf("an empty directory: %v, %v", k, err)
	}
	for _, name := range []string{"kernel-6.1.0-9-amd64", "kernel-6.1.0-10-amd64", "fetch-123"} {
		if err := os.Mkdir(filepath.Join(cache, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	k, err := Find(cache)
	if err != nil || k.Image() != filepath.Join(cache, "kernel-6.1.0-10-amd64", "boot", "vmlinuz-6.1.0-10-amd64") {
		t.Errorf("found %v, %v", k, err)
	}
}
