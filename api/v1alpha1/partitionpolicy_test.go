// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// partitionCases are specs of PartitionPolicies, as trustCases are of TrustPolicies.
func partitionCases() []trustCase {
	return slices.Concat(partitionScopeCases(), partitionMIGCases(), partitionOtherCases(), sharingCases(), partitionNodesCases())
}

// ofMIG is a policy for NVIDIA's GPUs, ofDevices one for others.
func ofMIG(fields string) string { return ofDevices("nvidia: {mig: {" + fields + "}}") }

func ofDevices(fields string) string { return "devices: {" + fields + "}\n" }

const layoutOf = "mode: Static, layout: [%s]"

func partitionScopeCases() []trustCase {
	const empty = "in Go the empty text is the same as none"
	dynamic := ofMIG("mode: Dynamic")
	return []trustCase{
		{name: "dynamic", spec: dynamic},
		{
			name: "everything", spec: "priority: -5\nnodeSelector: {matchLabels: {pool: a}, matchExpressions: [{key: b, operator: Exists}]}\n" +
				ofDevices("deviceSelector: {cel: 'true'}, nvidia: {mig: {mode: Dynamic, profiles: [1g.10gb, 1g.10gb+me]}}, passthrough: true"),
		},
		{name: "nothing", spec: "devices: {}", want: []string{"spec.devices: Required value: say what becomes of the devices"}},
		{
			name: "a selector alone", spec: ofDevices("deviceSelector: {cel: 'true'}"),
			want: []string{"spec.devices: Required value: say what becomes of the devices"},
		},
		{name: "passthrough", spec: ofDevices("passthrough: true")},
		{name: "no passthrough", spec: ofDevices("passthrough: false")},
		{
			name: "two ways", spec: ofDevices("nvidia: {mig: {mode: Dynamic}}, amd: {compute: CPX}"),
			want: []string{"spec.devices: Forbidden: a device is divided in one way"},
		},
		{
			name: "two other ways", spec: ofDevices("sriov: {virtualFunctions: 1}, amd: {compute: CPX}, passthrough: true"),
			want: []string{"spec.devices: Forbidden: a device is divided in one way"},
		},
		{
			name: "passthrough of a static layout",
			spec: ofDevices("passthrough: true, nvidia: {mig: {mode: Static, layout: [{profile: 1g.5gb, count: 1}]}}"),
			want: []string{"spec.devices.passthrough: Forbidden: needs the GPU whole"},
		},
		{
			name: "no passthrough of a static layout",
			spec: ofDevices("passthrough: false, nvidia: {mig: {mode: Static, layout: [{profile: 1g.5gb, count: 1}]}}"),
		},
		{name: "priority", spec: "priority: 1000001\n" + dynamic, want: []string{"spec.priority: Invalid value: 1000001"}},
		{name: "low priority", spec: "priority: -1000001\n" + dynamic, want: []string{"spec.priority: Invalid value: -1000001"}},
		{
			name: "node selector", spec: "nodeSelector: {matchExpressions: [{key: a, operator: Is}]}\n" + dynamic,
			want: []string{"spec.nodeSelector.matchExpressions[0].operator: Invalid value"}, lenient: "a schema cannot say what a selector is",
		},
		{
			name: "empty condition", spec: ofDevices("deviceSelector: {cel: ''}, passthrough: true"),
			want: []string{"spec.devices.deviceSelector.cel: Required value"},
		},
		{
			name: "long condition", spec: ofDevices("deviceSelector: {cel: '" + strings.Repeat("é", 4097) + "'}, passthrough: true"),
			want: []string{"spec.devices.deviceSelector.cel: Too long"},
		},
		{name: "longest condition", spec: ofDevices("deviceSelector: {cel: '" + strings.Repeat("é", 4096) + "'}, passthrough: true")},
		{name: "empty mode", spec: ofDevices("amd: {compute: '', memory: NPS1}"), strict: empty},
		{name: "empty quota", spec: ofDevices("sriov: {virtualFunctions: 1, xe: {vramQuota: '', schedPriority: low}}"), strict: empty},
	}
}

