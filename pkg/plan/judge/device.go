// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

// optionalOperations is what a node declares that can use devices without operations of kubelet.
const optionalOperations = "DRAOptionalNodeOperations"

// judgeDevice does all checks of a device, in the scheduler's order. With All the scheduler first collects what matches, and then wants
// every device of that.
func (j *judgement) judgeDevice(
	ctx context.Context, r *request, p *pool, slice *resourceapi.ResourceSlice, d *resourceapi.Device,
) DeviceVerdict {
	id := structured.MakeDeviceID(p.driver, p.name, d.Name)
	v := DeviceVerdict{Driver: p.driver, Pool: p.name, Device: d.Name}
	matching := slices.Concat(j.checkBinding(d), j.checkSelectors(ctx, r, p, d), j.slices.checkNode(slice, d))
	inUse, capacity := j.held.checkInUse(r, id), j.held.checkCapacity(id, d, r.Capacity, false)
	rest := slices.Concat(j.slices.checkNodeOperations(slice), j.checkPartition(d), j.held.checkGroups(p, d), j.held.checkCounters(p, d),
		j.checkTaints(r, d), j.attributes.checkAttributes(ctx, r, p, d))
	v.Failed = checkPool(p)
	if r.all() {
		matching = append(matching, j.held.checkCapacity(id, d, r.Capacity, true)...)
		v.Matches = len(matching) == 0 && len(v.Failed) == 0
		v.Failed = slices.Concat(v.Failed, matching, inUse, rest)
		if v.Matches {
			v.Failed = append(v.Failed, capacity...)
		}
		return v
	}
	v.Matches = len(matching) == 0 && len(v.Failed) == 0
	v.Failed = slices.Concat(v.Failed, inUse, matching, capacity, rest)
	return v
}

func checkPool(p *pool) []Check {
	switch {
	case p.incomplete != "":
		return []Check{{Kind: KindPool, Message: "the pool is incomplete: " + p.incomplete}}
	case p.invalid != "":
		return []Check{{Kind: KindPool, Message: "the pool is invalid: " + p.invalid}}
	}
	return nil
}

func (h *holdings) checkInUse(r *request, id structured.DeviceID) []Check {
	if r.admin() || !h.state.AllocatedDevices.Has(id) {
		return nil
	}
	holders := uniqueHolders(h.holders[id])
	return []Check{{Kind: KindInUse, Holders: holders, Message: heldBy(holders)}}
}

func (f features) checkBinding(d *resourceapi.Device) []Check {
	if f.DeviceBindingAndStatus || len(d.BindingConditions) == 0 {
		return nil
	}
	return []Check{{Kind: KindBinding, Message: "the device has binding conditions, and the feature gates DRADeviceBindingConditions and " +
		"DRAResourceClaimDeviceStatus are not both on"}}
}

// checkSelectors evaluates the selectors of class and request.
func (j *judgement) checkSelectors(ctx context.Context, r *request, p *pool, d *resourceapi.Device) []Check {
	device := dracel.Device{Driver: p.driver, Attributes: d.Attributes, Capacity: d.Capacity}
	if j.variant != stable {
		device.AllowMultipleAllocations = d.AllowMultipleAllocations
	}
	var checks []Check
	if r.class != nil {
		for i, selector := range r.class.Spec.Selectors {
			where := fmt.Sprintf("class %s, selectors[%d]", r.class.Name, i)
			checks = append(checks, j.checkSelector(ctx, KindClassSelector, where, selector, device)...)
		}
	}
	for i, selector := range r.Selectors {
		checks = append(checks, j.checkSelector(ctx, KindSelector, fmt.Sprintf("request %s, selectors[%d]", r.name(), i), selector, device)...)
	}
	return checks
}

func (j *judgement) checkSelector(
	ctx context.Context, kind Kind, where string, selector resourceapi.DeviceSelector, device dracel.Device,
) []Check {
	if selector.CEL == nil {
		return nil // checkRequest has it
	}
	x, err := j.in.Expressions.get(selector.CEL.Expression)
	if err != nil {
		return []Check{{Kind: kind, Fatal: true, Message: fmt.Sprintf("%s: %v", where, err)}}
	}
	match, err := x.matches(ctx, device)
	switch {
	case err != nil:
		return []Check{{Kind: kind, Fatal: true, Message: fmt.Sprintf("%s: %v", where, err), Parts: x.explain(ctx, device)}}
	case match:
		return nil
	}
	parts := x.explain(ctx, device)
	return []Check{{Kind: kind, Message: where + ": " + partsText(parts, selector.CEL.Expression), Parts: parts}}
}

