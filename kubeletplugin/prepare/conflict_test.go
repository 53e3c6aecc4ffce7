// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

// inTeam moves a claim to a namespace.
func inTeam(namespace string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Namespace = namespace
	return c
}

// TestTenantsMeet: two claims are on one chip only if the stricter of their rules lets them, whoever comes first.
func TestTenantsMeet(t *testing.T) {
	const none, own, all = v1alpha1.CoTenancyExclusive, v1alpha1.CoTenancySameNamespace, v1alpha1.CoTenancyShared
	for _, tc := range []struct {
		first, second v1alpha1.CoTenancy
		namespace     string
		// apart is the rule that keeps them apart; empty: they meet.
		apart v1alpha1.CoTenancy
	}{
		{all, all, "team-b", ""},
		{all, own, "team-b", own},
		{own, all, "team-b", own},
		{own, own, "team-b", own},
		{own, own, "team-a", ""},
		{all, own, "team-a", ""},
		{own, all, "team-a", ""},
		{none, all, "team-a", none},
		{all, none, "team-a", none},
		{none, own, "team-a", none},
		{own, none, "team-a", none},
		{none, none, "team-a", none},
	} {
		t.Run(string(tc.first)+" and "+string(tc.second)+" of "+tc.namespace, func(t *testing.T) {
			s := chips(t).newEngine().effectsOf(new(lab))
			s.prepare(ruled(allocated("u1", aChip("r0")), tc.first))
			second := inTeam(tc.namespace, ruled(allocated("u2", aChip("r1")), tc.second))
			_, err := s.ask(second)
			if tc.apart == "" {
				check.Must(t, err)
				s.heldBy("u2", aChip("r1"))
				return
			}
			tenant, ok := errors.AsType[*conflict.TenantError](err)
			want := conflict.TenantError{Device: "r1", Sibling: "r0", Claim: "team-a/claim-u1", Namespace: tc.namespace, Rule: tc.apart}
			if !ok || *tenant != want {
				t.Fatalf("error %v, want %+v", err, want)
			}
			s.records("u1")
			s.heldBy("", aChip("r1"))
			s.prepare(inTeam(tc.namespace, ruled(allocated("u3", aChip("r2")), tc.second))) // another card
			s.unprepare("u1")
			s.prepare(second)
		})
	}
}

// TestTenantOfNamespaceMadeAgain: a namespace that was deleted and made again does not join the chip of the claim that its predecessor left
// behind, and neither does anybody join a claim of a version that recorded names only.
func TestTenantOfNamespaceMadeAgain(t *testing.T) {
	const own = v1alpha1.CoTenancySameNamespace
	s := chips(t).newEngine().effectsOf(new(lab))
	s.prepare(ruled(allocated("u1", aChip("r0")), own))
	s.remade = "-again"
	refused := func() {
		t.Helper()
		_, err := s.ask(ruled(allocated("u2", aChip("r1")), own))
		if tenant, ok := errors.AsType[*conflict.TenantError](err); !ok || tenant.Rule != own {
			t.Errorf("error %v, want that the chip is another namespace's", err)
		}
	}
	refused()
	s.remade = ""
	s.prepare(ruled(allocated("u2", aChip("r1")), own))
	s.unprepare("u1")
	s.unprepare("u2")
	old := &record.Record{
		Namespace: "team-a", Name: "old", UID: "u1", BootID: s.BootID, Phase: record.Prepared,
		Devices: []record.Device{{Request: "r0", Pool: testNode + "/fpga", Name: "r0", CoTenancy: string(own)}},
	}
	check.Must(t, s.Store.Create(old))
	check.Must(t, s.Store.Acquire(old))
	refused()
}

// hiding is a machine that does not show some regions now, with the card of each.
type hiding struct {
	machine
	hidden map[string]string
}

func (h hiding) RegionsOf(card string) []string {
	names := h.machine.RegionsOf(card)
	for name, on := range h.hidden {
		if on == card {
			names = append(names, name)
		}
	}
	return names
}

