// SPDX-License-Identifier: Apache-2.0

package fpgamgr

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	fits     = "5f2c81d0a4b94e0fb7c36d1e8f02a957"
	platform = "firmware:zynqmp-firmware:pcap"
	class    = "sys/class/fpga_manager/fpga0"
)

// image is bytes that stay as they are.
type image struct {
	*bytes.Reader
	digest string
}

func (i image) Size() int64    { return i.Reader.Size() }
func (i image) Digest() string { return i.digest }

func newImage(raw string) image {
	sum := sha256.Sum256([]byte(raw))
	return image{bytes.NewReader([]byte(raw)), "sha256:" + hex.EncodeToString(sum[:])}
}

// chip is a manager whose attributes answer as AMD's kernel does (drivers/fpga/fpga-mgr.c, firmware_store), which plain files cannot.
type chip struct {
	t    *testing.T
	root string
	host *Host
	// trace is what was written, held what the kernel loaded last.
	trace []string
	held  string
	// What the next load comes to.
	errno         error
	state, status string
	closes        bool
}

func newChip(t *testing.T) *chip {
	t.Helper()
	c := &chip{t: t, root: t.TempDir(), state: "operating"}
	for name, text := range map[string]string{
		class + "/state": "operating\n", class + "/status": "", class + "/flags": "0\n", class + "/firmware": "",
		"sys/class/fpga_bridge/br0/state": "enabled\n", "sys/class/fpga_bridge/br0/name": "PR Decoupler\n",
		"sys/class/fpga_manager/fpga1/state": "operating\n", "sys/class/fpga_manager/fpga1/firmware": "",
		"sys/class/fpga_manager/fpga1/flags": "0\n", "sys/module/firmware_class/parameters/path": "\n",
		"lib/firmware/other.bin": "another driver's",
	} {
		c.set(name, text)
	}
	for n, base := range map[string]string{"fpga0": platform, "fpga1": "f8007000.devcfg"} {
		check.Must(t, os.Symlink("../../../devices/platform/"+base, filepath.Join(c.root, "sys/class/fpga_manager", n, "device")))
	}
	var err error
	c.host, err = Open(c.root, Options{})
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, c.host.Close()) })
	c.host.write = c.write
	return c
}

func (c *chip) set(name, text string) {
	c.t.Helper()
	name = filepath.Join(c.root, name)
	check.Must(c.t, os.MkdirAll(filepath.Dir(name), 0o755))
	check.Must(c.t, os.WriteFile(name, []byte(text), 0o644))
}

func (c *chip) manager() Manager {
	return Manager{Name: "amd-zynqmp", Platform: platform, InterfaceID: fits, LockFile: filepath.Join(c.root, "lock")}
}

func (c *chip) write(name, value string) error {
	c.trace = append(c.trace, path.Base(name)+" "+value)
	if path.Base(name) != "firmware" {
		return c.host.writer.WriteAttr(name, value)
	}
	dir := path.Dir(name)
	data, err := os.ReadFile(filepath.Join(c.root, "lib/firmware", value))
	if err != nil {
		c.set(dir+"/state", "firmware request error\n")
		return fmt.Errorf("write: %w", unix.ENOENT)
	}
	if errors.Is(c.errno, unix.EBUSY) {
		return fmt.Errorf("write: %w", c.errno)
	}
	c.held = string(data)
	c.set(dir+"/state", c.state+"\n")
	c.set(dir+"/status", c.status)
	if c.closes {
		c.set("sys/class/fpga_bridge/br0/state", "disabled\n")
	}
	return c.errno
}

func (c *chip) acquire() *Lease {
	c.t.Helper()
	l, err := c.host.Acquire(c.t.Context(), c.manager(), fits)
	check.Must(c.t, err)
	c.t.Cleanup(func() { _ = l.Release() })
	return l
}

