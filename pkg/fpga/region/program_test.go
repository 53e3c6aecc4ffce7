// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// TestProgram is a claim's life with one region: programmed, looked at again, given back, each of it twice.
func TestProgram(t *testing.T) {
	p := start(t, machine(card(2)))
	image := p.image(nlb3)
	program := p.program(ours(), image, withReset)
	p.asks(lines(opened(0), pr(0)), func() { check.Must(t, p.apply(program)) })
	if got, want := p.programmings(), []string{hexDigest(fpgasim.Image(shell, nlb3, 1000))}; !cmp.Equal(got, want) {
		t.Errorf("to the card went %v, want the raw image alone, %v", got, want)
	}
	p.holds(held(image, ours()))
	p.shows(0, 0, nlb3)
	p.shows(0, 1, nlb0)
	p.asks(nil, func() { check.Must(t, p.verify(program)) })

	p.asks(lines(opened(0), reset(0)), func() { check.Must(t, p.apply(program)) })
	p.holds(held(image, ours()))

	back := held(image, ours())
	back.Claim = ""
	p.asks(lines(opened(0), reset(0)), func() { check.Must(t, p.undo(program)) })
	p.holds(back)
	p.asks(nil, func() { check.Must(t, p.undo(program)) })
	p.holds(back)
	p.shows(0, 0, nlb3)

	if len(p.attempts) != 1 || p.attempts[0].Err != nil || p.attempts[0].Why != "program" || p.attempts[0].Image.Digest != image.Digest ||
		p.attempts[0].Claim != ours() || p.attempts[0].Device != first || p.attempts[0].Took <= 0 {
		t.Errorf("reported %+v, want the one programming", p.attempts)
	}
}

// TestNeverApplied: what was never done is not undone, whatever the region holds.
func TestNeverApplied(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(p *programmer)
	}{
		{"untouched", func(*programmer) {}},
		{"another claim's", func(p *programmer) { check.Must(t, p.apply(p.program(next(), p.image(nlb3)))) }},
		{"another claim's, unknown", func(p *programmer) {
			p.Fault(fpgasim.Fault{On: fpgasim.OnPR, AFU: nlb0, Times: 2})
			wants(t, p.apply(p.program(next(), p.image(nlb3))), dfl.ErrWrongAFU)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, machine(card(1)))
			tc.before(p)
			known := p.content()
			p.asks(nil, func() {
				for range 2 {
					check.Must(t, p.undo(p.program(ours(), p.image(nlb3), released(region.ReleaseBlank, p.blank()))))
					check.Must(t, p.undo(&region.Scrub{Device: first, Claim: ours(), Blank: p.blank(), Timeout: time.Minute}))
					check.Must(t, p.undo(&region.Params{Device: first, Claim: ours(), Set: clocks(400_000, 200_000)}))
				}
			})
			known.Version = 0
			p.holds(known)
		})
	}
}

