// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// TestScenarios are what cards and their users do, beyond what the tests of each step show. The witness is what the machine was asked.
func TestScenarios(t *testing.T) {
	for _, tc := range []struct {
		name string
		show func(t *testing.T)
	}{
		{"between tenants: wiped and read back, clocks, programmed and read back", showBetweenTenants},
		{"the id is busy and then fine: it is read until it is there", showBusyID},
		{"the card itself refuses bytes that are not what their header says", showRefusedByCard},
		{"two shells behind one engine: each port takes images of its own", showTwoShells},
		{"two cards with one interface: the one that is not right yet is programmed", showTwoCards},
		{"ids and names that are paths open nothing", showPaths},
		{"nothing is taken from the environment", showEnvironment},
		{"the driver is given sealed memory, mapped for reading", showMapped},
		{"unplugged before it is looked at, and between programming and read-back", showUnplugged},
		{"a port that a pod still has open is not wiped", showOpenBetweenTenants},
		{"too hot on release: not touched until it is cold", showHotRelease},
		{"each programming is reported with digest and claim", showReports},
	} {
		t.Run(tc.name, tc.show)
	}
}

// scrub is what comes before a claim of ours.
func (n *node) scrub(blank *region.Image) *region.Scrub {
	return &region.Scrub{Device: first, Claim: ours(), Blank: blank, Required: true, Timeout: time.Minute}
}

// usedBy makes the first region one that another claim had and gave back.
func (p *programmer) usedBy(c region.Claim, afu string) *region.Image {
	p.t.Helper()
	image := p.image(afu)
	program := p.program(c, image)
	check.Must(p.t, errors.Join(p.apply(program), p.undo(program)))
	return image
}

// askedAll is asks with the reads of the accelerator's id.
func (n *node) askedAll(want []string, act func()) {
	n.t.Helper()
	before := len(n.traced())
	act()
	if diff := cmp.Diff(want, n.traced()[before:]); diff != "" {
		n.t.Errorf("asked of the machine (-want +got):\n%s", diff)
	}
}

func read(afu string) string { return `read afu_id "` + afu + `"` }

func showBetweenTenants(t *testing.T) {
	p := start(t, withParams())
	p.usedBy(theirs(), nlb0)
	program := p.program(ours(), p.image(nlb3))
	params := p.plan(clocks(400_000, 200_000), program.Image)
	p.askedAll(lines(
		opened(0), pr(0), read(nothing), read(nothing), // again once the memory is cleared
		opened(0), `clock dfl-port.0 "0 0"`, `clock dfl-port.0 "400000 200000"`,
		opened(0), read(nothing), pr(0), read(nlb3),
	), func() { check.Must(t, errors.Join(p.apply(p.scrub(p.blank())), p.apply(params), p.apply(program))) })
	p.holds(held(program.Image, ours()))
}

func showBusyID(t *testing.T) {
	p := start(t, machine(card(1)))
	p.kinds = region.New(region.Config{ // waits as long as for a card
		Find: p.find, Backends: map[string]region.Backend{"dfl": region.DFL(func() (*dfl.Host, error) {
			return dfl.Open(p.Root, dfl.Options{PlainNodes: true})
		}, p.state())}, Contents: p.contents, Open: p.open, BootID: boot,
	}).Kinds()
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Busy: 3})
	image := p.image(nlb3)
	const busy = "read afu_id EBUSY"
	p.askedAll(lines(opened(0), read(nlb0), pr(0), busy, busy, busy, read(nlb3)), func() {
		check.Must(t, p.apply(p.program(ours(), image)))
	})
	p.holds(held(image, ours()))
}

// showRefusedByCard: no fault is injected. The header of the file is in order, and what goes to the card is not.
func showRefusedByCard(t *testing.T) {
	for words, payload := range map[string][]byte{
		"reconfig CRC error":          make([]byte, 1000),
		"reconfig incompatible image": fpgasim.Image(otherShell, nlb3, 1000),
	} {
		p := start(t, machine(card(1)))
		file := gbs(shell, nlb3, "", len(payload))
		copy(file[len(file)-len(payload):], payload)
		image := p.keep(file)
		p.askedAll(lines(opened(0), read(nlb0), pr(0, "EIO"), pr(0, "EIO")), func() {
			wants(t, p.apply(p.program(ours(), image)), unix.EIO, words, "may hold anything")
		})
		p.holds(unknownBy(ours()))
		p.asks(lines(opened(0)), func() {
			wants(t, p.apply(p.program(next(), image, mode(region.ModeNever))), region.ErrUnknownState)
		})
	}
}

