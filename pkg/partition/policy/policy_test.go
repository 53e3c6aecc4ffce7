// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/pci"
)

// gpu is a whole GPU at a bus.
func gpu(t testing.TB, vendor string, bus int, model uint32, more ...string) policy.Device {
	t.Helper()
	address := fmt.Sprintf("0000:%02x:00.0", bus)
	parsed, err := pci.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	d := policy.Device{Model: migparted.Model{Device: model}, Device: device.Device{
		Kind: device.KindGPU, Name: vendor + "-" + parsed.Label(), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
	}}
	for _, pair := range append([]string{"type=gpu", "vendor=" + vendor, "pciAddress=" + address}, more...) {
		name, value, _ := strings.Cut(pair, "=")
		if d.Attributes[resourceapi.QualifiedName(name)], err = device.String(value); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// made is a policy of an age in minutes.
func made(t testing.TB, name string, age int, spec string) v1alpha1.PartitionPolicy {
	t.Helper()
	p := v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{
		Name: name, Generation: 3, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-time.Duration(age) * time.Minute)),
	}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	dynamic = "{nvidia: {mig: {mode: Dynamic}}}"
	a       = "nvidia-0000-1b-00-0"
	b       = "nvidia-0000-3b-00-0"
	c       = "amd-0000-c1-00-0"
)

func devices(vendor string) string { return "devices: " + vendor + "\n" }

