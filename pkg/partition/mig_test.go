// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
)

const gpu0 = "nvidia-0000-1b-00-0"

// under are the names of devices of the first GPU, of which a dash is the GPU itself.
func under(suffixes ...string) []string {
	var out []string
	for _, s := range suffixes {
		out = append(out, strings.TrimSuffix(gpu0+"-"+s, "--"))
	}
	return slices.Sorted(slices.Values(out))
}

func instance(id, profile, start, size uint32, uuid ...string) nvml.MIGInstance {
	i := nvml.MIGInstance{ID: id, ProfileID: profile, Placement: nvml.MIGPlacement{Start: start, Size: size}}
	for n, u := range uuid {
		i.Compute = append(i.Compute, nvml.MIGCompute{ID: uint32(n), UUID: u})
	}
	return i
}

// TestMIG is what a GPU is published as, in every mode and state.
func TestMIG(t *testing.T) {
	on, off := true, false
	foreign := []nvml.MIGPlacement{{Start: 4, Size: 4}}
	large := dynamic("3g.40gb", "4g.40gb")
	passthrough := large
	passthrough.Passthrough = true
	for _, tc := range []struct {
		name       string
		model      model
		mode       bool
		instances  []nvml.MIGInstance
		foreign    []nvml.MIGPlacement
		settings   partition.Settings
		held       []string
		noCounters bool
		want       []string
		reasons    []string
		create     int
		destroy    int
		plain      bool // without a card
	}{
		{name: "no policy", model: h100(), mode: off, want: under("-"), plain: true},
		{name: "no policy in MIG mode", model: h100(), mode: on, reasons: []string{"MIGMode 1"}, plain: true},
		{
			name: "no policy in MIG mode leaves instances alone", model: h100(), mode: on,
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1")},
			reasons:   []string{"MIGMode 1"}, plain: true,
		},
		{name: "disabled", model: h100(), mode: off, settings: disabled(), want: under("-"), plain: true},
		{
			name: "disabled in MIG mode", model: h100(), mode: on, settings: disabled(),
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1")},
			reasons:   []string{"MIGMode 1"}, destroy: 1, plain: true,
		},
		{
			name: "dynamic", model: h100(), mode: off, settings: large,
			want: under("-", "mig-3g-40gb-s0", "mig-3g-40gb-s4", "mig-4g-40gb-s0"),
		},
		{
			name: "dynamic in MIG mode", model: h100(), mode: on, settings: large,
			want: under("-", "mig-3g-40gb-s0", "mig-3g-40gb-s4", "mig-4g-40gb-s0"),
		},
		{
			name: "dynamic with passthrough and without an IOMMU", model: h100(), mode: off, settings: passthrough, reasons: []string{"NoIOMMU 1"},
			want: under("-", "mig-3g-40gb-s0", "mig-3g-40gb-s4", "mig-4g-40gb-s0"),
		},
		{
			name: "a profile that the GPU does not have", model: h100(), mode: off, settings: dynamic("4g.40gb", "1g.5gb"),
			want: under("-", "mig-4g-40gb-s0"), reasons: []string{"UnknownProfile 0"},
		},
		{
			name: "somebody else's instance", model: h100(), mode: on, settings: large, foreign: foreign,
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1")},
			want:      under("mig-3g-40gb-s0", "mig-4g-40gb-s0"), reasons: []string{"ForeignInstance 1", "ForeignInstance 1"},
		},
		{
			name: "an instance of ours that nothing holds", model: h100(), mode: on, settings: large, destroy: 1,
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1")},
			want:      under("-", "mig-3g-40gb-s0", "mig-3g-40gb-s4", "mig-4g-40gb-s0"),
		},
		{
			name: "an instance of ours that is held", model: h100(), mode: on, settings: large, held: under("mig-3g-40gb-s4"),
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1")},
			want:      under("-", "mig-3g-40gb-s0", "mig-3g-40gb-s4", "mig-4g-40gb-s0"),
		},
		{
			name: "a profile that is no longer allowed stays while it is held", model: h100(), mode: on, settings: dynamic("4g.40gb"),
			held: under("mig-1g-10gb-s6"), want: under("-", "mig-1g-10gb-s6", "mig-4g-40gb-s0"),
		},
		{
			name: "a held instance outlives its policy", model: h100(), mode: on, held: under("mig-1g-10gb-s6"), want: under("mig-1g-10gb-s6"),
			reasons: []string{"MIGMode 1"},
		},
		{
			name: "a whole GPU that is held outlives everything", model: h100(), mode: on, held: under("-"), foreign: foreign, settings: large,
			want: under("-", "mig-3g-40gb-s0", "mig-4g-40gb-s0"), reasons: []string{"ForeignInstance 1", "ForeignInstance 0"},
		},
		{
			name: "no counters", model: h100(), mode: off, settings: large, noCounters: true, want: under("-"), reasons: []string{"NoCounters 3"},
			plain: true,
		},
		{
			name: "no counters in MIG mode", model: h100(), mode: on, settings: large, noCounters: true,
			reasons: []string{"NoCounters 3", "MIGMode 1"}, plain: true,
		},
		{
			name: "Ampere waits for a reset", model: a100(), mode: off, settings: dynamic("3g.20gb"), want: under("-"),
			reasons: []string{"MIGMode 2"},
			plain:   true,
		},
		{
			name: "Ampere after the reset", model: a100(), mode: on, settings: dynamic("3g.20gb"),
			want: under("mig-3g-20gb-s0", "mig-3g-20gb-s4"), reasons: []string{"MIGMode 1"},
		},
		{
			name: "static, to be made", model: h100(), mode: off, settings: static(twoLarge()), create: 2, reasons: []string{"LayoutPending 2"},
			plain: true,
		},
		{
			name: "static, half made", model: h100(), mode: on, settings: static(twoLarge()), create: 1, reasons: []string{"LayoutPending 1"},
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1")}, want: under("mig-3g-40gb-s4"),
		},
		{
			name: "static, cut off between the two creations", model: h100(), mode: on, settings: static(twoLarge()), create: 1,
			reasons: []string{"LayoutPending 1"}, instances: []nvml.MIGInstance{instance(1, 9, 4, 4), instance(2, 9, 0, 4, "MIG-2")},
			want: under("mig-3g-40gb-s0"),
		},
		{
			name: "static, made", model: h100(), mode: on, settings: static(twoLarge()), want: under("mig-3g-40gb-s0", "mig-3g-40gb-s4"),
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1"), instance(2, 9, 0, 4, "MIG-2")},
		},
		{
			name: "static needs no counters", model: h100(), mode: on, settings: static(twoLarge()), want: under("mig-3g-40gb-s0", "mig-3g-40gb-s4"),
			instances:  []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1"), instance(2, 9, 0, 4, "MIG-2")},
			noCounters: true, plain: true,
		},
		{
			name: "static beside an older layout", model: h100(), mode: on, settings: static(twoLarge()), create: 1, destroy: 1,
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1"), instance(2, 14, 0, 2, "MIG-2")},
			want:      under("mig-3g-40gb-s4"), reasons: []string{"LayoutPending 1"},
		},
		{
			name: "static beside somebody else's", model: h100(), mode: on, settings: static(twoLarge()),
			foreign:   []nvml.MIGPlacement{{Start: 0, Size: 2}},
			instances: []nvml.MIGInstance{instance(1, 9, 4, 4, "MIG-1"), instance(2, 14, 0, 2, "MIG-2")},
			want:      under("mig-3g-40gb-s4"), reasons: []string{"ForeignInstance 1"},
		},
		{
			name: "static while a claim has the GPU", model: h100(), mode: off, settings: static(twoLarge()), held: under("-"), create: 2,
			want: under("-"), reasons: []string{"LayoutPending 2"}, plain: true,
		},
		{
			name: "static, too much", model: h100(), mode: off, settings: static(partition.Instances{Profile: "3g.40gb", Count: 3}),
			want: under("-"), reasons: []string{"LayoutImpossible 0"}, plain: true,
		},
		{name: "mode alone", model: h100(), mode: on, settings: static(), plain: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := tc.model.mig(tc.mode)
			m.Instances = tc.instances
			p := partition.Physical{Device: tc.model.whole(t, 0), MIG: m, Foreign: tc.foreign, Held: map[string]bool{}}
			for _, name := range tc.held {
				p.Held[name] = true
			}
			got := partition.Divide(p, tc.settings, partition.Kept{Counters: !tc.noCounters})
			valid(t, got)
			if diff := cmp.Diff(tc.want, names(got.Devices)) + cmp.Diff(tc.reasons, reasons(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Reasons)
			}
			if len(got.Create) != tc.create || len(got.Destroy) != tc.destroy {
				t.Errorf("create %v, want %d; destroy %v, want %d", got.Create, tc.create, got.Destroy, tc.destroy)
			}
			checkCard(t, got, tc.plain)
		})
	}
}

