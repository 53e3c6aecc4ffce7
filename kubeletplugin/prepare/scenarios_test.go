// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// The shell of all cards, what they hold at the start, and what claims want of them.
const (
	cardShell = "69528db6eb31577a8c3668f9faa081f6"
	nlb0      = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3      = "f7df405cbd7acf7222f144b0b93acd18"
	blankAFU  = "b1a2c3d4e5f60718293a4b5c6d7e8f90"
)

func TestMain(m *testing.M) {
	fpgasim.Main()
	os.Exit(m.Run())
}

// rig is a node with cards that react, and an engine that programs them. Its regions are called card-N-port-M.
type rig struct {
	*site
	*fpgasim.Sim
	files map[string][]byte
	// wants is the accelerator that claims want of a region, nlb3 where it is not named.
	wants map[string]string
}

// newRig is a node with a card for each number, of so many ports.
func newRig(t *testing.T, ports ...int) *rig {
	t.Helper()
	var m fpgasim.Machine
	for _, n := range ports {
		var c fpgasim.Card
		for range n {
			c.Ports = append(c.Ports, fpgasim.Port{Interface: cardShell, AFU: nlb0, Debug: new(int32)})
		}
		m.Cards = append(m.Cards, c)
	}
	g := &rig{Sim: fpgasim.Start(t, m), files: map[string][]byte{}, wants: map[string]string{}}
	g.image(nlb3)
	g.image(blankAFU)
	p := newPlace(t)
	p.setMachine(regionsOf(m))
	g.site = g.process(p)
	return g
}

func regionsOf(m fpgasim.Machine) (out machine) {
	for i, c := range m.Cards {
		for j := range c.Ports {
			at := m.Place(i, j)
			out = append(out, device.Device{
				Kind: device.KindFPGA, Name: fmt.Sprintf("card-%d-port-%d", i, j),
				Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/" + at.Name, Major: 245, Minor: int64(len(out)), Permissions: "rw"}}},
				Region: &fpga.Region{Backend: "dfl", Card: fmt.Sprintf("0000:%02x:00.0", i), InterfaceID: cardShell, DFL: &fpga.DFLRegion{
					Port: at.Name, PortID: at.ID, Node: at.Node, EngineNode: at.FMENode, Attributes: at.Attributes, Compat: at.Region,
					Manager: at.Manager,
				}},
			})
		}
	}
	return out
}

// blank is the image that wipes a region and clears its card's memory.
func (g *rig) blank() *region.Image {
	image := *g.image(blankAFU)
	image.ClearTime = time.Millisecond
	return &image
}

// process is the plugin's next process on the node.
func (g *rig) process(p *place) *site {
	p.t.Helper()
	s := p.newEngine()
	contents := region.OpenContents(p.files.FS(disk.OS{}), s.statePath("regions"))
	check.Must(p.t, contents.Make())
	own := region.New(region.Config{
		Find: func(name string) (*fpga.Region, error) {
			dev, _ := p.seen().Find(device.KindFPGA, name)
			return dev.Region, nil
		},
		Backends: map[string]region.Backend{"dfl": region.DFL(func() (*dfl.Host, error) {
			// fragile: the first and the last look are made, however late they are
			return dfl.Open(g.Root, dfl.Options{PlainNodes: true, Settle: 60 * time.Millisecond})
		}, s.statePath("regions"))},
		Contents: contents, Open: g.open, HostRoot: g.Root, BootID: s.BootID,
	})
	maps.Copy(s.kinds, own.Kinds())
	s.effects.kinds = own.Kinds()
	s.effects.plan = func(ctx context.Context, r Request) (out Contribution, err error) {
		for i := range r.Allocation.Results {
			dev, _ := r.Find(&r.Allocation.Results[i])
			of := region.Claim{Namespace: r.Claim.Namespace, Name: r.Claim.Name, UID: string(r.Claim.UID)}
			afu, ok := g.wants[dev.Name]
			if !ok {
				afu = nlb3
			}
			image := g.image(afu)
			set := []region.Param{{Name: dfl.ParamDebug, Value: 3}}
			params, err := own.PlanParams(ctx, dev.Region, region.Params{Device: dev.Name, Claim: of, Set: set})
			if err != nil {
				return out, err
			}
			if earlier, ok := r.EarlierStep(step.Step{Kind: region.ParamsKind, Target: dev.Name}); ok {
				if err := params.KeepBefore(earlier); err != nil {
					return out, err
				}
			}
			for _, s := range []interface{ Step() (step.Step, error) }{
				&region.Scrub{Device: dev.Name, Claim: of, Blank: g.blank(), Required: true, Timeout: time.Minute},
				params,
				&region.Program{
					Device: dev.Name, Claim: of, Image: image, Mode: region.ModeIfDifferent, OnRelease: region.ReleaseReset,
					Blank: g.blank(), Timeout: time.Minute,
				},
			} {
				made, err := s.Step()
				if err != nil {
					return out, err
				}
				out.Steps = append(out.Steps, made)
			}
		}
		return out, nil
	}
	return s
}

