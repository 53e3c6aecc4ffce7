// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	fpgaHead     = `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig"`
	shellID      = "9926ab6d6c925a68aabca7d84c545738"
	dashedID     = "9926AB6D-6C92-5A68-AABC-A7D84C545738"
	pinnedDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func fpgaType() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "fettle.dev/v1alpha1", Kind: KindFPGAConfig}
}

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func TestDecodeFPGAConfig(t *testing.T) {
	for _, tc := range []struct {
		name, raw string
		want      *FPGAConfig
		wantErr   []string
	}{
		{name: "only a kind", raw: fpgaHead + `}`, want: &FPGAConfig{TypeMeta: fpgaType()}},
		{
			name: "what an author writes",
			raw: fpgaHead + `,"interfaceID":"` + dashedID + `","bitstream":{"name":"nlb0","kind":"ClusterFPGABitstream"},"program":"Always",` +
				`"driverParams":{"clockMHz":1000,"clockLowMHz":500,"ltr":false,"debug":1},"resetBeforeUse":false,"onRelease":"Blank","timeout":"90s"}`,
			want: &FPGAConfig{
				TypeMeta: fpgaType(), InterfaceID: dashedID, Program: ProgramAlways, ResetBeforeUse: new(false),
				Bitstream: &BitstreamSource{Name: "nlb0", Kind: KindClusterFPGABitstream},
				DriverParams: &FPGADriverParams{
					ClockMHz: new(int32(1000)), ClockLowMHz: new(int32(500)), LTR: new(false), Debug: new(int32(1)),
				},
				OnRelease: FPGAReleaseBlank, Timeout: duration(90 * time.Second),
			},
		},
		{
			name: "what an administrator writes",
			raw: fpgaHead + `,"policy":{"allowedNamespaces":["a"],"allowedBitstreams":["nlb0"],"allowedRegistries":["registry.example/team"],` +
				`"requireSignature":true,"requireBlank":true,"allowKeep":true,"coTenancy":"Shared","maxTimeout":"5m",` +
				`"allowedDriverParams":[{"name":"clockMHz","min":100,"max":400,"values":[200,400]}]}}`,
			want: &FPGAConfig{TypeMeta: fpgaType(), Policy: &FPGAPolicy{
				Policy:            Policy{AllowedNamespaces: []string{"a"}},
				AllowedBitstreams: []string{"nlb0"}, AllowedRegistries: []string{"registry.example/team"},
				RequireSignature: true, RequireBlank: true, AllowKeep: true, CoTenancy: CoTenancyShared, MaxTimeout: duration(5 * time.Minute),
				AllowedDriverParams: []FPGAParamRule{
					{Name: ParamClock, Min: new(int32(100)), Max: new(int32(400)), Values: []int32{200, 400}},
				},
			}},
		},
		{
			name: "a file on the host", raw: fpgaHead + `,"bitstream":{"path":"/srv/nlb0.gbs"}}`,
			wantErr: []string{`parameters.bitstream.path: Invalid value: unknown field: use one of kind, name, ref`},
		},
		{
			name: "an id", raw: fpgaHead + `,"bitstream":{"id":"../../etc/shadow"}}`,
			wantErr: []string{`parameters.bitstream.id: Invalid value: unknown field: use one of kind, name, ref`},
		},
		{
			name: "a parameter of another driver", raw: fpgaHead + `,"driverParams":{"clock":1000}}`,
			wantErr: []string{`parameters.driverParams.clock: Invalid value: unknown field: use one of clockLowMHz, clockMHz, debug, ltr`},
		},
		{
			name: "wrong types", raw: fpgaHead + `,"driverParams":{"clockMHz":"fast","ltr":1},"resetBeforeUse":"yes","timeout":"soon"}`,
			wantErr: []string{
				`parameters.driverParams.clockMHz: Invalid value: "fast": must be a whole number of 32 bits`,
				`parameters.driverParams.ltr: Invalid value: 1: must be true or false`,
				`parameters.resetBeforeUse: Invalid value: "yes": must be true or false`,
				`parameters.timeout: Invalid value: "soon": must be a duration such as 90s`,
			},
		},
		{
			name: "null", raw: fpgaHead + `,"policy":{"allowedBitstreams":null}}`,
			wantErr: []string{`parameters.policy.allowedBitstreams: Invalid value: must not be null`},
		},
		{
			name: "twice", raw: fpgaHead + `,"policy":{"coTenancy":"Exclusive","coTenancy":"Shared"}}`,
			wantErr: []string{`parameters.policy.coTenancy: Duplicate value: the key is set more than once`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, faults := DecodeConfig([]byte(tc.raw), field.NewPath("parameters"))
			comparePrefixes(t, tc.wantErr, faults)
			if tc.want == nil {
				return
			}
			if diff := cmp.Diff(Config(tc.want), got); diff != "" {
				t.Errorf("wrong config (-want +got):\n%s", diff)
			}
			if faults := got.Validate(true, field.NewPath("parameters")); len(faults) > 0 {
				t.Errorf("not valid: %v", faults.ToAggregate())
			}
		})
	}
}

