// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

func (n *node) contentFile() string { return filepath.Join(n.state(), first+".json") }

// damage spoils the first region's file.
func (n *node) damage() {
	n.t.Helper()
	check.Must(n.t, os.WriteFile(n.contentFile(), []byte("00000000 {}\n"), 0o600))
}

// childJob is what a child process does: program nlb3 for our claim.
type childJob struct {
	Root, Dir string
	Region    *fpga.Region
}

func (n *node) job(t *testing.T, faults ...fault.Fault) fault.Plan {
	t.Helper()
	data, err := json.Marshal(childJob{Root: n.Root, Dir: n.dir, Region: n.regions[first]})
	check.Must(t, err)
	return fault.Plan{Faults: faults, Data: data}
}

func TestChild(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var j childJob
	check.Must(t, json.Unmarshal(plan.Data, &j))
	in, err := plan.Injector()
	check.Must(t, err)
	n := &node{
		Sim: &fpgasim.Sim{Root: j.Root}, t: t, dir: j.Dir, regions: map[string]*fpga.Region{first: j.Region}, files: map[string][]byte{},
		fs: in.FS(disk.OS{}), boot: boot,
	}
	p := n.process()
	check.Must(t, p.apply(p.program(ours(), p.image(nlb3))))
}

// TestDamaged: a file that is not exactly what was written says nothing but that the region may hold anything.
func TestDamaged(t *testing.T) {
	p := start(t, machine(card(1)))
	check.Must(t, p.apply(p.program(ours(), p.image(nlb3))))
	whole, err := os.ReadFile(p.contentFile())
	check.Must(t, err)
	unknown := region.Content{Version: 1, Unknown: true, Memory: "*"}
	damaged := func(what string, at int, data []byte) {
		t.Helper()
		check.Must(t, os.WriteFile(p.contentFile(), data, 0o600))
		if got, err := p.contents.Read(first); err != nil || got != unknown {
			t.Fatalf("%s at %d of %d: %+v, %v; want unknown", what, at, len(whole), got, err)
		}
	}
	for i := range whole {
		for bit := range 8 {
			data := append([]byte{}, whole...)
			data[i] ^= 1 << bit
			damaged("another bit", i, data)
		}
		damaged("cut off", i, whole[:i])
		damaged("zeros", i, append(append([]byte{}, whole[:i]...), make([]byte, len(whole)-i)...))
		damaged("one byte less", i, append(append([]byte{}, whole[:i]...), whole[i+1:]...))
		damaged("one byte more", i, append(append(append([]byte{}, whole[:i]...), 'x'), whole[i:]...))
	}
	damaged("twice", 0, append(append([]byte{}, whole...), whole...))
	check.Must(t, os.WriteFile(p.contentFile(), whole, 0o600))
	p.holds(held(p.image(nlb3), ours()))
}

// TestNoFile: a file that cannot be read is an error and not nothing known, and nothing is opened for it.
func TestNoFile(t *testing.T) {
	p := start(t, machine(card(1)))
	image := p.image(nlb3)
	program := p.program(ours(), image)
	for n := 1; n <= 2; n++ {
		in := fault.New(fault.FailRead(n, syscall.EIO))
		p.fs = in.FS(disk.OS{})
		p = p.process()
		in.Set(fault.FailRead(in.Log().Reads()+1, syscall.EIO))
		wants(t, p.apply(program), syscall.EIO, first)
		if len(p.programmings()) > 0 {
			t.Error("programmed without knowing what was there")
		}
		in.Set(fault.FailRead(in.Log().Reads()+1, syscall.EIO))
		p.asks(nil, func() { wants(t, p.undo(program), syscall.EIO, first) })
		in.Set(fault.FailRead(in.Log().Reads()+1, syscall.EIO))
		p.asks(nil, func() {
			wants(t, p.apply(&region.Scrub{Device: first, Claim: ours(), Timeout: time.Minute}), syscall.EIO, first)
		})
	}
}

// TestDestroy leaves nothing but what tells of traces, twice, and what comes after is as new where there are none.
func TestDestroy(t *testing.T) {
	p := start(t, machine(card(1)))
	image := p.image(nlb3)
	program := p.program(ours(), image, released(region.ReleaseBlank, p.blank()))
	check.Must(t, p.apply(program))
	for range 2 {
		check.Must(t, p.contents.Destroy())
	}
	p.holds(held(image, ours()))
	wants(t, p.apply(&region.Scrub{Device: first, Claim: theirs(), Timeout: time.Minute}), region.ErrMemory)

	check.Must(t, p.undo(program))
	for range 2 {
		check.Must(t, p.contents.Destroy())
	}
	if _, err := os.Lstat(p.state()); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	p.holds(region.Content{})
	check.Must(t, p.contents.Make())
	check.Must(t, p.apply(p.program(ours(), p.image(nlb3))))
}

