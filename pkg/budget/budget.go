// SPDX-License-Identifier: Apache-2.0

// Package budget decides whether a claim fits into what a node sets aside for tenants: for all of them together, and for each namespace. It
// is pure: a caller tells it what the claims of the node hold, which their records say, and what another claim asks for.
package budget

import (
	"fmt"
	"slices"
)

// Resource is something of a node that objects of tenants make the plugin or the kernel hold.
type Resource string

// The resources.
const (
	// Memory is the bytes that containers may write to mounts in memory, as far as the limits of these mounts go. What is written counts for
	// the pod that writes it, and for no pod after that pod has ended.
	Memory Resource = "memory"
	// SeedEntries are the files, links and directories that the plugin makes in memory for a claim, and SeedBytes what they contain. The
	// kernel counts both as memory of the plugin.
	SeedEntries Resource = "seedEntries"
	SeedBytes   Resource = "seedBytes"
	// Pins keep files of the node's store from being evicted. PinnedBytes is the size of these files.
	Pins        Resource = "pins"
	PinnedBytes Resource = "pinnedBytes"
	// Mounts are mounts of the node that a claim alone has. The kernel limits those of the node, and without any no pod starts.
	Mounts Resource = "mounts"
)

// Resources returns all resources, in the order in which they are checked.
func Resources() []Resource {
	return []Resource{Memory, SeedEntries, SeedBytes, PinnedBytes, Pins, Mounts}
}

// unit returns what a resource is counted in, for messages.
func (r Resource) unit() string {
	switch r {
	case Memory:
		return "bytes of memory to write to"
	case SeedEntries:
		return "files that are made in memory"
	case SeedBytes:
		return "bytes of files that are made in memory"
	case PinnedBytes:
		return "bytes in the node's store"
	case Pins:
		return "files in the node's store"
	case Mounts:
		return "mounts of its own"
	}
	return string(r)
}

// Need is an amount of a resource that a claim needs.
type Need struct {
	Resource Resource
	Amount   int64
	// Once names what several claims share, such as a file of the store: for all needs with the same name the amount counts once. Empty: the
	// claim's own.
	Once string
}

// Holding is what a claim holds, or asks for.
type Holding struct {
	// Namespace is the claim's.
	Namespace string
	Needs     []Need
}

// Limit is the most that all claims of a node may hold of a resource, and the most for one namespace. Zero is no limit.
type Limit struct{ Node, Namespace int64 }

// Limits are the limits of a node.
type Limits map[Resource]Limit

// ExceededError refuses a claim for now: it does not fit beside what other claims hold. It tells amounts of the claim's own namespace only.
type ExceededError struct {
	Resource Resource
	// Namespace is the claim's. Asked is what the claim needs, Held what the other claims of its namespace have, and Limit the most for a
	// namespace.
	Namespace          string
	Asked, Held, Limit int64
	// OfNode says that the namespace may have it, but the claims of all namespaces together leave too little.
	OfNode bool
	// Never says that the claim would not fit even if no other claim held anything. Limit is then what is in the way.
	Never bool
}

// Error says what is short and the remedy.
func (e *ExceededError) Error() string {
	switch {
	case e.Never:
		text := fmt.Sprintf("the claim needs %d %s, and a node gives at most %d: ask for less", e.Asked, e.Resource.unit(), e.Limit)
		if e.Resource == Mounts {
			return text
		}
		return text + fmt.Sprintf(", or have the chart's budget.%s raised", e.Resource)
	case e.OfNode:
		return fmt.Sprintf("the claim needs %d %s beside the %d that claims of namespace %s have on this node, and all claims together leave "+
			"too little: retried until some are released; delete the pod to let the scheduler choose another node",
			e.Asked, e.Resource.unit(), e.Held, e.Namespace)
	}
	return fmt.Sprintf("the claim needs %d %s, and claims of namespace %s have %d of at most %d on this node: retried until some are released",
		e.Asked, e.Resource.unit(), e.Namespace, e.Held, e.Limit)
}

// Check returns an *ExceededError for the first resource of which a claim asks for more than is left. A resource that the claim does not
// ask for is not checked, so a claim without needs always fits.
func (l Limits) Check(asked Holding, held []Holding) error {
	for _, r := range Resources() {
		own := sum(r, []Holding{asked}, nil)
		limit := l[r]
		if own == 0 || limit == (Limit{}) {
			continue
		}
		most := limit.most()
		if own > most {
			return &ExceededError{Resource: r, Namespace: asked.Namespace, Asked: own, Limit: most, Never: true}
		}
		same := func(h Holding) bool { return h.Namespace == asked.Namespace }
		inNamespace := sum(r, held, same)
		exceeded := &ExceededError{Resource: r, Namespace: asked.Namespace, Asked: own, Held: inNamespace, Limit: limit.Namespace}
		all := append(slices.Clone(held), asked)
		if limit.Namespace > 0 && sum(r, all, same) > limit.Namespace {
			return exceeded
		}
		if limit.Node > 0 && sum(r, all, nil) > limit.Node {
			exceeded.OfNode = true
			return exceeded
		}
	}
	return nil
}

// most returns the most that one claim can have.
func (l Limit) most() int64 {
	switch {
	case l.Namespace == 0:
		return l.Node
	case l.Node == 0:
		return l.Namespace
	}
	return min(l.Node, l.Namespace)
}

// sum adds up what holdings have of a resource. only selects holdings; nil selects all.
func sum(r Resource, holdings []Holding, only func(Holding) bool) int64 {
	once, total := map[string]bool{}, int64(0)
	for _, h := range holdings {
		if only != nil && !only(h) {
			continue
		}
		for _, n := range h.Needs {
			if n.Resource != r || n.Amount <= 0 || n.Once != "" && once[n.Once] {
				continue
			}
			if once[n.Once] = true; total > maxTotal-n.Amount {
				return maxTotal
			}
			total += n.Amount
		}
	}
	return total
}

// maxTotal keeps sums from overflowing. It is larger than any limit.
const maxTotal = 1<<63 - 1
