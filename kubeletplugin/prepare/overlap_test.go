// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// hostDevice is a device of the admin's configuration: a directory, or a node with numbers.
func hostDevice(name, directory string, numbers ...int64) device.Device {
	d := device.Device{Kind: device.KindHost, Name: name}
	if directory != "" {
		d.Edits.Mounts = []container.Mount{{HostPath: directory, ContainerPath: "/mnt/localssd/" + name}}
	}
	if len(numbers) == 2 {
		d.Edits.Nodes = []container.Node{{Path: "/dev/" + name, Major: numbers[0], Minor: numbers[1], Permissions: "rw"}}
	}
	return d
}

// partOf is a device that takes a number of its card's two slices.
func partOf(card, name string, minor int64, slices string) device.Device {
	d := gpu(name, minor)
	d.Card, d.Consumes = card, map[string]resourceapi.Counter{"slices": {Value: resource.MustParse(slices)}}
	return d
}

// TestOneThingOneClaim: whatever the scheduler allocated, a claim does not get what another claim holds by another name, and the data of
// the first stays.
func TestOneThingOneClaim(t *testing.T) {
	const ssd0 = "/mnt/disks/ssd0"
	for name, tc := range map[string]struct {
		before, after machine
		held, asked   apiResult
		free          bool
	}{
		"a directory was renamed": {machine{ssd("ssd0")}, machine{hostDevice("disk0", ssd0)}, aDisk("ssd0"), aDisk("disk0"), false},
		"one inside it": {
			machine{ssd("ssd0")}, machine{ssd("ssd0"), hostDevice("sub", ssd0+"/sub")}, aDisk("ssd0"), aDisk("sub"), false,
		},
		"one around it": {machine{ssd("ssd0")}, machine{ssd("ssd0"), hostDevice("all", "/mnt/disks")}, aDisk("ssd0"), aDisk("all"), false},
		"one that begins alike": {
			machine{ssd("ssd0")}, machine{ssd("ssd0"), hostDevice("ssd00", ssd0+"0")}, aDisk("ssd0"), aDisk("ssd00"), true,
		},
		"a node was renamed": {
			machine{hostDevice("tty0", "", 188, 0)}, machine{hostDevice("tty1", "", 188, 0)}, aDisk("tty0"), aDisk("tty1"), false,
		},
		"another node": {
			machine{hostDevice("tty0", "", 188, 0)}, machine{hostDevice("tty1", "", 188, 1)}, aDisk("tty0"), aDisk("tty1"), true,
		},
		"the whole of a part": {
			machine{partOf("card", "part", 0, "1"), partOf("card", "whole", 1, "2")}, nil, aGPU("part"), aGPU("whole"), false,
		},
		"a part of a whole": {
			machine{partOf("card", "part", 0, "1"), partOf("card", "whole", 1, "2")}, nil, aGPU("whole"), aGPU("part"), false,
		},
		"two parts": {machine{partOf("card", "one", 0, "1"), partOf("card", "two", 1, "1")}, nil, aGPU("one"), aGPU("two"), true},
		"parts of two cards": {
			machine{partOf("card", "one", 0, "2"), partOf("other", "two", 1, "2")}, nil, aGPU("one"), aGPU("two"), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			check.Must(t, os.MkdirAll(filepath.Join(s.dir, ssd0, "sub"), 0o755), os.MkdirAll(filepath.Join(s.dir, ssd0+"0"), 0o755))
			s.setMachine(tc.before)
			s.prepare(allocated("u1", tc.held))
			data := s.write("ssd0")
			if tc.after != nil {
				s.setMachine(tc.after)
				s = s.restart()
			}
			second := allocated("u2", tc.asked)
			s.put(second)
			_, err := s.Prepare(t.Context(), second, s.now())
			overlap, refused := errors.AsType[*conflict.OverlapError](err)
			switch {
			case tc.free && err != nil, !tc.free && !refused:
				t.Errorf("error %v", err)
			case refused && (overlap.Owner.UID != "u1" || !strings.Contains(err.Error(), "retried until") || Reason(err) != "DeviceInUse"):
				t.Errorf("error %v", err)
			}
			s.unprepare("u2")
			if _, err := os.Stat(data); err != nil && tc.held.Device == "ssd0" {
				t.Errorf("the end of the second claim took the first one's data: %v", err)
			}
			s.heldBy("u1", tc.held)
			s.unprepare("u1")
			check.Must(t, os.MkdirAll(filepath.Join(s.dir, ssd0, "sub"), 0o755))
			s.prepare(second)
		})
	}
}

