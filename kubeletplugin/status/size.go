// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/discover"
)

// The bytes that parts of a status may take once it has not room for all.
const (
	// shortText is what a message, and a text of the summary, keeps, shortName what a subject keeps.
	shortText, shortName = 160, 96
	// shortEntry and shortFile are the lengths of short entries.
	shortEntry, shortFile = 12, 6
	// fieldNames is kept for the names of lists and counts.
	fieldNames = 420
	// forFailures is kept for failures before files and presets get their short entries.
	forFailures = 900
)

// lists are the parts of a status that grow with what a node has.
type lists struct {
	problems   []v1alpha1.NodeProblem
	caches     []v1alpha1.NodeCache
	bitstreams []string
	presets    []v1alpha1.NodePreset
	policies   []v1alpha1.NodePartitionPolicy
}

// fit enters the lists into a status. If it would take more than MaxNodeStatus, what failed comes first, with short messages, and what
// the lists have no room for is in status.rest. The same state gives the same status.
func fit(s *v1alpha1.AcceleratorNodeStatus, l lists) {
	s.SetProblems(l.problems)
	s.SetKernelCaches(l.caches)
	s.SetPartitionPolicies(l.policies)
	s.Bitstreams = l.bitstreams[:min(len(l.bitstreams), v1alpha1.MaxBitstreams)]
	s.Presets = l.presets[:min(len(l.presets), v1alpha1.MaxNodePresets)]
	whole := len(s.KernelCaches) == len(l.caches) && len(s.Bitstreams) == len(l.bitstreams) && len(s.Presets) == len(l.presets) &&
		len(s.PartitionPolicies) == len(l.policies)
	if !whole || sizeOf(s) > v1alpha1.MaxNodeStatus {
		squeeze(s, l)
	}
}

// squeeze enters as much of the lists as there is room for. The short entries of caches decide what the controller counts of them, so they
// have the first room; then failures, and the short entries of files.
func squeeze(s *v1alpha1.AcceleratorNodeStatus, l lists) {
	s.Problems, s.KernelCaches, s.PartitionPolicies, s.Bitstreams, s.Presets = nil, nil, nil, nil, nil
	s.ProblemCount = count(len(l.problems))
	shorten(s)
	l = failuresFirst(l)
	l.caches = fair(l.caches, v1alpha1.MaxNodeCaches, func(c *v1alpha1.NodeCache) string { return c.Namespace })
	l.presets = inTurns(l.presets, func(p *v1alpha1.NodePreset) string { return p.Namespace })
	left := &room{bytes: v1alpha1.MaxNodeStatus - sizeOf(s) - fieldNames}
	caches := left.upTo(shortEntry, min(len(l.caches), v1alpha1.MaxNodeCaches))
	files := min(len(l.bitstreams), max(0, left.bytes-forFailures)/shortFile, v1alpha1.MaxBitstreams)
	left.upTo(shortFile, files)
	fill(s, l, left)

	rest := &v1alpha1.NodeRest{
		KernelCacheCount: count(len(l.caches) - len(s.KernelCaches)), BitstreamCount: count(len(l.bitstreams) - len(s.Bitstreams)),
		PresetCount: count(len(l.presets) - len(s.Presets)), PartitionPolicyCount: count(len(l.policies) - len(s.PartitionPolicies)),
	}
	for i, c := range l.caches[len(s.KernelCaches):] {
		if failed(&c) {
			rest.FailedKernelCacheCount++
		}
		if i < caches {
			rest.KernelCaches = s.AddRestCache(rest.KernelCaches, &c)
		}
	}
	further := l.bitstreams[len(s.Bitstreams):]
	for _, digest := range further[:min(len(further), files)] {
		rest.Bitstreams = v1alpha1.AddRestBitstream(rest.Bitstreams, digest)
	}
	presets := l.presets[len(s.Presets):]
	for i := range presets[:left.upTo(shortEntry, min(len(presets), v1alpha1.MaxNodePresets))] {
		rest.Presets = s.AddRestPreset(rest.Presets, &presets[i])
	}
	if *rest != (v1alpha1.NodeRest{}) {
		s.Rest = rest
	}
}

// fill enters elements as they are, what failed first. A cache or file that is listed has no short entry, whose room stays unused.
func fill(s *v1alpha1.AcceleratorNodeStatus, l lists, left *room) {
	bad := slices.IndexFunc(l.caches, func(c v1alpha1.NodeCache) bool { return !failed(&c) })
	if bad < 0 {
		bad = len(l.caches)
	}
	s.Problems = listed(left, left.bytes/2, l.problems, v1alpha1.MaxProblems)
	s.KernelCaches = listed(left, left.bytes*2/3, l.caches[:bad], v1alpha1.MaxNodeCaches)
	s.PartitionPolicies = listed(left, left.bytes, l.policies, v1alpha1.MaxNodePolicies)
	s.Presets = listed(left, left.bytes, l.presets, v1alpha1.MaxNodePresets)
	if len(s.KernelCaches) == bad {
		s.KernelCaches = append(s.KernelCaches, listed(left, left.bytes, l.caches[bad:], v1alpha1.MaxNodeCaches-bad)...)
	}
	s.Bitstreams = listed(left, left.bytes, l.bitstreams, v1alpha1.MaxBitstreams)
}

