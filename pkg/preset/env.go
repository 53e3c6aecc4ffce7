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

// env decides what every variable becomes. What is said of a name to one request counts for all that containers use together with it,
// so that the claims of a pod give a container one value, whichever is injected last.
func (r *resolver) env() {
	to := func(s said) []at { return s.to }
	for _, name := range slices.Sorted(maps.Keys(r.variables)) {
		all := r.variables[name]
		if name == v1alpha1.EnvPath || name == v1alpha1.EnvLibraryPath {
			r.directories(name, all)
			continue
		}
		for _, key := range receivers(all, to) {
			r.variable(name, all, key)
		}
	}
}

// receivers are the requests that anything is said to, in order.
func receivers[T any](all []T, to func(T) []at) []at {
	var out []at
	for _, s := range all {
		for _, key := range to(s) {
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
		if !r.grouped(key, s.to) {
			continue
		}
		here := slices.Contains(s.to, key)
		if why := r.unsaid(s, key, own, set); why != "" {
			if here {
				r.left(s, key, name+": "+why)
				// What was given before was maybe said to another request of the group, and is the value of this one too.
				gives = gives || r.defaults(s, key) && own.state == literalNone
			}
			continue
		}
		gives = gives || here
		if joins(s.mode) && !set && own.state == literalKnown {
			v.Value, v.FromPod, set = own.value, true, true
		}
		v.take(s, set)
		set = true
	}
	v.OverrodePod = own.state == literalUnknown || own.state == literalKnown && !v.FromPod && own.value != v.Value
	if gives {
		r.given[key].Env = append(r.given[key].Env, v)
	}
}

// left records what was said to a request and does not count. A default that backs off does what it promises.
func (r *resolver) left(s said, key at, message string) {
	list := &r.refusals
	if s.mode == v1alpha1.EnvDefault && r.Claims[key.claim].Owned {
		list = &r.notes
	}
	*list = append(*list, Refusal{
		From: s.from, Claim: r.Claims[key.claim].Name, Request: key.request, Field: s.field, Message: message,
	})
}

// defaults says whether a value is the default for a request, of which the pod is known.
func (r *resolver) defaults(s said, key at) bool {
	return s.mode == v1alpha1.EnvDefault && r.Claims[key.claim].Owned && r.Pod != nil
}

func joins(mode v1alpha1.EnvMode) bool {
	return mode == v1alpha1.EnvPrepend || mode == v1alpha1.EnvAppend
}

// take lets what is said act on the value, which is there already or not.
func (v *Variable) take(s said, there bool) {
	switch {
	case joins(s.mode):
		v.join(s)
	case there && (v.Value != s.value || v.FromPod):
		v.Overrode = append(v.Overrode, v.From...)
		v.Value, v.From, v.FromPod = s.value, nil, false
	default:
		v.Value = s.value
	}
	v.From = append(v.From, s.from)
}

// join puts a value before or behind what there is. To nothing it is joined without a separator, since an empty part of a list of
// directories means the working directory.
func (v *Variable) join(s said) {
	switch {
	case v.Value == "":
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
		case !r.defaults(s, key):
			return "mode default depends on the pod, and the claim is not of one pod alone: use a ResourceClaimTemplate, or mode set"
		case set:
			return "a preset before gave it a value"
		case own.state != literalNone:
			return own.why
		}
	case v1alpha1.EnvSet:
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
		if e.Name != name {
			continue
		}
		value, refers := expanded(e.Value)
		switch {
		case e.ValueFrom != nil:
			return literal{state: literalUnknown, why: fmt.Sprintf("container %s sets it from elsewhere", c.Name)}
		case refers:
			return literal{state: literalUnknown, why: fmt.Sprintf("container %s sets it by way of other variables", c.Name)}
		default:
			return literal{state: literalKnown, value: value, why: fmt.Sprintf("container %s sets it", c.Name)}
		}
	}
	for _, source := range c.EnvFrom {
		if len(name) > len(source.Prefix) && strings.HasPrefix(name, source.Prefix) {
			return literal{state: literalUnknown, why: fmt.Sprintf("container %s may have it from its envFrom", c.Name)}
		}
	}
	return literal{}
}

// expanded is a value of the pod as kubelet gives it to the container, where $$ stands for $, and whether it refers to other variables.
func expanded(value string) (string, bool) {
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '$' && i+1 < len(value) {
			switch value[i+1] {
			case '(':
				return "", true
			case '$':
				i++
			}
		}
		out.WriteByte(value[i])
	}
	return out.String(), false
}