// TestLeavesWhilePlanned: a device that leaves the machine while its claim is planned is not given, since nobody can tell what overlaps it.
// It left because another claim got a part of it, and nothing but that keeps the two apart.
func TestLeavesWhilePlanned(t *testing.T) {
	s := newSite(t)
	part, whole := partOf("card", "part", 0, "1"), partOf("card", "whole", 1, "2")
	s.setMachine(machine{part, whole})
	s.prepare(allocated("u1", aGPU("part")))
	s.effects.plan = func(context.Context, Request) (Contribution, error) {
		s.setMachine(machine{part})
		return Contribution{}, nil
	}
	if _, err := s.ask(allocated("u2", aGPU("whole"))); !errors.Is(err, ErrDeviceGone) {
		t.Errorf("error %v, want that the device left", err)
	}
	s.heldBy("u1", aGPU("part"))
	s.heldBy("", aGPU("whole"))
}

// TestSlowRenewalDelaysNobody: after a reboot a step of one claim hangs, or the undoing of a step that the claim needs no more. Other
// claims for host devices get theirs meanwhile.
func TestSlowRenewalDelaysNobody(t *testing.T) {
	for hangs, now := range map[string]string{"apply": "/mnt/disks/ssd0", "undo": "/mnt/disks/other"} {
		t.Run(hangs, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				check.Must(t, os.MkdirAll(s.disk("other"), 0o755))
				slow, quick := allocated("u1", aDisk("ssd0")), allocated("u2", aDisk("ssd1"))
				s.prepare(slow)
				s.prepare(quick)
				s = s.reboot()
				s.setMachine(machine{hostDevice("ssd0", now), ssd("ssd1")})
				g := s.guard("ssd0")
				renewed := s.asking(slow)
				s.at(g, hangs)
				_, err := s.ask(quick)
				check.Must(t, err)
				s.inPhase("u2", record.Prepared)
				g.open()
				got := receive(t, renewed)
				check.Must(t, got.err)
				s.isWhole(got.record)
			})
		})
	}
}

// TestOverlapNamesNobody: a claim of another namespace is not named.
func TestOverlapNamesNobody(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	s.setMachine(machine{hostDevice("disk0", "/mnt/disks/ssd0")})
	c := allocated("u2", aDisk("disk0"))
	c.Namespace = "team-b"
	s.put(c)
	_, err := s.Prepare(t.Context(), c, s.now())
	if err == nil || strings.Contains(err.Error(), "u1") || strings.Contains(err.Error(), "team-a") {
		t.Errorf("error %v", err)
	}
}