// TestAgain is what a second claim finds where the first one had nlb3: when it is programmed, and when that is refused.
func TestAgain(t *testing.T) {
	for _, tc := range []struct {
		name string
		// change is what happens between the claims. The region is asked for with the returned programmer.
		change func(p *programmer) *programmer
		claim  region.Claim
		mode   region.Mode
		image  func(p *programmer) *region.Image
		reset  bool
		want   []string
		err    error
	}{
		{name: "the same bytes", want: lines(opened(0))},
		{name: "the same bytes, and a reset", reset: true, want: lines(opened(0), reset(0))},
		{name: "always", mode: region.ModeAlways, want: lines(opened(0), pr(0))},
		{name: "never", mode: region.ModeNever, want: lines(opened(0))},
		{name: "never, and a reset", mode: region.ModeNever, reset: true, want: lines(opened(0), reset(0))},
		{name: "as it is", image: none, want: lines(opened(0))},
		{
			name: "other bytes with the same AFU id", image: func(p *programmer) *region.Image { return p.keep(gbs(shell, nlb3, "", 1001)) },
			want: lines(opened(0), pr(0)),
		},
		{
			name: "never, other bytes with the same AFU id", mode: region.ModeNever, err: region.ErrOther,
			image: func(p *programmer) *region.Image { return p.keep(gbs(shell, nlb3, "", 1001)) }, want: lines(opened(0)),
		},
		{
			name: "never, another AFU", mode: region.ModeNever, err: region.ErrOther,
			image: func(p *programmer) *region.Image { return p.image(nothing) }, want: lines(opened(0)),
		},
		{name: "another namespace", claim: theirs(), want: lines(opened(0), pr(0))},
		{name: "another boot", change: reboot, want: lines(opened(0), pr(0))},
		{name: "never, another boot", change: reboot, mode: region.ModeNever, want: lines(opened(0))},
		{
			// It may have been a power cycle, after which the card holds its first image, so the digest says nothing.
			name: "never, other bytes after another boot", change: reboot, mode: region.ModeNever, want: lines(opened(0)),
			image: func(p *programmer) *region.Image { return p.keep(gbs(shell, nlb3, "", 1001)) },
		},
		{name: "somebody programmed it by hand", change: showing(nlb0), want: lines(opened(0), pr(0))},
		{name: "never, programmed by hand", change: showing(nlb0), mode: region.ModeNever, err: region.ErrOther, want: lines(opened(0))},
		{
			name: "never, programmed by hand with what is asked", change: showing(nlb0), mode: region.ModeNever, want: lines(opened(0)),
			image: func(p *programmer) *region.Image { return p.image(nlb0) },
		},
		{name: "crashed firmware", change: showing(allF), mode: region.ModeNever, err: dfl.ErrDead, want: lines(opened(0))},
		{name: "crashed firmware, as it is", change: showing(allF), image: none, err: dfl.ErrDead, want: lines(opened(0))},
		{name: "crashed firmware, programmed", change: showing(allF), want: lines(opened(0), pr(0))},
		{
			name: "errors, programmed", change: func(p *programmer) *programmer { p.Set(fpgasim.Set{Errors: new(uint64(4))}); return p },
			want: lines(opened(0), `write errors "0x4"`, pr(0)),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, machine(card(1)))
			before := p.program(next(), p.image(nlb3))
			check.Must(t, errors.Join(p.apply(before), p.undo(before)))
			image, c := p.image(nlb3), ours()
			if tc.change != nil {
				p = tc.change(p)
			}
			if tc.image != nil {
				image = tc.image(p)
			}
			if tc.claim.UID != "" {
				c = tc.claim
			}
			program := p.program(c, image, mode(tc.mode))
			program.ResetBeforeUse = tc.reset
			known := p.content()
			var err error
			p.asks(tc.want, func() { err = p.apply(program) })
			if tc.err != nil {
				wants(t, err, tc.err, first)
				if diff := cmp.Diff(known, p.content()); diff != "" {
					t.Errorf("a refusal changed what is known (-want +got):\n%s", diff)
				}
				p.asks(nil, func() { check.Must(t, p.undo(program)) })
				return
			}
			check.Must(t, err)
			if got := p.content(); got.Claim != c.UID || got.Namespace != c.Namespace || got.Unknown {
				t.Errorf("it is not the claim's: %+v", got)
			}
			check.Must(t, p.verify(program))
		})
	}
}

func none(*programmer) *region.Image { return nil }

func reboot(p *programmer) *programmer {
	p.boot = otherBoot
	return p.process()
}

func showing(afu string) func(p *programmer) *programmer {
	return func(p *programmer) *programmer {
		p.Set(fpgasim.Set{AFU: &afu})
		return p
	}
}

