// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
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
		check.Must(t, err)
		check.Must(t, f.Close())
		fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: uint64(unix.O_RDWR | unix.O_CLOEXEC | flag)})
		check.Must(t, err)
		check.Must(t, unix.Close(fd))
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
	check.Must(t, err)
	defer first.Close()
	second, err := os.OpenFile(name, os.O_RDWR, 0)
	check.Must(t, err)
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
		if strings.HasPrefix(name, "dev/") { // a node, which has the card's memory or nothing
			got = nil
			_, err = os.Stat(filepath.Join(s.Root, name))
		}
		if strings.TrimSpace(string(got)) != want || err != nil {
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
	if a := s.obey(Command{Fault: &Fault{On: OnPR, Errno: "EIO", Hold: true}}); a.Error != "" {
		t.Error(a.Error)
	}
}

// TestServeFails where it cannot mount, instead of serving nothing.
func TestServeFails(t *testing.T) {
	err := Serve(filepath.Join(t.TempDir(), "none"), Machine{}, strings.NewReader(""), io.Discard)
	check.WantErr(t, err, nil, "mount the simulated machine")
}

// TestEndsAlone: a machine ends although a mount namespace that was made meanwhile still has it.
func TestEndsAlone(t *testing.T) {
	other := exec.Command("cat")
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	in, err := other.StdinPipe()
	check.Must(t, err)
	var root string
	t.Run("machine", func(t *testing.T) {
		root = Start(t, Machine{Cards: []Card{{Ports: []Port{{Interface: shell, AFU: nlb0}}}}}).Root
		check.Must(t, other.Start())
	})
	if _, err := os.Stat(filepath.Join(root, "sys")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of what was served there is still sys (%v)", err)
	}
	check.Must(t, in.Close(), other.Wait())
}