// breakages are what a disk may do from its nth operation on.
func breakages(n int) map[string]fault.Fault {
	return map[string]fault.Fault{
		"fails": fault.Fail(n, syscall.EIO), "cut short": fault.Short(n), "is full": fault.Full(n), "is read-only": fault.ReadOnly(n),
		"fails to say that it did": fault.Lose(n, syscall.EIO),
	}
}

// TestDiskFails at each operation: the claim does not get its region then, it is never known as something that it is not, and when the
// disk is well again it can be given back, or the claim be prepared after all.
func TestDiskFails(t *testing.T) {
	p := start(t, machine(card(1)))
	image, blank := p.image(nlb3), p.blank()
	program := p.program(ours(), image, released(region.ReleaseBlank, blank))
	points := 0
	for n := 1; ; n++ {
		reached := false
		for what, f := range breakages(n) {
			p.dir = t.TempDir()
			p.Set(fpgasim.Set{AFU: new(nlb0)})
			in := fault.New()
			in.Quick = true
			p.fs = in.FS(disk.OS{})
			p = p.process()
			f.At += in.Log().Changes()
			in.Set(f)
			before := len(p.programmings())
			err := p.apply(program)
			failed := in.Log().Changes() >= f.At
			reached = reached || failed
			in.Set()
			// What has no room once is written in another way.
			if failed && err == nil && harmed(in.Log(), f) && f.Do != fault.ActShort {
				t.Fatalf("the disk %s at %d, and the claim has its region:\n%s", what, n, in.Log())
			}
			p.neverGood(len(p.programmings()) > before)
			if n%2 == 0 {
				check.Must(t, p.apply(program))
				p.holds(held(image, ours()))
			}
			check.Must(t, p.undo(program))
			if c := p.content(); c.Unknown || c.Claim != "" {
				t.Fatalf("the disk %s at %d, and after the release it is %+v", what, n, c)
			}
			if f.Do == fault.ActFail || f.Do == fault.ActShort {
				p.emptyBut(first + ".json")
			}
		}
		if !reached {
			break
		}
		points++
	}
	if points < 10 {
		t.Errorf("the disk failed at %d operations, want those of two durable writes", points)
	}
}

// harmed says whether anything was refused: a full disk still removes and syncs.
func harmed(log fault.Log, f fault.Fault) bool {
	for i := range log {
		if log[i].Fault != "" || f.Do == fault.ActLose && log[i].N == f.At && !log[i].Kind.Read() {
			return true
		}
	}
	return false
}

// emptyBut wants no file that a write left behind.
func (n *node) emptyBut(name string) {
	n.t.Helper()
	entries, err := os.ReadDir(n.state())
	check.Must(n.t, err)
	for _, e := range entries {
		if e.Name() != name && !strings.HasSuffix(e.Name(), ".lock") {
			n.t.Errorf("%s was left behind", e.Name())
		}
	}
}

// TestDiskFailsOnRelease at each operation: giving back fails, and later it does not.
func TestDiskFailsOnRelease(t *testing.T) {
	p := start(t, machine(card(1)))
	blank := p.blank()
	program := p.program(ours(), p.image(nlb3), released(region.ReleaseBlank, blank))
	for n := 1; ; n++ {
		reached := false
		for what, f := range map[string]fault.Fault{"fails": fault.Fail(n, syscall.EIO), "is full": fault.Full(n)} {
			p.dir, p.fs = t.TempDir(), quick()
			p = p.process()
			check.Must(t, p.apply(program))
			in := fault.New(f)
			in.Quick = true
			p.fs = in.FS(disk.OS{})
			p = p.later()
			err := p.undo(program)
			failed := in.Log().Changes() >= n
			reached = reached || failed
			in.Set()
			if err == nil && failed && harmed(in.Log(), f) {
				t.Fatalf("the disk %s at %d, and the region was given back:\n%s", what, n, in.Log())
			}
			if c := p.content(); err != nil && c.Claim != ours().UID && c != afterWipe(blank) {
				t.Errorf("the disk %s at %d: %+v", what, n, c)
			}
			check.Must(t, p.undo(program))
			p.holds(wiped(blank))
			p.shows(0, 0, nothing)
		}
		if !reached {
			return
		}
	}
}

// full is a disk that has no room for another file.
type full struct{ disk.FS }

