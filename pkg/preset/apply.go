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
	users      map[at][]*corev1.Container
	groups     map[at]*corev1.Container
	given      map[at]*Request
	// variables, mounted and nodes are by name and by path in the container, with everything that is said of them.
	variables map[string][]said
	mounted   map[string][]mounting
	nodes     map[string][]noding
	drivers   []driving
	refusals  []Refusal
	notes     []Refusal
	missing   []Refusal
}

// said is what one preset says of a variable.
type said struct {
	from             Origin
	to               []at
	mode             v1alpha1.EnvMode
	value, separator string
	field            string
}

// mounting is what one preset mounts at a path.
type mounting struct {
	from  Origin
	to    []at
	mount v1alpha1.PresetMount
	field string
}

// noding is a device node that one preset gives.
type noding struct {
	from Origin
	to   []at
	node v1alpha1.PresetDeviceNode
}

// driving is a driver that one preset gives.
type driving struct {
	from   Origin
	to     []at
	driver v1alpha1.PresetDriver
}

// apply takes in one preset, if it is for any claim.
func (r *resolver) apply(ctx context.Context, p *Preset) {
	ours, fault := r.ofNamespace(p)
	if fault == nil && !ours {
		return
	}
	var to []at
	for i := range r.Claims {
		requests, field, err := r.meant(ctx, p, &r.Claims[i])
		switch {
		case err != nil:
			r.refuse(p, i, field, err)
		case len(requests) == 0:
		case len(p.faults) > 0:
			r.refuse(p, i, p.faults[0].Field, fmt.Errorf("the preset is not valid: %w", p.faults.ToAggregate()))
		case fault != nil:
			r.refuse(p, i, "spec.namespaceSelector", fault)
		default:
			for _, request := range requests {
				to = append(to, at{i, request})
			}
		}
	}
	if len(to) > 0 {
		r.give(p, to)
	}
}

// meant says which requests of a claim a preset is for, and on an error which field it is about. The pod is asked first: what does not
// select it has nothing to say of it, not even that its CEL fails.
func (r *resolver) meant(ctx context.Context, p *Preset, c *Claim) (requests []string, field string, err error) {
	ok, podErr := r.ofPod(p, c)
	if podErr == nil && !ok {
		return nil, "", nil
	}
	requests, err = r.selects(ctx, p.Rules.DeviceSelector, c)
	if err != nil {
		return nil, "spec.deviceSelector", err
	}
	if len(requests) > 0 && podErr != nil {
		return nil, "spec.podSelector", podErr
	}
	return requests, "", nil
}

