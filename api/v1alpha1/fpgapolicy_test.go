// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"
	"testing"
	"time"
)

func TestFPGAPolicy(t *testing.T) {
	for _, tc := range []struct {
		name   string
		policy FPGAPolicy
		want   []string
	}{
		{name: "empty"},
		{name: "everything", policy: FPGAPolicy{
			Policy:              Policy{AllowedNamespaces: []string{"a"}},
			AllowedBitstreams:   []string{pinnedDigest, "nlb0", "team-a/nlb0.v2", "team-b/*"},
			AllowedRegistries:   []string{"registry.example", "registry.example:5000/team/fpga", "localhost", "10.0.0.1"},
			AllowedDriverParams: []FPGAParamRule{{Name: ParamClock}, {Name: ParamClockLow}, {Name: ParamLTR}, {Name: ParamDebug}},
			CoTenancy:           CoTenancyExclusive, MaxTimeout: duration(time.Minute),
		}},
		{
			name: "empty lists mean nothing", policy: FPGAPolicy{
				Policy:            Policy{AllowedNamespaces: []string{}},
				AllowedBitstreams: []string{}, AllowedRegistries: []string{}, AllowedDriverParams: []FPGAParamRule{},
			},
			want: []string{
				`policy.allowedNamespaces: Required value: name at least one namespace`,
				`policy.allowedBitstreams: Required value: name at least one, or leave the field out`,
				`policy.allowedRegistries: Required value: name at least one, or leave the field out`,
				`policy.allowedDriverParams: Required value: name at least one, or leave the field out`,
			},
		},
		{
			name: "long lists", policy: FPGAPolicy{
				AllowedBitstreams: slices.Repeat([]string{"nlb0"}, 129), AllowedRegistries: slices.Repeat([]string{"registry.example"}, 129),
			},
			want: []string{
				`policy.allowedBitstreams: Too many: 129: must have at most 128 items`,
				`policy.allowedRegistries: Too many: 129: must have at most 128 items`,
			},
		},
		{
			name: "bitstreams", policy: FPGAPolicy{AllowedBitstreams: []string{
				"sha256:0123", "SHA256:" + pinnedDigest[7:], "*", "*/*", "Team/nlb0", "team/", "team/nlb0/v2", "",
			}},
			want: []string{
				`policy.allowedBitstreams[0]: Invalid value: "sha256:0123": must be sha256: and 64 lower-case hexadecimal digits`,
				`policy.allowedBitstreams[1]: Invalid value: "SHA256:` + pinnedDigest[7:] + `": a lowercase RFC 1123 subdomain`,
				`policy.allowedBitstreams[2]: Invalid value: "*": a lowercase RFC 1123 subdomain`,
				`policy.allowedBitstreams[3]: Invalid value: "*/*": the namespace a lowercase RFC 1123 label`,
				`policy.allowedBitstreams[4]: Invalid value: "Team/nlb0": the namespace a lowercase RFC 1123 label`,
				`policy.allowedBitstreams[5]: Invalid value: "team/": the name a lowercase RFC 1123 subdomain`,
				`policy.allowedBitstreams[6]: Invalid value: "team/nlb0/v2": the name a lowercase RFC 1123 subdomain`,
				`policy.allowedBitstreams[7]: Invalid value: "": a lowercase RFC 1123 subdomain`,
			},
		},
		{
			name: "registries", policy: FPGAPolicy{AllowedRegistries: []string{
				"", "https://registry.example", "registry.example/", "registry.example/*", "Registry.example", "registry.example/a:v1", "team",
			}},
			want: []string{
				`policy.allowedRegistries[0]: Invalid value: "": must be a registry with an optional repository`,
				`policy.allowedRegistries[1]: Invalid value: "https://registry.example": must be a registry`,
				`policy.allowedRegistries[2]: Invalid value: "registry.example/": must be a registry`,
				`policy.allowedRegistries[3]: Invalid value: "registry.example/*": must be a registry`,
				`policy.allowedRegistries[4]: Invalid value: "Registry.example": must be a registry`,
				`policy.allowedRegistries[5]: Invalid value: "registry.example/a:v1": must be a registry`,
				`policy.allowedRegistries[6]: Invalid value: "team": must name its registry by a host with a dot or a port`,
			},
		},
		{
			name: "words and times", policy: FPGAPolicy{CoTenancy: "shared", MaxTimeout: duration(time.Hour)},
			want: []string{
				`policy.coTenancy: Unsupported value: "shared": supported values: "Exclusive", "SameNamespace", "Shared"`,
				`policy.maxTimeout: Invalid value: "1h0m0s": must be 1s to 10m0s`,
			},
		},
		{
			name: "driver parameters", policy: FPGAPolicy{AllowedDriverParams: []FPGAParamRule{
				{Name: ParamClock, Min: new(int32(400)), Max: new(int32(100)), Values: []int32{0, 200}},
				{Name: ParamLTR, Min: new(int32(-1)), Max: new(int32(2))},
				{Name: ParamClock},
				{Name: "clock"},
				{Name: ParamDebug, Values: []int32{}},
			}},
			want: []string{
				`policy.allowedDriverParams[0].min: Invalid value: 400: must not be above max, 100`,
				`policy.allowedDriverParams[0].values[0]: Invalid value: 0: must be 1 to 1500`,
				`policy.allowedDriverParams[1].min: Invalid value: -1: must be 0 to 1`,
				`policy.allowedDriverParams[1].max: Invalid value: 2: must be 0 to 1`,
				`policy.allowedDriverParams[2].name: Duplicate value: "clockMHz"`,
				`policy.allowedDriverParams[3].name: Unsupported value: "clock": supported values: "clockMHz", "clockLowMHz", "debug", "ltr"`,
				`policy.allowedDriverParams[4].values: Required value: name at least one, or leave the field out`,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := FPGAConfig{Policy: &tc.policy}
			comparePrefixes(t, tc.want, config.Validate(true, nil))
			inClaim := append([]string{`policy: Forbidden: only a DeviceClass may set a policy`}, tc.want...)
			comparePrefixes(t, inClaim, config.Validate(false, nil))
		})
	}
}

