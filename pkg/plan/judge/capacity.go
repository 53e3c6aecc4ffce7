// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"maps"
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"
)

// shared says whether several claims may have the device at once.
func (f features) shared(device *resourceapi.Device) bool {
	return f.ConsumableCapacity && device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations
}

// checkCapacity compares what a request wants of a device's capacities with what is free. If static, nothing of the device counts as taken.
func (h *holdings) checkCapacity(
	id structured.DeviceID, device *resourceapi.Device, wanted *resourceapi.CapacityRequirements, static bool,
) []Check {
	if !h.ConsumableCapacity {
		return nil
	}
	var checks []Check
	for _, name := range requestedNames(wanted) {
		if _, found := device.Capacity[name]; !found {
			checks = append(checks, Check{Kind: KindCapacity, Message: fmt.Sprintf("the device has no capacity %s", name)})
		}
	}
	missing := len(checks) > 0
	taken := h.state.AggregatedCapacity[id]
	if static {
		taken = nil
	}
	for _, name := range slices.Sorted(maps.Keys(device.Capacity)) {
		capacity := device.Capacity[name]
		consumed, err := h.consumption(wanted, name, capacity)
		switch {
		case err != nil && missing:
			// The scheduler skips the device before it computes anything.
		case err != nil:
			checks = slices.Insert(checks, 0, Check{Kind: KindCapacity, Fatal: true, Message: err.Error()})
		default:
			if check, bad := h.compareCapacity(id, name, capacity, consumed, taken); bad {
				checks = append(checks, check)
			}
		}
	}
	return checks
}

func (h *holdings) compareCapacity(id structured.DeviceID, name resourceapi.QualifiedName, capacity resourceapi.DeviceCapacity,
	consumed resource.Quantity, taken structured.ConsumedCapacity,
) (Check, bool) {
	if message := h.violation(consumed, capacity.RequestPolicy); message != "" {
		return Check{Kind: KindCapacity, Message: fmt.Sprintf("capacity %s: %s %s", name, consumed.String(), message)}, true
	}
	free := capacity.Value.DeepCopy()
	if q := taken[name]; q != nil {
		free.Sub(*q)
	}
	if consumed.Cmp(free) <= 0 {
		return Check{}, false
	}
	return Check{
		Kind: KindCapacity, Holders: h.holders[id],
		Amounts: []Amount{{Name: string(name), Total: capacity.Value.String(), Free: free.String(), Need: consumed.String()}},
		Message: fmt.Sprintf("capacity %s: needs %s, %s of %s is free: %s", name, consumed.String(), free.String(), capacity.Value.String(),
			heldBy(h.holders[id])),
	}, true
}

func requestedNames(wanted *resourceapi.CapacityRequirements) []resourceapi.QualifiedName {
	if wanted == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(wanted.Requests))
}

// consumption is what a request takes of a capacity: what it wants, rounded up to what the policy allows. Without a wish it is the policy's
// default, or all.
func (f features) consumption(wanted *resourceapi.CapacityRequirements, name resourceapi.QualifiedName,
	capacity resourceapi.DeviceCapacity,
) (resource.Quantity, error) {
	policy := capacity.RequestPolicy
	var want *resource.Quantity
	if wanted != nil {
		if q, found := wanted.Requests[name]; found {
			want = &q
		}
	}
	consumed := capacity.Value.DeepCopy()
	var err error
	switch {
	case want == nil && policy != nil && policy.Default != nil:
		consumed = policy.Default.DeepCopy()
	case want == nil:
	case policy != nil && policy.ValidRange != nil && policy.ValidRange.Min != nil:
		consumed, err = f.roundUp(*want, policy.ValidRange)
	case policy != nil && policy.ValidValues != nil:
		consumed = nextValue(*want, policy.ValidValues)
	default:
		consumed = want.DeepCopy()
	}
	if err == nil && consumed.Sign() < 0 {
		err = fmt.Errorf("capacity %s: %s is negative", name, consumed.String())
	}
	return consumed, err
}

