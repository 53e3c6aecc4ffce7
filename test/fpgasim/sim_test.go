// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Interface and accelerator ids of the tests.
const (
	shell = "69528db6eb31577a8c3668f9faa081f6"
	nlb0  = "d8424dc4a4a3c413f89e433683f9040b"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// TestExclusiveIsSeen: the flag that the kernel hides from a FUSE server, by both system calls that can carry it.
func TestExclusiveIsSeen(t *testing.T) {
	s := Start(t, Machine{Cards: []Card{{Ports: []Port{{Interface: shell, AFU: nlb0}}}}})
	name := filepath.Join(s.Root, s.Place(0, 0).Node)
	for _, flag := range []int{0, unix.O_EXCL} {
		f, err := os.OpenFile(name, os.O_RDWR|flag, 0)
		must(t, err)
		must(t, f.Close())
		fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: uint64(unix.O_RDWR | unix.O_CLOEXEC | flag)})
		must(t, err)
		must(t, unix.Close(fd))
	}
	var got []bool
	for _, e := range s.Trace() {
		if e.Op == "open" {
			got = append(got, e.Exclusive)
		}
	}
	if len(got) != 4 || got[0] || got[1] || !got[2] || !got[3] {
		t.Errorf("exclusive opens were seen as %t, want the last two of four", got)
	}
	// Two that are not exclusive are fine.
	first, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	defer first.Close()
	second, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	defer second.Close()
	if third, err := os.OpenFile(name, os.O_RDWR|unix.O_EXCL, 0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("an exclusive open beside others: %v, %v", third, err)
	}
}

// TestTree: what the attributes say at the start, and where links lead.
func TestTree(t *testing.T) {
	s := Start(t, Machine{
		Cards: []Card{{Ports: []Port{{Interface: "", AFU: nlb0}}}, {Ports: []Port{{Interface: shell, AFU: nlb0}, {Interface: shell, AFU: nlb0}}}},
		Files: map[string]string{"sys/bus/x/numa_node": "1\n", "sys/bus/x/link": "-> numa_node"},
	})
	at := s.Place(1, 1)
	for name, want := range map[string]string{
		at.Attributes + "/afu_id":        nlb0,
		at.Attributes + "/id":            "1",
		at.Attributes + "/dev":           "245:2",
		at.Attributes + "/power_state":   "0x0",
		at.Attributes + "/errors/errors": "0x0",
		at.Region + "/compat_id":         shell,
		at.Manager + "/state":            "unknown",
		at.Manager + "/status":           "",
		"sys/bus/x/link":                 "1",
		"dev/char/245:2":                 "",
		"dev/char/244:1":                 "",
	} {
		got, err := os.ReadFile(filepath.Join(s.Root, name))
		if strings.TrimSpace(string(got)) != want || err != nil && !strings.HasPrefix(name, "dev/") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if _, err := os.ReadFile(filepath.Join(s.Root, s.Place(0, 0).Region, "compat_id")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a region without an interface id: %v, want ENOENT", err)
	}
	if err := os.WriteFile(filepath.Join(s.Root, at.Manager, "state"), []byte("x"), 0); err == nil {
		t.Error("the manager's state was written")
	}
}

// TestRefuses commands that could never do what they say.
func TestRefuses(t *testing.T) {
	s := newModel(Machine{Cards: []Card{{Ports: []Port{{}}}}})
	for _, c := range []Command{
		{Fault: &Fault{On: "PR"}},
		{Fault: &Fault{On: OnPR, Errno: "EIEIO"}},
		{Fault: &Fault{On: OnPR, Card: 1}},
		{Set: &Set{Port: 1}},
		{Set: &Set{Port: -1}},
	} {
		if a := s.obey(c); a.Error == "" {
			t.Errorf("%+v was accepted", c)
		}
	}
	if a := s.obey(Command{Fault: &Fault{On: OnPR, Errno: "EIO", Hang: time.Second}}); a.Error != "" {
		t.Error(a.Error)
	}
}

// TestServeFails where it cannot mount, instead of serving nothing.
func TestServeFails(t *testing.T) {
	err := Serve(filepath.Join(t.TempDir(), "none"), Machine{}, strings.NewReader(""), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "mount the simulated machine") {
		t.Errorf("got %v", err)
	}
}