// room is how many bytes are left.
type room struct{ bytes int }

// upTo takes the bytes of as many entries as there is room for, at most n, and returns how many.
func (r *room) upTo(each, n int) int {
	n = min(n, max(0, r.bytes)/each)
	r.bytes -= each * n
	return n
}

// listed returns the first elements for which a share of the room is enough, at most a number, and takes theirs.
func listed[T any](left *room, share int, all []T, most int) []T {
	all = all[:min(len(all), max(0, most))]
	for i := range all {
		size := sizeOf(&all[i]) + 1
		if size > share {
			return slices.Clip(all[:i])
		}
		share -= size
		left.bytes -= size
	}
	return slices.Clip(all)
}

// failuresFirst returns the lists with short texts, what failed before the rest. Otherwise they keep their order.
func failuresFirst(l lists) lists {
	problems, caches, policies := slices.Clone(l.problems), slices.Clone(l.caches), slices.Clone(l.policies)
	rank := func(is bool) int {
		if is {
			return 0
		}
		return 1
	}
	for i := range problems {
		p := &problems[i]
		p.Subject, p.Reason, p.Message = cutTo(p.Subject, shortName), cutTo(p.Reason, shortName), cutTo(p.Message, shortText)
	}
	for i := range caches {
		caches[i].Message = cutTo(caches[i].Message, shortText)
		if !failed(&caches[i]) {
			caches[i].Message = ""
		}
	}
	for i := range policies {
		p := &policies[i]
		p.Reason, p.Message = cutTo(p.Reason, shortName), cutTo(p.Message, shortText)
	}
	slices.SortStableFunc(problems, func(a, b v1alpha1.NodeProblem) int {
		return cmp.Compare(rank(discover.OfDriver(a.Reason)), rank(discover.OfDriver(b.Reason)))
	})
	slices.SortStableFunc(caches, func(a, b v1alpha1.NodeCache) int { return cmp.Compare(rank(failed(&a)), rank(failed(&b))) })
	slices.SortStableFunc(policies, func(a, b v1alpha1.NodePartitionPolicy) int {
		return cmp.Compare(rank(a.Reason != ""), rank(b.Reason != ""))
	})
	return lists{problems, caches, l.bitstreams, l.presets, policies}
}

// inTurns returns all of the cluster's, then of each namespace the first before any has its second. Tenants make as many objects as they
// like, and the controller acts on what a node tells of them.
func inTurns[T any](all []T, namespace func(*T) string) []T {
	return picked(all, turns(all, namespace))
}

// fair moves those to the front that are the first so many of inTurns. Both parts keep their order.
func fair[T any](all []T, most int, namespace func(*T) string) []T {
	order := turns(all, namespace)
	most = min(most, len(order))
	slices.Sort(order[:most])
	slices.Sort(order[most:])
	return picked(all, order)
}

func picked[T any](all []T, order []int) []T {
	out := make([]T, 0, len(order))
	for _, i := range order {
		out = append(out, all[i])
	}
	return out
}

// turns returns the indexes in the order of inTurns.
func turns[T any](all []T, namespace func(*T) string) []int {
	order, turn, taken := make([]int, len(all)), make([]int, len(all)), map[string]int{}
	for i := range all {
		order[i] = i
		if of := namespace(&all[i]); of != "" {
			taken[of]++
			turn[i] = taken[of]
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
	return order
}

// failed says that the node could not get a cache, or that it fits none of its GPUs.
func failed(c *v1alpha1.NodeCache) bool {
	return c.Phase == v1alpha1.NodeCacheError || c.CompatibleDevices == 0 && c.IncompatibleDevices > 0
}

// shorten cuts the texts of the parts that do not grow.
func shorten(s *v1alpha1.AcceleratorNodeStatus) {
	s.PluginVersion = cutTo(s.PluginVersion, shortName)
	if s.Summary != nil {
		short := *s.Summary
		short.Drivers, short.Models = cutTo(short.Drivers, shortText), cutTo(short.Models, shortText)
		short.Firmware = cutTo(short.Firmware, shortText)
		s.Summary = &short
	}
	for i := range s.Conditions {
		s.Conditions[i].Message = cutTo(s.Conditions[i].Message, shortText)
	}
}

// cutTo shortens a text to so many bytes of JSON, with an ellipsis.
func cutTo(text string, limit int) string {
	if sizeOf(text)-2 <= limit {
		return text
	}
	const ellipsis = "…"
	limit -= len(ellipsis)
	for at, r := range text {
		size := sizeOf(string(r)) - 2
		if r == utf8.RuneError {
			size = 6
		}
		if size > limit {
			return text[:at] + ellipsis
		}
		limit -= size
	}
	return text
}

// sizeOf returns the bytes of JSON that a value takes.
func sizeOf(value any) int {
	text, err := json.Marshal(value)
	if err != nil {
		return v1alpha1.MaxNodeStatus
	}
	return len(text)
}