// TestNothingOpened: what can be known before is refused before anything is opened, and nothing is noted.
func TestNothingOpened(t *testing.T) {
	good := gbs(shell, nlb3, "", 1000)
	for _, tc := range []struct {
		name   string
		change func(p *programmer, image *region.Image)
		cause  error
		words  []string
	}{
		{
			name: "another shell's", cause: backend.ErrInterface, words: []string{otherShell, shell},
			change: func(p *programmer, image *region.Image) { *image = *p.keep(gbs(otherShell, nlb3, "", 1000)) },
		},
		{
			name: "it says that it is of this shell", cause: region.ErrImage, words: []string{otherShell},
			change: func(p *programmer, image *region.Image) {
				*image = *p.keep(gbs(otherShell, nlb3, "", 1000))
				image.InterfaceID = shell
			},
		},
		{
			name: "another accelerator than it was said to be", cause: region.ErrImage, words: []string{nlb0, nlb3},
			change: func(_ *programmer, image *region.Image) { image.AFUID = nlb0 },
		},
		{
			name: "tampered", cause: backend.ErrDigest,
			change: func(p *programmer, image *region.Image) {
				bad := slices.Clone(good)
				bad[len(bad)-1] ^= 1
				p.files[image.Digest] = bad
			},
		},
		{
			name: "truncated", cause: backend.ErrDigest,
			change: func(p *programmer, image *region.Image) { p.files[image.Digest] = good[:len(good)-1] },
		},
		{
			name: "longer", cause: backend.ErrDigest,
			change: func(p *programmer, image *region.Image) { p.files[image.Digest] = append(slices.Clone(good), 0) },
		},
		{
			name: "empty", cause: region.ErrImage,
			change: func(p *programmer, image *region.Image) { p.files[image.Digest] = nil },
		},
		{
			name: "no bitstream", cause: region.ErrImage,
			change: func(p *programmer, image *region.Image) {
				image.Digest = digest([]byte("#!/bin/sh"))
				p.files[image.Digest] = []byte("#!/bin/sh")
			},
		},
		{
			name: "not fetched", cause: os.ErrNotExist,
			change: func(p *programmer, image *region.Image) { delete(p.files, image.Digest) },
		},
		{
			name: "the card was changed", cause: backend.ErrInterface, words: []string{otherShell},
			change: func(p *programmer, _ *region.Image) { p.Set(fpgasim.Set{Interface: new(otherShell)}) },
		},
		{
			name: "a region without an interface", cause: backend.ErrInterface,
			change: func(p *programmer, _ *region.Image) { p.Set(fpgasim.Set{Interface: new("")}) },
		},
		{
			name: "a region of all f", cause: backend.ErrInterface,
			change: func(p *programmer, _ *region.Image) { p.Set(fpgasim.Set{Interface: new(allF)}) },
		},
		{
			name: "gone", cause: region.ErrGone,
			change: func(p *programmer, _ *region.Image) { delete(p.regions, first) },
		},
		{
			name: "of another build", words: []string{"upgrade"},
			change: func(p *programmer, _ *region.Image) { p.regions[first].Backend = "later" },
		},
		{
			name: "no region at all", words: []string{"no region"},
			change: func(p *programmer, _ *region.Image) { p.regions[first] = nil },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, machine(card(1)))
			image := p.keep(slices.Clone(good))
			tc.change(p, image)
			p.asks(nil, func() {
				for _, m := range []region.Mode{region.ModeAlways, region.ModeIfDifferent} {
					wants(t, p.apply(p.program(ours(), image, mode(m))), tc.cause, tc.words...)
				}
			})
			p.holds(region.Content{})
			if len(p.attempts) > 0 {
				t.Errorf("reported %+v, and nothing was tried", p.attempts)
			}
		})
	}
}

// TestAOCX: the card gets what the file packs, and two that share an AFU id are told apart by their digests.
func TestAOCX(t *testing.T) {
	p := start(t, machine(card(1)))
	one, other := p.keep(aocx(t, gbs(shell, nlb3, "", 5000))), p.keep(aocx(t, gbs(shell, nlb3, "", 6000)))
	if one.AFUID != other.AFUID || one.Digest == other.Digest {
		t.Fatalf("%+v and %+v do not show what this is about", one, other)
	}
	check.Must(t, p.apply(p.program(ours(), one)))
	p.asks(lines(opened(0), reset(0)), func() { check.Must(t, p.apply(p.program(ours(), one, withReset))) })
	check.Must(t, p.apply(p.program(ours(), other)))
	want := []string{hexDigest(fpgasim.Image(shell, nlb3, 5000)), hexDigest(fpgasim.Image(shell, nlb3, 6000))}
	if diff := cmp.Diff(want, p.programmings()); diff != "" {
		t.Errorf("programmed (-want +got):\n%s", diff)
	}
	p.holds(held(other, ours()))
}

