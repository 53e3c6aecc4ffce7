// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

const (
	// triedNodes is on how many nodes changes are tried: those with the least missing.
	triedNodes = 4
	// triedTimeout bounds the search with a change. It is far more than searches take that end, so that a busy machine answers the same.
	triedTimeout = 2 * time.Second
)

// trial is a change that may help, and what to say if it does.
type trial struct {
	reason Reason
	// change says whether there was anything to change on the node.
	change func(in *judge.Input) bool
	say    func(n *nodeWork) string
}

// first finds the one change that would help most. Changes are tried in the order of how little they ask of the reader.
func (w *work) first() (Reason, string) {
	if len(w.cluster.Nodes) == 0 {
		return NoDevices, "no node is known: a pod needs one"
	}
	if len(w.nodes) == 0 {
		return Slow, "no node was judged: the explanation was stopped"
	}
	if reason, text := w.fatal(); text != "" {
		return reason, text
	}
	if text := w.elsewhere(); text != "" {
		return ClaimMissing, text
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		switch {
		case n.verdict.Outcome == judge.Fits && len(n.refused) == 0:
			return Fits, fmt.Sprintf("the devices are free on %s: the scheduler has not come to it yet", w.fitting(false))
		case n.verdict.Outcome == judge.Fits:
			if text := w.heldWhereSelected(); text != "" {
				return Held, text
			}
			return NodeRefuses, fmt.Sprintf("the devices are free on %s, which the scheduler does not take for the pod: %s", w.fitting(true),
				strings.Join(n.refused, ", "))
		}
	}
	if text := w.nothingThere(); text != "" {
		return NoDevices, text
	}
	for _, t := range w.trials() {
		for i := range w.nodes[:min(triedNodes, len(w.nodes))] {
			if n := &w.nodes[i]; len(n.refused) == 0 && n.helps(w, t) {
				return t.reason, t.say(n)
			}
		}
	}
	return w.closest()
}

// heldWhereSelected says who has what the pod waits for on the nodes that it selects, if it rules out all others on which devices are free.
func (w *work) heldWhereSelected() string {
	var selected []*nodeWork
	for i := range w.nodes {
		n := &w.nodes[i]
		switch {
		case slices.Contains(n.refused, plan.NotSelected):
		case n.verdict.Outcome == judge.Fits:
			return ""
		case len(n.refused) == 0 && len(selected) < triedNodes:
			selected = append(selected, n)
		}
	}
	for _, n := range selected {
		if n.helps(w, w.nothingHeld()) {
			return w.held(n)
		}
	}
	return ""
}

// nothingHeld tries a cluster in which no claim has anything.
func (w *work) nothingHeld() trial {
	return trial{reason: Held, say: w.held, change: func(in *judge.Input) bool {
		state := in.State
		in.State = nothingAllocated()
		return len(state.AllocatedDevices) > 0 || len(state.AllocatedSharedDeviceIDs) > 0 || len(state.AggregatedCapacity) > 0
	}}
}

// elsewhere says that a claim has devices that do on no node, or on one that does not do for the pod.
func (w *work) elsewhere() string {
	var claims, nodes, reasons []string
	for _, claim := range w.allocated {
		if plan.BindingFailed(w.cluster.Gates, claim) {
			return fmt.Sprintf("a device of claim %s failed to be bound, so the claim cannot be used on any node: the scheduler takes its devices "+
				"back unless another pod uses it, and tries the pod again", claim.Name)
		}
		if claim.Status.Allocation.NodeSelector != nil || plan.SkipsOperations(claim) {
			claims = append(claims, claim.Name)
		}
	}
	for i := range w.nodes {
		if n := &w.nodes[i]; !slices.Contains(n.refused, plan.NotAvailable) {
			nodes = append(nodes, n.input.Node.Name)
			reasons = append(reasons, n.lines()...)
		}
	}
	switch {
	case len(claims) == 0 || len(nodes) == len(w.nodes), len(nodes) == 0 && w.left > 0: // it may be on one that was not judged
		return ""
	case len(nodes) == 0:
		return fmt.Sprintf("what the pod's claim %s has is on none of the nodes", strings.Join(claims, " and "))
	}
	slices.Sort(reasons)
	return fmt.Sprintf("claim %s has devices already, which ties the pod to %s: %s", strings.Join(claims, " and "), listed(nodes, 3),
		strings.Join(slices.Compact(reasons), ", "))
}

