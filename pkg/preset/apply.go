// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// resolver collects what every preset gives, in the order of application.
type resolver struct {
	Input
	conditions *Conditions
	users      map[requestKey][]*corev1.Container
	groups     map[requestKey]*corev1.Container
	given      map[requestKey]*Request
	// variables are by name; mounted and nodes are by their path in the container. Each lists what every preset gives.
	variables map[string][]envEntry
	mounted   map[string][]entry[v1alpha1.PresetMount]
	nodes     map[string][]entry[v1alpha1.PresetDeviceNode]
	drivers   map[v1alpha1.DriverVendor][]entry[v1alpha1.PresetDriver]
	refusals  []Refusal
	notes     []Refusal
	missing   []Refusal
	// size is the bytes of all that was collected, once for each request. values are those of joined variables. over has the claims that were
	// told that it is too much.
	size, values int
	over         map[int]bool
	// metered says that the preset that is applied now is the namespace's own. costs is what the conditions of such presets cost.
	metered bool
	costs   uint64
}

// entry is what one preset gives to requests: a value for a variable, a mount, a device node or a driver.
type entry[T any] struct {
	from  Origin
	to    []requestKey
	value T
	field string
}

func (e entry[T]) requests() []requestKey { return e.to }

// envEntry is one value of a preset for a variable.
type envEntry struct {
	entry[string]
	mode      v1alpha1.EnvMode
	separator string
}

// apply collects what one preset gives to the claims that it selects.
func (r *resolver) apply(ctx context.Context, p *Preset) {
	ours, fault := r.selectsNamespace(p)
	if fault == nil && !ours {
		return
	}
	r.metered = p.Namespace != ""
	var to []requestKey
	for i := range r.Claims {
		requests, field, err := r.selectRequests(ctx, p, &r.Claims[i])
		switch {
		case errors.Is(err, errCosts):
			r.tooMuch(i, p.Origin(), "", field, err.Error())
		case err != nil:
			r.refuse(p, i, field, err)
		case len(requests) == 0:
		case len(p.faults) > 0:
			r.refuse(p, i, p.faults[0].Field, fmt.Errorf("the preset is not valid: %w", p.faults.ToAggregate()))
		case fault != nil:
			r.refuse(p, i, "spec.namespaceSelector", fault)
		default:
			for _, request := range requests {
				to = append(to, requestKey{i, request})
			}
		}
	}
	if len(to) > 0 && r.fits(p, to, "spec", p.Rules.GivenSize(), p.parts()) {
		r.collect(p, to)
	}
}

// fits counts what a preset gives to requests: bytes, in a number of parts each of which tells its origin. All that is given is in the
// record and the CDI specs of claims, which the node keeps. If it is too much, claims wait.
func (r *resolver) fits(p *Preset, to []requestKey, field string, size, parts int) bool {
	const punctuation = 32
	size += parts * (len(p.Namespace) + len(p.Name) + punctuation)
	before := r.size
	if r.size += size * len(to); r.size <= v1alpha1.MaxClaimPresets {
		return true
	}
	for _, claim := range distinctClaims(to) {
		r.tooMuch(claim, p.Origin(), "", field, fmt.Sprintf("gives %d bytes to %d requests of the pod's claims, after %d bytes of presets "+
			"before it: all together must be at most %d: let fewer or smaller presets select the claims",
			size, len(to), before, v1alpha1.MaxClaimPresets))
	}
	return false
}

// tooMuch has a claim wait, and says it once.
func (r *resolver) tooMuch(claim int, from Origin, request, field, message string) {
	if !r.over[claim] {
		r.over[claim] = true
		r.missing = append(r.missing, Refusal{From: from, Claim: r.Claims[claim].Name, Request: request, Field: field, Message: message})
	}
}

// parts returns in how many parts what the preset gives is recorded.
func (p *Preset) parts() int {
	r := &p.Rules
	return 1 + len(r.Env) + len(r.Mounts) + len(r.Libraries) + len(r.Tools) + len(r.Hooks) + len(p.DeviceNodes)
}