// TestMemoryOfImages: a small file that unpacks to more than the memory for images is refused before it is copied. Others give back what
// they took of it, also those that are refused.
func TestMemoryOfImages(t *testing.T) {
	p := start(t, machine(card(1)))
	small, large := p.keep(aocx(t, gbs(shell, nlb3, "", 5000))), p.keep(aocx(t, gbs(shell, nlb3, "", 100_000)))
	wrong := *small
	wrong.AFUID = nlb0
	p.room = 10_000
	p = p.later()
	for range 3 {
		check.WantErr(t, p.apply(p.program(ours(), large)), nil, "takes more memory", "packed and unpacked", "at most 10000")
		check.WantErr(t, p.apply(p.program(ours(), &wrong)), region.ErrImage)
		check.Must(t, p.apply(p.program(ours(), small, withReset)))
	}
}

// TestIDOfTheFile: where nobody but the file states the AFU id, as with an OpenCL program that a claim names by reference, its digest
// stands for it. A region that must hold such an image is known by the digest alone.
func TestIDOfTheFile(t *testing.T) {
	p := start(t, machine(card(1)))
	files := []*region.Image{p.keep(aocx(t, gbs(shell, nlb3, "", 5000))), p.keep(aocx(t, gbs(shell, nlb3, "", 6000)))}
	for _, image := range files {
		image.AFUID = ""
	}
	one, other := p.program(ours(), files[0]), p.program(ours(), files[1])
	never := p.program(ours(), files[0])
	never.Mode = region.ModeNever
	wants(t, p.apply(never), region.ErrOther, "not known", "bitstreamDigest")
	check.Must(t, p.apply(one), p.verify(one))
	known := held(files[0], ours())
	known.AFU = nlb3
	p.holds(known)
	p.shows(0, 0, nlb3)
	if got := p.attempts[0].Image.AFUID; got != nlb3 {
		t.Errorf("reported AFU id %q, want that of the file", got)
	}
	p.asks(lines(opened(0)), func() { check.Must(t, p.apply(one)) })
	check.Must(t, p.apply(never), p.verify(never))
	p.asks(lines(opened(0), pr(0)), func() { check.Must(t, p.apply(other)) })
	wants(t, p.apply(never), region.ErrOther, "not known", "bitstreamDigest")
}

// TestHostFile is an image that an administrator staged: read from the host's tree, through no link.
func TestHostFile(t *testing.T) {
	p := start(t, machine(card(1)))
	file := gbs(shell, nlb3, "", 1000)
	image := p.keep(file)
	delete(p.files, image.Digest)
	root := t.TempDir()
	check.Must(t, os.MkdirAll(filepath.Join(root, "srv", "fpga"), 0o755))
	check.Must(t, os.WriteFile(filepath.Join(root, "srv", "fpga", "a.gbs"), file, 0o644))
	check.Must(t, os.Symlink("a.gbs", filepath.Join(root, "srv", "fpga", "link.gbs")))
	check.Must(t, os.Symlink("/srv/fpga", filepath.Join(root, "absolute")))
	check.Must(t, os.Symlink("srv/fpga", filepath.Join(root, "relative")))
	check.Must(t, unix.Mkfifo(filepath.Join(root, "srv", "fpga", "fifo"), 0o644))
	check.Must(t, os.WriteFile(filepath.Join(filepath.Dir(root), "outside.gbs"), file, 0o644))
	for _, bad := range []string{
		"/srv/fpga/link.gbs", "/absolute/a.gbs", "/relative/a.gbs", "/../outside.gbs",
		"/srv/fpga/../../../outside.gbs", "/srv/fpga/../fpga/a.gbs",
		"srv/fpga/a.gbs", "", "/", "/srv/fpga", "/srv/fpga/", "/srv//fpga/a.gbs", "/srv/fpga/fifo", "/srv/fpga/none.gbs",
	} {
		if f, err := region.OpenHostFile(root, bad); err == nil {
			t.Errorf("%q was opened", bad)
			check.Must(t, f.Close())
		}
	}
	staged, err := region.OpenHostFile(root, "/srv/fpga/a.gbs")
	check.Must(t, err)
	if staged.Size() != int64(len(file)) {
		t.Errorf("%d bytes, want %d", staged.Size(), len(file))
	}
	check.Must(t, staged.Close())
	check.Must(t, os.MkdirAll(filepath.Join(p.dir, "root", "srv"), 0o755))
	check.Must(t, os.WriteFile(filepath.Join(p.dir, "root", "srv", "a.gbs"), file, 0o644))
	image.HostFile = "/srv/a.gbs"
	own := region.New(region.Config{
		Find: p.find, Backends: map[string]region.Backend{"dfl": dflAt(p.Root, p.state())}, Contents: p.contents,
		HostRoot: filepath.Join(p.dir, "root"), BootID: boot,
	})
	p.kinds = own.Kinds()
	check.Must(t, p.apply(p.program(ours(), image)))
	p.holds(held(image, ours()))
	check.Must(t, os.WriteFile(filepath.Join(p.dir, "root", "srv", "a.gbs"), file[1:], 0o644))
	p.asks(nil, func() { wants(t, p.apply(p.program(ours(), image)), backend.ErrDigest) })
}

