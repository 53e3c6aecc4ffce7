// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/vm/internal/guest"
)

// TestArguments: this machine's root is shared read-only, and the devices are behind the IOMMU.
func TestArguments(t *testing.T) {
	args := Machine{Kernel: "/k", Initramfs: "/i", Out: "/out", Memory: 512, CPUs: 2, Append: []string{"quiet"}}.arguments()
	text := strings.Join(args, " ")
	for _, want := range []string{
		"path=/,mount_tag=root,security_model=none,readonly=on", "path=/out,mount_tag=out", guest.Marker + " quiet -",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the arguments lack %q:\n%s", want, text)
		}
	}
	iommu := slices.Index(args, "intel-iommu,intremap=on")
	for _, device := range []string{"edu", "nvme-subsys,id=subsystem"} {
		if i := slices.Index(args, device); iommu < 0 || i < iommu {
			t.Errorf("device %s is argument %d, want it after the IOMMU, which is %d", device, i, iommu)
		}
	}
}

// emulator puts a program in the emulator's place.
func emulator(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Program), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestStatus: the program's exit status counts, and nothing else says that it ended.
func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         int
		wantErr      string
	}{
		{name: "success", script: `echo said; printf 0 > "$OUT/status"`},
		{name: "failure", script: `echo said; printf 7 > "$OUT/status"`, want: 7},
		{name: "panic", script: `echo said`, wantErr: "no such file"},
		{name: "no number", script: `echo said; echo > "$OUT/status"`, wantErr: "its exit status is"},
		{name: "no emulator", script: `echo said; printf 0 > "$OUT/status"; exit 1`, wantErr: "exit status 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := t.TempDir()
			t.Setenv("OUT", out)
			emulator(t, tt.script)
			// What an earlier machine left.
			if err := os.WriteFile(filepath.Join(out, guest.StatusFile), []byte("0"), 0o644); err != nil {
				t.Fatal(err)
			}
			var stdout strings.Builder
			code, err := Machine{Out: out}.Run(t.Context(), &stdout, &stdout)
			switch {
			case stdout.String() != "said\n":
				t.Errorf("the program said %q", stdout.String())
			case tt.wantErr == "" && (err != nil || code != tt.want):
				t.Errorf("exit status %d, %v; want %d", code, err, tt.want)
			case tt.wantErr != "" && (!errors.Is(err, ErrNoStatus) || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

// TestCheck: an emulator that is too old for several processors is refused.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		version string
		cpus    int
		wantErr string
	}{
		{version: "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", cpus: 1},
		{version: "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", cpus: 2, wantErr: "QEMU 7.2 emulates 2 processors wrongly"},
		{version: "QEMU emulator version 8.0.4", cpus: 2, wantErr: "install 8.1 or later"},
		{version: "QEMU emulator version 8.1.0", cpus: 2},
		{version: "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)", cpus: 2},
		{version: "another program", cpus: 1, wantErr: "another program"},
	} {
		t.Run(fmt.Sprint(tt.version, " ", tt.cpus), func(t *testing.T) {
			emulator(t, "echo '"+tt.version+"'")
			err := Machine{CPUs: tt.cpus}.Check(t.Context())
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("got %v, want %q", err, tt.wantErr)
			}
		})
	}
}

// TestDeadline: a machine that takes too long is killed, and its program has not passed.
func TestDeadline(t *testing.T) {
	out := t.TempDir()
	t.Setenv("OUT", out)
	emulator(t, `printf 0 > "$OUT/status"; exec sleep 60`)
	ctx, pass := check.Deadline(t)
	ended := make(chan error, 1)
	go func() {
		_, err := Machine{Out: out}.Run(ctx, os.Stderr, os.Stderr)
		ended <- err
	}()
	check.Eventually(t, "the machine runs", func() bool {
		text, err := os.ReadFile(filepath.Join(out, "status"))
		return err == nil && string(text) == "0"
	})
	pass()
	if err := <-ended; !errors.Is(err, ErrNoStatus) {
		t.Errorf("%v, want %v", err, ErrNoStatus)
	}
}

func TestFill(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"program", "b.ko", "a.ko"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree := filepath.Join(dir, "tree")
	names, err := fill(tree, filepath.Join(dir, "program"), guest.Job{Args: []string{"x"}},
		[]string{filepath.Join(dir, "b.ko"), filepath.Join(dir, "a.ko")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"init", "job.json", "modules", "modules/000-b.ko", "modules/001-a.ko"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if data, err := os.ReadFile(filepath.Join(tree, "modules/001-a.ko")); err != nil || string(data) != "a.ko" {
		t.Errorf("the second module is %q, %v", data, err)
	}
}