// image is one for the cards, which is in the node's store unless that has something else by its digest.
func (g *rig) image(afu string) *region.Image {
	file := fpgasim.GBS(cardShell, afu, "auto", 1000)
	sum := sha256.Sum256(file)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if _, ok := g.files[digest]; !ok {
		g.files[digest] = file
	}
	return &region.Image{Digest: digest, Size: int64(len(file)), InterfaceID: cardShell, AFUID: afu, Origin: "FPGABitstream team-a/" + afu}
}

type storedFile struct{ *bytes.Reader }

func (storedFile) Close() error { return nil }

func (g *rig) open(digest string) (region.Blob, error) {
	return storedFile{bytes.NewReader(g.files[digest])}, nil
}

// next is the process after this one.
func (g *rig) next() {
	g.t.Helper()
	g.Stop()
	g.site = g.process(g.place)
	check.Must(g.t, g.Index(g.t.Context()))
}

func aRegion(name string) apiResult { return result(name, device.KindFPGA, name) }

// asks wants the machine to be asked exactly this, apart from closing, of which a FUSE server hears late.
func (g *rig) asks(want []string, act func()) {
	g.t.Helper()
	begin := len(g.Trace())
	act()
	got := []string{}
	for _, e := range g.Trace()[begin:] {
		e.Path = e.Path[strings.LastIndex(e.Path, "/")+1:]
		if e.Op != "close" {
			got = append(got, e.String())
		}
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		g.t.Errorf("asked of the machine (-want +got):\n%s", diff)
	}
}

// onPort is what is asked of a card's only port: open, reset and debug=N are short for their lines, pr and pr!ERRNO for those of a
// programming, and anything else is an accelerator id that is read.
func onPort(card int, words ...string) (out []string) {
	for _, word := range words {
		word, errno, _ := strings.Cut(word, "!")
		switch name, value, _ := strings.Cut(word, "="); name {
		case "open":
			out = append(out, fmt.Sprintf("open dfl-port.%d exclusive", card))
		case "reset":
			out = append(out, fmt.Sprintf("ioctl dfl-port.%d reset 0", card))
		case "debug":
			out = append(out, fmt.Sprintf("write debug %q", value))
		case "pr":
			fme := fmt.Sprintf("dfl-fme.%d", card)
			out = append(out, "open "+fme, "ioctl "+fme+" pr 0", strings.TrimSpace("done "+fme+" pr 0 "+errno))
		default:
			out = append(out, strings.TrimSpace(fmt.Sprintf("read afu_id %q", word)))
		}
	}
	return out
}

// content is what is known of a region.
func (g *rig) content(name string) region.Content {
	g.t.Helper()
	c, err := region.OpenContents(disk.OS{}, g.statePath("regions")).Read(name)
	check.Must(g.t, err)
	return c
}

func (g *rig) isProgramming(e fpgasim.Event) bool {
	return e.Op == "ioctl" && e.Request == fpgasim.OnPR
}

func (g *rig) programmings() (n int) {
	g.t.Helper()
	for _, e := range g.Trace() {
		if g.isProgramming(e) {
			n++
		}
	}
	return n
}

const (
	card0 = "card-0-port-0"
	card1 = "card-1-port-0"
)