func TestResolve(t *testing.T) {
	hopper := `{deviceSelector: {cel: 'device.attributes["fettle.dev"].architecture == "Hopper"'}, nvidia: {mig: {mode: Dynamic}}}`
	wrong := `{deviceSelector: {cel: 'device.nothing'}, nvidia: {mig: {mode: Dynamic}}}`
	badDocument := "{nvidia: {mig: {mode: MigParted, migParted: {config: x, document: 'version: v1'}}}}"
	disabled := "{nvidia: {mig: {mode: Disabled}}}"
	for _, tc := range []struct {
		name     string
		policies []v1alpha1.PartitionPolicy
		labels   map[string]string
		// holding is by device. outcomes are "POLICY holds ... lost ... waits ... failed ...".
		holding  map[string]string
		without  []string // devices without settings although a policy holds
		outcomes []string
	}{
		{name: "no policies"},
		{
			name:     "vendors",
			policies: []v1alpha1.PartitionPolicy{made(t, "nv", 1, devices(dynamic)), made(t, "amd", 1, devices("{amd: {compute: CPX}}"))},
			holding:  map[string]string{a: "nv", b: "nv", c: "amd"},
			outcomes: []string{"amd holds 1", "nv holds 2"},
		},
		{
			name: "priority before age",
			policies: []v1alpha1.PartitionPolicy{
				made(t, "old", 9, devices(dynamic)), made(t, "high", 1, "priority: 1\n"+devices(disabled)),
				made(t, "low", 99, "priority: -1\n"+devices(dynamic)),
			},
			holding:  map[string]string{a: "high", b: "high"},
			outcomes: []string{"high holds 2", "low lost 2: Overruled by high", "old lost 2: Overruled by high"},
		},
		{
			name:     "age before name",
			policies: []v1alpha1.PartitionPolicy{made(t, "a", 1, devices(dynamic)), made(t, "b", 2, devices(dynamic))},
			holding:  map[string]string{a: "b", b: "b"}, outcomes: []string{"a lost 2: Overruled by b", "b holds 2"},
		},
		{
			name: "name", policies: []v1alpha1.PartitionPolicy{made(t, "b", 1, devices(dynamic)), made(t, "a", 1, devices(dynamic))},
			holding: map[string]string{a: "a", b: "a"}, outcomes: []string{"a holds 2", "b lost 2: Overruled by a"},
		},
		{
			name:     "a selector for one of two, which fails on the other",
			policies: []v1alpha1.PartitionPolicy{made(t, "h", 1, "priority: 5\n"+devices(hopper)), made(t, "rest", 1, devices(dynamic))},
			holding:  map[string]string{a: "h", b: "rest"},
			outcomes: []string{"h holds 1 failed 1: SelectorFailed", "rest holds 1 lost 1: Overruled by h"},
		},
		{
			name: "node labels",
			policies: []v1alpha1.PartitionPolicy{
				made(t, "no", 1, "nodeSelector: {matchLabels: {pool: a}}\n"+devices(dynamic)),
				made(t, "yes", 1, "nodeSelector: {matchLabels: {pool: b}}\n"+devices(dynamic)),
			},
			labels: map[string]string{"pool": "b"}, holding: map[string]string{a: "yes", b: "yes"}, outcomes: []string{"yes holds 2"},
		},
		{
			name:     "mig-manager",
			policies: []v1alpha1.PartitionPolicy{made(t, "p", 1, devices(dynamic)), made(t, "q", 1, devices("{amd: {compute: CPX}}"))},
			labels:   map[string]string{"nvidia.com/mig.config": "all-disabled"}, holding: map[string]string{a: "p", b: "p", c: "q"},
			without:  []string{a, b},
			outcomes: []string{"p holds 2 waits 2: OtherManager", "q holds 1"},
		},
		{
			name:     "AMD's manager",
			policies: []v1alpha1.PartitionPolicy{made(t, "p", 1, devices(dynamic)), made(t, "q", 1, devices("{amd: {compute: CPX}}"))},
			labels:   map[string]string{"dcm.amd.com/gpu-config-profile": "x"}, holding: map[string]string{a: "p", b: "p", c: "q"},
			without:  []string{c},
			outcomes: []string{"p holds 2", "q holds 1 waits 1: OtherManager"},
		},
		{
			name:     "a selector that does not compile holds for nothing",
			policies: []v1alpha1.PartitionPolicy{made(t, "p", 1, "priority: 1\n"+devices(wrong)), made(t, "q", 1, devices(dynamic))},
			holding:  map[string]string{a: "q", b: "q"}, outcomes: []string{"p failed 1: InvalidPolicy", "q holds 2"},
		},
		{
			name:     "a document with a mistake keeps its devices from the next policy",
			policies: []v1alpha1.PartitionPolicy{made(t, "p", 1, "priority: 1\n"+devices(badDocument)), made(t, "q", 1, devices(dynamic))},
			holding:  map[string]string{a: "p", b: "p"}, without: []string{a, b},
			outcomes: []string{"p holds 2 waits 2: InvalidPolicy failed 1: InvalidPolicy", "q lost 2: Overruled by p"},
		},
		{
			name: "a policy about nodes alone holds for no device",
			policies: []v1alpha1.PartitionPolicy{
				made(t, "p", 1, "priority: 9\nnodes: {taints: [{key: a, effect: NoSchedule}]}"), made(t, "q", 1, devices("{passthrough: true}")),
			},
			holding: map[string]string{a: "q", b: "q", c: "q"}, outcomes: []string{"q holds 3"},
		},
		{
			name:     "all GPUs",
			policies: []v1alpha1.PartitionPolicy{made(t, "p", 1, devices("{passthrough: true}"))},
			holding:  map[string]string{a: "p", b: "p", c: "p"}, outcomes: []string{"p holds 3"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fpga := policy.Device{Device: device.Device{Kind: device.KindFPGA, Name: "fpga"}}
			node := policy.Node{Labels: tc.labels, Devices: []policy.Device{
				gpu(t, "nvidia", 0x3b, 0), fpga, gpu(t, "nvidia", 0x1b, 0x233010de, "architecture=Hopper"), gpu(t, "amd", 0xc1, 0),
			}}
			var r policy.Resolver
			got := r.Resolve(t.Context(), node, tc.policies)
			if diff := cmp.Diff(orEmpty(tc.holding), got.Holding) + cmp.Diff(tc.outcomes, written(got.Policies)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Policies)
			}
			for name := range got.Holding {
				if _, ok := got.Settings[name]; ok == slices.Contains(tc.without, name) {
					t.Errorf("%s has settings: %t", name, ok)
				}
			}
			again := slices.Clone(tc.policies)
			slices.Reverse(again)
			if diff := cmp.Diff(got, r.Resolve(t.Context(), node, again)); diff != "" {
				t.Errorf("another order of policies: %s", diff)
			}
		})
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func written(outcomes []policy.Outcome) []string {
	var out []string
	for _, o := range outcomes {
		text := o.Policy
		if o.Generation != 3 {
			text += " of another generation"
		}
		if len(o.Holds) > 0 {
			text += fmt.Sprintf(" holds %d", len(o.Holds))
		}
		for _, list := range []struct {
			name    string
			reasons []policy.Reason
		}{{"lost", o.Lost}, {"waits", o.Waits}, {"failed", o.Failed}} {
			if len(list.reasons) == 0 {
				continue
			}
			text += fmt.Sprintf(" %s %d: %s", list.name, len(list.reasons), list.reasons[0].Reason)
			if _, after, ok := strings.Cut(list.reasons[0].Message, "PartitionPolicy "); ok {
				text += " by " + strings.Fields(after)[0]
			}
		}
		out = append(out, text)
	}
	return out
}

// TestRandomPolicies: whatever policies there are, each device has the one that no other of those that select it comes before.
func TestRandomPolicies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var r policy.Resolver
	for range 100 {
		var policies []v1alpha1.PartitionPolicy
		for i := range random.IntN(8) {
			spec := fmt.Sprintf("priority: %d\n", random.IntN(3)) + devices(dynamic)
			policies = append(policies, made(t, fmt.Sprintf("p%d", i), random.IntN(3), spec))
		}
		got := r.Resolve(t.Context(), policy.Node{Devices: []policy.Device{gpu(t, "nvidia", 1, 0)}}, policies)
		for _, p := range policies {
			winner := got.Holding["nvidia-0000-01-00-0"]
			if p.Name == winner {
				continue
			}
			w := policies[slices.IndexFunc(policies, func(q v1alpha1.PartitionPolicy) bool { return q.Name == winner })]
			older := p.CreationTimestamp.Before(&w.CreationTimestamp)
			same := p.CreationTimestamp.Equal(&w.CreationTimestamp)
			if p.Spec.Priority > w.Spec.Priority || p.Spec.Priority == w.Spec.Priority && (older || same && p.Name < w.Name) {
				t.Fatalf("%s holds, %s comes before it", winner, p.Name)
			}
		}
	}
}