// partsText says which parts of a selector are false, and with which values.
func partsText(parts []Part, expression string) string {
	if len(parts) == 0 {
		return expression + " is false"
	}
	var lines []string
	for _, part := range parts {
		line := part.Expression + " is " + part.Result
		var values []string
		for _, v := range part.Values {
			if v.Expression != part.Expression {
				values = append(values, v.text())
			}
		}
		if len(values) > 0 {
			line += " (" + strings.Join(values, ", ") + ")"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// text says what an expression is, or has if it is a map.
func (v Value) text() string {
	if v.Names {
		return v.Expression + " has " + cmp.Or(v.Value, "nothing")
	}
	return v.Expression + " is " + v.Value
}

func (n *nodeSlices) checkNode(slice *resourceapi.ResourceSlice, d *resourceapi.Device) []Check {
	if slice.Spec.PerDeviceNodeSelection == nil || !*slice.Spec.PerDeviceNodeSelection {
		return nil
	}
	match, err := n.deviceOnNode(d)
	switch {
	case err != nil:
		return []Check{{Kind: KindNode, Fatal: true, Message: "the device's node selector: " + err.Error()}}
	case match:
		return nil
	}
	return []Check{{Kind: KindNode, Message: fmt.Sprintf("the device is not for node %s", n.node.Name)}}
}

func (n *nodeSlices) checkNodeOperations(slice *resourceapi.ResourceSlice) []Check {
	const skips = "the slice skips operations of kubelet, and "
	switch {
	case n.variant != experimental || len(slice.Spec.SkipNodeOperations) == 0:
		return nil
	case !n.OptionalNodeOperations:
		return []Check{{Kind: KindNodeOperations, Message: skips + "the feature gate " + optionalOperations + " is off"}}
	case !slices.Contains(n.node.Status.DeclaredFeatures, optionalOperations):
		return []Check{{Kind: KindNodeOperations, Message: skips + "the node does not declare " + optionalOperations}}
	}
	return nil
}

func (f features) checkPartition(d *resourceapi.Device) []Check {
	if f.PartitionableDevices || len(d.ConsumesCounters) == 0 {
		return nil
	}
	return []Check{{Kind: KindGate, Message: "the device consumes counters, and the feature gate DRAPartitionableDevices is off"}}
}

// checkTaints returns the taints that the request does not tolerate.
func (f features) checkTaints(r *request, d *resourceapi.Device) []Check {
	if !f.DeviceTaints {
		return nil
	}
	var checks []Check
	for _, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, taint) }) {
			continue
		}
		t := Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)}
		t.Toleration = fmt.Sprintf("{key: %s, operator: Exists, effect: %s}", t.Key, t.Effect)
		if t.Value != "" {
			t.Toleration = fmt.Sprintf("{key: %s, operator: Equal, value: %s, effect: %s}", t.Key, t.Value, t.Effect)
		}
		checks = append(checks, Check{Kind: KindTaint, Taint: &t, Message: fmt.Sprintf("the taint %s, which the toleration %s would accept",
			t.name(), t.Toleration)})
	}
	return checks
}

// name writes the taint as kubectl does.
func (t Taint) name() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// heldBy says who has something, as far as it may be named.
func heldBy(holders []Holder) string {
	var named []string
	unnamed := 0
	for _, h := range uniqueHolders(holders) {
		if h.Name == "" {
			unnamed++
			continue
		}
		named = append(named, h.Namespace+"/"+h.Name)
	}
	switch {
	case unnamed == 1:
		named = append(named, "another namespace's claim")
	case unnamed > 1:
		named = append(named, fmt.Sprintf("%d claims of other namespaces", unnamed))
	}
	switch len(named) {
	case 0:
		return "no known claim has it"
	case 1:
		return "held by " + named[0]
	}
	return "held by " + strings.Join(named[:len(named)-1], ", ") + " and " + named[len(named)-1]
}

// uniqueHolders sorts holders and leaves out repetitions.
func uniqueHolders(in []Holder) []Holder {
	var out []Holder
	for _, h := range in {
		if !slices.ContainsFunc(out, func(o Holder) bool { return compareHolders(o, h) == 0 }) {
			out = append(out, Holder{Namespace: h.Namespace, Name: h.Name, Unnamed: h.Unnamed})
		}
	}
	slices.SortFunc(out, compareHolders)
	return out
}

func compareHolders(a, b Holder) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Unnamed, b.Unnamed))
}
