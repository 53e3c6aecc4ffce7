// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// env decides what every variable becomes. All that is said of a name counts for each request that gets it, so that the claims of a pod
// give a container one value, whichever is injected last.
func (r *resolver) env() {
	for _, name := range slices.Sorted(maps.Keys(r.variables)) {
		all := r.variables[name]
		if name == v1alpha1.EnvPath || name == v1alpha1.EnvLibraryPath {
			r.directories(name, all)
			continue
		}
		for _, key := range receivers(all) {
			r.variable(name, all, key)
		}
	}
}

// receivers are the requests that anything is said to, in order.
func receivers(all []said) []at {
	var out []at
	for _, s := range all {
		for _, key := range s.to {
			if !slices.Contains(out, key) {
				out = append(out, key)
			}
		}
	}
	return out
}

// directories are appended by other means than a variable, so they never collide.
func (r *resolver) directories(name string, all []said) {
	for _, s := range all {
		for _, key := range s.to {
			g := r.given[key]
			list := &g.LibraryDirs
			if name == v1alpha1.EnvPath {
				list = &g.ToolDirs
			}
			for dir := range strings.SplitSeq(s.value, ":") {
				if !slices.ContainsFunc(*list, func(d Directory) bool { return d.Path == dir }) {
					*list = append(*list, Directory{Path: dir, From: s.from})
				}
			}
		}
	}
}

// variable gives a request its value.
func (r *resolver) variable(name string, all []said, key at) {
	own := r.literal(name, key)
	v := Variable{Name: name}
	set, gives := false, false
	for _, s := range all {
		here := slices.Contains(s.to, key)
		if why := r.unsaid(s, key, own, set); why != "" {
			if here && s.mode != v1alpha1.EnvDefault || here && !r.Claims[key.claim].Owned {
				r.refusals = append(r.refusals, Refusal{
					From: s.from, Claim: r.Claims[key.claim].Name, Request: key.request, Field: s.field, Message: name + ": " + why,
				})
			}
			continue
		}
		gives = gives || here
		switch s.mode {
		case v1alpha1.EnvPrepend, v1alpha1.EnvAppend:
			if !set && own.state == literalKnown {
				v.Value, v.FromPod, set = own.value, true, true
			}
			v.join(s, set)
		default:
			if set && (v.Value != s.value || v.FromPod) {
				v.Overrode = append(v.Overrode, v.From...)
			}
			v.OverrodePod = v.OverrodePod || own.state != literalNone && own.value != s.value
			if !set || v.Value != s.value || v.FromPod {
				v.Value, v.From, v.FromPod = s.value, nil, false
			}
		}
		v.From, set = append(v.From, s.from), true
	}
	if gives {
		r.given[key].Env = append(r.given[key].Env, v)
	}
}

func (v *Variable) join(s said, set bool) {
	switch {
	case !set:
		v.Value = s.value
	case s.mode == v1alpha1.EnvPrepend:
		v.Value = s.value + s.separator + v.Value
	default:
		v.Value += s.separator + s.value
	}
}

// unsaid is why what a preset says does not count for a request, or empty.
func (r *resolver) unsaid(s said, key at, own literal, set bool) string {
	switch s.mode {
	case v1alpha1.EnvDefault:
		switch {
		case !r.Claims[key.claim].Owned || r.Pod == nil:
			return "mode default depends on the pod, and the claim is not of one pod alone: use a ResourceClaimTemplate, or mode set"
		case set:
			return "a preset before gave it a value"
		case own.state != literalNone:
			return own.why
		}
	case v1alpha1.EnvPrepend, v1alpha1.EnvAppend:
		if !set && own.state == literalUnknown {
			return own.why + ", so nothing can be joined to it: give the value in the pod's env, or use mode set"
		}
	}
	return ""
}

// The states of a literal.
type literalState int

const (
	literalNone    literalState = iota // no container sets the variable
	literalKnown                       // those that use the request all set it to the same text
	literalUnknown                     // what they set it to is not known, or not the same
)

// literal is what the pod itself sets a variable to.
type literal struct {
	state literalState
	value string
	why   string
}

// literal looks at the containers that use the request. What a claim that pods share is used with is not known and counts as nothing.
func (r *resolver) literal(name string, key at) literal {
	if !r.Claims[key.claim].Owned {
		return literal{}
	}
	var all []literal
	for _, c := range r.users[key] {
		all = append(all, ofContainer(c, name))
	}
	if len(all) == 0 {
		return literal{}
	}
	for i, l := range all {
		if l.state == literalUnknown {
			return l
		}
		if l.state != all[0].state || l.value != all[0].value {
			a, b := r.users[key][0].Name, r.users[key][i].Name
			return literal{state: literalUnknown, why: fmt.Sprintf("containers %s and %s, which share the request, set it differently", a, b)}
		}
	}
	return all[0]
}

// ofContainer is what one container sets. The last entry of a name counts, as for kubelet.
func ofContainer(c *corev1.Container, name string) literal {
	for i := len(c.Env) - 1; i >= 0; i-- {
		e := &c.Env[i]
		switch {
		case e.Name != name:
		case e.ValueFrom != nil:
			return literal{state: literalUnknown, why: fmt.Sprintf("container %s sets it from elsewhere", c.Name)}
		case strings.Contains(e.Value, "$("):
			return literal{state: literalUnknown, why: fmt.Sprintf("container %s sets it by way of other variables", c.Name)}
		default:
			return literal{state: literalKnown, value: e.Value, why: fmt.Sprintf("container %s sets it", c.Name)}
		}
	}
	for _, source := range c.EnvFrom {
		if strings.HasPrefix(name, source.Prefix) {
			return literal{state: literalUnknown, why: fmt.Sprintf("container %s may have it from its envFrom", c.Name)}
		}
	}
	return literal{}
}
