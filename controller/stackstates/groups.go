// SPDX-License-Identifier: Apache-2.0

package stackstates

import (
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/pkg/stack/extra"
)

// suffixDigits is how much of a hash tells platforms apart.
const suffixDigits = 10

// group are the nodes that share objects: those of one platform, or all of a stack.
type group struct {
	// suffix is what the names of a platform's objects end with. Empty: the group of all nodes.
	suffix   string
	platform stack.Platform
	nodes    []string
	// unknown are nodes of the stack of which it is not known to which group they belong. They keep what they have.
	unknown []string
	// reached are those of the nodes that have passed every state before.
	reached []string
	// open says that the objects are made: a node has reached the state, or they are there already.
	open bool
	// refusal is why an object cannot be written.
	refusal string
}

// groups are those of a state.
type groups struct {
	// all is the group of all nodes, and those of platforms if a manifest is for these, sorted.
	all []*group
	// of has the group of a node's platform. Without: no manifest is for platforms.
	of map[string]*group
	// whys are the verdicts of nodes that belong to no group, since the platform is not known.
	whys map[string]stack.Verdict
	// reached are the nodes that have passed every state before.
	reached map[string]bool
}

// groups sorts the stack's nodes by what they share. A group that has objects stays open: what becomes of earlier states takes nothing
// down.
func (r *round) groups(e *v1alpha1.ExtraState, manifests []extra.Manifest) *groups {
	everyone := &group{}
	out := &groups{of: map[string]*group{}, whys: map[string]stack.Verdict{}, reached: map[string]bool{}}
	perPlatform := slices.ContainsFunc(manifests, func(m extra.Manifest) bool { return m.PerPlatform })
	needsOS := slices.ContainsFunc(manifests, func(m extra.Manifest) bool { return m.NeedsOS })
	platforms := map[string]*group{}
	var unknown []string
	for i := range r.nodes {
		n := &r.nodes[i]
		p := stack.PlatformOf(n)
		if why, belongs := platformKnown(n, p, perPlatform, needsOS); !belongs {
			out.whys[n.Name] = why
			unknown = append(unknown, n.Name)
			continue
		}
		of := []*group{everyone}
		if perPlatform {
			suffix := stack.Digest(p.OS, p.KernelVersion, p.Architecture)[:suffixDigits]
			if platforms[suffix] == nil {
				platforms[suffix] = &group{suffix: suffix, platform: p}
			}
			out.of[n.Name] = platforms[suffix]
			of = append(of, platforms[suffix])
		}
		out.reached[n.Name] = stack.Reached(n, e.Follows())
		for _, g := range of {
			g.nodes = append(g.nodes, n.Name)
			if out.reached[n.Name] {
				g.reached, g.open = append(g.reached, n.Name), true
			}
		}
	}
	r.reopen(e, everyone, platforms)
	out.all = append(out.all, everyone)
	for _, g := range platforms {
		out.all = append(out.all, g)
	}
	for _, g := range out.all {
		g.unknown = unknown
	}
	r.unplaced[e.Name] = len(unknown) > 0
	slices.SortFunc(out.all, func(a, b *group) int { return strings.Compare(a.suffix, b.suffix) })
	return out
}

// platformKnown says whether what manifests need of a node's platform is known, and what it is for the node if not.
func platformKnown(n *stack.Node, p stack.Platform, perPlatform, needsOS bool) (why stack.Verdict, known bool) {
	switch {
	case perPlatform && (p.KernelVersion == "" || p.Architecture == ""):
		return stack.StateWaits(), false
	case needsOS && p.OS == "":
		return stack.StateOSUnknown(n), false
	}
	return stack.Verdict{}, true
}

// reopen opens the groups that have objects of the state.
func (r *round) reopen(e *v1alpha1.ExtraState, everyone *group, platforms map[string]*group) {
	for _, o := range r.there {
		if o.stack != r.stack.Name || o.state != string(e.Name) {
			continue
		}
		everyone.open = everyone.open || o.platform == ""
		if g := platforms[o.platform]; g != nil {
			g.open = true
		}
	}
}