// TestLayoutPending: the reason says when the node makes the missing instances, also after a reboot that ended those of claims.
func TestLayoutPending(t *testing.T) {
	const claims = "once no claim has the GPU or a part of it"
	for name, tc := range map[string]struct{ held, want []string }{
		"no claim":                  {nil, []string{"the node makes them"}},
		"a claim has the GPU":       {under("-"), []string{"the node makes them " + claims}},
		"one of two was a claim's":  {under("mig-3g-40gb-s0"), []string{"makes again those that claims have", "the others " + claims}},
		"both were claims'":         {under("mig-3g-40gb-s0", "mig-3g-40gb-s4"), []string{"the node makes them"}},
		"a claim has one of before": {under("mig-1g-10gb-s0"), []string{"the node makes them " + claims}},
	} {
		p := partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(true), Held: map[string]bool{}}
		for _, name := range tc.held {
			p.Held[name] = true
		}
		got := partition.Divide(p, static(twoLarge()), partition.Kept{Counters: true})
		i := slices.IndexFunc(got.Reasons, func(r partition.Reason) bool { return r.Reason == partition.ReasonLayoutPending })
		if i < 0 || strings.HasSuffix(got.Reasons[i].Message, claims) != strings.HasSuffix(tc.want[len(tc.want)-1], claims) {
			t.Errorf("%s: %v, want %q", name, got.Reasons, tc.want)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(got.Reasons[i].Message, part) {
				t.Errorf("%s: %q, want it to say %q", name, got.Reasons[i].Message, part)
			}
		}
	}
}