// TestClaimOfRegions is what a claim does to its regions, all of it, with the machine as the witness.
func TestClaimOfRegions(t *testing.T) {
	t.Run("region by region: parameters, programming, read-back, and in reverse", func(t *testing.T) {
		g := newRig(t, 1, 1)
		g.wants[card1] = blankAFU
		life := func(card int, afu string) []string {
			return onPort(card, "open", "debug=3", "open", nlb0, "pr", afu)
		}
		g.asks(append(life(0, nlb3), life(1, blankAFU)...), func() { g.prepare(allocated("a1", aRegion(card0), aRegion(card1))) })
		g.asks(slices.Concat(onPort(0, nlb3), onPort(1, blankAFU)), func() { g.verified("a1", aRegion(card0), aRegion(card1)) })
		g.asks(append(onPort(1, "open", "reset", "open", "debug=0"), onPort(0, "open", "reset", "open", "debug=0")...), func() {
			g.unprepare("a1")
		})
		g.records()
	})
	t.Run("the first is right already, and the second is programmed", func(t *testing.T) {
		g := newRig(t, 1, 1)
		g.prepare(allocated("a1", aRegion(card0)))
		g.unprepare("a1")
		g.asks(append(onPort(0, "open", "debug=3", "open", nlb3), onPort(1, "open", "debug=3", "open", nlb0, "pr", nlb3)...), func() {
			g.prepare(allocated("a2", aRegion(card0), aRegion(card1)))
		})
	})
	t.Run("another namespace: wiped first", func(t *testing.T) {
		g := newRig(t, 1)
		g.prepare(allocated("a1", aRegion(card0)))
		g.unprepare("a1")
		g.asks(onPort(0, "open", "pr", blankAFU, blankAFU, "open", "debug=3", "open", blankAFU, "pr", nlb3), func() {
			g.prepare(ofTeamB("b1", aRegion(card0)))
		})
	})
	t.Run("the second's image is not what it was: it is not programmed, and the first is given back", func(t *testing.T) {
		g := newRig(t, 1, 1)
		g.wants[card1] = nlb0
		g.files[g.image(nlb0).Digest] = []byte("another file")
		g.asks(append(
			onPort(0, "open", "debug=3", "open", nlb0, "pr", nlb3),
			slices.Concat(onPort(1, "open", "debug=3", "open", "debug=0"), onPort(0, "open", "reset", "open", "debug=0"))...,
		), func() {
			if _, err := g.ask(allocated("a1", aRegion(card0), aRegion(card1))); !errors.Is(err, backend.ErrDigest) {
				t.Errorf("got %v, want a wrong digest", err)
			}
		})
		g.records()
		g.heldBy("", aRegion(card0), aRegion(card1))
	})
	t.Run("a reboot that the card sleeps through: in the end it has what it had before the claim", func(t *testing.T) {
		g := newRig(t, 1)
		g.prepare(allocated("a1", aRegion(card0)))
		g.clock.Reboot(time.Minute)
		g.next()
		g.prepare(allocated("a1", aRegion(card0)))
		g.asks(onPort(0, "open", "reset", "open", "debug=0"), func() { g.unprepare("a1") })
	})
	t.Run("a dead port keeps its claim, and everybody else off, until it is bound anew and blank", showDeadPort)
	t.Run("the card takes longer than a call: the next call finds it done", func(t *testing.T) {
		g := newRig(t, 1)
		g.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
		c := allocated("a1", aRegion(card0))
		g.put(c)
		ctx, giveUp := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() {
			_, err := g.Prepare(ctx, c, g.now())
			answer <- err
		}()
		g.Await(1, g.isProgramming)
		giveUp()
		for range 2 {
			err := receive(t, answer)
			if _, pending := errors.AsType[*PendingError](err); !pending || !strings.Contains(err.Error(), region.ProgramKind) {
				t.Errorf("got %v, want that the programming goes on", err)
			}
			g.Budget = 50 * time.Millisecond // fragile: the card works until it may go on, so that no limit is too short
			_, err = g.ask(c)
			answer <- err
		}
		g.Budget = patience
		g.Go()
		g.prepare(c)
		if n := g.programmings(); n != 1 {
			t.Errorf("%d programmings, want the one", n)
		}
	})
}

func ofTeamB(uid string, results ...apiResult) *resourceapi.ResourceClaim {
	c := allocated(uid, results...)
	c.Namespace = "team-b"
	return c
}

// verified asks again for a claim that is prepared.
func (g *rig) verified(uid string, results ...apiResult) {
	g.t.Helper()
	if _, err := g.ask(allocated(uid, results...)); err != nil {
		g.t.Error(err)
	}
}

// showDeadPort: the driver says that the second programming went well, and so does everything but the accelerator's id.
func showDeadPort(t *testing.T) {
	g := newRig(t, 1)
	said := g.listen()
	g.Fault(fpgasim.Fault{On: fpgasim.OnPR, Errno: "EIO", Status: "reconfig CRC error"})
	before := g.programmings()
	_, err := g.ask(allocated("a1", aRegion(card0)))
	if err == nil || !strings.Contains(err.Error(), "reconfig CRC error") || !errors.Is(err, dfl.ErrNotEnabled) {
		t.Errorf("got %v, want the CRC error and that the port is dead", err)
	}
	if n := g.programmings() - before; n != 4 {
		t.Errorf("%d programmings, want two of the claim's and two of the blank image", n)
	}
	g.inPhase("a1", record.Releasing)
	said.kept(t, "quarantine a1 "+card0)
	begun := g.programmings()
	if _, err := g.ask(allocated("a2", aRegion(card0))); err == nil {
		t.Error("another claim has the region")
	}
	if g.programmings() != begun {
		t.Error("it was programmed for another claim")
	}
	g.tidy()
	g.heldBy("a1", aRegion(card0))
	g.Set(fpgasim.Set{Rebind: true})
	g.tidy()
	said.kept(t, "clear a1 "+card0)
	g.records()
	if c := g.content(card0); c.Unknown || c.AFU != blankAFU || c.Claim != "" {
		t.Errorf("known as %+v, want blank", c)
	}
	g.prepare(allocated("a2", aRegion(card0)))
}