func partitionMIGCases() []trustCase {
	const at = "spec.devices.nvidia.mig."
	all := []trustCase{
		{name: "disabled", spec: ofMIG("mode: Disabled")},
		{name: "no mode", spec: ofMIG(""), want: []string{at + `mode: Unsupported value: ""`}},
		{name: "mode", spec: ofMIG("mode: Sometimes"), want: []string{at + `mode: Unsupported value: "Sometimes"`}},
		{name: "no profiles", spec: ofMIG("mode: Dynamic, profiles: []"), want: []string{at + "profiles: Required value"}},
		{
			name: "profile twice", spec: ofMIG("mode: Dynamic, profiles: [1g.5gb, 1g.5gb]"),
			want: []string{at + `profiles[1]: Duplicate value: "1g.5gb"`},
		},
		{
			name: "profiles of a static layout", spec: ofMIG("mode: Static, profiles: [1g.5gb], layout: [{profile: 1g.5gb, count: 1}]"),
			want: []string{at + "profiles: Forbidden: profiles are for mode Dynamic"},
		},
		{name: "no layout", spec: ofMIG("mode: Static"), want: []string{at + "layout: Required value: set it for mode Static"}},
		{name: "empty layout", spec: ofMIG("mode: Static, layout: []"), want: []string{at + "layout: Required value: name at least one"}},
		{
			name: "layout of another mode", spec: ofMIG("mode: Dynamic, layout: [{profile: 1g.5gb, count: 1}]"),
			want: []string{at + "layout: Required value: set it for mode Static"},
		},
		{name: "starts", spec: ofMIG("mode: Static, layout: [{profile: 1g.5gb, count: 2, starts: [0, 63]}]")},
		{
			name: "a start too few", spec: ofMIG("mode: Static, layout: [{profile: 1g.5gb, count: 2, starts: [0]}]"),
			want: []string{at + "layout[0].starts: Invalid value: 1: give a start for each instance"},
		},
		{
			name: "no starts", spec: ofMIG("mode: Static, layout: [{profile: 1g.5gb, count: 2, starts: []}]"),
			want: []string{at + "layout[0].starts: Required value"},
		},
		{
			name: "starts beyond", spec: ofMIG("mode: Static, layout: [{profile: 1g.5gb, count: 2, starts: [-1, 64]}]"),
			want: []string{at + "layout[0].starts[0]: Invalid value: -1", at + "layout[0].starts[1]: Invalid value: 64"},
		},
		{
			name: "start twice", spec: ofMIG("mode: Static, layout: [{profile: 1g.5gb, count: 2, starts: [1, 1]}]"),
			want: []string{at + "layout[0].starts[1]: Duplicate value: 1"},
		},
		{
			name: "none", spec: ofMIG(fmt.Sprintf(layoutOf, "{profile: 1g.5gb, count: 0}")),
			want: []string{at + "layout[0].count: Invalid value: 0"},
		},
		{name: "most", spec: ofMIG(fmt.Sprintf(layoutOf, "{profile: 1g.5gb, count: 16}"))},
		{
			name: "too many", spec: ofMIG(fmt.Sprintf(layoutOf, "{profile: 1g.5gb, count: 17}")),
			want: []string{at + "layout[0].count: Invalid value: 17"},
		},
		{name: "mig-parted", spec: ofMIG("mode: MigParted, migParted: {config: a, document: 'version: v1'}")},
		{name: "no document", spec: ofMIG("mode: MigParted"), want: []string{at + "migParted: Required value: set it for mode MigParted"}},
		{
			name: "document of another mode", spec: ofMIG("mode: Dynamic, migParted: {config: a, document: b}"),
			want: []string{at + "migParted: Required value: set it for mode MigParted"},
		},
		{
			name: "empty document", spec: ofMIG("mode: MigParted, migParted: {config: '', document: ''}"),
			want: []string{at + "migParted.config: Required value", at + "migParted.document: Required value"},
		},
	}
	for _, profile := range []string{
		"1g.5gb", "7g.141gb", "1g.24gb-me", "1g.24gb+me.all", "1g.12gb+gfx", "1g.5gb+me,gfx",
		"10g.1000gb+me-gfx",
	} {
		all = append(all, trustCase{name: "profile " + profile, spec: ofMIG(fmt.Sprintf("mode: Dynamic, profiles: [%q]", profile))})
	}
	for _, profile := range []string{
		"", "1g", "0g.5gb", "1g.05gb", "1c.2g.20gb", "1G.5GB", "1g.5gb+", "1g.5gb+ME",
		" 1g.5gb", "1g.5gb\n", "all",
	} {
		all = append(all, trustCase{
			name: fmt.Sprintf("profile %q", profile), spec: ofMIG(fmt.Sprintf("mode: Dynamic, profiles: [%q]", profile)),
			want: []string{fmt.Sprintf(at+"profiles[0]: Invalid value: %q", profile)},
		}, trustCase{
			name: fmt.Sprintf("layout of %q", profile), spec: ofMIG(fmt.Sprintf(layoutOf, fmt.Sprintf("{profile: %q, count: 1}", profile))),
			want: []string{fmt.Sprintf(at+"layout[0].profile: Invalid value: %q", profile)},
		})
	}
	for _, limit := range []struct {
		name  string
		most  int
		spec  func(n int) string
		field string
	}{
		{"profiles", 32, list(ofMIG("mode: Dynamic, profiles: [%s]"), "1g.1%dgb"), "profiles"},
		{"profile", 32, long(ofMIG("mode: Dynamic, profiles: [1g.5gb+%s]"), "a", 7), "profiles[0]"},
		{"layout", 16, list(ofMIG(layoutOf), "{profile: 1g.5gb, count: 1, starts: [%d]}"), "layout"},
		{"config", 253, long(ofMIG("mode: MigParted, migParted: {config: %s, document: a}"), "é"), "migParted.config"},
		{"document", 65536, long(ofMIG("mode: MigParted, migParted: {config: a, document: %s}"), "a"), "migParted.document"},
	} {
		for n, want := range map[int][]string{limit.most: nil, limit.most + 1: {at + limit.field + ": "}} {
			all = append(all, trustCase{name: fmt.Sprintf("%s %d", limit.name, n), spec: limit.spec(n), want: want})
		}
	}
	return all
}