func nextValue(want resource.Quantity, values []resource.Quantity) resource.Quantity {
	for _, value := range values {
		if want.Cmp(value) <= 0 {
			return value.DeepCopy()
		}
	}
	return want.DeepCopy()
}

// roundUp rounds to the next step of a range. Above the range the result is too, which violation finds.
func (f features) roundUp(want resource.Quantity, r *resourceapi.CapacityRequestPolicyRange) (resource.Quantity, error) {
	if want.Cmp(*r.Min) < 0 {
		return r.Min.DeepCopy(), nil
	}
	if r.Step == nil {
		return want.DeepCopy(), nil
	}
	tooLarge := fmt.Errorf("capacity request %s cannot be rounded to a step of %s: it is too large or too fine", want.String(),
		r.Step.String())
	milli := f.inMilli(r)
	value, exact := units(want, milli)
	if milli && !exact || !milli && want.CmpInt64(math.MaxInt64) > 0 {
		return resource.Quantity{}, tooLarge
	}
	least, _ := units(*r.Min, milli)
	step, _ := units(*r.Step, milli)
	if step == 0 {
		return want.DeepCopy(), nil
	}
	steps := (value - least) / step
	if (value-least)%step != 0 {
		steps++
	}
	if least >= 0 && steps > (math.MaxInt64-least)/step {
		return resource.Quantity{}, tooLarge
	}
	value = least + steps*step
	switch {
	case !milli:
		return *resource.NewQuantity(value, r.Step.Format), nil
	case value%1000 == 0:
		return *resource.NewQuantity(value/1000, r.Step.Format), nil
	}
	return *resource.NewMilliQuantity(value, r.Step.Format), nil
}

// violation says what a policy has against an amount.
func (f features) violation(amount resource.Quantity, policy *resourceapi.CapacityRequestPolicy) string {
	switch {
	case policy == nil, policy.Default != nil && amount.Cmp(*policy.Default) == 0:
		return ""
	case policy.ValidRange != nil:
		return f.outsideRange(amount, policy.ValidRange)
	case len(policy.ValidValues) > 0:
		if !slices.ContainsFunc(policy.ValidValues, func(v resource.Quantity) bool { return amount.Cmp(v) == 0 }) {
			return "is above all values that the device's request policy allows"
		}
	}
	return ""
}

func (f features) outsideRange(amount resource.Quantity, r *resourceapi.CapacityRequestPolicyRange) string {
	if r.Max != nil && amount.Cmp(*r.Max) > 0 {
		return "is above the maximum " + r.Max.String() + " of the device's request policy"
	}
	if r.Step == nil {
		return ""
	}
	milli := f.inMilli(r)
	value, exact := units(amount, milli)
	step, _ := units(*r.Step, milli)
	var least int64
	if r.Min != nil {
		least, _ = units(*r.Min, milli)
	}
	if milli && !exact || step != 0 && (value-least)%step != 0 {
		return "is not a step of " + r.Step.String() + " in the device's request policy"
	}
	return ""
}

// inMilli says whether a range is computed in thousandths.
func (f features) inMilli(r *resourceapi.CapacityRequestPolicyRange) bool {
	if !f.FractionalCapacityRange {
		return false
	}
	for _, q := range []*resource.Quantity{r.Min, r.Max, r.Step} {
		if q == nil {
			continue
		}
		if _, exact := units(*q, true); !exact {
			return false
		}
	}
	return r.Step == nil || r.Step.MilliValue() >= 1
}

// units returns a quantity in thousandths, and whether nothing was lost, or as a whole number, rounded up.
func units(q resource.Quantity, milli bool) (value int64, exact bool) {
	if !milli {
		return q.Value(), true
	}
	value = q.MilliValue()
	return value, q.Cmp(*resource.NewMilliQuantity(value, q.Format)) == 0
}
