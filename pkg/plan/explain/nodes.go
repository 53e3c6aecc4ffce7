// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

// nodeTimeout bounds the allocator's search on one node by default.
const nodeTimeout = time.Second

// work is the explanation of one pod's claims.
type work struct {
	ctx     context.Context //nolint:containedctx // it is that of the one call
	cluster *plan.Cluster
	options Options
	// claims have no devices yet.
	claims []*resourceapi.ResourceClaim
	// allocated have devices, perhaps of some nodes only.
	allocated []*resourceapi.ResourceClaim
	nodes     []nodeWork
	// slow says that of a change it is not known whether it helps: the search took too long.
	slow bool
	// left counts nodes that were not judged.
	left int
}

// nodeWork is what is known of one node.
type nodeWork struct {
	input   judge.Input
	verdict judge.Verdict
	// refused are reasons of the scheduler that are not about devices.
	refused []string
}

func newWork(ctx context.Context, c *plan.Cluster, o Options) *work {
	if o.Expressions == nil {
		o.Expressions = judge.NewExpressions(c.Gates.Features())
	}
	return &work{ctx: ctx, cluster: c, options: o}
}

// judgeNodes judges what a pod still needs.
func (w *work) judgeNodes(pod *corev1.Pod, attempt *plan.Attempt) {
	for _, p := range attempt.Claims {
		if p.Claim.Status.Allocation == nil {
			w.claims = append(w.claims, p.Claim)
		} else {
			w.allocated = append(w.allocated, p.Claim)
		}
	}
	w.judgeFor(pod, attempt.Refused)
}

// judgeFor judges the nodes, those first that the scheduler refuses for their devices.
func (w *work) judgeFor(pod *corev1.Pod, refused map[string][]string) {
	if len(w.cluster.Nodes) == 0 {
		return
	}
	holders := hide(w.cluster.Holders(), w.options.Sees)
	nodes := slices.Clone(w.cluster.Nodes)
	slices.SortStableFunc(nodes, func(a, b *corev1.Node) int {
		return cmp.Compare(len(others(refused[a.Name])), len(others(refused[b.Name])))
	})
	most := len(nodes)
	if w.options.MaxNodes > 0 {
		most = min(most, w.options.MaxNodes)
	}
	w.nodes = make([]nodeWork, most)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range max(1, w.options.Parallel) {
		workers.Go(func() {
			for w.ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= most {
					return
				}
				if w.options.Judged != nil {
					w.options.Judged(i, most)
				}
				w.nodes[i] = w.judgeNode(pod, nodes[i], holders, refused[nodes[i].Name])
			}
		})
	}
	workers.Wait()
	w.nodes = slices.DeleteFunc(w.nodes, func(n nodeWork) bool { return n.input.Node == nil }) // those that it was too late for
	w.left = len(nodes) - len(w.nodes)
}

// judgeNode judges what a pod still needs, which may be nil, on one node.
func (w *work) judgeNode(pod *corev1.Pod, node *corev1.Node, holders map[structured.DeviceID][]judge.Holder, refused []string) nodeWork {
	n := nodeWork{input: w.cluster.JudgeInput(node, w.claims, holders), refused: others(refused)}
	n.input.Expressions, n.input.Timeout = w.options.Expressions, cmp.Or(w.options.NodeTimeout, nodeTimeout)
	n.input.DoesNotFit = slices.Contains(refused, plan.NotAllocatable)
	if pod != nil {
		if claim := w.cluster.ExtendedClaim(pod, node); claim != nil {
			n.input.Claims = append(slices.Clone(w.claims), claim)
		}
	}
	n.verdict = judge.Judge(w.ctx, n.input)
	return n
}

// others leaves out the scheduler's reasons about devices, which the judge gives better.
func others(reasons []string) []string {
	return slices.DeleteFunc(slices.Clone(reasons), func(reason string) bool {
		return reason == plan.NotAllocatable || strings.HasPrefix(reason, "invalid resource pools")
	})
}

// explain fills in the first line, if it is not known yet, and the nodes.
func (w *work) explain(e *Explanation) {
	slices.SortStableFunc(w.nodes, func(a, b nodeWork) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.input.Node.Name, b.input.Node.Name))
	})
	if e.First == "" {
		e.Reason, e.First = w.first()
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		node := Node{Name: n.input.Node.Name, Outcome: string(n.verdict.Outcome), Lines: n.lines()}
		if len(n.refused) > 0 && n.verdict.Outcome == judge.Fits {
			node.Outcome = "devices fit"
		}
		if w.options.Devices {
			node.Verdict = &n.verdict
		}
		e.Nodes = append(e.Nodes, node)
	}
	if w.left > 0 {
		all := len(w.cluster.Nodes)
		note := fmt.Sprintf("%d of %d nodes were looked at, those first that only lack devices", all-w.left, all)
		if w.options.MoreNodes != "" && w.ctx.Err() == nil {
			note += ": " + w.options.MoreNodes
		}
		e.Notes = append(e.Notes, note)
	}
}