// TestDirectoryReplaced: the path of a directory leads to another one, as when a disk is not mounted. Its claim can neither go on nor end,
// another cannot begin, and nothing is emptied, until the directory is back or an administrator gives up what is in it.
func TestDirectoryReplaced(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			s := newSite(t)
			c := allocated("u1", aDisk("ssd0"))
			toldApart(t, s.prepare(c))
			data := s.write("ssd0")
			aside, theirs := s.disk("ssd0")+"-aside", filepath.Join(s.disk("ssd0"), "theirs")
			check.Must(t, os.Rename(s.disk("ssd0"), aside), os.Mkdir(s.disk("ssd0"), 0o755), os.WriteFile(theirs, nil, 0o600))
			_, err := s.ask(c)
			check.WantErr(t, err, step.ErrReplaced, "/mnt/disks/ssd0")
			s = s.reboot()
			_, err = s.ask(c)
			check.WantErr(t, err, step.ErrReplaced, "/mnt/disks/ssd0")
			if Reason(err) != "DeviceMoved" {
				t.Errorf("reason %q", Reason(err))
			}
			s.Abandon(t.Context(), []string{"ssd0"}) // too early: its claim is not being released
			for _, names := range [][]string{nil, {"ssd1"}} {
				s.Abandon(t.Context(), names)
				_, err = s.Unprepare(t.Context(), "u1", s.now())
				check.WantErr(t, err, step.ErrReplaced, "/mnt/disks/ssd0", "fettle.dev/recover=ssd0", s.Node)
				if _, err := s.ask(allocated("u2", aDisk("ssd0"))); Reason(err) != "DeviceInUse" {
					t.Errorf("another claim: %v", err)
				}
			}
			if !there(theirs) {
				t.Error("another directory was emptied")
			}
			if lost {
				s.Abandon(t.Context(), []string{"ssd0"})
				s.reasons()
			} else {
				check.Must(t, os.Remove(theirs), os.Remove(s.disk("ssd0")), os.Rename(aside, s.disk("ssd0")))
			}
			s.unprepare("u1")
			if lost != there(theirs) || there(data) {
				t.Errorf("the file of the directory that is there now: %t; that of the claim: %t", there(theirs), there(data))
			}
			if lost && !slices.Contains(s.reasons(), "Abandoned u1") {
				t.Error("nobody was told that data was given up")
			}
			s.prepare(allocated("u2", aDisk("ssd0")))
			check.Must(t, os.Rename(s.disk("ssd0"), aside+"2"), os.Mkdir(s.disk("ssd0"), 0o755))
			if _, err := s.Unprepare(t.Context(), "u2", s.now()); !errors.Is(err, step.ErrReplaced) {
				t.Errorf("what was given up for one claim counts for the next: %v", err)
			}
		})
	}
}

// toldApart skips a test where nothing tells the directory of a claim from another, as on a tmpfs.
func toldApart(t *testing.T, r *record.Record) {
	t.Helper()
	for _, s := range r.Steps {
		params, err := step.Decode[hostdir.Params](s.Params)
		check.Must(t, err)
		if s.Kind == hostdir.StepKind && params.Place.Inode == 0 {
			t.Skipf("a file system that keeps no identity of directories: %s", params.Place)
		}
	}
}

// TestOverlapOfDeleted: what a refusal says of a holder that was deleted under its pod is the same where the holder has the device by
// another name.
func TestOverlapOfDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		hold := allocated("u1", aDisk("ssd0"))
		s.prepare(hold)
		s.follow()
		s.drop(hold)
		s.setMachine(machine{hostDevice("disk0", "/mnt/disks/ssd0")})
		next := allocated("u2", aDisk("disk0"))
		next.Namespace = "team-b"
		if _, err := s.ask(next); err == nil || HeldByDeletedClaim(err) {
			t.Fatalf("error %v", err)
		}
		time.Sleep(2 * unprepareGrace)
		synctest.Wait()
		_, err := s.ask(next)
		if !HeldByDeletedClaim(err) || Reason(err) != "DeviceInUse" {
			t.Fatalf("error %v, want one about a deleted claim", err)
		}
		for _, want := range []string{"disk0", "ssd0", "another claim that was deleted while its pod runs", "delete the pod"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
	})
}

