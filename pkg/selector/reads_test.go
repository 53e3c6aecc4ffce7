// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/test/seed"
)

// TestReads: an expression reads what it names, and everything if it does anything else with a device's attributes.
func TestReads(t *testing.T) {
	const everything = "everything"
	for expression, want := range map[string]string{
		`true`:                    "",
		`device.driver == "a.io"`: "",
		`device.capacity["a.io"].memory.isGreaterThan(quantity("1Gi"))`:            "",
		`device.allowMultipleAllocations`:                                          "",
		`device.attributes["a.io"].kind == "x"`:                                    "a.io/kind",
		`device.attributes["a.io"]["kind"] == "x"`:                                 "a.io/kind",
		`device.attributes["a.io"].?kind.orValue("x") == "x"`:                      "a.io/kind",
		`device.attributes["a.io"][?"kind"].hasValue()`:                            "a.io/kind",
		`has(device.attributes["a.io"].kind)`:                                      "a.io/kind",
		`"kind" in device.attributes["a.io"]`:                                      "a.io/kind",
		`!(device.attributes["a.io"].kind.startsWith(device.driver))`:              "a.io/kind",
		`["x"].exists(v, device.attributes["a.io"].kind == v)`:                     "a.io/kind",
		`device.attributes["a.io"].a == 1 ? device.attributes["b.io"].b : false`:   "a.io/a, b.io/b",
		`cel.bind(v, device.attributes["a.io"].kind, v == "x" || v == "y")`:        "a.io/kind",
		`{"k": device.attributes["a.io"].kind}["k"] == "x"`:                        "a.io/kind",
		`"a.io" in device.attributes`:                                              everything,
		`device.attributes["a.io"].size() > 2`:                                     everything,
		`device.attributes["a.io"].exists(name, name.startsWith("k"))`:             everything,
		`device.attributes.all(domain, domain == "a.io")`:                          everything,
		`device.attributes[device.driver].kind == "x"`:                             everything,
		`device.attributes["a.io"][device.driver] == "x"`:                          everything,
		`cel.bind(d, device, d.attributes["a.io"].kind == "x")`:                    everything,
		`cel.bind(all, device.attributes["a.io"], all.kind == "x")`:                everything,
		`[device].exists(d, d.attributes["a.io"].kind == "x")`:                     everything,
		`.device.attributes["a.io"].kind == "x"`:                                   everything,
		`["device"].exists(device, device == "x")`:                                 everything,
		`device.?attributes["a.io"].kind == optional.of("x")`:                      everything,
		`this does not compile`:                                                    everything,
		`device.attributes["a.io"].kind == "x" && device.attributes["b.io"] == {}`: everything,
	} {
		reads := new(Checker).Reads(expression)
		got := fmt.Sprint(slices.Sorted(maps.Keys(reads.names)))
		if got = strings.ReplaceAll(strings.Trim(got, "[]"), " ", ", "); reads.Everything() {
			got = everything
		}
		if got != want {
			t.Errorf("%s reads %q, want %q", expression, got, want)
		}
	}
}

// TestReadAttributes: those that are read stay, by either of their names, and those that no expression can be evaluated with.
func TestReadAttributes(t *testing.T) {
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"kind": {StringValue: new("x")}, "a.io/kind": {StringValue: new("y")}, "b.io/kind": {IntValue: new(int64(1))},
		"version": {VersionValue: new("1.2.3")}, "broken": {VersionValue: new("1.2")}, "list": {StringValues: []string{"x"}}, "empty": {},
	}
	reads := new(Checker).Reads(`device.attributes["a.io"].kind == "x"`)
	got := slices.Sorted(maps.Keys(reads.Attributes("a.io", all)))
	if want := "[a.io/kind broken empty kind list]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	reads.AddAttribute(new(resourceapi.FullyQualifiedName("b.io/kind")))
	if got := reads.Attributes("c.io", all); len(got) != 5 || got["kind"].StringValue != nil {
		t.Errorf("of another driver: %v", got)
	}
	reads.Add(ReadsOf(nil))
	if got := reads.Attributes("a.io", all); len(got) != len(all) {
		t.Errorf("of everything: %v", got)
	}
}

// TestReadsAreEnough: an expression says the same of a device without the attributes that it does not read, also where that is an error.
func TestReadsAreEnough(t *testing.T) {
	random := seed.New(t)
	names := []string{"a", "b", "c"}
	expression := func() string {
		source := fmt.Sprintf("device.attributes[%q]", []string{"a.io", "b.io"}[random.IntN(2)])
		name := names[random.IntN(len(names))]
		return []string{
			source + "." + name + ` == "x"`, source + "." + name + " > 1", fmt.Sprintf("has(%s.%s)", source, name),
			fmt.Sprintf("%q in %s", name, source), fmt.Sprintf(`%s.?%s.orValue("x") == "x"`, source, name), source + ".size() == 2",
			fmt.Sprintf("%s.exists(n, n == %q)", source, name), fmt.Sprintf(`%q in device.attributes`, "a.io"),
			fmt.Sprintf("%s.%s.isGreaterThan(semver(\"1.0.0\"))", source, name),
			fmt.Sprintf(`%s[device.driver == "a.io" ? "a" : "b"] == "x"`, source),
		}[random.IntN(10)]
	}
	errs, trues := 0, 0
	for range 3000 {
		text := expression()
		for range random.IntN(3) {
			text = fmt.Sprintf([]string{"(%s) && (%s)", "(%s) || !(%s)", "(%s) ? true : (%s)"}[random.IntN(3)], text, expression())
		}
		compiled := compile(text)
		if compiled.Error != nil {
			t.Fatalf("%s: %v", text, compiled.Error)
		}
		device := dracel.Device{Driver: []string{"a.io", "b.io"}[random.IntN(2)]}
		device.Attributes = randomAttributes(random, device.Driver, names)
		want, _, wantErr := compiled.DeviceMatches(t.Context(), device)
		reads := new(Checker).Reads(text)
		device.Attributes = reads.Attributes(device.Driver, device.Attributes)
		got, _, gotErr := compiled.DeviceMatches(t.Context(), device)
		if got != want || (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("%s is %t, %v with what it reads, %v, and %t, %v with all", text, got, gotErr, device.Attributes, want, wantErr)
		}
		if wantErr != nil {
			errs++
		} else if want {
			trues++
		}
	}
	if errs < 300 || trues < 300 {
		t.Errorf("%d errors and %d times true: want enough of both", errs, trues)
	}
}

// randomAttributes has each name of a domain once: of two the scheduler takes any.
func randomAttributes(
	random *rand.Rand, driver string, names []string,
) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for range random.IntN(5) {
		domain := []string{"", "a.io/", "b.io/"}[random.IntN(3)]
		if domain == driver+"/" {
			continue
		}
		out[resourceapi.QualifiedName(domain+names[random.IntN(len(names))])] = []resourceapi.DeviceAttribute{
			{StringValue: new("x")},
			{IntValue: new(int64(2))},
			{BoolValue: new(true)},
			{VersionValue: new("1.2.3")},
			{VersionValue: new("1.2.3")},
			{StringValue: new("y")},
			{VersionValue: new("1.2")},
		}[random.IntN(7)]
	}
	return out
}
