// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// of gives a claim of another namespace.
func of(namespace string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Namespace = namespace
	return c
}

// asks is a claim of a namespace for a region, by a class with a policy.
func asks(namespace, uid, name, policy, own string) *resourceapi.ResourceClaim {
	c := fpgaClass(of(namespace, nodefixture.Allocated(uid, fpgaResult("main", name))),
		`"policy":{"allowedBitstreams":["team-a/*","team-b/*"]`+policy+`}`)
	if own != "" {
		c = fpgaOwn(c, own)
	}
	return c
}

const nlb3Named = `"bitstream":{"name":"nlb3"}`

// twoTenants is a lab whose namespaces team-a and team-b have an nlb3 each.
func twoTenants(t *testing.T) *lab {
	t.Helper()
	l := newLab(t, twoRegions()...)
	image := l.image("team/nlb3", shell, nlb3)
	l.put(l.object("team-a", "nlb3", image))
	l.put(l.object("team-b", "nlb3", image))
	return l
}

// use prepares a claim.
func (l *lab) use(c *resourceapi.ResourceClaim) ([]step.Step, error) {
	l.t.Helper()
	steps, err := l.plan(c)
	if err == nil {
		err = l.run(steps)
	}
	return steps, err
}

// giveBack undoes the steps of a claim.
func (l *lab) giveBack(steps []step.Step) {
	l.t.Helper()
	for i := len(steps) - 1; i >= 0; i-- {
		check.Must(l.t, l.Kinds().Undo(l.t.Context(), steps[i]))
	}
}

// TestWithoutIOMMU: no tenant gets a region whose logic reaches the machine's memory, unless the class consents. What held at the plan
// holds when the region is programmed.
func TestWithoutIOMMU(t *testing.T) {
	for _, kind := range []string{"DMA", "DMA-FQ"} {
		l := twoTenants(t)
		l.setIOMMU(l.cards.regions["r0"], kind)
		_, err := l.use(asks("team-a", "u1", "r0", "", nlb3Named))
		check.Must(t, err)
	}
	for _, kind := range []string{"identity", "blocked", "auto", "unknown", ""} {
		for name, own := range map[string]string{"a bitstream": nlb3Named, "as it is": "", "never": nlb3Named + `,"program":"Never"`} {
			t.Run(fmt.Sprintf("%q %s", kind, name), func(t *testing.T) {
				l := twoTenants(t)
				steps, err := l.plan(asks("team-a", "u1", "r0", "", own))
				check.Must(t, err)
				l.setIOMMU(l.cards.regions["r0"], kind)
				_, err = l.plan(asks("team-a", "u1", "r0", "", own))
				refused, ok := errors.AsType[*claim.RefusedError](err)
				if !ok || refused.Reason != claim.ReasonForbiddenByPolicy {
					t.Fatalf("got %v, want a refusal", err)
				}
				wants(t, err, nil, "0000:3b:00.0", "policy.allowWithoutIOMMU")
				wants(t, l.run(steps), fpga.ErrNotIsolated, "0000:3b:00.0")
				if len(l.cards.trace) > 0 {
					t.Errorf("done to the region: %q", l.cards.trace)
				}
				if name == "never" {
					return // what the region holds is not nlb3
				}
				_, err = l.use(asks("team-a", "u1", "r0", `,"allowWithoutIOMMU":true`, own))
				check.Must(t, err)
			})
		}
	}
}

// putClearing makes a blank image that clears the card's memory.
func (l *lab) putClearing() {
	l.t.Helper()
	blank := l.clusterObject("zero", l.image("team/zero", shell, blankAFU))
	blank.Spec.Blank, blank.Spec.Namespaces = true, nil
	blank.Spec.MemoryClearTime = &metav1.Duration{Duration: time.Millisecond}
	l.put(blank)
}

// remakeNamespaces deletes all namespaces and makes them again. Their bitstreams are there again.
func (l *lab) remakeNamespaces() { l.remade++ }