// showTwoShells: also where a look took the neighbour's interface for the port's.
func showTwoShells(t *testing.T) {
	p := start(t, machine(fpgasim.Card{Ports: []fpgasim.Port{{Interface: shell, AFU: nlb0}, {Interface: otherShell, AFU: nlb0}}}))
	own, other := p.image(nlb3), p.keep(gbs(otherShell, nlb3, "", 1100))
	p.askedAll([]string{}, func() {
		wants(t, p.apply(p.program(ours(), other)), backend.ErrInterface, shell, otherShell)
		wants(t, p.apply(p.program(ours(), own, at(name(0, 1)))), backend.ErrInterface, shell, otherShell)
		p.regions[first].InterfaceID = otherShell
		wants(t, p.apply(p.program(ours(), other)), backend.ErrInterface, shell, otherShell)
		p.regions[first].InterfaceID = shell
	})
	p.askedAll(lines(opened(1), read(nlb0), pr(1), read(nlb3), opened(0), read(nlb0), pr(0), read(nlb3)), func() {
		check.Must(t, p.apply(p.program(ours(), other, at(name(0, 1)))))
		check.Must(t, p.apply(p.program(ours(), own)))
	})
	want := []string{hexDigest(fpgasim.Image(otherShell, nlb3, 1100)), hexDigest(fpgasim.Image(shell, nlb3, 1000))}
	if diff := cmp.Diff(want, p.programmings()); diff != "" {
		t.Errorf("to the card went (-want +got):\n%s", diff)
	}
}

// showTwoCards, whichever of them it is and in whichever order a claim's regions come.
func showTwoCards(t *testing.T) {
	for _, right := range []int{0, 1} {
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			p := start(t, machine(card(1), card(1)))
			image := p.image(nlb3)
			check.Must(t, p.apply(p.program(ours(), image, at(name(right, 0)))))
			var want []string
			for _, c := range order {
				if want = append(want, opened(c)); c != right {
					for _, line := range pr(0) {
						want = append(want, strings.Replace(line, "dfl-fme.0", "dfl-fme."+string(rune('0'+c)), 1))
					}
				}
			}
			p.asks(want, func() {
				for _, c := range order {
					check.Must(t, p.apply(p.program(ours(), image, at(name(c, 0)))))
				}
			})
			p.shows(0, 0, nlb3)
			p.shows(1, 0, nlb3)
		}
	}
}

func showPaths(t *testing.T) {
	const outside = "../../../../etc/passwd"
	p := start(t, machine(card(1)))
	metadata := `{"version":1,"afu-image":{"interface-uuid":"` + shell + `","magic-no":488605312,` +
		`"accelerator-clusters":[{"total-contexts":1,"name":"afu","accelerator-type-uuid":"` + outside + `"}]}}`
	file := slices.Concat(head(metadata), fpgasim.Image(shell, nlb3, 1000))
	if about, err := fpga.Inspect(strings.NewReader(string(file)), int64(len(file))); err == nil {
		t.Errorf("an image has the ids %q and %q", about.InterfaceID, about.AFUID)
	}
	lying := &region.Image{Digest: digest(file), Size: int64(len(file)), InterfaceID: shell, AFUID: outside, Origin: "a test"}
	p.files[lying.Digest] = file
	p.askedAll([]string{}, func() {
		wants(t, p.apply(p.program(ours(), lying)), region.ErrImage)
		for _, change := range []func(*region.Image){
			func(i *region.Image) { i.AFUID = outside },
			func(i *region.Image) { i.InterfaceID = outside },
			func(i *region.Image) { i.Digest = outside },
			func(i *region.Image) { i.HostFile = outside },
			func(i *region.Image) { i.HostFile = "/srv/" + outside },
		} {
			image := p.image(nlb3)
			change(image)
			wants(t, p.apply(p.program(ours(), image)), nil)
		}
	})
	p.holds(region.Content{})
	p.emptyBut("")
}

// showEnvironment: the variables by which a hook that starts with the container is told what to program.
func showEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"FPGA_REGION_0": otherShell, "FPGA_BITSTREAM_ID_0": nlb0, "FPGA_AFU_0": nlb0, "FPGA_DRIVER_PARAMS_0": "clock=100,debug=1",
		"FPGA_REGION": otherShell, "FPGA_AFU": nlb0,
	} {
		t.Setenv(name, value)
	}
	p := start(t, withParams())
	image := p.image(nlb3)
	if params := p.plan(nil, image); params != nil {
		check.Must(t, p.apply(params))
	}
	p.askedAll(lines(opened(0), read(nlb0), pr(0), read(nlb3)), func() { check.Must(t, p.apply(p.program(ours(), image))) })
	if want := []string{hexDigest(fpgasim.Image(shell, nlb3, 1000))}; !slices.Equal(p.programmings(), want) || p.written() > 0 {
		t.Errorf("programmed %v, want %v; %d writes, want none", p.programmings(), want, p.written())
	}
}

// showMapped looks at this process while the card works: an address that the kernel keeps must not be one that Go moves or frees.
func showMapped(t *testing.T) {
	p := start(t, machine(card(1)))
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	ended := make(chan error, 1)
	program := p.step(p.program(ours(), p.image(nlb3)))
	go func() { ended <- p.kinds.Apply(t.Context(), program) }()
	p.Await(1, isProgramming)
	maps, err := os.ReadFile("/proc/self/maps")
	check.Must(t, err)
	found := regexp.MustCompile(`(?m)^\S+ (\S+) .*memfd:fpga-image`).FindAllSubmatch(maps, -1)
	if len(found) != 1 || string(found[0][1]) != "r--p" {
		t.Errorf("the image is mapped %q, want once, private and for reading alone", found)
	}
	p.Go()
	check.Must(t, <-ended)
}