// fitting lists the nodes whose devices fit.
func (w *work) fitting(refused bool) string {
	var names []string
	for i := range w.nodes {
		if n := &w.nodes[i]; n.verdict.Outcome == judge.Fits && (len(n.refused) > 0) == refused {
			names = append(names, n.input.Node.Name)
		}
	}
	return listed(names, 3)
}

func (n *nodeWork) requests() []*judge.RequestVerdict {
	var out []*judge.RequestVerdict
	for i := range n.verdict.Claims {
		for k := range n.verdict.Claims[i].Requests {
			out = append(out, &n.verdict.Claims[i].Requests[k])
		}
	}
	return out
}

// helps tries a change on a node. Where the search took too long nothing is known to be missing, so that no change can be known to help:
// with it the search might only have ended by luck.
func (n *nodeWork) helps(w *work, t trial) bool {
	if n.verdict.Outcome == judge.TimedOut {
		w.slow = true
		return false
	}
	in := n.input
	in.Timeout, in.DoesNotFit = triedTimeout, false
	in.Claims = nil
	for _, claim := range n.input.Claims {
		in.Claims = append(in.Claims, claim.DeepCopy())
	}
	if !t.change(&in) {
		return false
	}
	v := judge.Judge(w.ctx, in)
	w.slow = w.slow || v.Outcome == judge.TimedOut
	return v.Outcome == judge.Fits
}

// trials are the changes in the order in which they are tried.
func (w *work) trials() []trial {
	out := []trial{}
	for _, taint := range w.taints() {
		out = append(out, tolerate(taint))
	}
	constraints, requests := w.places()
	for _, p := range constraints {
		out = append(out, onNUMANode(p), withoutConstraint(p))
	}
	out = append(out, completePools(), w.nothingHeld())
	for _, p := range requests {
		out = append(out, withoutSelectors(p)...)
		out = append(out, fewer(p))
	}
	return out
}

// completePools takes the slices that are there for the whole of an incomplete pool.
func completePools() trial {
	return trial{
		reason: PoolBroken,
		change: func(in *judge.Input) (changed bool) {
			type generation struct {
				driver, pool string
				number       int64
			}
			of := func(s *resourceapi.ResourceSlice) generation {
				return generation{s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Pool.Generation}
			}
			counts := map[generation]int64{}
			for _, slice := range in.Slices {
				counts[of(slice)]++
			}
			slices := make([]*resourceapi.ResourceSlice, len(in.Slices))
			for i, slice := range in.Slices {
				slices[i] = slice
				if count := counts[of(slice)]; count != slice.Spec.Pool.ResourceSliceCount {
					slices[i] = slice.DeepCopy()
					slices[i].Spec.Pool.ResourceSliceCount = count
					changed = true
				}
			}
			in.Slices = slices
			return changed
		},
		say: func(n *nodeWork) string {
			for _, p := range n.verdict.Pools {
				if p.Incomplete != "" {
					return fmt.Sprintf("%s has devices that would do, but their pool %s/%s is incomplete: %s", n.input.Node.Name, p.Driver, p.Pool,
						p.Incomplete)
				}
			}
			return fmt.Sprintf("%s has devices that would do, but their pools are incomplete", n.input.Node.Name)
		},
	}
}

// nothingAllocated is the state of a cluster in which no claim has a device.
func nothingAllocated() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
}

// taints lists the taints that devices are refused for, once each.
func (w *work) taints() []judge.Taint {
	var out []judge.Taint
	for i := range w.nodes[:min(triedNodes, len(w.nodes))] {
		for _, check := range w.nodes[i].failed() {
			if check.Taint != nil {
				out = addOnce(out, *check.Taint)
			}
		}
	}
	return out
}

// failed lists the checks that devices of the node failed.
func (n *nodeWork) failed() (out []judge.Check) {
	for _, r := range n.requests() {
		for k := range r.Devices {
			out = append(out, r.Devices[k].Failed...)
		}
	}
	return out
}