// TestTenantOfHiddenRegion: a claim has its chip while the driver does not show its region.
func TestTenantOfHiddenRegion(t *testing.T) {
	s := chips(t).newEngine().effectsOf(new(lab))
	s.prepare(ruled(allocated("u1", aChip("r0")), v1alpha1.CoTenancyExclusive))
	s.setMachine(hiding{machine{chip("r1", "card-a"), chip("r2", "card-b")}, map[string]string{"r0": "card-a"}})
	second := ruled(allocated("u2", aChip("r1")), v1alpha1.CoTenancyShared)
	_, err := s.ask(second)
	if tenant, ok := errors.AsType[*conflict.TenantError](err); !ok || tenant.Sibling != "r0" {
		t.Errorf("error %v, want that r0 of the same chip is held", err)
	}
	s.prepare(ruled(allocated("u3", aChip("r2")), v1alpha1.CoTenancyShared))
	s.unprepare("u1")
	s.prepare(second)
}

// TestTenantMessage says who is in the way, by which rule, and what helps.
func TestTenantMessage(t *testing.T) {
	err := &conflict.TenantError{Device: "r1", Sibling: "r0", Claim: "team-a/work", Namespace: "team-a", Rule: v1alpha1.CoTenancyExclusive}
	for _, words := range []string{"device r1", "claim team-a/work holds r0 of the same chip", "policy.coTenancy Exclusive", "delete"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%v: does not say %q", err, words)
		}
	}
}

// TestTenantOfItself: a claim may have a whole chip, a look is in nobody's way and nobody in a look's, and what has no chip is apart.
func TestTenantOfItself(t *testing.T) {
	s := chips(t).newEngine().effectsOf(new(lab))
	whole := ruled(allocated("u1", aChip("r0"), aChip("r1")), v1alpha1.CoTenancyExclusive)
	s.prepare(whole)
	s.prepare(whole)
	check.Must(t, os.WriteFile(s.statePath("claims", "u1.json"), []byte("{"), 0o600))
	s.prepare(whole) // anew, although nobody can read any more whose its other region is
	_, err := s.ask(inTeam("team-b", ruled(allocated("look", asAdmin(aChip("r1"))), v1alpha1.CoTenancyExclusive)))
	check.Must(t, err)
	s.unprepare("u1")
	s.prepare(inTeam("team-c", ruled(allocated("u2", aChip("r0")), v1alpha1.CoTenancyExclusive)))
	s.prepare(inTeam("team-d", allocated("u3", aGPU("gpu0"))))
	s = s.reboot().effectsOf(new(lab))
	s.prepare(inTeam("team-c", ruled(allocated("u2", aChip("r0")), v1alpha1.CoTenancyExclusive))) // it was there before
}

// TestTenantOfUnknownRule: a claim whose record is damaged, or is of a plugin that knew no rules, counts as one that shares with nobody.
func TestTenantOfUnknownRule(t *testing.T) {
	s := chips(t).newEngine().effectsOf(new(lab))
	old := &record.Record{
		Namespace: "team-a", Name: "old", UID: "u1", BootID: s.BootID, Phase: record.Prepared,
		Devices: []record.Device{{Request: "r0", Pool: testNode + "/fpga", Name: "r0"}},
	}
	check.Must(t, s.Store.Create(old))
	check.Must(t, s.Store.Acquire(old))
	shared := ruled(allocated("u2", aChip("r1")), v1alpha1.CoTenancyShared)
	refused := func(who string) {
		t.Helper()
		_, err := s.ask(shared)
		if tenant, ok := errors.AsType[*conflict.TenantError](err); !ok || tenant.Claim != who || tenant.Rule != v1alpha1.CoTenancyExclusive {
			t.Errorf("error %v, want that %s shares with nobody", err, who)
		}
	}
	refused("team-a/old")
	check.Must(t, os.WriteFile(s.statePath("claims", "u1.json"), []byte("{"), 0o600))
	refused("with UID u1")
}

