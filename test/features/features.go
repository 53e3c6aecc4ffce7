// SPDX-License-Identifier: Apache-2.0

// Package features finds the features of the Fettle chart in the chart's own schema, and its programs in what it renders. A test of what
// programs may do that goes through all of them covers a feature or a program that is new without a word of its own.
package features

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Feature is one way to set the chart's values other than by default.
type Feature struct {
	// Name is the value's path where it is switched on or has a sample, and otherwise PATH=VALUE.
	Name string
	// Needs are values without which it says nothing. Values have them, too.
	Needs, Values map[string]any
}

// needs are values that others need beside those of their own section.
var needs = map[string]string{
	"mps.enabled": "nvidia.enabled", "partitions.strategies": "nvidia.enabled",
	"bitstreams.registries.mirrorsOnly": "bitstreams.registries.mirrors",
}

// schema is what is used of a JSON schema.
type schema struct {
	Ref        string            `json:"$ref"`
	Defs       map[string]schema `json:"$defs"`
	Type       any               `json:"type"`
	Enum       []any             `json:"enum"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
}

// reader goes through the schema of a chart.
type reader struct {
	defs     map[string]schema
	defaults map[string]any
	samples  map[string]any
	used     map[string]bool
	out      []Feature
	missing  []string
}

// Read returns all features of a chart by their names: every boolean the other way round, every other word of an enumeration, every element
// that a list may have, and the samples. Lists of anything and directories must have a sample.
func Read(chart string, samples map[string]any) ([]Feature, error) {
	var s schema
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the chart's schema: %w", err)
	}
	r := &reader{defs: s.Defs, samples: samples, used: map[string]bool{}}
	if text, err = os.ReadFile(filepath.Join(chart, "values.yaml")); err == nil {
		err = yaml.Unmarshal(text, &r.defaults)
	}
	if err != nil {
		return nil, fmt.Errorf("read the chart's values: %w", err)
	}
	r.section("", s, nil)
	for path := range samples {
		if !r.used[path] {
			r.missing = append(r.missing, path+" has a sample, and the schema has no such list or directory")
		}
	}
	if len(r.missing) > 0 {
		slices.Sort(r.missing)
		return nil, fmt.Errorf("the chart's schema:\n%s", strings.Join(r.missing, "\n"))
	}
	slices.SortFunc(r.out, func(a, b Feature) int { return strings.Compare(a.Name, b.Name) })
	return r.out, nil
}

// section goes through the properties of an object. switches are what switches the sections on that it is in.
func (r *reader) section(path string, s schema, switches []string) {
	for _, name := range []string{"enabled", "programming"} {
		if s.Properties[name].Type == "boolean" {
			switches = append(slices.Clone(switches), path+"."+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		r.value(strings.TrimPrefix(path+"."+name, "."), s.Properties[name], switches)
	}
}

// value adds the features of one value.
func (r *reader) value(path string, s schema, switches []string) {
	ref := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	if ref != "" {
		s = r.defs[ref]
	}
	sample, sampled := r.samples[path]
	kinds, _ := json.Marshal(s.Type)
	switch {
	case strings.HasSuffix(path, "pullPolicy"):
	case s.Properties != nil:
		r.section(path, s, switches)
	case s.Type == "boolean":
		now, _ := r.byDefault(path).(bool)
		r.add(path, switches, !now, !now)
	case s.Enum != nil:
		for _, word := range s.Enum {
			if fmt.Sprint(word) != fmt.Sprint(r.byDefault(path)) {
				r.add(path, switches, word, false)
			}
		}
	case sampled:
		r.used[path] = true
		r.add(path, switches, sample, true)
	case strings.Contains(string(kinds), `"array"`) && s.Items != nil && s.Items.Enum != nil:
		for _, word := range s.Items.Enum {
			r.add(path, switches, []any{word}, false)
		}
	case strings.Contains(string(kinds), `"array"`), strings.HasPrefix(ref, "absolute"):
		r.missing = append(r.missing, path+" is a list or a directory without a sample")
	}
}

// byDefault is a value of values.yaml, nil if it is not there.
func (r *reader) byDefault(path string) any {
	var at any = r.defaults
	for name := range strings.SplitSeq(path, ".") {
		section, _ := at.(map[string]any)
		at = section[name]
	}
	return at
}

func (r *reader) add(path string, switches []string, value any, plain bool) {
	f := Feature{Name: path, Needs: map[string]any{}, Values: map[string]any{}}
	if !plain {
		f.Name += "=" + strings.Trim(fmt.Sprint(value), "[]")
	}
	needed := slices.Clone(switches)
	for _, of := range slices.Concat(switches, []string{path}) {
		needed = append(needed, needs[of])
	}
	for _, needed := range needed {
		if needed != "" && needed != path {
			on := any(true)
			if sample, ok := r.samples[needed]; ok {
				on = sample
			}
			set(f.Needs, needed, on)
			set(f.Values, needed, on)
		}
	}
	set(f.Values, path, value)
	r.out = append(r.out, f)
}

// set sets a value at a path.
func set(values map[string]any, path string, value any) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		below, ok := values[name].(map[string]any)
		if !ok {
			below = map[string]any{}
			values[name] = below
		}
		values = below
	}
	values[names[len(names)-1]] = value
}

// All are the values with which all features are on that a name or a sample switches on.
func All(features []Feature) map[string]any {
	all := map[string]any{}
	for _, f := range features {
		if !strings.Contains(f.Name, "=") {
			merge(all, f.Values)
		}
	}
	return all
}

func merge(into, from map[string]any) {
	for name, value := range from {
		below, isMap := value.(map[string]any)
		there, isThere := into[name].(map[string]any)
		switch {
		case isMap && isThere:
			merge(there, below)
		case isMap:
			made := map[string]any{}
			merge(made, below)
			into[name] = made
		default:
			into[name] = value
		}
	}
}