func TestValidateFPGA(t *testing.T) {
	const pinned = "registry.example:5000/team/nlb0@" + pinnedDigest
	for _, tc := range []struct {
		name   string
		config FPGAConfig
		want   []string
	}{
		{name: "empty"},
		{name: "by name", config: FPGAConfig{Bitstream: &BitstreamSource{Name: "nlb0"}}},
		{name: "by name and kind", config: FPGAConfig{Bitstream: &BitstreamSource{Name: "nlb0.v2", Kind: KindFPGABitstream}}},
		{name: "by reference", config: FPGAConfig{Bitstream: &BitstreamSource{Ref: pinned}}},
		{name: "registry on this machine", config: FPGAConfig{Bitstream: &BitstreamSource{Ref: "localhost/nlb0@" + pinnedDigest}}},
		{name: "interface with dashes", config: FPGAConfig{InterfaceID: dashedID}},
		{name: "at the bounds", config: FPGAConfig{
			Timeout:      duration(time.Second),
			DriverParams: &FPGADriverParams{ClockMHz: new(int32(1)), ClockLowMHz: new(int32(1500)), Debug: new(int32(15))},
		}},
		{name: "longest timeout", config: FPGAConfig{Timeout: duration(10 * time.Minute)}},
		{
			name: "no bitstream named", config: FPGAConfig{Bitstream: &BitstreamSource{Kind: KindFPGABitstream}},
			want: []string{`parameters.bitstream: Required value: set name, of an FPGABitstream, or ref`},
		},
		{
			name: "named twice", config: FPGAConfig{Bitstream: &BitstreamSource{Name: "nlb0", Ref: pinned}},
			want: []string{`parameters.bitstream.ref: Forbidden: name says already which bitstream`},
		},
		{
			name: "kind of a reference", config: FPGAConfig{Bitstream: &BitstreamSource{Ref: pinned, Kind: KindFPGABitstream}},
			want: []string{`parameters.bitstream.kind: Forbidden: is the kind of the object that name names`},
		},
		{
			name: "no name of an object, and no kind", config: FPGAConfig{Bitstream: &BitstreamSource{Name: "../nlb0", Kind: "Secret"}},
			want: []string{
				`parameters.bitstream.name: Invalid value: "../nlb0": a lowercase RFC 1123 subdomain`,
				`parameters.bitstream.kind: Unsupported value: "Secret": supported values: "FPGABitstream", "ClusterFPGABitstream"`,
			},
		},
		{
			name: "words", config: FPGAConfig{InterfaceID: "9926", Program: "never", OnRelease: "Wipe"},
			want: []string{
				`parameters.interfaceID: Invalid value: "9926": must be 32 hexadecimal digits`,
				`parameters.program: Unsupported value: "never": supported values: "IfDifferent", "Always", "Never"`,
				`parameters.onRelease: Unsupported value: "Wipe": supported values: "Blank", "Reset", "Keep"`,
			},
		},
		{
			name: "beyond the bounds", config: FPGAConfig{
				Timeout:      duration(time.Second - 1),
				DriverParams: &FPGADriverParams{ClockMHz: new(int32(0)), ClockLowMHz: new(int32(1501)), Debug: new(int32(-1))},
			},
			want: []string{
				`parameters.driverParams.clockMHz: Invalid value: 0: must be 1 to 1500`,
				`parameters.driverParams.clockLowMHz: Invalid value: 1501: must be 1 to 1500`,
				`parameters.driverParams.debug: Invalid value: -1: must be 0 to 15`,
				`parameters.timeout: Invalid value: "999.999999ms": must be 1s to 10m0s`,
			},
		},
		{
			name: "too long", config: FPGAConfig{Timeout: duration(10*time.Minute + 1), DriverParams: &FPGADriverParams{Debug: new(int32(16))}},
			want: []string{
				`parameters.driverParams.debug: Invalid value: 16: must be 0 to 15`,
				`parameters.timeout: Invalid value: "10m0.000000001s": must be 1s to 10m0s`,
			},
		},
		{
			name: "policy in a claim", config: FPGAConfig{Policy: &FPGAPolicy{AllowKeep: true}},
			want: []string{`parameters.policy: Forbidden: only a DeviceClass may set a policy: remove it from the claim`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			comparePrefixes(t, tc.want, tc.config.Validate(false, field.NewPath("parameters")))
		})
	}
}