// TestUntouched: the hardware or the driver says no before anything happened to the region. What was known of it stays known.
func TestUntouched(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault fpgasim.Fault
		set   fpgasim.Set
		want  []string
		cause error
		kind  backend.Kind
	}{
		{
			name: "another opener", set: fpgasim.Set{User: new(true)}, want: lines(opened(0) + " EBUSY"), cause: unix.EBUSY, kind: backend.Retryable,
		},
		{
			name: "another programs", fault: fpgasim.Fault{On: fpgasim.OnPR, Errno: "EBUSY"},
			want: lines(opened(0), pr(0, "EBUSY")), cause: unix.EBUSY, kind: backend.Retryable,
		},
		{
			name: "no memory", fault: fpgasim.Fault{On: fpgasim.OnPR, Errno: "ENOMEM"},
			want: lines(opened(0), pr(0, "ENOMEM")), cause: unix.ENOMEM, kind: backend.Retryable,
		},
		{
			name: "port released", fault: fpgasim.Fault{On: fpgasim.OnPR, Errno: "ENODEV"},
			want: lines(opened(0), pr(0, "ENODEV")), cause: unix.ENODEV, kind: backend.Terminal,
		},
		{
			name: "unplugged before", fault: fpgasim.Fault{On: fpgasim.OnOpen, Errno: "ENODEV"},
			want: lines(opened(0) + " ENODEV"), cause: unix.ENODEV, kind: backend.Terminal,
		},
		{
			name: "no such port", fault: fpgasim.Fault{On: fpgasim.OnPR, Errno: "EINVAL"},
			want: lines(opened(0), pr(0, "EINVAL")), cause: unix.EINVAL, kind: backend.Terminal,
		},
		{name: "thermal stop", set: fpgasim.Set{Power: new(6)}, want: lines(opened(0)), cause: dfl.ErrPower, kind: backend.Retryable},
		{
			name: "errors that cannot be cleared", set: fpgasim.Set{Errors: new(uint64(1))},
			fault: fpgasim.Fault{On: fpgasim.OnClear, Errno: "EBUSY"},
			want:  lines(opened(0), `write errors "0x1" EBUSY`), cause: unix.EBUSY, kind: backend.Retryable,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, machine(card(1)))
			before := p.program(next(), p.image(nlb0))
			check.Must(t, errors.Join(p.apply(before), p.undo(before)))
			known := p.content()
			p.Set(tc.set)
			if tc.fault.On != "" {
				p.Fault(tc.fault)
			}
			program := p.program(ours(), p.image(nlb3), released(region.ReleaseBlank, p.blank()))
			p.asks(tc.want, func() {
				err := p.apply(program)
				if wants(t, err, tc.cause); backend.KindOf(err) != tc.kind {
					t.Errorf("%v is %s, want %s", err, backend.KindOf(err), tc.kind)
				}
			})
			if diff := cmp.Diff(known, p.content()); diff != "" {
				t.Errorf("what is known changed (-want +got):\n%s", diff)
			}
			p.shows(0, 0, nlb0)
			p.asks(nil, func() { check.Must(t, p.undo(program)) })
			no, zero, cleared := false, 0, uint64(0)
			p.Set(fpgasim.Set{User: &no, Power: &zero, Errors: &cleared})
			check.Must(t, p.apply(program))
			p.shows(0, 0, nlb3)
		})
	}
}