// TestDirectoryIsAnotherOne: while a claim holds a directory by a name, the name may come to mean another one. Its pod does not get that,
// and what the claim did is undone where it was done.
func TestDirectoryIsAnotherOne(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aDisk("ssd0"))
	s.prepare(c)
	data := s.write("ssd0")
	other := filepath.Join(s.dir, "mnt", "disks", "other")
	check.Must(t, os.MkdirAll(other, 0o755), os.WriteFile(filepath.Join(other, "theirs"), []byte("x"), 0o600))
	s.setMachine(machine{hostDevice("ssd0", "/mnt/disks/other")})
	s = s.restart()
	_, err := s.Prepare(t.Context(), c, s.now())
	if moved, ok := errors.AsType[*conflict.MovedError](err); !ok || !strings.Contains(moved.Error(), "/mnt/disks/ssd0") ||
		!strings.Contains(moved.Error(), "/mnt/disks/other") {
		t.Errorf("error %v, want one that names both directories", err)
	}
	if Reason(err) != "DeviceMoved" {
		t.Errorf("reason %q", Reason(err))
	}
	s.unprepare("u1")
	if there(data) || !there(filepath.Join(other, "theirs")) {
		t.Error("the claim's data is still there, or the other directory was emptied")
	}
}

// TestDirectoryByAnotherPath: a directory that a claim holds is not given to another claim by a second path to it, and not to its own claim
// where the path leads elsewhere. After a reboot the numbers of file systems say nothing.
func TestDirectoryByAnotherPath(t *testing.T) {
	s := newSite(t)
	placed := func(name string, at container.Place) device.Device {
		d := ssd(name)
		d.Place = at
		return d
	}
	held := container.Place{FileSystem: "8:1", Path: "/disk", Directory: "8:1 12"}
	s.setMachine(machine{placed("ssd0", held), ssd("ssd1")})
	c := allocated("u1", aDisk("ssd0"))
	s.prepare(c)
	for what, at := range map[string]container.Place{
		"a second path": {FileSystem: "8:1", Path: "/disk"}, "inside": {FileSystem: "8:1", Path: "/disk/in"},
		"around": {FileSystem: "8:1", Path: "/"}, "renamed": {FileSystem: "8:1", Path: "/other", Directory: "8:1 12"},
	} {
		s.setMachine(machine{placed("ssd0", held), placed("ssd1", at)})
		if _, err := s.ask(allocated("u2", aDisk("ssd1"))); Reason(err) != "DeviceInUse" {
			t.Errorf("%s: error %v", what, err)
		}
	}
	s.setMachine(machine{placed("ssd0", container.Place{FileSystem: "8:1", Path: "/disk", Directory: "8:1 13"}), ssd("ssd1")})
	if _, err := s.ask(c); Reason(err) != "DeviceMoved" {
		t.Errorf("error %v", err)
	}
	s = s.reboot()
	s.setMachine(machine{ssd("ssd0"), placed("ssd1", held)})
	s.prepare(allocated("u2", aDisk("ssd1")))
}

// TestMovedDeviceLeavesOthersPresets: two claims have one preset. The device of one gets other numbers, and only that one's containers
// cannot start.
func TestMovedDeviceLeavesOthersPresets(t *testing.T) {
	for moves, numbers := range map[string][2]int64{"gpu0": {7, 1}, "gpu1": {0, 7}} {
		t.Run(moves, func(t *testing.T) {
			s := newSite(t)
			add := given{Edits: Edits{Shared: container.Edits{Env: []string{"VALUE=x"}}}, word: "x"}
			s.decisions.give = map[string]given{"gpu0": add, "gpu1": add}
			moved, stays := s.prepare(allocated("u1", aGPU("gpu0"))), s.prepare(allocated("u2", aGPU("gpu1")))
			if moves == "gpu1" {
				moved, stays = stays, moved
			}
			s.setMachine(machine{gpu("gpu0", numbers[0]), gpu("gpu1", numbers[1]), ssd("ssd0"), ssd("ssd1")})
			for range 3 {
				s.tidy()
				if !s.Specs.Has(stays.Devices[0].Added.CDIDevice) || !s.Specs.Has(stays.Devices[0].CDIDevice) {
					t.Error("the containers of the claim whose device has not moved cannot be restarted")
				}
				if s.Specs.Has(moved.Devices[0].CDIDevice) {
					t.Error("a container of the claim whose device moved would get another device")
				}
			}
		})
	}
}

