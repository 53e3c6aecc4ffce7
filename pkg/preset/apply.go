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
	given      map[at]*Request
	// variables and mounted are by name and by path in the container, with everything that is said of them.
	variables map[string][]said
	mounted   map[string][]mounting
	refusals  []Refusal
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

// apply takes in one preset, if it is for any claim.
func (r *resolver) apply(ctx context.Context, p *Preset) {
	if ok, err := r.ofNamespace(p); err == nil && !ok {
		return
	}
	var to []at
	for i := range r.Claims {
		c := &r.Claims[i]
		requests, err := r.selects(ctx, p.Rules.DeviceSelector, c)
		if err != nil {
			r.refuse(p, i, "spec.deviceSelector", err)
			continue
		}
		if len(requests) == 0 {
			continue
		}
		if ok, err := r.ofPod(p, c); err != nil {
			r.refuse(p, i, "spec.podSelector", err)
			continue
		} else if !ok {
			continue
		}
		if len(p.faults) > 0 {
			r.refuse(p, i, p.faults[0].Field, fmt.Errorf("the preset is not valid: %w", p.faults.ToAggregate()))
			continue
		}
		for _, request := range requests {
			to = append(to, at{i, request})
		}
	}
	if len(to) > 0 {
		r.give(p, to)
	}
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
	from := p.origin()
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
		for _, n := range p.DeviceNodes {
			g.addNode(n, from)
		}
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

func (g *Request) addNode(n v1alpha1.PresetDeviceNode, from Origin) {
	i := slices.IndexFunc(g.Nodes, func(o Node) bool { return o.Path == n.Path })
	switch {
	case i < 0:
		g.Nodes = append(g.Nodes, Node{PresetDeviceNode: n, From: from})
	case g.Nodes[i].PresetDeviceNode != n:
		g.Nodes[i] = Node{PresetDeviceNode: n, From: from, Overrode: append(g.Nodes[i].Overrode, g.Nodes[i].From)}
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
			r.refuse(p, to[0].claim, field, fmt.Errorf("key %s of the ConfigMap: %w", key, err))
			continue
		}
		r.say(name, said{from: p.origin(), to: to, mode: e.Mode, value: data[key], field: field})
	}
}

func (r *resolver) giveVariable(p *Preset, to []at, index int) {
	e := p.Rules.Env[index]
	field := fmt.Sprintf("spec.env[%d]", index)
	if e.ValueFrom != nil {
		ref := e.ValueFrom.ConfigMapKeyRef
		data, ok := r.configMap(p, to, ref.Name, ref.Optional, field+".valueFrom.configMapKeyRef")
		if !ok {
			return
		}
		value, ok := data[ref.Key]
		if !ok && !ref.Optional {
			r.lack(p, to, field+".valueFrom.configMapKeyRef.key", fmt.Sprintf("ConfigMap %s has no key %s: add it, or say optional",
				ref.Name, ref.Key))
		}
		if !ok {
			return
		}
		e.Value, e.ValueFrom = &value, nil
		if err := usable(&e); err != nil {
			r.refuse(p, to[0].claim, field, fmt.Errorf("key %s of ConfigMap %s: %w", ref.Key, ref.Name, err))
			return
		}
	}
	separator := ":"
	if e.Separator != nil {
		separator = *e.Separator
	}
	r.say(e.Name, said{from: p.origin(), to: to, mode: e.EffectiveMode(), value: *e.Value, separator: separator, field: field})
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
	r.refusals = append(r.refusals, Refusal{From: p.origin(), Claim: r.Claims[claim].Name, Field: field, Message: err.Error()})
}

func (r *resolver) lack(p *Preset, to []at, field, message string) {
	seen := map[int]bool{}
	for _, key := range to {
		if !seen[key.claim] {
			r.missing = append(r.missing, Refusal{From: p.origin(), Claim: r.Claims[key.claim].Name, Field: field, Message: message})
		}
		seen[key.claim] = true
	}
}

// finish sorts what was collected.
func (r *resolver) finish() Resolution {
	out := Resolution{Requests: []Request{}, Refusals: r.refusals, Missing: r.missing}
	keys := slices.SortedFunc(maps.Keys(r.given), func(a, b at) int {
		return cmp.Or(cmp.Compare(a.claim, b.claim), strings.Compare(a.request, b.request))
	})
	for _, key := range keys {
		g := r.given[key]
		slices.SortFunc(g.Nodes, func(a, b Node) int { return strings.Compare(a.Path, b.Path) })
		out.Requests = append(out.Requests, *g)
	}
	return out
}
