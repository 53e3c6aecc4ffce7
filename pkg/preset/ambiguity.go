// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Ambiguity is a value that a container gets in two versions: from one of its pod's own claims, and from a claim that pods share. The two
// claims were resolved apart, and CDI injects a container's claims in any order, so either version may win.
type Ambiguity struct {
	// Claim is the pod's own claim. Request is one of its requests.
	Claim, Request string
	Message        string
}

// Ambiguities compares what a resolution gives to the pod's own claims with what the presets, as they are now, give to the pod's shared
// claims. Only the node that prepared a shared claim knows what it was given then.
func Ambiguities(ctx context.Context, in Input, own *Resolution, conditions *Conditions) []Ambiguity {
	if in.Pod == nil {
		return nil
	}
	var out []Ambiguity
	for i := range in.Shared {
		alone := in
		alone.Pod, alone.Claims, alone.Shared = nil, in.Shared[i:i+1:i+1], nil
		other := Resolve(ctx, alone, conditions)
		for j := range own.Requests {
			out = append(out, ambiguous(in, &own.Requests[j], &in.Shared[i], other.Requests)...)
		}
	}
	return out
}

// ambiguous compares one request with the requests of a shared claim that a container uses together with it.
func ambiguous(in Input, r *Request, shared *Claim, others []Request) []Ambiguity {
	i := slices.IndexFunc(in.Claims, func(c Claim) bool { return c.Name == r.Claim })
	if i < 0 {
		return nil
	}
	users := Containers(in.Pod, &in.Claims[i], r.Request)
	var out []Ambiguity
	for j := range others {
		together := Containers(in.Pod, shared, others[j].Request)
		k := slices.IndexFunc(users, func(name string) bool { return slices.Contains(together, name) })
		if k < 0 {
			continue
		}
		for _, what := range differences(r, &others[j]) {
			out = append(out, Ambiguity{Claim: r.Claim, Request: r.Request, Message: fmt.Sprintf(
				"%s in claim %s, which pods share; container %s uses both, and either may win: let one preset decide it for both claims",
				what, shared.Name, users[k])})
		}
	}
	return out
}

// differences names the values that two requests have in different versions.
func differences(a, b *Request) []string {
	var out []string
	add := func(what string, ours, theirs Origin) {
		out = append(out, fmt.Sprintf("%s is of %s here, and another of %s", what, ours, theirs))
	}
	for i := range a.Env {
		v := &a.Env[i]
		j := slices.IndexFunc(b.Env, func(o Variable) bool { return o.Name == v.Name && o.Value != v.Value })
		if j >= 0 {
			add("variable "+v.Name, v.From[len(v.From)-1], b.Env[j].From[len(b.Env[j].From)-1])
		}
	}
	for i := range a.Mounts {
		m := &a.Mounts[i]
		j := slices.IndexFunc(b.Mounts, func(o Mount) bool {
			return o.ContainerPath == m.ContainerPath && (m.Scratch != nil || !equality.Semantic.DeepEqual(o.PresetMount, m.PresetMount))
		})
		if j >= 0 {
			add("the mount at "+m.ContainerPath, m.From, b.Mounts[j].From)
		}
	}
	for i := range a.Nodes {
		n := &a.Nodes[i]
		j := slices.IndexFunc(b.Nodes, func(o Node) bool { return o.Path == n.Path && o.PresetDeviceNode != n.PresetDeviceNode })
		if j >= 0 {
			add("device node "+n.Path, n.From, b.Nodes[j].From)
		}
	}
	for i := range a.Drivers {
		d := &a.Drivers[i]
		j := slices.IndexFunc(b.Drivers, func(o Driver) bool { return o.Vendor == d.Vendor && o.Root != d.Root })
		if j >= 0 {
			add("the driver of "+string(d.Vendor), d.From, b.Drivers[j].From)
		}
	}
	otherFiles("library", a.Libraries, b.Libraries, add)
	otherFiles("tool", a.Tools, b.Tools, add)
	otherLinks(a.Hooks, b.Hooks, add)
	return out
}

// otherFiles adds the names that two lists of files look up in other places of the node.
func otherFiles(what string, a, b []Files, add func(what string, ours, theirs Origin)) {
	for i := range a {
		for j := range b {
			if a[i].Root == b[j].Root && slices.Equal(a[i].Directories, b[j].Directories) {
				continue
			}
			common := slices.DeleteFunc(slices.Clone(a[i].Names), func(name string) bool { return !slices.Contains(b[j].Names, name) })
			for _, name := range common {
				add(what+" "+name, a[i].From, b[j].From)
			}
		}
	}
}

// otherLinks adds the links that lead elsewhere.
func otherLinks(a, b []Hook, add func(what string, ours, theirs Origin)) {
	for i := range a {
		for j := range b {
			for _, path := range leadElsewhere(a[i].Links, b[j].Links) {
				add("the link "+path, a[i].From, b[j].From)
			}
		}
	}
}

// leadElsewhere returns the paths of links for which others have another target.
func leadElsewhere(links, others []v1alpha1.PresetLink) (paths []string) {
	for _, link := range links {
		elsewhere := func(o v1alpha1.PresetLink) bool { return o.Path == link.Path && o.Target != link.Target }
		if slices.ContainsFunc(others, elsewhere) {
			paths = append(paths, link.Path)
		}
	}
	return paths
}