func partitionOtherCases() []trustCase {
	var all []trustCase
	pairs := map[string][]string{
		"SPX": {"NPS1"}, "DPX": {"NPS1", "NPS2"}, "TPX": {"NPS1", "NPS4"}, "QPX": {"NPS1", "NPS4"}, "CPX": {"NPS1", "NPS4"},
		"": {"NPS1", "NPS2", "NPS4"},
	}
	for compute, together := range pairs {
		for _, memory := range []string{"NPS1", "NPS2", "NPS4"} {
			fields := "memory: " + memory
			if compute != "" {
				fields += ", compute: " + compute
			}
			c := trustCase{name: fields, spec: ofDevices("amd: {" + fields + "}")}
			if !strings.Contains(strings.Join(together, " "), memory) {
				c.want = []string{fmt.Sprintf("spec.devices.amd.memory: Invalid value: %q: these modes do not go together", memory)}
			}
			all = append(all, c)
		}
	}
	const sriov = "spec.devices.sriov."
	function := func(fields string) string { return ofDevices("sriov: {virtualFunctions: 4, xe: {" + fields + "}}") }
	return append(
		all,
		trustCase{name: "CPX alone", spec: ofDevices("amd: {compute: CPX}")},
		trustCase{name: "no modes", spec: ofDevices("amd: {}"), want: []string{"spec.devices.amd: Required value: set compute, memory or both"}},
		trustCase{
			name: "compute mode", spec: ofDevices("amd: {compute: cpx}"),
			want: []string{`spec.devices.amd.compute: Unsupported value: "cpx"`},
		},
		trustCase{
			name: "memory mode", spec: ofDevices("amd: {memory: NPS8}"),
			want: []string{`spec.devices.amd.memory: Unsupported value: "NPS8"`},
		},
		trustCase{name: "functions", spec: ofDevices("sriov: {virtualFunctions: 256}")},
		trustCase{name: "no functions", spec: ofDevices("sriov: {virtualFunctions: 0}")},
		trustCase{
			name: "functions 257", spec: ofDevices("sriov: {virtualFunctions: 257}"),
			want: []string{sriov + "virtualFunctions: Invalid value: 257"},
		},
		trustCase{
			name: "functions -1", spec: ofDevices("sriov: {virtualFunctions: -1}"),
			want: []string{sriov + "virtualFunctions: Invalid value: -1"},
		},
		trustCase{name: "xe", spec: function("execQuantumMS: 0, preemptTimeoutUS: 100000000, schedPriority: normal, vramQuota: 4Gi")},
		trustCase{name: "xe without anything", spec: function(""), want: []string{sriov + "xe: Required value: set at least one field"}},
		trustCase{name: "quantum", spec: function("execQuantumMS: 100001"), want: []string{sriov + "xe.execQuantumMS: Invalid value: 100001"}},
		trustCase{name: "quantum below", spec: function("execQuantumMS: -1"), want: []string{sriov + "xe.execQuantumMS: Invalid value: -1"}},
		trustCase{
			name: "timeout", spec: function("preemptTimeoutUS: 100000001"),
			want: []string{sriov + "xe.preemptTimeoutUS: Invalid value: 100000001"},
		},
		trustCase{
			name: "xe priority", spec: function("schedPriority: urgent"),
			want: []string{sriov + `xe.schedPriority: Unsupported value: "urgent"`},
		},
		trustCase{name: "quota", spec: function("vramQuota: 4G"), want: []string{sriov + `xe.vramQuota: Invalid value: "4G"`}},
		trustCase{name: "quota of nothing", spec: function("vramQuota: '0'"), want: []string{sriov + `xe.vramQuota: Invalid value: "0"`}},
		trustCase{name: "quota in bytes", spec: function("vramQuota: '4294967296'")},
	)
}