// noteNames has the files of the regions as a version wrote them that knew tenants by the names of their namespaces.
func (l *lab) noteNames() {
	l.t.Helper()
	files, err := filepath.Glob(filepath.Join(l.dir, regionsDir, "r*.json"))
	check.Must(l.t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		check.Must(l.t, err)
		_, body, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
		body = strings.ReplaceAll(body, l.namespaceUID("team-a"), "team-a")
		sum := crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli))
		check.Must(l.t, os.WriteFile(file, fmt.Appendf(nil, "%08x %s\n", sum, body), 0o600))
	}
}

// TestMemoryBetweenNamespaces: a region that a namespace used is refused to another, on all of the card, until its memory is cleared or
// the class accepts that it is not. The namespace itself finds its logic there.
func TestMemoryBetweenNamespaces(t *testing.T) {
	used := func(t *testing.T, policy string) *lab {
		t.Helper()
		l := twoTenants(t)
		steps, err := l.use(asks("team-a", "u1", "r0", policy, nlb3Named))
		check.Must(t, err)
		l.giveBack(steps)
		l.cards.trace = nil
		return l
	}
	for _, tc := range []struct {
		name, first, namespace, region, policy string
		before                                 func(l *lab)
		refused                                error
		programmed                             []string
	}{
		{name: "the same namespace", namespace: "team-a", region: "r0"},
		{name: "the same namespace, the card's other region", namespace: "team-a", region: "r1", programmed: []string{nlb3}},
		{
			name: "the namespace deleted and made again", namespace: "team-a", region: "r0", before: (*lab).remakeNamespaces,
			refused: region.ErrMemory,
		},
		{
			name: "the namespace deleted and made again, the card's other region", namespace: "team-a", region: "r1",
			before: (*lab).remakeNamespaces, refused: region.ErrMemory,
		},
		{
			name: "the namespace deleted and made again, cleared", namespace: "team-a", region: "r0",
			before: func(l *lab) { l.remakeNamespaces(); l.putClearing() }, programmed: []string{blankAFU, nlb3},
		},
		{
			name: "the namespace's name was noted by an older version", namespace: "team-a", region: "r0", before: (*lab).noteNames,
			refused: region.ErrMemory,
		},
		{name: "another namespace", namespace: "team-b", region: "r0", refused: region.ErrMemory},
		{name: "another namespace, the card's other region", namespace: "team-b", region: "r1", refused: region.ErrMemory},
		{
			name: "another namespace, a card that is everybody's", first: `,"coTenancy":"Shared"`, namespace: "team-b", region: "r1",
			programmed: []string{nlb3},
		},
		{
			name: "another namespace, and the image clears no memory", namespace: "team-b", region: "r0", before: (*lab).putBlank,
			refused: region.ErrMemory,
		},
		{
			name: "another namespace, cleared", namespace: "team-b", region: "r0",
			before:     func(l *lab) { l.putBlank(); l.putClearing() }, // the clearing one counts, although it is the later by name
			programmed: []string{blankAFU, nlb3},
		},
		{
			name: "another namespace, accepted", namespace: "team-b", region: "r0", policy: `,"allowUnclearedMemory":true`,
			programmed: []string{nlb3},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := used(t, tc.first)
			if tc.before != nil {
				tc.before(l)
			}
			c := asks(tc.namespace, "u2", tc.region, tc.policy, nlb3Named)
			steps, err := l.use(c)
			var programmed []string
			for _, line := range l.cards.trace {
				var afu, at string
				if n, _ := fmt.Sscanf(line, "program %s %s", &afu, &at); n == 2 && at == tc.region {
					programmed = append(programmed, afu)
				}
			}
			if fmt.Sprint(programmed) != fmt.Sprint(tc.programmed) {
				t.Errorf("programmed %v, want %v", programmed, tc.programmed)
			}
			if tc.refused == nil {
				check.Must(t, err)
				l.giveBack(steps)
				return
			}
			wants(t, err, tc.refused, "spec.memoryClearTime", "policy.allowUnclearedMemory", shell)
			if got := reasonOf(err); got != "RegionUnusable" {
				t.Errorf("reason %q", got)
			}
		})
	}
}