// TestMIGUnknown: a GPU that may be in MIG mode is whole for those only whose policy leaves MIG alone, and if discovery shows it whole.
func TestMIGUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		settings partition.Settings
		divided  bool
		want     []string
	}{
		"no policy":                            {want: under("-")},
		"disabled":                             {settings: disabled(), want: under("-")},
		"dynamic":                              {settings: dynamic("3g.40gb")},
		"static":                               {settings: static(twoLarge())},
		"no policy, and it may be in MIG mode": {divided: true},
		"MIG is off, and it may be in MIG mode still": {settings: disabled(), divided: true},
	} {
		p := partition.Physical{Device: h100().whole(t, 0), MIGUnknown: true, Divided: tc.divided}
		got := partition.Divide(p, tc.settings, partition.Kept{Counters: true})
		if diff := cmp.Diff(tc.want, names(got.Devices)); diff != "" || (len(tc.want) == 0) != (len(got.Reasons) == 1) {
			t.Errorf("%s (-want +got):\n%s\n%v", name, diff, got.Reasons)
		}
	}
}

func disabled() partition.Settings {
	return partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDisabled}}
}

func twoLarge() partition.Instances { return partition.Instances{Profile: "3g.40gb", Count: 2} }

// checkCard wants devices that consume of the one card, and no more than it has.
func checkCard(t *testing.T, d partition.Division, plain bool) {
	t.Helper()
	if (d.Card == nil) != plain {
		t.Fatalf("card %v, want one: %t", d.Card, !plain)
	}
	for _, one := range d.Devices {
		if plain {
			if one.Card != "" || len(one.Consumes) > 0 {
				t.Errorf("%s consumes %v of %s", one.Name, one.Consumes, one.Card)
			}
			continue
		}
		if one.Card != d.Card.Name || len(one.Consumes) == 0 {
			t.Errorf("%s consumes %v of %q", one.Name, one.Consumes, one.Card)
		}
		for name, counter := range one.Consumes {
			if total, ok := d.Card.Counters[name]; !ok || total.Value.Cmp(counter.Value) < 0 {
				t.Errorf("%s consumes %s %s, the card has %s", one.Name, counter.Value.String(), name, total.Value.String())
			}
		}
		if whole := one.Name == gpu0 || d.Parts[one.Name].Type == device.TypeVFIO; whole && !cmp.Equal(one.Consumes, d.Card.Counters) {
			t.Errorf("%s consumes %v, want all: %v", one.Name, one.Consumes, d.Card.Counters)
		}
	}
}