func TestParamRuleAllows(t *testing.T) {
	for _, tc := range []struct {
		name  string
		rule  FPGAParamRule
		value int32
		want  string
	}{
		{"all that it can be, low", FPGAParamRule{Name: ParamClock}, 1, ""},
		{"all that it can be, high", FPGAParamRule{Name: ParamClock}, 1500, ""},
		{"more than it can be", FPGAParamRule{Name: ParamClock}, 1501, "must be 1 to 1500"},
		{"less than it can be", FPGAParamRule{Name: ParamClockLow}, 0, "must be 1 to 1500"},
		{"a switch", FPGAParamRule{Name: ParamLTR}, 1, ""},
		{"more than a switch", FPGAParamRule{Name: ParamLTR}, 2, "must be 0 to 1"},
		{"a level", FPGAParamRule{Name: ParamDebug}, 15, ""},
		{"at the minimum", FPGAParamRule{Name: ParamClock, Min: new(int32(100))}, 100, ""},
		{"below the minimum", FPGAParamRule{Name: ParamClock, Min: new(int32(100))}, 99, "must be 100 to 1500"},
		{"at the maximum", FPGAParamRule{Name: ParamClock, Max: new(int32(400))}, 400, ""},
		{"above the maximum", FPGAParamRule{Name: ParamClock, Max: new(int32(400))}, 401, "must be 1 to 400"},
		{"a maximum of zero", FPGAParamRule{Name: ParamDebug, Max: new(int32(0))}, 1, "must be 0 to 0"},
		{"one of the values", FPGAParamRule{Name: ParamClock, Values: []int32{200, 400}}, 400, ""},
		{"none of the values", FPGAParamRule{Name: ParamClock, Values: []int32{200, 400}}, 300, "must be one of [200 400]"},
		{"a value out of range", FPGAParamRule{Name: ParamClock, Max: new(int32(300)), Values: []int32{400}}, 400, "must be 1 to 300"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.rule.Allows(tc.value); got != tc.want {
				t.Errorf("%d: %q, want %q", tc.value, got, tc.want)
			}
		})
	}
}