// TestPortReleased to a virtual function: there is nothing to open any more.
func TestPortReleased(t *testing.T) {
	p := start(t, machine(card(2)))
	host, err := dfl.Open(p.Root, dfl.Options{PlainNodes: true})
	check.Must(t, err)
	defer func() { check.Must(t, host.Close()) }()
	r := p.regions[first].DFL
	port := dfl.Port{Name: r.Port, FMENode: r.EngineNode, ID: r.PortID, LockFile: filepath.Join(p.dir, "lock")}
	check.Must(t, host.ReleasePort(t.Context(), port))
	p.asks(nil, func() {
		err := p.apply(p.program(ours(), p.image(nlb3)))
		if wants(t, err, os.ErrNotExist); backend.KindOf(err) != backend.Terminal {
			t.Errorf("%v is %s, want terminal", err, backend.KindOf(err))
		}
	})
	p.holds(region.Content{})
	check.Must(t, p.apply(p.program(ours(), p.image(nlb3), at(name(0, 1)))))
	p.shows(0, 1, nlb3)
}

// TestEnabledLate: a port may need some time after it was programmed.
func TestEnabledLate(t *testing.T) {
	p := start(t, machine(card(1)))
	p.ways = map[string]region.Backend{"dfl": dflWithin(p.Root, p.state(), time.Minute)}
	p = p.process()
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Busy: 4})
	image := p.image(nlb3)
	p.asks(lines(opened(0), pr(0)), func() { check.Must(t, p.apply(p.program(ours(), image))) })
	p.holds(held(image, ours()))
}

// TestHangs: the card takes long and the call is over meanwhile. What it did is noted, so that the next call finds it.
func TestHangs(t *testing.T) {
	p := start(t, machine(card(1)))
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	image := p.image(nlb3)
	program := p.program(ours(), image)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.kinds.Apply(ctx, p.step(program)) }()
	p.Await(1, isProgramming)
	if c := p.content(); !c.Unknown || c.Claim != ours().UID {
		t.Errorf("while it is being programmed: %+v, want unknown, by the claim", c)
	}
	cancel()
	p.Go()
	check.Must(t, <-ended)
	p.holds(held(image, ours()))
	p.asks(lines(opened(0)), func() { check.Must(t, p.apply(program)) })
}

// TestHangsTooLong: the driver waits for the hardware longer than the call, and then gives up. The call is over, so there is no second
// attempt in it.
func TestHangsTooLong(t *testing.T) {
	p := start(t, machine(card(1)))
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Errno: "ETIMEDOUT", Hold: true})
	program := p.program(ours(), p.image(nlb3))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.asks(lines(opened(0), pr(0, "ETIMEDOUT")), func() {
		ended := make(chan error, 1)
		go func() { ended <- p.kinds.Apply(ctx, p.step(program)) }()
		p.Await(1, isProgramming)
		cancel()
		p.Go()
		err := <-ended
		if wants(t, err, unix.ETIMEDOUT, "may hold anything"); backend.KindOf(err) != backend.Unknown {
			t.Errorf("%v is %s, want unknown", err, backend.KindOf(err))
		}
	})
	if c := p.content(); !c.Unknown || c.Claim != ours().UID {
		t.Errorf("afterwards: %+v, want unknown, by the claim", c)
	}
}

// TestEndsWhileCopied: a call that is over while the image is copied says so, and nothing of the image.
func TestEndsWhileCopied(t *testing.T) {
	p := start(t, machine(card(1)))
	program := p.program(ours(), p.image(nlb3))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.asks(nil, func() {
		err := p.kinds.Apply(ctx, p.step(program))
		if wants(t, err, context.Canceled, program.Image.Origin); backend.KindOf(err) != backend.Retryable || errors.Is(err, region.ErrImage) {
			t.Errorf("%v is %s, want retryable, and not the image's fault", err, backend.KindOf(err))
		}
	})
	check.Must(t, p.apply(program))
}

// TestTimeout: a claim's own limit ends the waiting for a card that others program, and nothing is opened.
func TestTimeout(t *testing.T) {
	p := start(t, machine(card(2)))
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	ended := make(chan error, 1)
	go func() { ended <- p.apply(p.program(next(), p.image(nlb3))) }()
	p.Await(1, isProgramming)
	p.asks(nil, func() {
		check.GrowingLimit(t, "the claim waits for the card", func(limit time.Duration) bool {
			err := p.process().apply(p.program(ours(), p.image(nlb3), at(name(0, 1)), func(x *region.Program) { x.Timeout = limit }))
			wants(t, err, nil, fmt.Sprintf("not programmed within %s", limit))
			if !errors.Is(err, filelock.ErrHeld) {
				return false // it was over before
			}
			if backend.KindOf(err) != backend.Retryable {
				t.Errorf("%v is %s, want retryable", err, backend.KindOf(err))
			}
			return true
		})
	})
	p.Go()
	check.Must(t, <-ended)
}