// tolerate adds a toleration to all requests.
func tolerate(taint judge.Taint) trial {
	toleration := resourceapi.DeviceToleration{
		Key: taint.Key, Operator: resourceapi.DeviceTolerationOpEqual, Value: taint.Value, Effect: resourceapi.DeviceTaintEffect(taint.Effect),
	}
	return trial{
		reason: Tainted,
		change: func(in *judge.Input) bool {
			eachRequest(in, func(r *resourceapi.ExactDeviceRequest) { r.Tolerations = append(r.Tolerations, toleration) },
				func(r *resourceapi.DeviceSubRequest) { r.Tolerations = append(r.Tolerations, toleration) })
			return true
		},
		say: func(n *nodeWork) string {
			tainted, class := 0, ""
			for _, r := range n.requests() {
				for k := range r.Devices {
					if d := &r.Devices[k]; len(d.Failed) > 0 && !slices.ContainsFunc(d.Failed, func(c judge.Check) bool { return c.Taint == nil }) {
						tainted, class = tainted+1, r.Class
					}
				}
			}
			return fmt.Sprintf("%s on %s %s free but tainted %s: mend what the taint is about, or add the toleration %s to the request",
				counted(tainted, class), n.input.Node.Name, are(tainted), taintName(taint), taint.Toleration)
		},
	}
}

func taintName(t judge.Taint) string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

func eachRequest(in *judge.Input, exactly func(*resourceapi.ExactDeviceRequest), sub func(*resourceapi.DeviceSubRequest)) {
	for _, claim := range in.Claims {
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			if r.Exactly != nil {
				exactly(r.Exactly)
			}
			for k := range r.FirstAvailable {
				sub(&r.FirstAvailable[k])
			}
		}
	}
}

// withoutConstraint removes a constraint of a claim.
func withoutConstraint(p constraintPlace) trial {
	return trial{
		reason: Constraint,
		change: func(in *judge.Input) bool {
			constraint := p.constraint(in.Claims)
			if constraint == nil || constraint.MatchAttribute == nil && constraint.DistinctAttribute == nil {
				return false
			}
			devices := &claimIn(in.Claims, p.claim).Spec.Devices
			devices.Constraints = slices.Delete(devices.Constraints, p.index, p.index+1)
			return true
		},
		say: func(n *nodeWork) string {
			c, constraint := claimIn(n.input.Claims, p.claim), p.constraint(n.input.Claims)
			attribute, distinct := constraint.MatchAttribute, false
			if attribute == nil {
				attribute, distinct = constraint.DistinctAttribute, true
			}
			what, need := constrained(c, constraint)
			return fmt.Sprintf("%s %s free on %s, but %s%s", what, are(max(need, 2)), n.input.Node.Name, differing(string(*attribute), distinct),
				n.table(p.claim, string(*attribute), distinct))
		},
	}
}

// constrained says which devices a constraint is about, and how many; 0 if that is not known.
func constrained(c *resourceapi.ResourceClaim, constraint *resourceapi.DeviceConstraint) (what string, need int) {
	var whats []string
	class, selectors, alike := "", []resourceapi.DeviceSelector(nil), true
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly == nil || len(constraint.Requests) > 0 && !slices.Contains(constraint.Requests, r.Name) {
			continue
		}
		alike = alike && (need == 0 || class == r.Exactly.DeviceClassName && equality.Semantic.DeepEqual(selectors, r.Exactly.Selectors))
		need, class, selectors = need+int(r.Exactly.Count), r.Exactly.DeviceClassName, r.Exactly.Selectors
		whats = append(whats, fmt.Sprintf("%s%s for request %s", counted(int(r.Exactly.Count), class), with(selectors), r.Name))
	}
	switch {
	case need == 0:
		return "enough devices", 0
	case alike:
		return counted(need, class) + with(selectors), need
	}
	return strings.Join(whats, " and "), need
}

// onNUMANode asks for devices of one NUMA node where a claim asks for those below one PCIe root, which is narrower. On some machines a card
// is below another root than the GPU next to it.
func onNUMANode(p constraintPlace) trial {
	const numaNode = deviceattribute.StandardDeviceAttributeNUMANode
	return trial{
		reason: Constraint,
		change: func(in *judge.Input) bool {
			constraint := p.constraint(in.Claims)
			if constraint == nil || constraint.MatchAttribute == nil ||
				*constraint.MatchAttribute != resourceapi.FullyQualifiedName(deviceattribute.StandardDeviceAttributePCIeRoot) {
				return false
			}
			constraint.MatchAttribute = new(resourceapi.FullyQualifiedName(numaNode))
			return true
		},
		say: func(n *nodeWork) string {
			return fmt.Sprintf("%s. One NUMA node has them: ask for matchAttribute %s", withoutConstraint(p).say(n), numaNode)
		},
	}
}