// TestTracesOfLostClaim: a claim whose record is lost leaves a region that may hold anything, and so does a content file that cannot be
// read. No namespace is known then, so every next claim counts as another tenant: it does not get the logic that is there.
func TestTracesOfLostClaim(t *testing.T) {
	for name, leave := range map[string]func(l *lab){
		"a programming that failed": func(l *lab) { l.breakRegion(asks("team-a", "u1", "r0", "", nlb3Named)) },
		"a damaged content file":    func(l *lab) { l.forget("r0") },
	} {
		t.Run(name, func(t *testing.T) {
			l := twoTenants(t)
			leave(l)
			dev, _ := l.device(&claim.Result{Kind: device.KindFPGA, Device: "r0"})
			content, err := l.contents.Read("r0")
			check.Must(t, err)
			steps, err := l.Leftovers(t.Context(), content.Claim, device.Device{Kind: device.KindFPGA, Name: "r0", Region: dev.Region})
			check.Must(t, err)
			l.giveBack(steps)
			for _, namespace := range []string{"team-a", "team-b"} {
				_, err := l.use(asks(namespace, "u2", "r0", `,"allowUnclearedMemory":true`, ""))
				wants(t, err, region.ErrTraces, shell)
			}
		})
	}
}

// TestMemoryTenant: a tenant that reads attributes by the errors of CEL learns whether two cards hold data of the same tenant, and not of
// which one: neither by the text nor by trying names. Another node says something else of the same tenant.
func TestMemoryTenant(t *testing.T) {
	const several = "*"
	l := twoTenants(t)
	shown := func() map[string]string {
		v, out := nodefixture.SnapshotWith(twoRegions()...), map[string]string{}
		l.Review(t.Context(), v)
		for i := range v.Devices {
			for name, a := range v.Devices[i].Attributes {
				if a.StringValue != nil && strings.Contains(*a.StringValue, "team-") {
					t.Errorf("%s of %s names a tenant: %s", name, v.Devices[i].Name, *a.StringValue)
				}
			}
			out[v.Devices[i].Name] = textOf(&v.Devices[i], device.AttributeMemoryTenant)
		}
		return out
	}
	if none := shown(); none["r0"] != "" || none["r1"] != "" {
		t.Errorf("nobody's card is shown as %v", none)
	}
	_, err := l.use(asks("team-a", "u1", "r0", "", nlb3Named))
	check.Must(t, err)
	first := shown()
	if len(first["r0"]) != 32 || first["r0"] != first["r1"] {
		t.Errorf("a card with two regions of one tenant is shown as %v", first)
	}
	l.Names = cdi.NewNames([cdi.SecretSize]byte{2})
	if other := shown(); other["r0"] == first["r0"] {
		t.Errorf("another node shows the same: %v", other)
	}
	if got := l.shownTenant(several); got != several {
		t.Errorf("several tenants are shown as %q", got)
	}
}

// TestHiddenRegion: a region that its driver does not show for a while is on its card all the same, as the next process knows, too. The
// card's memory is not cleared under its claim, and what another namespace puts there meanwhile is known when the region is back.
func TestHiddenRegion(t *testing.T) {
	l := twoTenants(t)
	l.programmer = region.New(region.Config{
		Find: l.cards.find, Backends: map[string]region.Backend{"memory": l.cards}, Contents: l.contents, Open: l.Artifacts.Open,
		Siblings: func(name string) []string { return l.known.siblings(name) }, Failures: l.failures, HostRoot: l.dir, BootID: testBoot,
	})
	both := twoRegions()
	l.shows(both...)
	l.shows(both[0])
	first, err := l.use(asks("team-a", "u1", "r0", "", nlb3Named))
	check.Must(t, err)
	l.shows(both...)
	_, err = l.use(asks("team-b", "u2", "r1", "", nlb3Named))
	wants(t, err, region.ErrMemory, "region r1")

	l.putClearing()
	l.known = openCards(l.known.path) // as the next process does
	l.shows(both[1])
	_, err = l.use(asks("team-b", "u2", "r1", "", nlb3Named))
	wants(t, err, region.ErrCardInUse, "r0")
	l.giveBack(first)
	second, err := l.use(asks("team-b", "u2", "r1", "", nlb3Named))
	check.Must(t, err)
	l.giveBack(second)
}