// TestMIGDevice is one instance, dynamic and static.
func TestMIGDevice(t *testing.T) {
	m := h100().mig(true)
	m.Instances = []nvml.MIGInstance{instance(3, 20, 5, 1, "MIG-77")}
	p := partition.Physical{Device: h100().whole(t, 0), MIG: m}
	for _, s := range []partition.Settings{
		dynamic("1g.10gb+me"), static(partition.Instances{Profile: "1g.10gb+me", Count: 1, Starts: []uint32{5}}),
	} {
		got := partition.Divide(p, s, gateOn())
		at := slices.IndexFunc(got.Devices, func(d device.Device) bool { return d.Name == gpu0+"-mig-1g-10gb-me-s5" })
		if at < 0 {
			t.Fatalf("got %v", names(got.Devices))
		}
		d := got.Devices[at]
		attributes := map[string]string{}
		for name, a := range d.Attributes {
			attributes[string(name)] = device.StringOf(a)
		}
		want := map[string]string{
			"type": "mig", "vendor": "nvidia", "profile": "1g.10gb+me", "parentUUID": "GPU-0", "productName": "NVIDIA H100 80GB HBM3",
			"architecture": "Hopper", "driver": "nvidia", "pciAddress": "0000:1b:00.0", "resource.kubernetes.io/pciBusID": "0000:1b:00.0",
			"resource.kubernetes.io/pcieRoot": "pci0000:1a",
		}
		part := partition.Part{
			Parent: gpu0, Type: "mig", Profile: "1g.10gb+me", ProfileID: 20, Placement: nvml.MIGPlacement{Start: 5, Size: 1},
		}
		if s.MIG.Mode == partition.MIGStatic {
			want["uuid"], part.Instance = "MIG-77", &m.Instances[0]
		}
		if diff := cmp.Diff(want, attributes) + cmp.Diff(part, got.Parts[d.Name]); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		consumes := map[string]string{}
		for name, c := range d.Consumes {
			consumes[name] = c.Value.String()
		}
		if diff := cmp.Diff(map[string]string{
			"multiprocessors": "16", "copy-engines": "1", "decoders": "1", "jpeg-engines": "1", "ofa-engines": "1", "memory": "9984Mi",
			"memory-slice-5": "1",
		}, consumes); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if c := d.Capacity[device.CapacityMemory]; c.Value.String() != "9984Mi" || len(d.Capacity) != 2 {
			t.Errorf("capacity %v", d.Capacity)
		}
	}
}

// TestCountersAllowEveryLayout places instances in every way that their memory slices allow, with at most as many of a profile as NVML
// says: the other counters must not refuse any of it.
func TestCountersAllowEveryLayout(t *testing.T) {
	for _, m := range models() {
		t.Run(m.name, func(t *testing.T) {
			got := partition.Divide(partition.Physical{Device: m.whole(t, 0), MIG: m.mig(true)}, dynamic(), gateOn())
			layouts := 0
			var place func(from int, chosen []int)
			parts := got.Devices
			place = func(from int, chosen []int) {
				used := map[string]int64{}
				for _, i := range chosen {
					for name, c := range parts[i].Consumes {
						used[name] += c.Value.Value()
					}
				}
				var over []string
				for name, n := range used {
					if total := got.Card.Counters[name]; n > total.Value.Value() {
						over = append(over, name)
					}
				}
				if slices.ContainsFunc(over, func(name string) bool { return strings.HasPrefix(name, "memory-slice-") || name == "ofa-engines" }) {
					return
				}
				layouts++
				if len(over) > 0 {
					var what []string
					for _, i := range chosen {
						what = append(what, parts[i].Name)
					}
					t.Errorf("%v need more %v than the card has", what, over)
				}
				for i := from; i < len(parts); i++ {
					place(i+1, append(slices.Clip(chosen), i))
				}
			}
			place(0, nil)
			if layouts < 50 {
				t.Errorf("only %d layouts", layouts)
			}
			t.Logf("%d layouts", layouts)
		})
	}
}

// TestNamesDiffer wants a name of its own for every placement of every profile, features included.
func TestNamesDiffer(t *testing.T) {
	seen := map[string]string{}
	profiles := []string{"1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb+gfx", "1g.24gb", "1g.12gb+gfx", "1g.24gb-gfx", "1g.2gb"}
	for _, m := range models() {
		for _, r := range m.rows {
			profiles = append(profiles, r.name)
		}
	}
	slices.Sort(profiles)
	for _, profile := range slices.Compact(profiles) {
		for start := range uint32(12) {
			name, what := partition.MIGName(gpu0, profile, start), fmt.Sprint(profile, " at ", start)
			if other, taken := seen[name]; taken {
				t.Errorf("%s and %s are both %s", other, what, name)
			}
			seen[name] = what
			if len(name) > 63 || strings.ToLower(name) != name || strings.ContainsAny(name, ".+,_") {
				t.Errorf("%s is no DNS label", name)
			}
		}
	}
}

// TestSmallestConflictFirst: a place that no larger instance can have comes before one that it can.
func TestSmallestConflictFirst(t *testing.T) {
	p := partition.Physical{Device: h100().whole(t, 0), MIG: h100().mig(false)}
	got := partition.Divide(p, dynamic("1g.10gb", "3g.40gb", "4g.40gb"), gateOn())
	var order []string
	for _, d := range got.Devices {
		order = append(order, strings.TrimPrefix(d.Name, gpu0+"-mig-"))
	}
	want := []string{
		"1g-10gb-s4", "1g-10gb-s5", "1g-10gb-s6", "1g-10gb-s0", "1g-10gb-s1", "1g-10gb-s2", "1g-10gb-s3",
		"3g-40gb-s4", "3g-40gb-s0", "4g-40gb-s0", gpu0,
	}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