func reader(raw []byte) io.Reader { return bytes.NewReader(raw) }

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// TestParams: what the attributes of a port's parameters take and refuse, as the kernel's parsers do.
func TestParams(t *testing.T) {
	debug := int32(4)
	s := Start(t, Machine{Cards: []Card{{Ports: []Port{
		{Interface: shell, AFU: nlb0, Debug: &debug, Dev: "1:3"}, {Interface: shell, AFU: nlb0, Revision: 1},
	}, Dev: "1:5"}}})
	write := func(name, value string) error {
		f, err := os.OpenFile(filepath.Join(s.Root, s.Place(0, 0).Attributes, name), os.O_WRONLY, 0)
		check.Must(t, err)
		_, err = f.WriteString(value)
		return errors.Join(err, f.Close())
	}
	for _, tc := range []struct {
		name, value string
		refused     bool
	}{
		{"ltr", "1", false},
		{"ltr", "off\n", false},
		{"ltr", "yes", false},
		{"ltr", "2", true},
		{"ltr", " 1", true},
		{"ltr", "o", true},
		{"userclk_freqcmd", "0x0010000000000000\n", false},
		{"userclk_freqcmd", "12", false},
		{"userclk_freqcmd", "0x", true},
		{"userclk_freqcmd", " 1", true},
		{"userclk_freqcmd", "-1", true},
		{"userclk_freqcmd", "0x10000000000000000", true},
		{"userclk_freqcntrcmd", "0x100000000", false},
		{"userclk_freqcntrcmd", "x", true},
		{"debug", "5\n", false},
		{"debug", "much", true},
	} {
		if err := write(tc.name, tc.value); errors.Is(err, unix.EINVAL) != tc.refused || !tc.refused && err != nil {
			t.Errorf("%s %q: %v", tc.name, tc.value, err)
		}
	}
	for name, want := range map[string]string{
		s.Place(0, 0).Attributes + "/ltr":                         "1",
		s.Place(0, 0).Attributes + "/debug":                       "5",
		s.Place(0, 0).Attributes + "/dev":                         "1:3",
		filepath.Dir(s.Place(0, 0).Attributes) + "/dfl-fme.0/dev": "1:5",
		s.Place(0, 1).Attributes + "/ltr":                         "0",
		s.Place(0, 1).Attributes + "/dev":                         "245:1",
	} {
		if got, err := os.ReadFile(filepath.Join(s.Root, name)); strings.TrimSpace(string(got)) != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	for _, hidden := range []string{"userclk_freqcmd", "userclk_freqsts", "userclk_freqcntrcmd", "userclk_freqcntrsts", "debug"} {
		if _, err := os.Stat(filepath.Join(s.Root, s.Place(0, 1).Attributes, hidden)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of a newer header: %v", hidden, err)
		}
	}
	if _, err := os.ReadFile(filepath.Join(s.Root, s.Place(0, 0).Attributes, "userclk_freqcmd")); !errors.Is(err, unix.EIO) {
		t.Errorf("a command was read: %v", err)
	}
}

// TestDigests: a machine that leaves them out says the rest.
func TestDigests(t *testing.T) {
	image := Image(shell, nlb0, 1000)
	for _, without := range []bool{false, true} {
		s := newModel(Machine{Cards: []Card{{Ports: []Port{{Interface: shell, AFU: nlb0}}}}, NoDigests: without})
		if errno := s.program(s.cards[0], 0, image, 1); errno != 0 {
			t.Fatal(errno)
		}
		sum := sha256.Sum256(image)
		want := hex.EncodeToString(sum[:])
		if without {
			want = ""
		}
		if e := s.events()[0]; e.Op != "ioctl" || e.Size != len(image) || e.SHA256 != want {
			t.Errorf("without digests %t: %v with %q and %d bytes", without, e, e.SHA256, e.Size)
		}
	}
}

// TestMemory: what a program writes through one port is what another reads through the next, whatever is programmed and reset, until the
// logic of an image has cleared it. Another image in its place ends that.
func TestMemory(t *testing.T) {
	s := newModel(Machine{Cards: []Card{{Ports: []Port{{Interface: shell, AFU: nlb0}, {Interface: shell, AFU: nlb0}}}}})
	c := s.cards[0]
	read := func(p *port) (used int) {
		_, errno := s.reach(p, 0, func(content []byte) int {
			used = len(content) - bytes.Count(content, []byte{0})
			return 0
		})
		if errno != 0 {
			t.Fatal(errno)
		}
		return used
	}
	load := func(image []byte) {
		t.Helper()
		if errno := s.program(c, 0, image, 1); errno != 0 {
			t.Fatal(errno)
		}
	}
	for at := range int64(MemorySize) {
		_, _ = s.reach(c.ports[0], at, func(content []byte) int { content[0] = 1; return 1 })
	}
	load(Image(shell, nlb0, 100))
	if got := read(c.ports[1]); got != MemorySize {
		t.Errorf("after another image %d bytes are left, want all", got)
	}
	load(ClearingImage(shell, nlb0, 100, time.Hour))
	c.memory.began = c.memory.began.Add(-time.Hour / 4)
	if got := read(c.ports[1]); got > MemorySize*3/4 || got < MemorySize/2 {
		t.Errorf("after a quarter of the time %d of %d bytes are left", got, MemorySize)
	}
	load(Image(shell, nlb0, 100))
	left := read(c.ports[0])
	c.memory.began = c.memory.began.Add(-time.Hour)
	if got := read(c.ports[0]); got != left || got == 0 {
		t.Errorf("an image that is there no more has cleared %d bytes", left-got)
	}
	load(ClearingImage(shell, nlb0, 100, time.Hour))
	c.memory.began = c.memory.began.Add(-time.Hour)
	if got := read(c.ports[1]); got != 0 {
		t.Errorf("after all of the time %d bytes are left", got)
	}
	c.ports[1].disables = 1
	if _, errno := s.reach(c.ports[1], 0, func([]byte) int { return 1 }); errno != unix.EIO {
		t.Errorf("through a port that is disabled: %v, want EIO", errno)
	}
}