// ofPod says whether a preset is for the claim's pod.
func (r *resolver) ofPod(p *Preset, c *Claim) (bool, error) {
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

// give notes all that a preset gives to the requests.
func (r *resolver) give(p *Preset, to []at) {
	from := p.Origin()
	for _, key := range to {
		g := r.given[key]
		if g == nil {
			g = &Request{Claim: r.Claims[key.claim].Name, Request: key.request}
			if r.given == nil {
				r.given = map[at]*Request{}
			}
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
		if r.nodes == nil {
			r.nodes = map[string][]noding{}
		}
		r.nodes[n.Path] = append(r.nodes[n.Path], noding{from, to, n})
	}
	if p.Driver != nil {
		r.drivers = append(r.drivers, driving{from, to, *p.Driver})
	}
	for i := range p.Rules.EnvFrom {
		r.giveConfigMap(p, to, i)
	}
	for i := range p.Rules.Env {
		r.giveVariable(p, to, i)
	}
	for i, m := range p.Rules.Mounts {
		if r.mounted == nil {
			r.mounted = map[string][]mounting{}
		}
		r.mounted[m.ContainerPath] = append(r.mounted[m.ContainerPath],
			mounting{from: from, to: to, mount: m, field: fmt.Sprintf("spec.mounts[%d]", i)})
	}
}

// giveConfigMap makes each key a variable. A key that is no name of one is left out and told of.
func (r *resolver) giveConfigMap(p *Preset, to []at, index int) {
	source := &p.Rules.EnvFrom[index]
	field := fmt.Sprintf("spec.envFrom[%d]", index)
	data, ok := r.configMap(p, to, source.ConfigMapRef.Name, source.ConfigMapRef.Optional, field+".configMapRef")
	if !ok {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name := source.Prefix + key
		e := v1alpha1.PresetEnv{Name: name, Value: new(data[key]), Mode: source.EffectiveMode()}
		if err := usable(&e); err != nil {
			r.refuseAll(p, to, field, fmt.Errorf("key %s of the ConfigMap: %w", key, err))
			continue
		}
		r.say(name, said{from: p.Origin(), to: to, mode: e.Mode, value: data[key], field: field})
	}
}

func (r *resolver) giveVariable(p *Preset, to []at, index int) {
	e := &p.Rules.Env[index]
	s := said{from: p.Origin(), to: to, mode: e.EffectiveMode(), separator: ":", field: fmt.Sprintf("spec.env[%d]", index)}
	if e.Separator != nil {
		s.separator = *e.Separator
	}
	if e.Value != nil {
		s.value = *e.Value
	} else {
		value, ok := r.keyOf(p, to, e, s.field)
		if !ok {
			return
		}
		s.value = value
	}
	r.say(e.Name, s)
}

// keyOf is the value that a variable has from a ConfigMap.
func (r *resolver) keyOf(p *Preset, to []at, e *v1alpha1.PresetEnv, field string) (string, bool) {
	ref := e.ValueFrom.ConfigMapKeyRef
	data, ok := r.configMap(p, to, ref.Name, ref.Optional, field+".valueFrom.configMapKeyRef")
	if !ok {
		return "", false
	}
	value, ok := data[ref.Key]
	if !ok {
		if !ref.Optional {
			r.lack(p, to, field+".valueFrom.configMapKeyRef.key", fmt.Sprintf("ConfigMap %s has no key %s: add it, or say optional",
				ref.Name, ref.Key))
		}
		return "", false
	}
	if err := usable(&v1alpha1.PresetEnv{Name: e.Name, Value: &value, Mode: e.Mode}); err != nil {
		r.refuseAll(p, to, field, fmt.Errorf("key %s of ConfigMap %s: %w", ref.Key, ref.Name, err))
		return "", false
	}
	return value, true
}

func (r *resolver) say(name string, s said) {
	if r.variables == nil {
		r.variables = map[string][]said{}
	}
	r.variables[name] = append(r.variables[name], s)
}

// configMap reads a ConfigMap of the preset's namespace. A claim waits for one that is not there and not optional.
func (r *resolver) configMap(p *Preset, to []at, name string, optional bool, field string) (map[string]string, bool) {
	namespace := cmp.Or(p.Namespace, r.DriverNamespace)
	data, ok := map[string]string(nil), false
	if r.ConfigMap != nil {
		data, ok = r.ConfigMap(namespace, name)
	}
	if !ok && !optional {
		r.lack(p, to, field, fmt.Sprintf("there is no ConfigMap %s/%s: create it, or say optional", namespace, name))
	}
	return data, ok
}

// usable wants of a ConfigMap's key what the API wants of a preset's own variables.
func usable(e *v1alpha1.PresetEnv) error {
	return e.Validate(nil).ToAggregate()
}

func (r *resolver) refuse(p *Preset, claim int, field string, err error) {
	r.refusals = append(r.refusals, Refusal{From: p.Origin(), Claim: r.Claims[claim].Name, Field: field, Message: err.Error()})
}

// refuseAll tells each claim.
func (r *resolver) refuseAll(p *Preset, to []at, field string, err error) {
	for _, claim := range claimsOf(to) {
		r.refuse(p, claim, field, err)
	}
}

func (r *resolver) lack(p *Preset, to []at, field, message string) {
	for _, claim := range claimsOf(to) {
		r.missing = append(r.missing, Refusal{From: p.Origin(), Claim: r.Claims[claim].Name, Field: field, Message: message})
	}
}

// claimsOf are the claims of requests, each once.
func claimsOf(to []at) []int {
	var out []int
	for _, key := range to {
		out = append(out, key.claim)
	}
	return slices.Compact(out) // apply sorts by claim
}

// finish sorts what was collected.
func (r *resolver) finish() Resolution {
	out := Resolution{Requests: []Request{}, Refusals: r.refusals, Missing: r.missing, Notes: r.notes}
	keys := slices.SortedFunc(maps.Keys(r.given), func(a, b at) int {
		return cmp.Or(cmp.Compare(a.claim, b.claim), strings.Compare(a.request, b.request))
	})
	for _, key := range keys {
		out.Requests = append(out.Requests, *r.given[key])
	}
	return out
}