func validatePartition(t *testing.T, spec string) field.ErrorList {
	t.Helper()
	var s v1alpha1.PartitionPolicySpec
	if err := yaml.UnmarshalStrict([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	return s.Validate(field.NewPath("spec"))
}

func TestPartitionPolicyValidate(t *testing.T) {
	for _, c := range partitionCases() {
		t.Run(c.name, func(t *testing.T) {
			faults := validatePartition(t, c.spec)
			for i, fault := range faults {
				if i >= len(c.want) || !strings.HasPrefix(fault.Error(), c.want[i]) {
					t.Errorf("fault %d is %q", i, fault.Error())
				}
			}
			if len(faults) != len(c.want) {
				t.Errorf("%d faults, want %q", len(faults), c.want)
			}
		})
	}
}

// TestWaitingNodes: a status has the first nodes and counts all.
func TestWaitingNodes(t *testing.T) {
	var s v1alpha1.PartitionPolicyStatus
	nodes := make([]v1alpha1.WaitingNode, v1alpha1.MaxWaitingNodes+2)
	for i := range nodes {
		nodes[i] = v1alpha1.WaitingNode{Node: fmt.Sprintf("node-%02d", i), Reason: "x", Message: strings.Repeat("é", 2000)}
	}
	s.SetWaiting(nodes)
	if len(s.Waiting) != 32 || s.WaitingNodes != 34 || s.Waiting[31].Node != "node-31" || len([]rune(s.Waiting[0].Message)) != 1024 {
		t.Errorf("%d of %d nodes, the last %s", len(s.Waiting), s.WaitingNodes, s.Waiting[len(s.Waiting)-1].Node)
	}
	if s.SetWaiting(nil); s.Waiting != nil || s.WaitingNodes != 0 {
		t.Errorf("%d of %d nodes", len(s.Waiting), s.WaitingNodes)
	}
}

// sharingCases are policies that share devices.
func sharingCases() []trustCase {
	share := func(memory string) string { return ofDevices("sharing: {maxClaims: 4, memory: {" + memory + "}}") }
	const at = "spec.devices.sharing."
	const order = "CEL has no order of a list's quantities"
	return []trustCase{
		{name: "shares", spec: ofDevices("sharing: {maxClaims: 2}")},
		{name: "shares of a layout", spec: ofDevices(
			"sharing: {maxClaims: 256}, nvidia: {mig: {mode: Static, layout: [{profile: 1g.5gb, count: 1}]}}")},
		{name: "shares by default", spec: share("default: 10Gi")},
		{name: "shares by range", spec: share("default: 10Gi, range: {min: 2Gi, max: 80Gi, step: 2Gi}")},
		{name: "shares from a least", spec: share("default: 10Gi, range: {min: '1'}")},
		{name: "shares by values", spec: share("default: 10Gi, values: [5Gi, 10240Mi, 20Gi]")},
		{name: "one share", spec: ofDevices("sharing: {maxClaims: 1}"), want: []string{at + "maxClaims: Invalid value: 1: must be 2 to 256"}},
		{name: "many shares", spec: ofDevices("sharing: {maxClaims: 257}"), want: []string{at + "maxClaims: Invalid value: 257"}},
		{name: "strategies alone", spec: ofDevices("sharing: {strategies: [MPS, TimeSlicing]}")},
		{name: "strategies of shares", spec: ofDevices("sharing: {maxClaims: 2, memory: {default: 1Gi}, strategies: [TimeSlicing]}")},
		{name: "an interval", spec: ofDevices("sharing: {maxClaims: 2, strategies: [MPS, TimeSlicing], interval: Long}")},
		{
			name: "an interval of one claim", spec: ofDevices("sharing: {strategies: [TimeSlicing], interval: Long}"),
			want: []string{at + "interval: Forbidden: interval is for shares with time slices"},
		},
		{
			name: "an interval without time slices", spec: ofDevices("sharing: {maxClaims: 2, interval: Long}"),
			want: []string{at + "interval: Forbidden: interval is for shares with time slices"},
		},
		{
			name: "another interval", spec: ofDevices("sharing: {maxClaims: 2, strategies: [TimeSlicing], interval: Never}"),
			want: []string{at + `interval: Unsupported value: "Never"`},
		},
		{name: "no sharing", spec: ofDevices("sharing: {}"), want: []string{at + "maxClaims: Required value: set maxClaims, strategies or both"}},
		{
			name: "memory of one claim", spec: ofDevices("sharing: {strategies: [MPS], memory: {default: 1Gi}}"),
			want: []string{at + "maxClaims: Required value: memory is counted where several claims have a device: set maxClaims"},
		},
		{
			name: "another strategy", spec: ofDevices("sharing: {strategies: [Exclusive]}"),
			want: []string{at + `strategies[0]: Unsupported value: "Exclusive": supported values: "TimeSlicing", "MPS"`},
		},
		{
			name: "a strategy twice", spec: ofDevices("sharing: {strategies: [MPS, MPS]}"),
			want: []string{at + `strategies[1]: Duplicate value: "MPS"`},
		},
		{name: "no strategy", spec: ofDevices("sharing: {strategies: []}"), want: []string{at + "strategies: "}},
		{name: "no amount", spec: share("default: '0'"), want: []string{at + "memory.default: Invalid value"}},
		{name: "a fraction", spec: share("default: 1.5Gi"), want: []string{at + "memory.default: Invalid value"}},
		{name: "more than a number holds", spec: share("default: 9999999Ti"), want: []string{at + "memory.default: Invalid value"}},
		{name: "the most", spec: share("default: 999999Ti")},
		{
			name: "range and values", spec: share("default: 1Gi, range: {min: 1Gi}, values: [1Gi]"),
			want: []string{at + "memory.values: Forbidden: set range or values"},
		},
		{name: "not a value", spec: share("default: 3Gi, values: [2Gi, 4Gi]"), want: []string{at + "memory.default: Invalid value: \"3Gi\""}},
		{name: "no values", spec: share("default: 3Gi, values: []"), want: []string{at + "memory.values: Required value"}},
		{
			name: "values out of order", spec: share("default: 2Gi, values: [4Gi, 2Gi]"), want: []string{at + "memory.values[1]: Invalid value"},
			lenient: order,
		},
		{
			name: "a value twice", spec: share("default: 1Gi, values: [1Gi, 1024Mi]"), want: []string{at + "memory.values[1]: Invalid value"},
			lenient: order,
		},
		{
			name: "eleven values", spec: share("default: '1', values: ['1', '2', '3', '4', '5', '6', '7', '8', '9', '10', '11']"),
			want: []string{at + "memory.values: Too many"},
		},
		{name: "below the range", spec: share("default: 1Gi, range: {min: 2Gi}"), want: []string{at + "memory.default: Invalid value"}},
		{name: "above the range", spec: share("default: 9Gi, range: {min: 2Gi, max: 8Gi}"), want: []string{at + "memory.default: Invalid value"}},
		{name: "range upside down", spec: share("default: 4Gi, range: {min: 4Gi, max: 2Gi}"), want: []string{
			at + "memory.range.min: Invalid value", at + "memory.default: Invalid value",
		}},
		{name: "between steps", spec: share("default: 4Gi, range: {min: 1Gi, step: 2Gi}"), want: []string{at + "memory.default: Invalid value"}},
		{
			name: "an end between steps", spec: share("default: 3Gi, range: {min: 1Gi, max: 8Gi, step: 2Gi}"),
			want: []string{at + "memory.range.max: Invalid value"},
		},
		{name: "a step of nothing", spec: share("default: 3Gi, range: {min: 1Gi, step: '0'}"), want: []string{
			at + "memory.range.step: Invalid value",
		}},
	}
}