// TestTenantsAtOnce: who may be on a chip is decided by one claim at a time, in other processes, too.
func TestTenantsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.setMachine(machine{chip("r0", "card-a"), chip("r1", "card-a")})
		s.effectsOf(new(lab))
		other := s.neighbour().effectsOf(new(lab))
		first := ruled(allocated("u1", aChip("r0")), v1alpha1.CoTenancySameNamespace)
		second := inTeam("team-b", ruled(allocated("u2", aChip("r1")), v1alpha1.CoTenancySameNamespace))
		hold, err := s.Store.LockClaim(t.Context(), "u0")
		check.Must(t, err)
		check.Must(t, hold.Devices(t.Context(), []string{"card/card-a"}))
		one, two := s.asking(first), other.asking(second)
		synctest.Wait()
		if len(one)+len(two) > 0 {
			t.Error("a claim is prepared although another decides about its chip")
		}
		hold.Release()
		a, b := receive(t, one), receive(t, two)
		_, refusedA := errors.AsType[*conflict.TenantError](a.err)
		_, refusedB := errors.AsType[*conflict.TenantError](b.err)
		if (a.err == nil) == (b.err == nil) || !refusedA && !refusedB {
			t.Errorf("got %v and %v, want one of the two", a.err, b.err)
		}
	})
}

// TestTenantThatAlsoLooks: a claim that holds a region under a strict rule, and looks at it under a mild one, keeps its chip.
func TestTenantThatAlsoLooks(t *testing.T) {
	s := chips(t).newEngine().effectsOf(new(lab))
	pool := aChip("r0").Pool
	r := &record.Record{
		Namespace: "team-a", Name: "claim-u1", UID: "u1", BootID: s.BootID, Phase: record.Prepared, Devices: []record.Device{
			{Request: "look", Pool: pool, Name: "r0", AdminAccess: true, CoTenancy: string(v1alpha1.CoTenancyShared)},
			{Request: "r0", Pool: pool, Name: "r0", CoTenancy: string(v1alpha1.CoTenancyExclusive)},
		},
	}
	check.Must(t, s.Store.Create(r), s.Store.Acquire(r))
	_, err := s.ask(inTeam("team-b", ruled(allocated("u2", aChip("r1")), v1alpha1.CoTenancyShared)))
	if tenant, ok := errors.AsType[*conflict.TenantError](err); !ok || tenant.Sibling != "r0" {
		t.Errorf("error %v, want that r0 of the same chip is held", err)
	}
}

// TestRegionShownWhileWaiting: a region that is shown only after its claim waited for its locks is not planned without that of its chip.
func TestRegionShownWhileWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.effectsOf(new(lab))
		s.setMachine(machine{chip("r1", "card-a")})
		deciding, err := s.Store.LockClaim(t.Context(), "u0")
		check.Must(t, err, deciding.Devices(t.Context(), []string{"card/card-a"}))
		busy, err := s.Store.LockClaim(t.Context(), "u3")
		check.Must(t, err, busy.Devices(t.Context(), []string{aChip("r0").Pool + "/r0"}))
		c := ruled(allocated("u1", aChip("r0")), v1alpha1.CoTenancyExclusive)
		answered := s.asking(c)
		synctest.Wait()
		s.setMachine(machine{chip("r0", "card-a"), chip("r1", "card-a")})
		busy.Release()
		time.Sleep(time.Second)
		synctest.Wait()
		if s.HasRecord("u1") {
			t.Error("a claim is recorded although another decides about its chip")
		}
		deciding.Release()
		<-answered
		s.prepare(c)
	})
}

// TestRuleStays: the rule under which a claim got its region counts as long as it holds it in this boot, also when the region gets other
// numbers. It may be stricter than what the allocation says, since the class changed before the claim was prepared.
func TestRuleStays(t *testing.T) {
	s := chips(t).newEngine().effectsOf(new(lab))
	c := ruled(allocated("u1", aChip("r0")), v1alpha1.CoTenancyShared)
	name := c.Spec.Devices.Requests[0].Exactly.DeviceClassName
	s.setClass(name, classNamed(strings.Replace(name, "Shared", "Exclusive", 1)))
	s.prepare(c)
	moved := chip("r0", "card-a")
	moved.Edits.Nodes[0].Minor = 7
	s.setMachine(machine{moved, chip("r1", "card-a")})
	s.prepare(c)
	other := ofClass(allocated("u2", aChip("r1")), strings.Replace(name, "{", " {", 1)) // another class with the rule that the first one had
	_, err := s.ask(inTeam("team-b", other))
	if tenant, ok := errors.AsType[*conflict.TenantError](err); !ok || tenant.Rule != v1alpha1.CoTenancyExclusive {
		t.Errorf("error %v, want that the first claim shares with nobody", err)
	}
}