// TestSettings are what policies want of GPUs.
func TestSettings(t *testing.T) {
	const document = `
version: v1
mig-configs:
  mixed:
  - {device-filter: "0x233010DE", devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 3}}
  - {devices: [0], mig-enabled: false}
  - {devices: [2], mig-enabled: true, mig-devices: {}}
`
	parted := fmt.Sprintf("{nvidia: {mig: {mode: MigParted, migParted: {config: mixed, document: %q}}}}", document)
	for _, tc := range []struct {
		name, spec string
		bus        int
		want       *partition.Settings
		why        string
	}{
		{
			name: "shares with time slices", spec: "{sharing: {maxClaims: 2, strategies: [TimeSlicing], interval: Long}}", bus: 2,
			want: &partition.Settings{Sharing: &partition.Sharing{MaxClaims: 2}, Strategies: []string{"TimeSlicing"}, Interval: "Long"},
		},
		{
			name: "dynamic", spec: "{nvidia: {mig: {mode: Dynamic, profiles: [1g.10gb]}}, passthrough: true}", bus: 2,
			want: &partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDynamic, Profiles: []string{"1g.10gb"}}, Passthrough: true},
		},
		{
			name: "static",
			spec: "{nvidia: {mig: {mode: Static, layout: [{profile: 3g.40gb, count: 1, starts: [4]}, {profile: 1g.10gb, count: 2}]}}}", bus: 2,
			want: &partition.Settings{MIG: &partition.MIG{Mode: partition.MIGStatic, Layout: []partition.Instances{
				{Profile: "3g.40gb", Count: 1, Starts: []uint32{4}}, {Profile: "1g.10gb", Count: 2},
			}}},
		},
		{
			name: "disabled", spec: "{nvidia: {mig: {mode: Disabled}}}", bus: 2,
			want: &partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDisabled}},
		},
		{
			name: "mig-parted", spec: parted, bus: 2,
			want: &partition.Settings{MIG: &partition.MIG{Mode: partition.MIGStatic, Layout: []partition.Instances{
				{Profile: "1g.10gb", Count: 3}, {Profile: "3g.40gb", Count: 1},
			}}},
		},
		{name: "mig-parted, disabled", spec: parted, bus: 1, want: &partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDisabled}}},
		{name: "mig-parted, mode alone", spec: parted, bus: 3, want: &partition.Settings{MIG: &partition.MIG{Mode: partition.MIGStatic}}},
		{name: "mig-parted, no entry", spec: parted, bus: 4, why: "NoEntry: configuration mixed has no entry for this GPU: it stays as it is"},
		{
			name: "virtual functions", bus: 2,
			spec: "{sriov: {virtualFunctions: 4, xe: {execQuantumMS: 20, preemptTimeoutUS: 0, schedPriority: high, vramQuota: 4Gi}}}",
			want: &partition.Settings{SRIOV: &partition.SRIOV{VirtualFunctions: 4, Xe: &partition.Xe{
				ExecQuantumMS: new(int32(20)), PreemptTimeoutUS: new(int32(0)), SchedPriority: "high", VRAMQuota: 4 << 30,
			}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var node policy.Node
			for bus := 4; bus > 0; bus-- {
				node.Devices = append(node.Devices, gpu(t, "nvidia", bus, 0x233010de))
			}
			var r policy.Resolver
			p := made(t, "p", 1, devices(tc.spec))
			if faults := r.Check(&p.Spec, field.NewPath("spec")); len(faults) > 0 {
				t.Fatal(faults.ToAggregate())
			}
			got := r.Resolve(t.Context(), node, []v1alpha1.PartitionPolicy{p})
			name := fmt.Sprintf("nvidia-0000-%02x-00-0", tc.bus)
			settings, ok := got.Settings[name]
			if ok != (tc.want != nil) || ok && !cmp.Equal(*tc.want, settings) {
				t.Errorf("got %+v, %t\n%s", settings, ok, cmp.Diff(tc.want, &settings))
			}
			for _, w := range got.Policies[0].Waits {
				if text := w.Reason + ": " + w.Message; w.Device == name && text != tc.why {
					t.Errorf("got %q, want %q", text, tc.why)
				}
			}
		})
	}
}