func showUnplugged(t *testing.T) {
	p := start(t, machine(card(1)))
	program := p.program(ours(), p.image(nlb3))
	p.Fault(fpgasim.Fault{On: fpgasim.OnAFU, Errno: "ENODEV"})
	const gone = "read afu_id ENODEV"
	p.askedAll(lines(opened(0), gone), func() { wants(t, p.apply(program), unix.ENODEV) })
	p.holds(region.Content{})

	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Errno: "ENODEV"})
	p.askedAll(lines(opened(0), read(nlb0), pr(0), gone, pr(0, "ENODEV")), func() {
		ended := make(chan error, 1)
		s := p.step(program)
		go func() { ended <- p.kinds.Apply(t.Context(), s) }()
		p.Await(1, isProgramming)
		p.Fault(fpgasim.Fault{On: fpgasim.OnAFU, Errno: "ENODEV"})
		p.Go()
		err := <-ended
		if wants(t, err, unix.ENODEV, "may hold anything"); backend.KindOf(err) != backend.Unknown {
			t.Errorf("%v is %s, want unknown", err, backend.KindOf(err))
		}
	})
	unknown := unknownBy(ours())
	p.holds(unknown)

	r := p.regions[first]
	delete(p.regions, first)
	p.askedAll([]string{}, func() { check.Must(t, p.undo(program)) })
	unknown.Claim = ""
	p.holds(unknown)
	p.regions[first] = r
	wants(t, p.apply(p.program(next(), nil)), region.ErrUnknownState)
	p.asks(lines(opened(0), pr(0)), func() { check.Must(t, p.apply(p.scrub(p.blank()))) })
	p.holds(wiped(p.blank()))
}

func showOpenBetweenTenants(t *testing.T) {
	p := start(t, machine(card(1)))
	p.usedBy(theirs(), nlb0)
	known := p.content()
	p.Set(fpgasim.Set{User: new(true), Errors: new(uint64(4))})
	p.askedAll(lines(opened(0)+" EBUSY"), func() {
		err := p.apply(p.scrub(p.blank()))
		if wants(t, err, unix.EBUSY); backend.KindOf(err) != backend.Retryable {
			t.Errorf("%v is %s, want retryable", err, backend.KindOf(err))
		}
	})
	if diff := cmp.Diff(known, p.content()); diff != "" {
		t.Errorf("what is known changed (-want +got):\n%s", diff)
	}
	p.Set(fpgasim.Set{User: new(false)})
	p.askedAll(lines(opened(0), `write errors "0x4"`, pr(0), read(nothing), read(nothing)), func() {
		check.Must(t, p.apply(p.scrub(p.blank())))
	})
}

func showHotRelease(t *testing.T) {
	p := start(t, machine(card(1)))
	image, blank := p.image(nlb3), p.blank()
	program := p.program(ours(), image, released(region.ReleaseBlank, blank))
	check.Must(t, p.apply(program))
	p.Set(fpgasim.Set{Power: new(6)})
	p.askedAll(lines(opened(0)), func() {
		err := p.undo(program)
		if wants(t, err, dfl.ErrPower); backend.KindOf(err) != backend.Retryable {
			t.Errorf("%v is %s, want retryable", err, backend.KindOf(err))
		}
	})
	p.holds(held(image, ours()))
	p.Set(fpgasim.Set{Power: new(0)})
	p.askedAll(lines(opened(0), pr(0), read(nothing), read(nothing)), func() { check.Must(t, p.undo(program)) })
	p.holds(wiped(blank))
}

func showReports(t *testing.T) {
	p := start(t, machine(card(1)))
	before := p.usedBy(theirs(), nlb0)
	image, blank := p.image(nlb3), p.blank()
	program := p.program(ours(), image, released(region.ReleaseBlank, blank))
	check.Must(t, errors.Join(p.apply(p.scrub(blank)), p.apply(program), p.undo(program)))
	type report struct{ Why, Device, Digest, Namespace, UID string }
	var got []report
	for _, a := range p.attempts {
		if got = append(got, report{a.Why, a.Device, a.Image.Digest, a.Claim.Namespace, a.Claim.UID}); a.Took <= 0 || a.Err != nil {
			t.Errorf("%+v took no time or failed", a)
		}
	}
	want := []report{
		{"program", first, before.Digest, "team-b", "b1"},
		{"scrub", first, blank.Digest, "team-a", "a1"},
		{"program", first, image.Digest, "team-a", "a1"},
		{"release", first, blank.Digest, "team-a", "a1"},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(p.programmings()) != len(want) {
		t.Errorf("%d programmings, reported (-want +got):\n%s", len(p.programmings()), diff)
	}
}