// selectRequests returns the requests of a claim that a preset selects. With an error it returns the field that caused it. It checks the
// pod first: a preset that does not select the pod must not report anything about it, not even a failing CEL expression.
func (r *resolver) selectRequests(ctx context.Context, p *Preset, c *Claim) (requests []string, field string, err error) {
	ok, podErr := r.selectsPod(p, c)
	if podErr == nil && !ok {
		return nil, "", nil
	}
	requests, err = r.matchingRequests(ctx, p.Rules.DeviceSelector, c)
	if err != nil {
		return nil, "spec.deviceSelector", err
	}
	if len(requests) > 0 && podErr != nil {
		return nil, "spec.podSelector", podErr
	}
	return requests, "", nil
}

// selectsPod reports whether a preset selects the claim's pod.
func (r *resolver) selectsPod(p *Preset, c *Claim) (bool, error) {
	owned := c.Owned && r.Pod != nil
	if owned && r.Pod.Annotations[v1alpha1.ExcludePresetsAnnotation] == "true" {
		return false, nil
	}
	if p.Rules.PodSelector == nil {
		return true, nil
	}
	if !owned {
		return false, errors.New("selects pods, and the claim is not of one pod alone: it is prepared once for all that share it; " +
			"use a ResourceClaimTemplate, or select devices only")
	}
	return matches(p.Rules.PodSelector, r.Pod.Labels)
}

// collect notes everything that a preset gives to the requests.
func (r *resolver) collect(p *Preset, to []requestKey) {
	from := p.Origin()
	for _, key := range to {
		g := r.given[key]
		if g == nil {
			g = &Request{Claim: r.Claims[key.claim].Name, Request: key.request}
			r.given[key] = g
		}
		g.Presets = append(g.Presets, from)
		for _, f := range p.Rules.Libraries {
			g.Libraries = append(g.Libraries, Files{f, from})
		}
		for _, f := range p.Rules.Tools {
			g.Tools = append(g.Tools, Files{f, from})
		}
		for _, h := range p.Rules.Hooks {
			g.Hooks = append(g.Hooks, Hook{h, from})
		}
	}
	for _, n := range p.DeviceNodes {
		r.nodes[n.Path] = append(r.nodes[n.Path], entry[v1alpha1.PresetDeviceNode]{from: from, to: to, value: n})
	}
	if d := p.Driver; d != nil {
		r.drivers[d.Vendor] = append(r.drivers[d.Vendor], entry[v1alpha1.PresetDriver]{from: from, to: to, value: *d})
	}
	for i := range p.Rules.EnvFrom {
		r.collectConfigMap(p, to, i)
	}
	for i := range p.Rules.Env {
		r.collectVariable(p, to, i)
	}
	for i, m := range p.Rules.Mounts {
		r.mounted[m.ContainerPath] = append(r.mounted[m.ContainerPath],
			entry[v1alpha1.PresetMount]{from: from, to: to, value: m, field: fmt.Sprintf("spec.mounts[%d]", i)})
	}
}

// collectConfigMap makes a variable of each key. A key that cannot name a variable is left out and reported.
func (r *resolver) collectConfigMap(p *Preset, to []requestKey, index int) {
	source := &p.Rules.EnvFrom[index]
	field := fmt.Sprintf("spec.envFrom[%d]", index)
	data, ok := r.configMap(p, to, source.ConfigMapRef.Name, source.ConfigMapRef.Optional, field+".configMapRef")
	if !ok {
		return
	}
	if !r.fits(p, to, field, sizeOfData(data), len(data)) {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name := source.Prefix + key
		e := v1alpha1.PresetEnv{Name: name, Value: new(data[key]), Mode: source.EffectiveMode()}
		if err := checkVariable(p, &e); err != nil {
			r.refuseAll(p, to, field, fmt.Errorf("key %s of the ConfigMap: %w", key, err))
			continue
		}
		value := entry[string]{from: p.Origin(), to: to, value: data[key], field: field}
		r.variables[name] = append(r.variables[name], envEntry{entry: value, mode: e.Mode})
	}
}

func sizeOfData(data map[string]string) (size int) {
	for key, value := range data {
		size += len(key) + len(value)
	}
	return size
}