// TestCheck is what the API server does not find.
func TestCheck(t *testing.T) {
	parted := func(document string) string {
		return fmt.Sprintf("devices: {nvidia: {mig: {mode: MigParted, migParted: {config: x, document: %q}}}}", document)
	}
	const at = "spec.devices.nvidia.mig."
	for spec, want := range map[string]string{
		"devices: {deviceSelector: {cel: 'device.nothing'}, passthrough: true}": "spec.devices.deviceSelector.cel: Invalid value",

		parted("version: v1"): at + "migParted.document: Invalid value: mig-configs: want at least one",
		parted("{version: v1, mig-configs: {z: [{devices: all, mig-enabled: false}]}}"): at +
			`migParted.config: Unsupported value: "x": supported values: "z"`,
		"devices: {nvidia: {mig: {mode: Sometimes}}}": at + `mode: Unsupported value: "Sometimes"`,
	} {
		var r policy.Resolver
		p := made(t, "p", 1, spec)
		faults := r.Check(&p.Spec, field.NewPath("spec"))
		if len(faults) != 1 || !strings.HasPrefix(faults[0].Error(), want) {
			t.Errorf("%s: got %v, want %q", spec, faults, want)
		}
	}
}

// TestDocument resolves each policy of the user's page for a GPU of each vendor: one of them gets settings.
func TestDocument(t *testing.T) {
	page, err := os.ReadFile("../../../docs/user/partitions.md")
	if err != nil {
		t.Fatal(err)
	}
	node := policy.Node{Labels: map[string]string{"pool": "shared-gpus"}, Devices: []policy.Device{
		gpu(t, "nvidia", 1, 0x233010de, "productName=NVIDIA H100 80GB HBM3", "architecture=Hopper"),
		gpu(t, "amd", 2, 0x74a11002, "productName=AMD Instinct MI300X", "architecture=gfx942"),
		gpu(t, "intel", 3, 0x0bda8086, "productName=Intel Data Center GPU Flex 170", "architecture=xe-hpg"),
	}}
	policies := 0
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllSubmatch(page, -1) {
		var p v1alpha1.PartitionPolicy
		if !strings.Contains(string(block[1]), "\nkind: PartitionPolicy\n") {
			continue
		}
		policies++
		if err := yaml.UnmarshalStrict(block[1], &p); err != nil {
			t.Fatal(err)
		}
		if p.Spec.NodeSelector != nil {
			node.Labels = p.Spec.NodeSelector.MatchLabels
		}
		var r policy.Resolver
		if faults := r.Check(&p.Spec, field.NewPath("spec")); len(faults) > 0 {
			t.Errorf("%s: %v", p.Name, faults.ToAggregate())
		}
		if got := r.Resolve(t.Context(), node, []v1alpha1.PartitionPolicy{p}); len(got.Settings) != 1 || len(got.Policies[0].Failed) > 0 {
			t.Errorf("%s: got %v, %v", p.Name, got.Settings, got.Policies)
		}
	}
	if policies != 6 {
		t.Errorf("%d policies, want 6", policies)
	}
}

