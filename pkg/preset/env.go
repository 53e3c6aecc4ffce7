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

// env decides the value of every variable. A value for one request counts for all requests that a container uses together with it. So a
// container gets the same value from all claims of its pod, whichever is injected last.
func (r *resolver) env() {
	for _, name := range slices.Sorted(maps.Keys(r.variables)) {
		all := r.variables[name]
		if name == v1alpha1.EnvPath || name == v1alpha1.EnvLibraryPath {
			r.collectDirectories(name, all)
			continue
		}
		for _, key := range requestsIn(all) {
			r.variable(name, all, key)
		}
	}
}

// requestsIn returns the requests of all entries, in order.
func requestsIn[E interface{ requests() []requestKey }](all []E) []requestKey {
	var out []requestKey
	for _, e := range all {
		for _, key := range e.requests() {
			if !slices.Contains(out, key) {
				out = append(out, key)
			}
		}
	}
	return out
}

// collectDirectories collects directories for the paths of the loader and of programs. They are appended by other means than a variable, so
// they never collide.
func (r *resolver) collectDirectories(name string, all []envEntry) {
	for _, s := range all {
		for _, key := range s.to {
			g := r.given[key]
			list := &g.LibraryDirs
			if name == v1alpha1.EnvPath {
				list = &g.ToolDirs
			}
			addDirectories(list, s)
		}
	}
}

// addDirectories adds the directories of a value that are not in a list.
func addDirectories(list *[]Directory, s envEntry) {
	for dir := range strings.SplitSeq(s.value, ":") {
		if !slices.ContainsFunc(*list, func(d Directory) bool { return d.Path == dir }) {
			*list = append(*list, Directory{Path: dir, From: s.from})
		}
	}
}

// variable gives a request its value.
func (r *resolver) variable(name string, all []envEntry, key requestKey) {
	own := r.literal(name, key)
	v := Variable{Name: name}
	set, gives := false, false
	for _, s := range all {
		if !r.inGroup(key, s.to) {
			continue
		}
		here := slices.Contains(s.to, key)
		if why := r.whyUnused(s, key, own, set); why != "" {
			if here {
				r.recordUnused(s, key, name+": "+why)
				// Another preset may have given a value to another request of the group. That value is the value of this request, too.
				gives = gives || r.isDefaultFor(s, key) && own.state == literalNone
			}
			continue
		}
		gives = gives || here
		if joins(s.mode) && !set && own.state == literalKnown {
			v.Value, v.FromPod, set = own.value, true, true
		}
		v.applyEntry(s, set)
		set = true
	}
	v.OverrodePod = own.state == literalUnknown || own.state == literalKnown && !v.FromPod && own.value != v.Value
	if !gives {
		return
	}
	r.give(key, v)
}

// give gives a request a variable, unless the values of all are too much. What presets join counts for every request that a container uses
// together, so it may be far more than they give.
func (r *resolver) give(key requestKey, v Variable) {
	if r.values += len(v.Name) + len(v.Value); r.values > v1alpha1.MaxClaimPresets {
		r.tooMuch(key.claim, v.From[len(v.From)-1], key.request, "spec.env", fmt.Sprintf("with variable %s all values for the pod's claims are "+
			"%d bytes: they must be at most %d: join fewer or shorter values", v.Name, r.values, v1alpha1.MaxClaimPresets))
		return
	}
	r.given[key].Env = append(r.given[key].Env, v)
}

// recordUnused notes a value that does not count for a request. For a value of mode default that is no refusal.
func (r *resolver) recordUnused(s envEntry, key requestKey, message string) {
	list := &r.refusals
	if s.mode == v1alpha1.EnvDefault && r.Claims[key.claim].Owned {
		list = &r.notes
	}
	*list = append(*list, Refusal{
		From: s.from, Claim: r.Claims[key.claim].Name, Request: key.request, Field: s.field, Message: message,
	})
}

// isDefaultFor reports whether an entry is a default for a request whose pod is known.
func (r *resolver) isDefaultFor(s envEntry, key requestKey) bool {
	return s.mode == v1alpha1.EnvDefault && r.Claims[key.claim].Owned && r.Pod != nil
}

func joins(mode v1alpha1.EnvMode) bool {
	return mode == v1alpha1.EnvPrepend || mode == v1alpha1.EnvAppend
}

// applyEntry applies an entry to the value. there says that the variable has a value already.
func (v *Variable) applyEntry(s envEntry, there bool) {
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

// join puts a value before or behind the present one. It joins to an empty value without a separator, since an empty part of a list of
// directories means the working directory.
func (v *Variable) join(s envEntry) {
	switch {
	case v.Value == "":
		v.Value = s.value
	case s.mode == v1alpha1.EnvPrepend:
		v.Value = s.value + s.separator + v.Value
	default:
		v.Value += s.separator + s.value
	}
}

// whyUnused says why an entry does not count for a request, or returns "".
func (r *resolver) whyUnused(s envEntry, key requestKey, own literal, set bool) string {
	switch s.mode {
	case v1alpha1.EnvDefault:
		switch {
		case !r.isDefaultFor(s, key):
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
	literalKnown                       // the containers that use the request all set it to the same text
	literalUnknown                     // the value is not known, or differs between the containers
)

// literal is the value that the pod itself gives to a variable.
type literal struct {
	state literalState
	value string
	why   string
}

// literal returns the value that the containers which use the request set. The containers of a shared claim are not known, so they count as
// setting none.
func (r *resolver) literal(name string, key requestKey) literal {
	if !r.Claims[key.claim].Owned {
		return literal{}
	}
	var all []literal
	for _, c := range r.users[key] {
		all = append(all, literalIn(c, name))
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

// literalIn returns the value that one container sets. The last entry of a name counts, as for kubelet.
func literalIn(c *corev1.Container, name string) literal {
	for i := len(c.Env) - 1; i >= 0; i-- {
		e := &c.Env[i]
		if e.Name != name {
			continue
		}
		value, refers := expand(e.Value)
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

// expand returns a value of the pod as kubelet gives it to the container, where $$ stands for $. It also reports whether the value refers
// to other variables.
func expand(value string) (string, bool) {
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