// TestPinnedRef: a claim's own reference names its content and its registry.
func TestPinnedRef(t *testing.T) {
	const (
		content  = "must name its content"
		place    = "must name a registry and a repository"
		registry = "must name its registry by a host with a dot or a port"
	)
	for ref, want := range map[string]string{
		"registry.example/nlb0@" + pinnedDigest:                               "",
		"registry.example:5000/a/b-c/d.e_f@" + pinnedDigest:                   "",
		"registry.example/nlb0:v1":                                            content,
		"registry.example/nlb0":                                               content,
		"registry.example/nlb0@sha256:0123":                                   content,
		"registry.example/nlb0@sha512:" + pinnedDigest[7:]:                    content,
		"registry.example/nlb0@" + strings.ToUpper(pinnedDigest):              content,
		"registry.example/nlb0@" + pinnedDigest + "@" + pinnedDigest:          content,
		"registry.example/nlb0:v1@" + pinnedDigest:                            place,
		"nlb0@" + pinnedDigest:                                                place,
		"registry.example/../etc@" + pinnedDigest:                             place,
		"registry.example//nlb0@" + pinnedDigest:                              place,
		"registry.example/NLB0@" + pinnedDigest:                               place,
		"https://registry.example/nlb0@" + pinnedDigest:                       place,
		"registry.example/" + strings.Repeat("a/", 220) + "b@" + pinnedDigest: place,
		"team/nlb0@" + pinnedDigest:                                           registry,
		"localhosts/nlb0@" + pinnedDigest:                                     registry,
	} {
		t.Run(ref, func(t *testing.T) {
			config := FPGAConfig{Bitstream: &BitstreamSource{Ref: ref}}
			faults := config.Validate(false, nil)
			if want == "" && len(faults) == 0 {
				return
			}
			if want == "" || len(faults) != 1 || faults[0].Field != "bitstream.ref" || !strings.HasPrefix(faults[0].Detail, want) {
				t.Errorf("want one fault of bitstream.ref that begins with %q, got %v", want, faults)
			}
		})
	}
}

func TestDefaultFPGA(t *testing.T) {
	for _, tc := range []struct {
		name       string
		have, want FPGAConfig
	}{
		{
			name: "empty",
			want: FPGAConfig{
				Program: ProgramIfDifferent, ResetBeforeUse: new(true), OnRelease: FPGAReleaseReset, Timeout: duration(2 * time.Minute),
			},
		},
		{
			name: "kind of a name", have: FPGAConfig{Bitstream: &BitstreamSource{Name: "nlb0"}},
			want: FPGAConfig{
				Program: ProgramIfDifferent, ResetBeforeUse: new(true), OnRelease: FPGAReleaseReset, Timeout: duration(2 * time.Minute),
				Bitstream: &BitstreamSource{Name: "nlb0", Kind: KindFPGABitstream},
			},
		},
		{
			name: "nothing is overridden",
			have: FPGAConfig{
				Program: ProgramNever, ResetBeforeUse: new(false), OnRelease: FPGAReleaseKeep, Timeout: duration(time.Second),
				Bitstream: &BitstreamSource{Ref: "registry.example/nlb0@" + pinnedDigest},
			},
			want: FPGAConfig{
				Program: ProgramNever, ResetBeforeUse: new(false), OnRelease: FPGAReleaseKeep, Timeout: duration(time.Second),
				Bitstream: &BitstreamSource{Ref: "registry.example/nlb0@" + pinnedDigest},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.have
			got.Default()
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
			if faults := got.Validate(false, nil); len(faults) > 0 {
				t.Errorf("not valid: %v", faults.ToAggregate())
			}
		})
	}
}

func TestDriverParamsList(t *testing.T) {
	for _, tc := range []struct {
		name   string
		params *FPGADriverParams
		want   []DriverParam
	}{
		{name: "none"},
		{name: "empty", params: &FPGADriverParams{}},
		{
			name: "all",
			params: &FPGADriverParams{
				ClockMHz: new(int32(1000)), ClockLowMHz: new(int32(500)), LTR: new(true), Debug: new(int32(2)),
			},
			want: []DriverParam{{ParamClock, 1000}, {ParamClockLow, 500}, {ParamLTR, 1}, {ParamDebug, 2}},
		},
		{
			name: "zero is a value", params: &FPGADriverParams{LTR: new(false), Debug: new(int32(0))},
			want: []DriverParam{{ParamLTR, 0}, {ParamDebug, 0}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.params.List()); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCanonicalID(t *testing.T) {
	const digits, none = "must be 32 hexadecimal digits", "must not be all 0 or all f"
	for text, want := range map[string]string{
		shellID:                               "",
		dashedID:                              "",
		strings.ToUpper(shellID):              "",
		shellID[:31]:                          digits,
		shellID + "0":                         digits,
		"":                                    digits,
		shellID[:31] + "g":                    digits,
		"0x" + shellID[:30]:                   digits,
		shellID[:31] + "\u212a":               digits, // lower case of the Kelvin sign is an ASCII letter
		"../" + shellID[:29]:                  digits,
		strings.Repeat("0", 32):               none,
		strings.Repeat("f", 32):               none,
		strings.Repeat("F", 32):               none,
		"00000000-" + strings.Repeat("0", 24): none,
	} {
		t.Run(text, func(t *testing.T) {
			got, err := CanonicalID(text)
			if want == "" {
				if err != nil || got != shellID {
					t.Errorf("got %q, %v; want %s", got, err, shellID)
				}
				return
			}
			if err == nil || got != "" || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %q, %v; want an error that begins with %q", got, err, want)
			}
		})
	}
}