// copies lists what is in the firmware directory beside another driver's file.
func (c *chip) copies() []string {
	c.t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.root, "lib/firmware"))
	check.Must(c.t, err)
	names := []string{}
	for _, e := range entries {
		if e.Name() != "other.bin" {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestProgram: order of the writes, the name, the bytes, and nothing left behind.
func TestProgram(t *testing.T) {
	c := newChip(t)
	img := newImage("header and logic")
	name := "fettle-fpga0-" + strings.TrimPrefix(img.digest, "sha256:") + ".bin"
	l := c.acquire()
	_, err := l.Program(t.Context(), Load{Image: img})
	check.Must(t, err)
	if diff := cmp.Diff([]string{"flags 0", "firmware " + name}, c.trace); diff != "" || c.held != "header and logic" {
		t.Errorf("held %q, -want +got:\n%s", c.held, diff)
	}
	c.trace = nil
	_, err = l.Program(t.Context(), Load{Image: img, Offset: 11, Partial: true})
	check.Must(t, err)
	if diff := cmp.Diff([]string{"flags 1", "firmware " + name}, c.trace); diff != "" || c.held != "logic" {
		t.Errorf("held %q, -want +got:\n%s", c.held, diff)
	}
	check.Must(t, l.Verify(t.Context()))
	if err := l.Reset(t.Context()); !errors.Is(err, errors.ErrUnsupported) || backend.KindOf(err) != backend.Terminal {
		t.Errorf("reset: %v", err)
	}
	check.Must(t, l.Release())
	check.Must(t, l.Release())
	if _, err := l.Program(t.Context(), Load{Image: img}); !errors.Is(err, backend.ErrReleased) {
		t.Errorf("after the release: %v", err)
	}
	if left := c.copies(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestFailures is what the kernel may answer, and what kind of error that is.
func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name          string
		errno         error
		state, status string
		closes        bool
		kind          backend.Kind
		says          string
	}{
		{name: "write error", errno: unix.EIO, state: "write error", kind: backend.Unknown, says: "write error"},
		{name: "write complete error", errno: unix.ETIMEDOUT, state: "write complete error", kind: backend.Unknown, says: "write complete error"},
		{name: "write init error", errno: unix.EINVAL, state: "write init error", kind: backend.Unknown, says: "write init error"},
		{name: "error with a code", errno: unix.EIO, state: "write error 0x17", kind: backend.Unknown, says: "0x17"},
		{name: "no errno", state: "write error", kind: backend.Unknown, says: "write error"},
		{name: "no errno, still at it", state: "write", kind: backend.Unknown, says: "write"},
		{name: "an error of no kind", errno: unix.EIO, state: "operating", kind: backend.Unknown, says: "operating"},
		{name: "invalid, operating", errno: unix.EINVAL, state: "operating", kind: backend.Unknown},
		{name: "operating with errors", state: "operating", status: "reconfig CRC error\n", kind: backend.Unknown, says: "reconfig CRC error"},
		{name: "operating behind a closed bridge", state: "operating", closes: true, kind: backend.Unknown},
		{name: "busy", errno: unix.EBUSY, state: "operating", kind: backend.Retryable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newChip(t)
			c.errno, c.state, c.status, c.closes = tc.errno, tc.state, tc.status, tc.closes
			_, err := c.acquire().Program(t.Context(), Load{Image: newImage("logic")})
			failure, ok := errors.AsType[*backend.Error](err)
			if !ok || failure.Kind != tc.kind || !strings.Contains(failure.Status, tc.says) || failure.Next == "" ||
				tc.errno != nil && !errors.Is(err, tc.errno) {
				t.Fatalf("got %v, want %s", err, tc.kind)
			}
			if touched := c.held != ""; touched != (tc.kind == backend.Unknown) {
				t.Errorf("an error of kind %q, the chip holds %q", tc.kind, c.held)
			}
			if left := c.copies(); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestBusyAfterAnError: EBUSY beside an error's state says nothing of who caused it.
func TestBusyAfterAnError(t *testing.T) {
	c := newChip(t)
	c.set(class+"/state", "write error\n")
	c.errno = unix.EBUSY
	if _, err := c.acquire().Program(t.Context(), Load{Image: newImage("x")}); backend.KindOf(err) != backend.Unknown {
		t.Errorf("got %v, want unknown", err)
	}
}

// TestAgain: what failed once can be programmed anew.
func TestAgain(t *testing.T) {
	c := newChip(t)
	c.errno, c.state = unix.EIO, "write error"
	l := c.acquire()
	if _, err := l.Program(t.Context(), Load{Image: newImage("x")}); err == nil {
		t.Fatal("no error")
	}
	c.errno, c.state = nil, "operating"
	_, err := l.Program(t.Context(), Load{Image: newImage("y")})
	check.Must(t, err)
}

// TestRefused: nothing is written before everything was checked.
func TestRefused(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	good := Load{Image: newImage("logic")}
	for _, tc := range []struct {
		name    string
		prepare func(c *chip, m *Manager)
		wants   string
		load    Load
		ctx     context.Context
		kind    backend.Kind
	}{
		{name: "another interface", wants: strings.Repeat("a", 32), kind: backend.Terminal},
		{
			name: "none at all", wants: strings.Repeat("0", 32),
			prepare: func(_ *chip, m *Manager) { m.InterfaceID = strings.Repeat("0", 32) }, kind: backend.Terminal,
		},
		{name: "nothing configured", prepare: func(_ *chip, m *Manager) { m.InterfaceID = "" }, kind: backend.Terminal},
		{name: "a lease that programs nothing", wants: "none", kind: backend.Terminal},
		{name: "another platform device", prepare: func(_ *chip, m *Manager) { m.Platform = "../../fpga1" }, kind: backend.Terminal},
		{name: "upstream kernel", prepare: func(c *chip, _ *Manager) {
			check.Must(c.t, os.Remove(filepath.Join(c.root, class, "firmware")))
		}, kind: backend.Terminal},
		{name: "somebody programs it", prepare: func(c *chip, _ *Manager) { c.set(class+"/state", "write\n") }, kind: backend.Retryable},
		{name: "bridge is closed", prepare: func(c *chip, _ *Manager) {
			c.set("sys/class/fpga_bridge/br0/state", "disabled\n")
		}, kind: backend.Terminal},
		{name: "no firmware directory", prepare: func(c *chip, _ *Manager) {
			check.Must(c.t, os.RemoveAll(filepath.Join(c.root, "lib")))
		}, kind: backend.Terminal},
		{name: "firmware directory leads out", prepare: func(c *chip, _ *Manager) {
			check.Must(c.t, os.RemoveAll(filepath.Join(c.root, "lib")))
			check.Must(c.t, os.Symlink(c.t.TempDir(), filepath.Join(c.root, "lib")))
		}, kind: backend.Terminal},
		{name: "no directory for the lock", prepare: func(_ *chip, m *Manager) { m.LockFile = "/nowhere/lock" }, kind: backend.Terminal},
		{name: "digest is a path", load: Load{Image: image{bytes.NewReader([]byte("x")), "sha256:../../../etc/passwd"}}, kind: backend.Terminal},
		{
			name: "digest with a space",
			load: Load{Image: image{bytes.NewReader([]byte("x")), "sha256: " + strings.Repeat("a", 63)}},
			kind: backend.Terminal,
		},
		{
			name: "digest in upper case",
			load: Load{Image: image{bytes.NewReader([]byte("x")), "sha256:" + strings.Repeat("A", 64)}}, kind: backend.Terminal,
		},
		{name: "part before the image", load: Load{Image: newImage("logic"), Offset: -1}, kind: backend.Terminal},
		{name: "part beyond the image", load: Load{Image: newImage("logic"), Offset: 2, Size: 4}, kind: backend.Terminal},
		{name: "empty image", load: Load{Image: newImage("")}, kind: backend.Terminal},
		{name: "the context is over", ctx: ended, kind: backend.Retryable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newChip(t)
			m := c.manager()
			if tc.prepare != nil {
				tc.prepare(c, &m)
			}
			if tc.load.Image == nil {
				tc.load = good
			}
			if tc.ctx == nil {
				tc.ctx = t.Context()
			}
			if tc.wants == "" {
				tc.wants = fits
			}
			l, err := c.host.Acquire(t.Context(), m, strings.TrimPrefix(tc.wants, "none"))
			if err == nil {
				_, err = l.Program(tc.ctx, tc.load)
				check.Must(t, l.Release())
			}
			failure, ok := errors.AsType[*backend.Error](err)
			if !ok || failure.Kind != tc.kind || failure.Next == "" {
				t.Errorf("got %v, want %s", err, tc.kind)
			}
			if len(c.trace) > 0 || c.held != "" {
				t.Errorf("written: %q, held %q", c.trace, c.held)
			}
		})
	}
}

// TestFlagsDoNotStick: an image for a region must not be loaded as one for the chip.
func TestFlagsDoNotStick(t *testing.T) {
	c := newChip(t)
	l := c.acquire()
	c.host.write = func(name, value string) error {
		c.trace = append(c.trace, path.Base(name))
		return nil
	}
	_, err := l.Program(t.Context(), Load{Image: newImage("x"), Partial: true})
	if backend.KindOf(err) != backend.Terminal || err == nil || !cmp.Equal(c.trace, []string{"flags"}) {
		t.Errorf("got %v after %q", err, c.trace)
	}
}

// TestFirmwareDirectories: the kernel's parameter comes first, if it names a directory.
func TestFirmwareDirectories(t *testing.T) {
	for custom, want := range map[string]string{
		"": "lib/firmware", "/srv/fw": "srv/fw", "/nowhere": "lib/firmware", "srv/fw": "lib/firmware", "/srv/../srv/fw": "lib/firmware",
		"/": "lib/firmware", "/lib/firmware/other.bin": "lib/firmware",
	} {
		c := newChip(t)
		c.set("srv/fw/x", "")
		c.set("sys/module/firmware_class/parameters/path", custom+"\n")
		if got, err := c.host.firmwareDir(); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", custom, got, err, want)
		}
	}
}

// TestSweep removes what a killed process left, of this chip and nobody else's.
func TestSweep(t *testing.T) {
	c := newChip(t)
	digits := strings.Repeat("a", 64)
	keep := []string{"fettle-fpga0-" + digits, "fettle-fpga0-" + digits + ".bin.xz", "fettle-fpga0-x.bin", "fettle-fpga1-" + digits + ".bin"}
	for _, name := range append([]string{"fettle-fpga0-" + digits + ".bin"}, keep...) {
		c.set("lib/firmware/"+name, "")
	}
	check.Must(t, c.acquire().Release())
	if diff := cmp.Diff(keep, c.copies()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestLock: two leases of one chip wait for each other, also on another host.
func TestLock(t *testing.T) {
	c := newChip(t)
	l := c.acquire()
	other, err := Open(c.root, Options{})
	check.Must(t, err)
	defer func() { check.Must(t, other.Close()) }()
	_, err = other.Acquire(check.Passed(t), c.manager(), fits)
	if backend.KindOf(err) != backend.Retryable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want retryable", err)
	}
	check.Must(t, l.Release())
	again, err := other.Acquire(t.Context(), c.manager(), fits)
	check.Must(t, err)
	check.Must(t, again.Release())
}

// TestRealWrites goes through the attributes as files.
func TestRealWrites(t *testing.T) {
	c := newChip(t)
	c.host.write = c.host.writer.WriteAttr
	img := newImage("logic")
	_, err := c.acquire().Program(t.Context(), Load{Image: img, Partial: true})
	check.Must(t, err)
	firmware, err := os.ReadFile(filepath.Join(c.root, class, "firmware"))
	check.Must(t, err)
	flags, err := os.ReadFile(filepath.Join(c.root, class, "flags"))
	check.Must(t, err)
	if want := "fettle-fpga0-" + img.digest[7:] + ".bin"; string(firmware) != want || strings.TrimSpace(string(flags)) != "1" {
		t.Errorf("firmware %q, flags %q", firmware, flags)
	}
	check.Must(t, os.Remove(filepath.Join(c.root, class, "status"))) // A driver without error bits.
	if s, err := c.host.State(c.manager()); !s.Operating() || err != nil {
		t.Errorf("state %+v, %v", s, err)
	}
	check.Must(t, os.Remove(filepath.Join(c.root, class, "state")))
	if _, err := c.host.State(c.manager()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a state: %v", err)
	}
}

func TestOperating(t *testing.T) {
	for state, want := range map[string]bool{
		"operating": true, "operating 0x0": true, "operating error": false, "operatingx": false, "unknown": false, "": false,
		"write error": false,
	} {
		if got := (State{Manager: state}).Operating(); got != want {
			t.Errorf("%q: %v", state, got)
		}
	}
}