func (r *resolver) collectVariable(p *Preset, to []requestKey, index int) {
	e := &p.Rules.Env[index]
	value := entry[string]{from: p.Origin(), to: to, field: fmt.Sprintf("spec.env[%d]", index)}
	s := envEntry{entry: value, mode: e.EffectiveMode(), separator: ":"}
	if e.Separator != nil {
		s.separator = *e.Separator
	}
	ok := true
	if e.Value != nil {
		s.value = *e.Value
	} else {
		s.value, ok = r.configMapValue(p, to, e, s.field)
		ok = ok && r.fits(p, to, s.field, len(s.value), 0)
	}
	if ok {
		r.variables[e.Name] = append(r.variables[e.Name], s)
	}
}

// configMapValue reads the value of a variable from a ConfigMap.
func (r *resolver) configMapValue(p *Preset, to []requestKey, e *v1alpha1.PresetEnv, field string) (string, bool) {
	ref := e.ValueFrom.ConfigMapKeyRef
	data, ok := r.configMap(p, to, ref.Name, ref.Optional, field+".valueFrom.configMapKeyRef")
	if !ok {
		return "", false
	}
	value, ok := data[ref.Key]
	if !ok {
		if !ref.Optional {
			r.addMissing(p, to, field+".valueFrom.configMapKeyRef.key", fmt.Sprintf("ConfigMap %s has no key %s: add it, or say optional",
				ref.Name, ref.Key))
		}
		return "", false
	}
	if err := checkVariable(p, &v1alpha1.PresetEnv{Name: e.Name, Value: &value, Mode: e.Mode}); err != nil {
		r.refuseAll(p, to, field, fmt.Errorf("key %s of ConfigMap %s: %w", ref.Key, ref.Name, err))
		return "", false
	}
	return value, true
}

// configMap reads a ConfigMap of the preset's namespace. A claim waits for a missing one, unless it is optional.
func (r *resolver) configMap(p *Preset, to []requestKey, name string, optional bool, field string) (map[string]string, bool) {
	namespace := cmp.Or(p.Namespace, r.DriverNamespace)
	data, ok := map[string]string(nil), false
	if r.ConfigMap != nil {
		data, ok = r.ConfigMap(namespace, name)
	}
	if !ok && !optional {
		r.addMissing(p, to, field, fmt.Sprintf("there is no ConfigMap %s/%s: create it, or say optional", namespace, name))
	}
	return data, ok
}

// checkVariable applies the rules for a preset's own variables to a key of a ConfigMap.
func checkVariable(p *Preset, e *v1alpha1.PresetEnv) error {
	return e.Validate(nil, p.Namespace == "").ToAggregate()
}

func (r *resolver) refuse(p *Preset, claim int, field string, err error) {
	r.refusals = append(r.refusals, Refusal{From: p.Origin(), Claim: r.Claims[claim].Name, Field: field, Message: err.Error()})
}

// refuseAll notes a refusal for each claim.
func (r *resolver) refuseAll(p *Preset, to []requestKey, field string, err error) {
	for _, claim := range distinctClaims(to) {
		r.refuse(p, claim, field, err)
	}
}

func (r *resolver) addMissing(p *Preset, to []requestKey, field, message string) {
	for _, claim := range distinctClaims(to) {
		r.missing = append(r.missing, Refusal{From: p.Origin(), Claim: r.Claims[claim].Name, Field: field, Message: message})
	}
}

// distinctClaims returns the claims of the requests, each once.
func distinctClaims(to []requestKey) []int {
	var out []int
	for _, key := range to {
		out = append(out, key.claim)
	}
	return slices.Compact(out) // apply sorts by claim
}

// finish returns what was collected, sorted.
func (r *resolver) finish() Resolution {
	out := Resolution{Requests: []Request{}, Refusals: r.refusals, Missing: r.missing, Notes: r.notes}
	keys := slices.SortedFunc(maps.Keys(r.given), func(a, b requestKey) int {
		return cmp.Or(cmp.Compare(a.claim, b.claim), strings.Compare(a.request, b.request))
	})
	for _, key := range keys {
		out.Requests = append(out.Requests, *r.given[key])
	}
	return out
}