// TestCallsInAnyOrder has random calls of kubelet's for three claims of two disks arrive while others are under way. A disk has one holder
// at most; and when all were answered, a claim is held if and only if no Unprepare came after the last Prepare that was answered.
func TestCallsInAnyOrder(t *testing.T) {
	random := seed.New(t)
	for range 40 {
		round := rand.New(rand.NewPCG(random.Uint64(), 0))
		inBubble(t, func(t *testing.T, s *site) {
			s.slow(round)
			for range 12 {
				s.callsAtOnce(t, round)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// slow has the steps take a random time.
func (s *site) slow(random *rand.Rand) {
	kind := s.kinds["host.scratch"]
	apply, undo := kind.Apply, kind.Undo
	pauses := make(chan time.Duration)
	own, ended := rand.New(rand.NewPCG(random.Uint64(), 0)), s.t.Context().Done() // they are used by another goroutine
	go func() {
		for {
			select {
			case pauses <- time.Duration(own.IntN(5)) * time.Millisecond:
			case <-ended:
				return
			}
		}
	}()
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		<-time.After(<-pauses)
		return apply(ctx, params)
	}
	kind.Undo = func(ctx context.Context, params json.RawMessage) error {
		<-time.After(<-pauses)
		return undo(ctx, params)
	}
	s.kinds["host.scratch"] = kind
}

// asked is one call.
type asked struct {
	uid      string
	prepares bool
	answered <-chan answer
}

func (s *site) callsAtOnce(t *testing.T, random *rand.Rand) {
	t.Helper()
	disks := map[string]apiResult{"u1": aDisk("ssd0"), "u2": aDisk("ssd0"), "u3": aDisk("ssd1")}
	var calls []asked
	for range 2 + random.IntN(6) {
		uid := fmt.Sprintf("u%d", 1+random.IntN(3))
		one := asked{uid: uid, prepares: random.IntN(2) == 0}
		if one.prepares {
			one.answered = s.asking(allocated(uid, disks[uid]))
		} else {
			one.answered = s.unpreparing(uid)
		}
		calls = append(calls, one)
		if random.IntN(2) == 0 {
			synctest.Wait()
		} else {
			time.Sleep(time.Duration(1+random.IntN(3)) * time.Millisecond) // of the bubble's clock
		}
	}
	said := map[string]string{}
	for _, one := range calls {
		err := receive(t, one.answered).err
		switch {
		case !one.prepares:
			check.Must(t, err)
			said[one.uid] = "free"
		case err == nil:
			said[one.uid] = "held"
		}
	}
	synctest.Wait()
	for uid, word := range said {
		holder := s.holders(disks[uid])
		if word == "held" && holder != uid || word == "free" && holder == uid {
			t.Errorf("the last answer says that claim %s is %s, and its disk is held by %q; calls %+v", uid, word, holder, calls)
		}
	}
}

// TestAbandonNamesDevices: what a claim left on a device that the administrator did not name is not given up.
func TestAbandonNamesDevices(t *testing.T) {
	s := newSite(t)
	toldApart(t, s.prepare(allocated("u1", aDisk("ssd0"), aDisk("ssd1"))))
	s.write("ssd1")
	for _, name := range []string{"ssd0", "ssd1"} {
		check.Must(t, os.Rename(s.disk(name), s.disk(name)+"-aside"), os.Mkdir(s.disk(name), 0o755))
	}
	_, err := s.Unprepare(t.Context(), "u1", s.now())
	check.WantErr(t, err, step.ErrReplaced, "fettle.dev/recover=ssd1")
	s.Abandon(t.Context(), []string{"ssd0"})
	_, err = s.Unprepare(t.Context(), "u1", s.now())
	check.WantErr(t, err, step.ErrReplaced, "/mnt/disks/ssd1")
	check.Must(t, os.Remove(s.disk("ssd1")), os.Rename(s.disk("ssd1")+"-aside", s.disk("ssd1")))
	s.unprepare("u1")
	if there(filepath.Join(s.disk("ssd1"), "data")) {
		t.Error("the data of a disk that is back is still there")
	}
}
