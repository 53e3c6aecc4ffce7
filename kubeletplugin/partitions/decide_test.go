// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// TestDecideConcernsOnlyOurs: a GPU without a policy, without claims of parts and without remains of a policy stays as discovery described
// it.
func TestDecideConcernsOnlyOurs(t *testing.T) {
	held := func(names ...string) map[string]bool {
		out := map[string]bool{}
		for _, name := range names {
			out[name] = true
		}
		return out
	}
	gpu := discover.Physical{Device: device.Device{Kind: device.KindGPU, Name: "gpu0"}}
	divided := gpu
	divided.Divided = "MIG"
	remains := left{instances: []mig.Held{{}}}
	for name, tt := range map[string]struct {
		seen seen
		want bool
	}{
		"nothing is wanted of it":                  {seen{Physical: gpu}, false},
		"a policy holds":                           {seen{Physical: gpu, wish: wish{governed: true}}, true},
		"a claim has it whole":                     {seen{Physical: gpu, held: held("gpu0")}, false},
		"a claim has it whole while it is divided": {seen{Physical: divided, held: held("gpu0")}, true},
		"a claim has a part":                       {seen{Physical: gpu, held: held("gpu0-vf0")}, true},
		"claims have shares":                       {seen{Physical: gpu, held: held("gpu0"), shares: held("gpu0")}, true},
		"the machine does not show it":             {seen{Physical: gpu, held: held("gpu0"), absent: true}, true},
		"a policy left an instance":                {seen{Physical: gpu, remains: remains}, true},
		"another driver has it":                    {seen{Physical: gpu, foreign: "other", remains: remains}, false},
		"another driver is to have it later":       {seen{Physical: gpu, foreign: "other", held: held("gpu0-vf0")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(&observation{cards: []*seen{&tt.seen}})
			if got := d.cards["gpu0"] != nil; got != tt.want {
				t.Errorf("Fettle divides it: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestWish: under a policy that cannot be carried out a GPU keeps what it had. A node that writes no attributes of PCI devices leaves out
// what needs that.
func TestWish(t *testing.T) {
	half := partition.Settings{MIG: &partition.MIG{Mode: partition.MIGStatic}, Interval: "Short"}
	functions := half
	functions.SRIOV = &partition.SRIOV{VirtualFunctions: 2}
	had := rememberedCard{Policy: "p", Settings: half}
	other := []policy.Outcome{{Policy: "p", Waits: []policy.Reason{{Device: "gpu0", Reason: policy.ReasonOtherManager}}}}
	holding := map[string]string{"gpu0": "p"}
	for name, tt := range map[string]struct {
		result policy.Result
		was    rememberedCard
		pci    bool
		want   wish
	}{
		"no policy": {},
		"a policy": {
			result: policy.Result{Settings: map[string]partition.Settings{"gpu0": functions}, Holding: holding}, pci: true,
			want: wish{governed: true, settings: functions, policy: "p"},
		},
		"no attributes of PCI devices": {
			result: policy.Result{Settings: map[string]partition.Settings{"gpu0": functions}, Holding: holding},
			want:   wish{governed: true, settings: half, policy: "p", forbidden: []string{"sriov"}},
		},
		"a policy that cannot be carried out": {
			result: policy.Result{Holding: holding}, was: had, want: wish{governed: true, settings: half, policy: "p", frozen: true},
		},
		"such a policy, and none before": {result: policy.Result{Holding: holding}, want: wish{policy: "p", frozen: true}},
		"another program divides": {
			result: policy.Result{Holding: holding, Policies: other}, was: had, want: wish{policy: "p", frozen: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := wishFor("gpu0", &tt.result, tt.was, tt.pci)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(wish{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