// TestMistakenSelector: a policy whose selector is at fault keeps what it held for before, in its place among the policies, and no more.
func TestMistakenSelector(t *testing.T) {
	for _, mistake := range []string{
		devices("{deviceSelector: {cel: 'device.nothing'}, nvidia: {mig: {mode: Dynamic}}}"),
		"nodeSelector: {matchExpressions: [{key: a, operator: Sometimes}]}\n" + devices(dynamic),
	} {
		was, other := gpu(t, "nvidia", 0x1b, 0), gpu(t, "nvidia", 0x3b, 0)
		was.Former = "p"
		policies := []v1alpha1.PartitionPolicy{made(t, "p", 1, "priority: 1\n"+mistake), made(t, "q", 1, devices(dynamic))}
		var r policy.Resolver
		got := r.Resolve(t.Context(), policy.Node{Devices: []policy.Device{was, other}}, policies)
		want := []string{"p holds 1 waits 1: InvalidPolicy failed 1: InvalidPolicy", "q holds 1 lost 1: Overruled by p"}
		if diff := cmp.Diff(want, written(got.Policies)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", mistake, diff)
		}
		if _, ok := got.Settings[a]; ok || got.OtherManager("p", a) {
			t.Errorf("%s: it wants %+v", mistake, got.Settings[a])
		}
		policies[0].Spec.Priority = -1
		if got := r.Resolve(t.Context(), policy.Node{Devices: []policy.Device{was}}, policies); got.Holding[a] != "q" {
			t.Errorf("%s: %v holds, want the policy of higher priority", mistake, got.Holding)
		}
	}
}