// kept wants the last verdict to begin so.
func (v *verdicts) kept(t *testing.T, want string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.lines) == 0 || !strings.HasPrefix(v.lines[len(v.lines)-1], want) {
		t.Errorf("verdicts %q, want the last to be %q", v.lines, want)
	}
}

// rigJob is what a child prepares.
type rigJob struct {
	Root, Dir string
	Machine   fpgasim.Machine
	UID       types.UID
}

// TestChildOfRig plays the plugin's process until it is killed.
func TestChildOfRig(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("runs as the child of other tests only")
	}
	var j rigJob
	check.Must(t, json.Unmarshal(plan.Data, &j))
	_, err := plan.Injector()
	check.Must(t, err)
	g := &rig{Sim: &fpgasim.Sim{Root: j.Root, Machine: j.Machine}, files: map[string][]byte{}, wants: map[string]string{}}
	p := newPlace(t)
	p.dir = j.Dir
	p.setMachine(regionsOf(j.Machine))
	g.site = g.process(p)
	g.prepare(allocated(string(j.UID), aRegion(card0)))
}

// TestKilledWhileProgramming: the plugin is killed while the card works, for the wiping between tenants or for the claim's own image. Until
// the card is done nobody gets the region; then it is what kubelet asks for and was read back, or blank and nobody's.
func TestKilledWhileProgramming(t *testing.T) {
	for _, during := range []string{"wiping", "programming"} {
		for _, again := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, asked again %t", during, again), func(t *testing.T) {
				g := newRig(t, 1)
				if during == "wiping" {
					g.prepare(ofTeamB("b1", aRegion(card0)))
					g.unprepare("b1")
				}
				ended := g.killed("a1")
				g.next()
				g.Budget = 100 * time.Millisecond // fragile: the card works until it may go on, so that no limit is too short
				if c := g.content(card0); !c.Unknown || c.Claim != "a1" {
					t.Errorf("known as %+v while the card works", c)
				}
				g.asks(nil, func() {
					for _, uid := range []string{"a1", "a2"} {
						if _, err := g.ask(allocated(uid, aRegion(card0))); err == nil {
							t.Errorf("claim %s is prepared while the card works", uid)
						}
					}
				})
				g.Go()
				<-ended
				g.next()
				if c := g.content(card0); !c.Unknown {
					t.Errorf("known as %+v, and nobody looked", c)
				}
				g.settles(again)
			})
		}
	}
}

// settles is what becomes of a claim that was found halfway, and of the next.
func (g *rig) settles(again bool) {
	g.t.Helper()
	if len(g.Recovering()) != 1 {
		g.t.Errorf("recovering %v, want the region", g.Recovering())
	}
	want := nlb3
	if again {
		g.prepare(allocated("a1", aRegion(card0)))
	} else {
		want = blankAFU
		g.tidy()
		g.records()
		g.heldBy("", aRegion(card0))
	}
	trace := g.Trace()
	reads := slices.DeleteFunc(trace, func(e fpgasim.Event) bool { return e.Op != "read" && e.Op != "done" })
	if last := reads[len(reads)-1]; last.Op != "read" || last.Data != want {
		g.t.Errorf("the last is %v, want that %s is read back", last, want)
	}
	if c := g.content(card0); c.Unknown || c.AFU != want || (c.Claim == "a1") != again {
		g.t.Errorf("known as %+v, want %s", c, want)
	}
	if again {
		g.unprepare("a1")
	}
	g.prepare(ofTeamB("b2", aRegion(card0)))
}

// killed prepares a claim in a process that is killed while the card works for it. What is returned is closed when the process is gone,
// which the driver delays until the card is done.
func (g *rig) killed(uid types.UID) <-chan struct{} {
	g.t.Helper()
	data, err := json.Marshal(rigJob{Root: g.Root, Dir: g.dir, Machine: g.Machine, UID: uid})
	check.Must(g.t, err)
	g.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	ctx, kill := context.WithCancel(g.t.Context())
	begun, ended := g.programmings(), make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := (fault.Child{Test: "TestChildOfRig"}).Run(ctx, fault.Plan{Data: data}); err == nil {
			g.t.Error("the child was not killed")
		}
	}()
	g.Await(begun+1, g.isProgramming)
	kill()
	return ended
}