// rank orders nodes by how much is missing.
func (n *nodeWork) rank() int {
	if n.verdict.Outcome == judge.Fits {
		return 0
	}
	missing := 1
	for _, c := range n.verdict.Claims {
		best := map[string]int{} // by request, the fewest missing of its alternatives
		for i := range c.Requests {
			r := &c.Requests[i]
			base, _, _ := strings.Cut(r.Name, "/")
			short := max(0, r.Count-r.Usable())
			if len(r.Devices) == 0 {
				short = math.MaxInt16
			}
			if known, found := best[base]; !found || short < known {
				best[base] = short
			}
		}
		for _, short := range best {
			missing += short
		}
	}
	return missing
}

// lines say what is missing on a node.
func (n *nodeWork) lines() []string {
	out := slices.Clone(n.refused)
	for _, p := range n.verdict.Pools {
		switch {
		case p.Incomplete != "":
			out = append(out, fmt.Sprintf("pool %s/%s is incomplete: %s", p.Driver, p.Pool, p.Incomplete))
		case p.Invalid != "":
			out = append(out, fmt.Sprintf("pool %s/%s is invalid: %s", p.Driver, p.Pool, p.Invalid))
		case len(p.Ignored) > 0:
			out = append(out, fmt.Sprintf("pool %s/%s: %s", p.Driver, p.Pool, strings.Join(p.Ignored, "; ")))
		}
	}
	for _, c := range n.verdict.Claims {
		for i := range c.Requests {
			out = append(out, requestLines(&c.Requests[i])...)
		}
		for _, check := range c.Problems {
			if check.Kind != judge.KindShortage || len(check.Shortage.Requests) > 1 {
				out = append(out, check.Message)
			}
		}
	}
	for _, check := range n.verdict.Problems {
		out = append(out, check.Message)
	}
	switch {
	case n.verdict.Error == judge.TooLong:
		out = append(out, judge.TooLong)
	case n.verdict.Outcome == judge.TimedOut:
		out = append(out, fmt.Sprintf("no combination of devices was found within %s", n.input.Timeout))
	case n.verdict.Outcome == judge.DoesNotFit && len(out) == 0:
		out = append(out, "each request alone has enough devices, but no combination satisfies all of them")
	}
	return out
}

// requestLines say how many devices a request can have, and what is against the others.
func requestLines(r *judge.RequestVerdict) []string {
	var out []string
	for _, check := range r.Problems {
		out = append(out, fmt.Sprintf("request %s: %s", r.Name, check.Message))
	}
	usable := r.Usable()
	if usable >= r.Count && (r.Count > 0 || !r.All) {
		return out
	}
	need := fmt.Sprintf("request %s needs %s", r.Name, counted(r.Count, r.Class))
	if r.All {
		need = fmt.Sprintf("request %s needs all %s that match", r.Name, counted(r.Count, r.Class))
	}
	if len(r.Devices) == 0 {
		return append(out, need+", and the node has no device")
	}
	if usable == len(r.Devices) {
		return append(out, fmt.Sprintf("%s, and the node has %d", need, usable))
	}
	return append(out, fmt.Sprintf("%s and can have %d of %d: %s", need, usable, len(r.Devices), against(r)))
}

// against counts the devices by the first check that fails.
func against(r *judge.RequestVerdict) string {
	counts := map[judge.Kind]int{}
	var order []judge.Kind
	for i := range r.Devices {
		if d := &r.Devices[i]; !d.Usable() {
			kind := mainFailure(d).Kind
			if counts[kind] == 0 {
				order = append(order, kind)
			}
			counts[kind]++
		}
	}
	slices.SortStableFunc(order, func(a, b judge.Kind) int { return counts[b] - counts[a] })
	var parts []string
	for _, kind := range order {
		parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kindWords(kind)))
	}
	return strings.Join(parts, ", ")
}

// mainFailure is the check to name if only one is: one that says that the device is another than wanted, else the scheduler's first.
func mainFailure(d *judge.DeviceVerdict) judge.Check {
	for _, kind := range []judge.Kind{judge.KindPool, judge.KindNode, judge.KindClassSelector, judge.KindSelector} {
		for _, check := range d.Failed {
			if check.Kind == kind {
				return check
			}
		}
	}
	return d.Failed[0]
}

// kindWords says what a check means for devices.
func kindWords(kind judge.Kind) string {
	words := map[judge.Kind]string{
		judge.KindPool: "in pools that are incomplete or invalid", judge.KindInUse: "held by claims",
		judge.KindBinding: "need binding conditions, which are off", judge.KindClassSelector: "not of the class",
		judge.KindSelector: "not as the selectors want", judge.KindNode: "for other nodes", judge.KindCapacity: "without enough capacity",
		judge.KindNodeOperations: "need another kubelet", judge.KindGroups: "not compatible with what is allocated",
		judge.KindCounters: "whose share of the card is taken", judge.KindTaint: "tainted",
		judge.KindConstraint: "without the attribute of a constraint", judge.KindGate: "need a feature gate that is off",
	}
	if text, found := words[kind]; found {
		return text
	}
	return string(kind)
}