// TestTwoPorts of one engine get what each was asked for, one after the other, though the first of them needs nothing.
func TestTwoPorts(t *testing.T) {
	p := start(t, machine(card(2)))
	one, two := p.image(nlb3), p.image(nothing)
	check.Must(t, p.apply(p.program(ours(), one)))
	p.asks(lines(opened(0), opened(1), pr(1)), func() {
		check.Must(t, p.apply(p.program(ours(), one)))
		check.Must(t, p.apply(p.program(ours(), two, at(name(0, 1)))))
	})
	p.shows(0, 0, nlb3)
	p.shows(0, 1, nothing)

	errs := make(chan error, 2)
	for i, image := range []*region.Image{two, one} {
		go func() { errs <- p.kinds.Apply(t.Context(), p.step(p.program(ours(), image, at(name(0, i))))) }()
	}
	check.Must(t, errors.Join(<-errs, <-errs))
	p.shows(0, 0, nothing)
	p.shows(0, 1, nlb3)
	inside := false
	for _, e := range p.Trace() {
		if e.Request != fpgasim.OnPR {
			continue
		}
		if begins := e.Op == "ioctl"; begins == inside {
			t.Fatalf("two were programmed at once: %v", p.traced())
		} else if inside = begins; e.Errno != "" {
			t.Errorf("they met: %v", e)
		}
	}
}

// TestTwoCards with one interface id: each gets its own image.
func TestTwoCards(t *testing.T) {
	p := start(t, machine(card(1), card(1)))
	check.Must(t, p.apply(p.program(ours(), p.image(nlb3), at(name(1, 0)))))
	p.shows(0, 0, nlb0)
	p.shows(1, 0, nlb3)
	check.Must(t, p.apply(p.program(ours(), p.image(nothing))))
	p.shows(0, 0, nothing)
	p.shows(1, 0, nlb3)
	want := []string{"dev/dfl-fme.1", "dev/dfl-fme.0"}
	var got []string
	for _, e := range p.Trace() {
		if isProgramming(e) {
			got = append(got, e.Path)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programmed by (-want +got):\n%s", diff)
	}
}

// TestVerify notices what happened to a region since, without opening anything.
func TestVerify(t *testing.T) {
	p := start(t, machine(card(1)))
	program := p.program(ours(), p.image(nlb3))
	wants(t, p.verify(program), region.ErrUnknownState)
	check.Must(t, p.apply(program))
	p.asks(nil, func() {
		check.Must(t, p.verify(program))
		p.Set(fpgasim.Set{User: new(true)})
		check.Must(t, p.verify(program))
		p.Set(fpgasim.Set{AFU: new(nlb0)})
		wants(t, p.verify(program), nil, nlb0, nlb3, "delete the pod")
		p.Set(fpgasim.Set{AFU: new(nlb3)})
		wants(t, p.verify(p.program(theirs(), p.image(nlb3))), region.ErrUnknownState)
		delete(p.regions, first)
		wants(t, p.verify(program), region.ErrGone)
	})
}

// TestParametersOfAStep that are none are an error, not nothing to do.
func TestParametersOfAStep(t *testing.T) {
	p := start(t, machine(card(1)))
	for kind, k := range p.kinds {
		for _, act := range []func() error{
			func() error { return k.Apply(t.Context(), []byte(`{"device":7}`)) },
			func() error {
				if kind == region.ScrubKind {
					return errors.New("undoing it does nothing")
				}
				return k.Undo(t.Context(), []byte(`[]`))
			},
		} {
			if err := act(); err == nil {
				t.Errorf("%s accepts anything", kind)
			}
		}
	}
	bad := p.program(ours(), p.image(nlb3), at("../../etc/passwd"))
	p.regions[bad.Device] = p.regions[first]
	p.asks(lines(opened(0)), func() { wants(t, p.apply(bad), nil, "device name") })
	if entries, err := os.ReadDir(p.state()); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return strings.Contains(e.Name(), "passwd")
	}) {
		t.Errorf("%v, %v", entries, err)
	}
}
