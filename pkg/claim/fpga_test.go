// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	shell   = "69528db6eb31577a8c3668f9faa081f6"
	aDigest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	bDigest = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

	parametersOf = "status.allocation.devices.config"
)

// fpga is an FPGAConfig with members as they are in JSON.
func fpga(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig"` + members + `}`
}

// policy is an FPGAConfig with nothing but a policy.
func policy(members string) string { return fpga(`"policy":{` + members + `}`) }

// aRegion is a claim of one region, f0 of request main.
func aRegion(configs ...apiConfig) *resourceapi.ResourceClaim {
	return allocated([]apiResult{result("main", "fpga", "f0")}, configs...)
}

// effectiveFPGA is what a claim's first result is to be, with the sources.
func effectiveFPGA(t *testing.T, c *resourceapi.ResourceClaim) (*FPGAEffective, map[string]Source) {
	t.Helper()
	got, err := Resolve(Input{Claim: c, Driver: driver, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	return got.Results[0].Config.FPGA, got.Results[0].Config.Sources
}

func ofClass(index int) Source { return Source{Origin: OriginClass, Index: index} }
func ofClaim(index int) Source { return Source{Origin: OriginClaim, Index: index} }

// TestFPGAMerge: what a class says is over what is built in, and what the claim says over both, field by field. The policy is the classes'
// alone.
func TestFPGAMerge(t *testing.T) {
	builtIn := plainFPGA().FPGA
	with := func(change func(*FPGAEffective)) *FPGAEffective {
		f := *builtIn
		change(&f)
		return &f
	}
	minute := `"timeout":"1m"`
	for _, tc := range []struct {
		name    string
		configs []apiConfig
		want    *FPGAEffective
		// sources are those of the fields that are not built in.
		sources map[string]Source
	}{
		{name: "nobody says anything", want: builtIn},
		{
			name: "every field of the claim",
			configs: []apiConfig{
				class(policy(`"allowKeep":true,"allowedDriverParams":[{"name":"clockMHz"},{"name":"ltr"}]`)),
				own(fpga(`"interfaceID":"69528DB6-EB31-577A-8C36-68F9FAA081F6","bitstream":{"name":"nlb0"},"program":"Always",` +
					`"driverParams":{"ltr":true,"clockMHz":300},"resetBeforeUse":false,"onRelease":"Keep",` + minute)),
			},
			want: &FPGAEffective{
				InterfaceID: shell, Bitstream: &v1alpha1.BitstreamSource{Name: "nlb0", Kind: v1alpha1.KindFPGABitstream},
				Program: v1alpha1.ProgramAlways, DriverParams: []v1alpha1.DriverParam{{Name: "clockMHz", Value: 300}, {Name: "ltr", Value: 1}},
				OnRelease: v1alpha1.FPGAReleaseKeep, Timeout: time.Minute, CoTenancy: v1alpha1.CoTenancySameNamespace,
				Policies: []FPGARule{{Source: ofClass(0), Policy: v1alpha1.FPGAPolicy{
					AllowKeep: true, AllowedDriverParams: []v1alpha1.FPGAParamRule{{Name: "clockMHz"}, {Name: "ltr"}},
				}}},
			},
			sources: map[string]Source{
				FieldInterfaceID: ofClaim(1), FieldBitstream: ofClaim(1), FieldProgram: ofClaim(1), FieldDriverParams: ofClaim(1),
				FieldResetBeforeUse: ofClaim(1), FieldFPGARelease: ofClaim(1), FieldTimeout: ofClaim(1),
			},
		},
		{
			name: "the claim is over the class, wherever it is in the list",
			configs: []apiConfig{
				own(fpga(`"program":"Never","bitstream":{"ref":"r.example/a@` + aDigest + `"}`)),
				class(fpga(`"program":"Always","onRelease":"Blank","bitstream":{"name":"nlb0","kind":"ClusterFPGABitstream"}`)),
			},
			want: with(func(f *FPGAEffective) {
				f.Program, f.OnRelease = v1alpha1.ProgramNever, v1alpha1.FPGAReleaseBlank
				f.Bitstream = &v1alpha1.BitstreamSource{Ref: "r.example/a@" + aDigest}
			}),
			sources: map[string]Source{FieldProgram: ofClaim(0), FieldBitstream: ofClaim(0), FieldFPGARelease: ofClass(1)},
		},
		{
			name: "two entries that say the same",
			configs: []apiConfig{
				own(fpga(`"interfaceID":"` + shell + `","bitstream":{"name":"nlb0"},` + minute)),
				own(fpga(`"interfaceID":"69528db6-eb31-577a-8c36-68f9faa081f6","bitstream":{"name":"nlb0","kind":"FPGABitstream"},` +
					`"timeout":"60s"`)),
			},
			want: with(func(f *FPGAEffective) {
				f.InterfaceID, f.Timeout = shell, time.Minute
				f.Bitstream = &v1alpha1.BitstreamSource{Name: "nlb0", Kind: v1alpha1.KindFPGABitstream}
			}),
			sources: map[string]Source{FieldInterfaceID: ofClaim(1), FieldBitstream: ofClaim(1), FieldTimeout: ofClaim(1)},
		},
		{
			name:    "a false that is said is not left out",
			configs: []apiConfig{class(fpga(`"resetBeforeUse":false`)), own(fpga(`"resetBeforeUse":true`))},
			want:    builtIn, sources: map[string]Source{FieldResetBeforeUse: ofClaim(1)},
		},
		{
			name:    "the built-in timeout yields to a limit, the shortest of them",
			configs: []apiConfig{class(policy(`"maxTimeout":"30s"`)), class(policy(`"maxTimeout":"20s"`)), class(policy(`"maxTimeout":"5m"`))},
			want: with(func(f *FPGAEffective) {
				f.Timeout = 20 * time.Second
				for i, limit := range []time.Duration{30 * time.Second, 20 * time.Second, 5 * time.Minute} {
					rule := FPGARule{Source: ofClass(i)}
					rule.Policy.MaxTimeout = &metav1.Duration{Duration: limit}
					f.Policies = append(f.Policies, rule)
				}
			}),
		},
		{
			name:    "the first class may widen co-tenancy",
			configs: []apiConfig{class(policy(`"coTenancy":"Shared"`))},
			want: with(func(f *FPGAEffective) {
				f.CoTenancy = v1alpha1.CoTenancyShared
				f.Policies = []FPGARule{{Source: ofClass(0), Policy: v1alpha1.FPGAPolicy{CoTenancy: v1alpha1.CoTenancyShared}}}
			}),
			sources: map[string]Source{FieldCoTenancy: ofClass(0)},
		},
		{
			name:    "any later class only narrows it",
			configs: []apiConfig{class(policy(`"coTenancy":"Exclusive"`)), class(policy(`"coTenancy":"Shared"`))},
			want: with(func(f *FPGAEffective) {
				f.CoTenancy = v1alpha1.CoTenancyExclusive
				f.Policies = []FPGARule{
					{Source: ofClass(0), Policy: v1alpha1.FPGAPolicy{CoTenancy: v1alpha1.CoTenancyExclusive}},
					{Source: ofClass(1), Policy: v1alpha1.FPGAPolicy{CoTenancy: v1alpha1.CoTenancyShared}},
				}
			}),
			sources: map[string]Source{FieldCoTenancy: ofClass(0)},
		},
		{
			name:    "to what is strictest",
			configs: []apiConfig{class(policy(`"coTenancy":"Shared"`)), class(policy(`"coTenancy":"SameNamespace"`))},
			want: with(func(f *FPGAEffective) {
				f.Policies = []FPGARule{
					{Source: ofClass(0), Policy: v1alpha1.FPGAPolicy{CoTenancy: v1alpha1.CoTenancyShared}},
					{Source: ofClass(1), Policy: v1alpha1.FPGAPolicy{CoTenancy: v1alpha1.CoTenancySameNamespace}},
				}
			}),
			sources: map[string]Source{FieldCoTenancy: ofClass(1)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, sources := effectiveFPGA(t, aRegion(tc.configs...))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong configuration (-want +got):\n%s", diff)
			}
			want := plainFPGA().Sources
			for name, source := range tc.sources {
				want[name] = source
			}
			if diff := cmp.Diff(want, sources); diff != "" {
				t.Errorf("wrong sources (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFPGANamespaces: a policy's namespaces are the intersection of all classes'.
func TestFPGANamespaces(t *testing.T) {
	got, err := Resolve(Input{Claim: aRegion(
		class(policy(`"allowedNamespaces":["team-b","team-a"]`)), class(policy(`"allowedNamespaces":["team-a","team-c"]`)),
	), Driver: driver, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"team-a"}, got.Results[0].Config.AllowedNamespaces); diff != "" {
		t.Errorf("allowed namespaces (-want +got):\n%s", diff)
	}
}

// TestFPGARefuses: what of a claim is refused before anything of its bitstream is known, with what reason, at which field, and what helps.
func TestFPGARefuses(t *testing.T) {
	const (
		clocks    = `"allowedDriverParams":[{"name":"clockMHz","min":100,"max":400},{"name":"debug","values":[0,2]}]`
		debugOnly = `"allowedDriverParams":[{"name":"debug"}]`
	)
	set := func(params string) string { return fpga(`"driverParams":{` + params + `}`) }
	for _, tc := range []struct {
		name    string
		configs []apiConfig
		reason  Reason
		// faults are a field of the entry's parameters, "[1] timeout", each with words of the sentence.
		faults [][2]string
	}{
		{
			name: "two entries of the claim disagree on every field",
			configs: []apiConfig{
				own(fpga(`"interfaceID":"` + shell + `","bitstream":{"name":"a"},"program":"Always","driverParams":{"debug":1},` +
					`"resetBeforeUse":true,"onRelease":"Blank","timeout":"1m"`)),
				own(fpga(`"interfaceID":"9926ab6d6c925a68aabca7d84c545738","bitstream":{"name":"a","kind":"ClusterFPGABitstream"},` +
					`"program":"IfDifferent","driverParams":{"debug":2},"resetBeforeUse":false,"onRelease":"Reset","timeout":"2m"`)),
			},
			reason: ReasonConfigInvalid,
			faults: [][2]string{
				{"[1] interfaceID", parametersOf + "[0] says otherwise for the same request: keep one of the two"},
				{"[1] bitstream", "[0] says otherwise"},
				{"[1] program", "[0] says otherwise"},
				{"[1] driverParams", "[0] says otherwise"},
				{"[1] resetBeforeUse", "[0] says otherwise"},
				{"[1] onRelease", "[0] says otherwise"},
				{"[1] timeout", "[0] says otherwise"},
			},
		},
		{
			name:    "two classes disagree, whatever the claim says",
			configs: []apiConfig{class(fpga(`"program":"Always"`)), class(fpga(`"program":"Never"`)), own(fpga(`"program":"IfDifferent"`))},
			reason:  ReasonConfigInvalid, faults: [][2]string{{"[1] program", "[0] says otherwise"}},
		},
		{
			name: "a policy of the claim's own", configs: []apiConfig{own(policy(`"allowKeep":true`))},
			reason: ReasonConfigInvalid, faults: [][2]string{{"[0] policy", "DeviceClass"}},
		},
		{
			name: "a parameter that no class allows", configs: []apiConfig{class(policy(`"allowKeep":true`)), own(set(`"debug":1`))},
			reason: ReasonForbiddenByPolicy,
			faults: [][2]string{{"[1] driverParams.debug", "no class of request main allows driver parameters: ask an administrator"}},
		},
		{
			name: "without any class", configs: []apiConfig{own(set(`"ltr":false`))},
			reason: ReasonForbiddenByPolicy, faults: [][2]string{{"[0] driverParams.ltr", "no class of request main allows driver parameters"}},
		},
		{
			name: "a parameter that a class leaves out", configs: []apiConfig{class(policy(clocks)), own(set(`"ltr":true`))},
			reason: ReasonForbiddenByPolicy,
			faults: [][2]string{{"[1] driverParams.ltr", "policy.allowedDriverParams of the class of request main does not list"}},
		},
		{
			name: "values that a class does not allow, every one", configs: []apiConfig{class(policy(clocks)), own(set(`"clockMHz":99,"debug":1`))},
			reason: ReasonForbiddenByPolicy,
			faults: [][2]string{
				{"[1] driverParams.clockMHz", "must be 100 to 400, says " + parametersOf + "[0].opaque.parameters.policy.allowedDriverParams[0]"},
				{"[1] driverParams.debug", "must be one of [0 2]"},
			},
		},
		{
			name:    "above the range",
			configs: []apiConfig{class(policy(clocks)), own(set(`"clockMHz":401`))},
			reason:  ReasonForbiddenByPolicy, faults: [][2]string{{"[1] driverParams.clockMHz", "must be 100 to 400"}},
		},
		{
			name:    "one class that speaks does not make up for another",
			configs: []apiConfig{class(policy(clocks)), class(policy(debugOnly)), own(set(`"clockMHz":200`))},
			reason:  ReasonForbiddenByPolicy, faults: [][2]string{{"[2] driverParams.clockMHz", "[1].opaque.parameters.policy.allowedDriverParams"}},
		},
		{
			name:    "a class's own parameters are judged, too",
			configs: []apiConfig{class(set(`"clockMHz":500`)), class(policy(clocks))},
			reason:  ReasonForbiddenByPolicy, faults: [][2]string{{"[0] driverParams.clockMHz", "must be 100 to 400"}},
		},
		{
			name:    "a timeout above the limit",
			configs: []apiConfig{class(policy(`"maxTimeout":"30s"`)), own(fpga(`"timeout":"31s"`))},
			reason:  ReasonForbiddenByPolicy,
			faults:  [][2]string{{"[1] timeout", "must be at most 30s, says " + parametersOf + "[0].opaque.parameters.policy.maxTimeout"}},
		},
		{
			name:    "keep without leave",
			configs: []apiConfig{class(policy(clocks)), own(fpga(`"onRelease":"Keep"`))},
			reason:  ReasonForbiddenByPolicy,
			faults:  [][2]string{{"[1] onRelease", "no class of request main has policy.allowKeep: use Reset or Blank"}},
		},
		{
			name:    "another namespace",
			configs: []apiConfig{class(policy(`"allowedNamespaces":["team-b"]`)), own(fpga(`"onRelease":"Keep"`))},
			reason:  ReasonNamespaceNotAllowed, faults: [][2]string{{"[0] policy.allowedNamespaces", "does not allow namespace team-a"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Resolve(Input{Claim: aRegion(tc.configs...), Driver: driver, Node: node})
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok || refused.Reason != tc.reason || refused.Claim != "team-a/work" {
				t.Fatalf("got %v, want a refusal for %s", err, tc.reason)
			}
			var want, got []string
			for i, fault := range tc.faults {
				index, name, _ := strings.Cut(fault[0], " ")
				want = append(want, parametersOf+index+".opaque.parameters."+name)
				if i < len(refused.Faults) && !strings.Contains(refused.Faults[i].Error(), fault[1]) {
					t.Errorf("%v: does not say %q", refused.Faults[i], fault[1])
				}
			}
			for _, fault := range refused.Faults {
				got = append(got, fault.Field)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("wrong fields (-want +got):\n%s\n%v", diff, err)
			}
		})
	}
}

// TestFPGALimitsReached: what is just within every limit is not refused.
func TestFPGALimitsReached(t *testing.T) {
	limits := class(policy(`"maxTimeout":"30s","allowKeep":true,"allowedDriverParams":[{"name":"clockMHz","min":100,"max":400},` +
		`{"name":"debug","values":[0,2]},{"name":"ltr"}]`))
	silent := class(policy(`"requireSignature":true`))
	for _, own := range []apiConfig{
		own(fpga(`"timeout":"30s","onRelease":"Keep","driverParams":{"clockMHz":100,"debug":0,"ltr":true}`)),
		own(fpga(`"timeout":"1s","onRelease":"Blank","driverParams":{"clockMHz":400,"debug":2}`)),
	} {
		if _, err := Resolve(Input{Claim: aRegion(limits, silent, own), Driver: driver, Node: node}); err != nil {
			t.Error(err)
		}
	}
}

// TestFPGALook: who only looks changes nothing of the region, so no policy but the namespace's gate has anything to forbid; the region of
// the next request has.
func TestFPGALook(t *testing.T) {
	all := own(fpga(`"onRelease":"Keep","timeout":"9m","driverParams":{"debug":1}`), "main")
	limits := class(policy(`"maxTimeout":"30s","allowedNamespaces":["team-b"]`))
	if _, err := Resolve(Input{Claim: allocated([]apiResult{look(result("main", "fpga", "f0"))}, limits, all), Driver: driver}); err != nil {
		t.Errorf("a look is refused: %v", err)
	}
	both := allocated([]apiResult{look(result("main", "fpga", "f0")), result("other", "fpga", "f1")},
		class(policy(`"maxTimeout":"30s"`)), all, own(fpga(`"onRelease":"Keep"`), "other"))
	_, err := Resolve(Input{Claim: both, Driver: driver})
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || len(refused.Faults) != 1 || refused.Faults[0].Field != parametersOf+"[2].opaque.parameters.onRelease" {
		t.Errorf("got %v, want a refusal of the other request's onRelease only", err)
	}
}

// aBitstream is an object of team-a, changed.
func aBitstream(change ...func(*Bitstream)) *Bitstream {
	b := &Bitstream{
		Kind: v1alpha1.KindFPGABitstream, Namespace: "team-a", Name: "nlb0", Repository: "registry.example/team/nlb0",
		Digests: []string{bDigest, aDigest}, VouchedDetail: "no TrustPolicy speaks of it",
	}
	for _, f := range change {
		f(b)
	}
	return b
}

func ofCluster(namespaces ...string) func(*Bitstream) {
	return func(b *Bitstream) {
		b.Kind, b.Namespace, b.Namespaces = v1alpha1.KindClusterFPGABitstream, "", namespaces
	}
}

func byReference(b *Bitstream) { b.Kind, b.Namespace, b.Name = "", "", "" }
func raw(b *Bitstream)         { b.Raw = true }
func vouched(b *Bitstream)     { b.Vouched, b.VouchedDetail = true, "" }
func onHost(b *Bitstream)      { ofCluster("*")(b); b.Repository = "" }

// TestAllows: nobody loads a bitstream unless a class names it, and every class that speaks must.
func TestAllows(t *testing.T) {
	const nothing = "no class of request main allows any bitstream"
	const unlisted = "is in neither allowedBitstreams nor allowedRegistries of"
	list := func(patterns ...string) string {
		return `"allowedBitstreams":["` + strings.Join(patterns, `","`) + `"]`
	}
	from := func(registries ...string) string {
		return `"allowedRegistries":["` + strings.Join(registries, `","`) + `"]`
	}
	for _, tc := range []struct {
		name     string
		policies []string
		b        *Bitstream
		// refused are words of each refusal; none: allowed.
		refused []string
	}{
		{"without a class", nil, aBitstream(), []string{nothing}},
		{"a class that says nothing of bitstreams", []string{`"allowKeep":true`}, aBitstream(), []string{nothing}},

		{"an object by name", []string{list("team-a/nlb0")}, aBitstream(), nil},
		{"all of a namespace", []string{list("team-a/*")}, aBitstream(), nil},
		{"another name", []string{list("team-a/nlb3", "team-a/nlb")}, aBitstream(), []string{unlisted}},
		{"another namespace's", []string{list("team-b/nlb0", "team-b/*")}, aBitstream(), []string{unlisted}},
		{"a cluster's name is no namespaced object's", []string{list("nlb0")}, aBitstream(), []string{unlisted}},
		{"an object of the cluster", []string{list("nlb0")}, aBitstream(ofCluster("*")), nil},
		{"another object of the cluster", []string{list("nlb1")}, aBitstream(ofCluster("*")), []string{unlisted}},
		{"a namespace's pattern is no cluster object's", []string{list("team-a/*")}, aBitstream(ofCluster("team-a")), []string{unlisted}},

		{"any of its digests", []string{list(aDigest)}, aBitstream(), nil},
		{"a reference by digest", []string{list(bDigest)}, aBitstream(byReference), nil},
		{"another digest", []string{list("sha256:" + strings.Repeat("c", 64))}, aBitstream(byReference), []string{unlisted}},
		{"a reference is no object, whatever it is called", []string{list("team-a/*", "nlb0")}, aBitstream(byReference), []string{unlisted}},

		{
			"the file of a raw image",
			[]string{list("sha256:" + strings.Repeat("c", 64))},
			aBitstream(byReference, raw),
			[]string{"it is a raw image, which counts by the digest of its manifest and not of its file"},
		},
		{"the manifest of a raw image", []string{list(aDigest)}, aBitstream(byReference, raw), nil},

		{"a registry", []string{from("registry.example")}, aBitstream(), nil},
		{"a registry in another spelling", []string{from("registry.example:0443/team")}, aBitstream(), nil},
		{"a repository and all below it", []string{from("registry.example/team")}, aBitstream(byReference), nil},
		{"the repository itself", []string{from("registry.example/team/nlb0")}, aBitstream(), nil},
		{"a name that only begins alike", []string{from("registry.example/te", "registry.exam")}, aBitstream(), []string{unlisted}},
		{"below it", []string{from("registry.example/team/nlb0/more")}, aBitstream(), []string{unlisted}},
		{"a file of the host is from no registry", []string{from("registry.example")}, aBitstream(onHost), []string{unlisted}},
		{"either list", []string{list("team-b/*") + "," + from("registry.example")}, aBitstream(), nil},

		{"every class that speaks", []string{list("team-a/*"), from("registry.example"), `"allowKeep":true`}, aBitstream(), nil},
		{"one of two", []string{list("team-a/*"), from("other.example")}, aBitstream(), []string{"config[1].opaque.parameters.policy, the"}},
		{"none of two classes", []string{list("team-b/*"), from("other.example")}, aBitstream(), []string{"config[0]", "config[1]"}},

		{"for its namespaces", []string{list("nlb0")}, aBitstream(ofCluster("team-b", "team-a")), nil},
		{
			"for other namespaces",
			[]string{list("nlb0")},
			aBitstream(ofCluster("team-b")),
			[]string{"ClusterFPGABitstream nlb0 is not for namespace team-a: ask an administrator to add it to spec.namespaces"},
		},
		{"for none", []string{list("nlb0")}, aBitstream(ofCluster()), []string{"is not for namespace team-a"}},

		{"a signature", []string{list("team-a/*") + `,"requireSignature":true`}, aBitstream(vouched), nil},
		{
			"no signature",
			[]string{list("team-a/*") + `,"requireSignature":true`},
			aBitstream(),
			[]string{"config[0].opaque.parameters.policy.requireSignature asks for a signature that a TrustPolicy vouches for, " +
				"and FPGABitstream team-a/nlb0 has none: no TrustPolicy speaks of it"},
		},
		{"a class before asks for one", []string{`"requireSignature":true`, list("team-a/*")}, aBitstream(), []string{"requireSignature"}},
		{"another class asks for one", []string{list("team-a/*"), `"requireSignature":true`}, aBitstream(), []string{"requireSignature"}},
		{"a signature alone allows nothing", []string{`"requireSignature":true`}, aBitstream(vouched), []string{nothing}},
		{"neither", []string{list("team-b/*") + `,"requireSignature":true`}, aBitstream(), []string{unlisted, "requireSignature"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var configs []apiConfig
			for _, p := range tc.policies {
				configs = append(configs, class(policy(p)))
			}
			configs = append(configs, own(fpga(`"bitstream":{"name":"nlb0"}`)))
			got, err := Resolve(Input{Claim: aRegion(configs...), Driver: driver, Node: node})
			if err != nil {
				t.Fatal(err)
			}
			faults := got.Results[0].Allows("team-a", tc.b)
			if len(faults) != len(tc.refused) {
				t.Fatalf("faults %v, want %d", faults, len(tc.refused))
			}
			at := Source{Index: len(configs) - 1}.parameters().Child("bitstream").String()
			for i, fault := range faults {
				if !strings.HasPrefix(fault.Field, at) || !strings.Contains(fault.Error(), tc.refused[i]) {
					t.Errorf("%v: want the field %s and %q", fault, at, tc.refused[i])
				}
			}
		})
	}
}

func TestNamesDigests(t *testing.T) {
	for _, tc := range []struct {
		policies []string
		want     bool
	}{
		{nil, false},
		{[]string{`"allowedRegistries":["registry.example"]`}, false},
		{[]string{`"allowedBitstreams":["team-a/*","sha256"]`}, false},
		{[]string{`"allowedBitstreams":["team-a/*","` + aDigest + `"]`}, true},
		{[]string{`"allowKeep":true`, `"allowedBitstreams":["` + aDigest + `"]`}, true},
	} {
		var configs []apiConfig
		for _, p := range tc.policies {
			configs = append(configs, class(policy(p)))
		}
		f, _ := effectiveFPGA(t, aRegion(configs...))
		if got := f.NamesDigests(); got != tc.want {
			t.Errorf("%v: %v", tc.policies, got)
		}
	}
}

func TestBitstreamString(t *testing.T) {
	for want, b := range map[string]*Bitstream{
		"FPGABitstream team-a/nlb0":             aBitstream(),
		"ClusterFPGABitstream nlb0":             aBitstream(ofCluster("*")),
		"registry.example/team/nlb0@" + bDigest: aBitstream(byReference),
		"registry.example/team/nlb0@":           aBitstream(byReference, func(b *Bitstream) { b.Digests = nil }),
	} {
		if got := b.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestAt: a field that nobody set has a path, too.
func TestAt(t *testing.T) {
	got, err := Resolve(Input{Claim: aRegion(own(fpga(`"program":"Always"`))), Driver: driver})
	if err != nil {
		t.Fatal(err)
	}
	r := &got.Results[0]
	paths := []string{r.At(FieldProgram).String(), r.At(FieldBitstream).String()}
	want := []string{parametersOf + "[0].opaque.parameters.program", parametersOf + "[built-in].bitstream"}
	if !slices.Equal(paths, want) {
		t.Errorf("got %q, want %q", paths, want)
	}
}