func (f full) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	if flag&os.O_CREATE != 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
	}
	return f.FS.OpenFile(name, flag, perm)
}

// TestReleaseOnFullDisk: a claim that has its region ends without room for another file, and another process finds what it left.
func TestReleaseOnFullDisk(t *testing.T) {
	p := start(t, machine(card(1)))
	blank, image := p.blank(), p.image(nlb3)
	left := held(image, ours())
	left.Claim = ""
	for release, want := range map[region.Release]region.Content{
		region.ReleaseBlank: wiped(blank), region.ReleaseReset: left, region.ReleaseKeep: left,
	} {
		p.dir, p.fs = t.TempDir(), quick()
		p = p.process()
		program := p.program(ours(), image, released(release, blank), mode(region.ModeAlways))
		check.Must(t, p.apply(program))
		p.fs = full{quick()}
		p = p.later()
		check.Must(t, p.undo(program))
		p.fs = quick()
		p = p.later()
		p.holds(want)
	}
}

func afterWipe(blank *region.Image) region.Content {
	c := wiped(blank)
	c.Version = 1
	return c
}

// logged notes in the disk's log when the card begins to be programmed.
type logged struct {
	region.Backend
	in *fault.Injector
}

func (l logged) Acquire(ctx context.Context, r *fpga.Region, interfaceID string) (region.Lease, error) {
	lease, err := l.Backend.Acquire(ctx, r, interfaceID)
	if err != nil {
		return nil, err
	}
	return loggedLease{lease, l.in}, nil
}

type loggedLease struct {
	region.Lease
	in *fault.Injector
}

func (l loggedLease) Program(ctx context.Context, load region.Load) (took time.Duration, err error) {
	return took, l.in.Do("program", func() (err error) { //nolint:contextcheck // the injector has none
		took, err = l.Lease.Program(ctx, load)
		return err
	})
}

// TestPowerLoss: whenever the power goes, a region whose programming may have begun is known as unknown, or as what it was programmed
// with; and what a step said that it did is known afterwards. No sync can be left out.
func TestPowerLoss(t *testing.T) {
	p := start(t, machine(card(1)))
	if harm := p.powerLoss(t); harm != "" {
		t.Fatal(harm)
	}
	log, syncs := p.lastLog, 0
	for _, s := range fault.Syncs(log) {
		syncs += len(s.Syncs)
	}
	if syncs < 5 {
		t.Errorf("%d syncs, want those of the directory and of two files:\n%s", syncs, log)
	}
	for n := 1; n <= syncs; n++ {
		if harm := p.powerLoss(t, fault.DropSync(n)); harm == "" {
			t.Errorf("without sync %d nothing is lost:\n%s", n, log)
		}
	}
}

// powerLoss programs the region and says what a power loss at any moment would do to it.
func (p *programmer) powerLoss(t *testing.T, faults ...fault.Fault) string {
	t.Helper()
	p.dir = t.TempDir()
	begin, err := fault.Snapshot(p.dir)
	check.Must(t, err)
	in := fault.New(faults...)
	in.Quick = true
	fsys := in.FS(disk.OS{})
	contents := region.OpenContents(fsys, p.state())
	check.Must(t, contents.Make())
	kinds := region.New(region.Config{
		Find: p.find, Backends: map[string]region.Backend{"dfl": logged{dflAt(p.Root, p.state()), in}}, Contents: contents, Open: p.open,
		BootID: boot,
	}).Kinds()
	image := p.image(nlb3)
	check.Must(t, kinds.Apply(t.Context(), p.step(p.program(ours(), image, mode(region.ModeAlways)))))
	p.lastLog = in.Log()
	whole := held(image, ours())
	whole.Version = 1
	for n := 1; n <= p.lastLog.Changes()+1; n++ {
		cut := p.lastLog.Before(n)
		begun := false
		for i := range cut {
			begun = begun || cut[i].Kind == fault.Effect
		}
		done := n > p.lastLog.Changes()
		states, err := fault.Replay(begin, cut, fault.Options{})
		check.Must(t, err)
		for s := range states {
			dir := filepath.Join(t.TempDir(), "after")
			check.Must(t, s.Materialise(dir))
			got, err := region.OpenContents(disk.OS{}, filepath.Join(dir, "regions")).Read(first)
			check.Must(t, err)
			switch unknown := got.Unknown && got.Claim == ours().UID; {
			case done && got != whole, begun && !unknown && got != whole, !begun && !unknown && got != (region.Content{Version: 1}):
				return cmp.Diff(whole, got) + "after a power loss after\n" + cut.String() + s.Lost
			}
		}
	}
	return ""
}