// TestFailuresOfNamespace: a namespace whose images fail waits, and says until when. A new process knows it. Another namespace's claims go
// on, on the same region.
func TestFailuresOfNamespace(t *testing.T) {
	l := twoTenants(t)
	l.putClearing()
	now := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC))
	newProcess := func() {
		l.failures = region.OpenFailures(l.contents, maxFailures, now)
		l.programmer = region.New(region.Config{
			Find: l.cards.find, Backends: map[string]region.Backend{"memory": l.cards}, Contents: l.contents, Open: l.Artifacts.Open,
			Siblings: l.cards.siblings, Failures: l.failures, HostRoot: l.dir, BootID: testBoot,
		})
	}
	newProcess()
	mallory := func(uid string) error {
		l.cards.failing = map[string]error{nlb3: errors.New("reconfig CRC error")}
		steps, err := l.use(asks("team-b", uid, "r0", "", nlb3Named+`,"program":"Always"`))
		l.giveBack(steps) // which proves with the blank image that the region works
		l.cards.failing = nil
		return err
	}
	for i := range maxFailures {
		wants(t, mallory(fmt.Sprintf("m%d", i)), nil, "reconfig CRC error")
		if got := l.content("r0"); got.Unknown {
			t.Fatalf("out of use after a failure: %+v", got)
		}
		now.SetTime(now.Now().Add(time.Minute))
	}
	for range 2 {
		l.cards.trace = nil
		err := mallory("m9")
		wants(t, err, nil, "namespace team-b", "13:00:00Z")
		if _, limited := errors.AsType[*region.TooManyFailuresError](err); !limited || reasonOf(err) != "TooManyFailedProgrammings" {
			t.Errorf("got %v with reason %q", err, reasonOf(err))
		}
		if len(l.cards.trace) > 0 {
			t.Errorf("done meanwhile: %q", l.cards.trace)
		}
		newProcess()
	}
	alice, err := l.use(asks("team-a", "a1", "r0", "", nlb3Named))
	check.Must(t, err)
	l.giveBack(alice)
	now.SetTime(time.Date(2026, 11, 23, 13, 0, 0, 0, time.UTC))
	steps, err := l.use(asks("team-b", "b1", "r0", "", nlb3Named))
	check.Must(t, err)
	l.giveBack(steps)
}

func (l *lab) content(name string) region.Content {
	l.t.Helper()
	c, err := l.contents.Read(name)
	check.Must(l.t, err)
	return c
}

// TestClearingImageFirst: of two blank images the one that clears memory counts.
func TestClearingImageFirst(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.putBlank()
	l.putClearing()
	found, err := l.bitstreams.blank(t.Context(), shell, l.judge.check)
	check.Must(t, err)
	want := v1alpha1.KindClusterFPGABitstream + " zero"
	if found == nil || found.image.Origin != want || found.image.ClearTime != time.Millisecond {
		t.Errorf("got %+v, want %s", found, want)
	}
}

// TestCardsOfEmptiedNode: a node that was retired and is taken back has the file of cards again as soon as a claim may need it, although
// nothing on the machine changed. Before that it gets none, whatever it shows.
func TestCardsOfEmptiedNode(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.shows(twoRegions()...)
	check.Must(t, l.Destroy())
	l.shows(twoRegions()...)
	_, err := l.plan(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass))
	check.Must(t, err)
	next := openCards(l.known.path) // as the next process does
	next.note(t.Context(), twoRegions()[:1])
	if got := next.siblings("r0"); !slices.Equal(got, []string{"r1"}) {
		t.Errorf("the next process knows %v beside r0, want r1", got)
	}
	check.Must(t, l.Destroy())
	l.shows(append(twoRegions(), regionOf("new", "0000:5e:00.0", shell))...)
	if _, err := os.Stat(filepath.Join(l.dir, regionsDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a retired node has files of regions: %v", err)
	}
}