// table writes what the free devices have of an attribute: the value, and how many have it of how many are needed.
func (n *nodeWork) table(claim, attribute string, distinct bool) string {
	for _, c := range n.verdictOf(claim).Constraints {
		if c.Attribute != attribute || c.Distinct != distinct || len(c.Rows) == 0 {
			continue
		}
		var rows []string
		for _, row := range c.Rows {
			free, need := slices.Max(row.Free), 0
			for _, of := range c.Need {
				need += of
			}
			if distinct {
				rows = append(rows, fmt.Sprintf("%s: %d", row.Value, free))
				continue
			}
			rows = append(rows, fmt.Sprintf("%s: %d of %d", row.Value, free, need))
		}
		if len(rows) > 6 {
			rows = append(rows[:6], fmt.Sprintf("and %d more", len(rows)-6))
		}
		return " (" + strings.Join(rows, ", ") + ")"
	}
	return ""
}

// withoutSelectors removes one selector of a request.
func withoutSelectors(p place) []trial {
	var out []trial
	const most = 8 // selectors of a request that are tried
	for index := range most {
		out = append(out, trial{
			reason: Selector,
			change: func(in *judge.Input) bool {
				r := p.exactly(in.Claims)
				if r == nil || index >= len(r.Selectors) || r.Selectors[index].CEL == nil {
					return false
				}
				r.Selectors = slices.Delete(r.Selectors, index, index+1)
				return true
			},
			say: func(n *nodeWork) string {
				r := p.exactly(n.input.Claims)
				free, requests := 0, n.verdictOf(p.claim).Requests
				for k := range requests {
					if v := &requests[k]; v.Name == p.request {
						free = onlyFailing(v, judge.KindSelector)
					}
				}
				return fmt.Sprintf("%s on %s %s free, but a selector of request %s wants %s: %s", counted(free, r.DeviceClassName),
					n.input.Node.Name, are(free), p.request, plain(r.Selectors[index].CEL.Expression), n.parts(p))
			},
		})
	}
	return out
}

func onlyFailing(r *judge.RequestVerdict, kind judge.Kind) int {
	n := 0
	for i := range r.Devices {
		if d := &r.Devices[i]; len(d.Failed) > 0 && !slices.ContainsFunc(d.Failed, func(c judge.Check) bool { return c.Kind != kind }) {
			n++
		}
	}
	return n
}

// parts says what devices have that a selector does not accept.
func (n *nodeWork) parts(p place) string {
	var out []string
	for _, r := range n.verdictOf(p.claim).Requests {
		if r.Name != p.request {
			continue
		}
		for k := range r.Devices {
			for _, text := range partsOf(&r.Devices[k]) {
				out = addOnce(out, text)
			}
		}
	}
	if len(out) > 3 {
		out = append(out[:3], fmt.Sprintf("and %d more", len(out)-3))
	}
	return strings.Join(out, ", ")
}

// partsOf says what a device has that its request's selectors do not accept.
func partsOf(d *judge.DeviceVerdict) (out []string) {
	for _, check := range d.Failed {
		if check.Kind != judge.KindSelector {
			continue
		}
		for _, part := range check.Parts {
			out = append(out, partText(part))
		}
	}
	return out
}

func partText(part judge.Part) string {
	var values []string
	for _, v := range part.Values {
		values = append(values, plain(v.Expression)+" is "+v.Value)
	}
	if len(values) == 0 {
		return plain(part.Expression) + " is " + part.Result
	}
	return strings.Join(values, " and ")
}

// fewer asks for one device in place of several.
func fewer(p place) trial {
	return trial{
		reason: TooFew,
		change: func(in *judge.Input) bool {
			r := p.exactly(in.Claims)
			if r == nil || r.Count <= 1 {
				return false
			}
			r.Count = 1
			return true
		},
		say: func(n *nodeWork) string {
			for _, check := range n.verdictOf(p.claim).Problems {
				if check.Shortage != nil && len(check.Shortage.Requests) > 1 {
					return fmt.Sprintf("%s on node %s, which comes closest", check.Message, n.input.Node.Name)
				}
			}
			r := p.exactly(n.input.Claims)
			most := 0
			for _, v := range n.verdictOf(p.claim).Requests {
				if v.Name == p.request {
					most = v.Usable()
				}
			}
			text := fmt.Sprintf("request %s wants %s on one node, and %s, which comes closest, has %d that it can have", p.request,
				counted(int(r.Count), r.DeviceClassName), n.input.Node.Name, most)
			if int64(most) >= r.Count { // parts of a device, which exclude each other
				text += ", but not all at once"
			}
			return text
		},
	}
}
