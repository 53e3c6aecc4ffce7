// SPDX-License-Identifier: Apache-2.0

package judge

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Outcome is what the scheduler's allocator says of one node.
type Outcome string

// The outcomes. Fatal ends the attempt for all nodes, Refused only for this one.
const (
	Fits       Outcome = "fits"
	DoesNotFit Outcome = "does not fit"
	Refused    Outcome = "refused"
	Fatal      Outcome = "fatal"
	TimedOut   Outcome = "timed out"
)

// Kind names a check.
type Kind string

// The checks, in the order in which the scheduler makes them.
const (
	KindRequest        Kind = "request"
	KindGate           Kind = "feature gate"
	KindAdminAccess    Kind = "admin access"
	KindClass          Kind = "device class"
	KindLimit          Kind = "device limit"
	KindPool           Kind = "pool"
	KindInUse          Kind = "in use"
	KindBinding        Kind = "binding conditions"
	KindClassSelector  Kind = "class selector"
	KindSelector       Kind = "selector"
	KindNode           Kind = "node selection"
	KindCapacity       Kind = "capacity"
	KindNodeOperations Kind = "node operations"
	KindGroups         Kind = "compatibility groups"
	KindCounters       Kind = "counters"
	KindTaint          Kind = "taint"
	KindConstraint     Kind = "constraint"
	KindShortage       Kind = "too few devices"
)

// Verdict says whether the claims can be allocated on a node, and why.
type Verdict struct {
	Node    string  `json:"node"`
	Outcome Outcome `json:"outcome"`
	// Error is the allocator's.
	Error string `json:"error,omitempty"`
	// Allocations are the allocator's, one a claim, if the claims fit.
	Allocations []resourceapi.AllocationResult `json:"-"`
	// Problems say why the claims cannot be allocated together, whichever devices are chosen. Without a problem, an allocator that finds
	// nothing has tried all choices.
	Problems []Check        `json:"problems,omitempty"`
	Claims   []ClaimVerdict `json:"claims"`
	Pools    []PoolVerdict  `json:"pools,omitempty"`
}

// ClaimVerdict is about one claim.
type ClaimVerdict struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Problems say why the claim cannot be allocated here.
	Problems    []Check             `json:"problems,omitempty"`
	Requests    []RequestVerdict    `json:"requests"`
	Constraints []ConstraintVerdict `json:"constraints,omitempty"`
}

// RequestVerdict is about a request, or about one alternative of it.
type RequestVerdict struct {
	// Name is REQUEST or REQUEST/ALTERNATIVE.
	Name  string `json:"name"`
	Class string `json:"class"`
	// Count is how many devices are needed. With All it is how many match.
	Count    int             `json:"count"`
	All      bool            `json:"all,omitempty"`
	Admin    bool            `json:"adminAccess,omitempty"`
	Problems []Check         `json:"problems,omitempty"`
	Devices  []DeviceVerdict `json:"devices,omitempty"`
}

// Usable counts the devices that the request can have.
func (r RequestVerdict) Usable() int {
	n := 0
	for i := range r.Devices {
		if r.Devices[i].Usable() {
			n++
		}
	}
	return n
}

// DeviceVerdict is about a device, seen from a request alone.
type DeviceVerdict struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
	// Matches is whether selectors and node selection accept the device, whoever has it.
	Matches bool `json:"matches"`
	// Failed are all checks that fail, in the scheduler's order. The scheduler stops at the first.
	Failed []Check `json:"failed,omitempty"`
}

// ID returns the name that the scheduler has for the device.
func (d DeviceVerdict) ID() structured.DeviceID {
	return structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
}

// Usable says whether the request can have the device.
func (d DeviceVerdict) Usable() bool { return len(d.Failed) == 0 }

// Aborts says whether the scheduler ends with an error when its search comes to the device.
func (d DeviceVerdict) Aborts() bool { return len(d.Failed) > 0 && d.Failed[0].Fatal }

// Check is a check that failed.
type Check struct {
	Kind    Kind   `json:"check"`
	Message string `json:"message"`
	// Fatal checks make the pod unschedulable on all nodes.
	Fatal bool `json:"fatal,omitempty"`
	// Holders have the device, or what is missing of it.
	Holders []Holder `json:"holders,omitempty"`
	// Parts are the parts of a selector that make it false.
	Parts    []Part    `json:"parts,omitempty"`
	Amounts  []Amount  `json:"amounts,omitempty"`
	Taint    *Taint    `json:"taint,omitempty"`
	Shortage *Shortage `json:"shortage,omitempty"`
	// Attribute is the constraint's.
	Attribute string `json:"attribute,omitempty"`
}

// Part is a subexpression of a selector.
type Part struct {
	Expression string `json:"expression"`
	// Result is what the subexpression gives: false, true below a negation, or an error.
	Result string  `json:"result"`
	Values []Value `json:"values,omitempty"`
}

// Value is what an expression reads of a device.
type Value struct {
	Expression string `json:"expression"`
	Value      string `json:"value"`
	// Names means that the expression is a map, and Value has its keys.
	Names bool `json:"names,omitempty"`
}

// Amount is about a counter or a capacity.
type Amount struct {
	// Set is the counter set, empty for a capacity.
	Set   string `json:"set,omitempty"`
	Name  string `json:"name"`
	Total string `json:"total"`
	Free  string `json:"free"`
	Need  string `json:"need"`
}

// Taint keeps a device from a request that does not tolerate it.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
	// Toleration would help, as YAML on one line.
	Toleration string `json:"toleration"`
}

// Shortage counts requests that want more devices than there are for all of them together.
type Shortage struct {
	Requests []string `json:"requests"`
	Need     int      `json:"need"`
	Have     int      `json:"have"`
}

// ConstraintVerdict is the table of a constraint: what the free devices have of its attribute.
type ConstraintVerdict struct {
	Attribute string `json:"attribute"`
	// Distinct means that no two devices may have the same value. Else all must have the same.
	Distinct bool     `json:"distinct,omitempty"`
	Requests []string `json:"requests"`
	// Need is how many devices each of the requests wants, at least.
	Need []int                `json:"need"`
	Rows []ConstraintValueRow `json:"values,omitempty"`
	// Without counts the devices that have no such attribute.
	Without int `json:"without,omitempty"`
}

// ConstraintValueRow counts the usable devices that have a value, for each request.
type ConstraintValueRow struct {
	Value string `json:"value"`
	Free  []int  `json:"free"`
}

// PoolVerdict is about a pool that the scheduler does not use fully.
type PoolVerdict struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	// Devices is how many devices the node has in the pool.
	Devices int `json:"devices"`
	// Incomplete and Invalid say why the scheduler takes no device of the pool.
	Incomplete string `json:"incomplete,omitempty"`
	Invalid    string `json:"invalid,omitempty"`
	// Ignored are slices that do not count, and why.
	Ignored []string `json:"ignored,omitempty"`
}

// fatal says whether an error is certain, whatever the search finds.
func (v *Verdict) fatal() bool {
	for _, c := range v.Claims {
		if hasFatal(c.Problems) {
			return true
		}
		for _, r := range c.Requests {
			if hasFatal(r.Problems) {
				return true
			}
		}
	}
	return hasFatal(v.Problems)
}

// Impossible says whether the judge found a reason why the claims do not fit, without asking the allocator.
func (v *Verdict) Impossible() bool {
	if len(v.Problems) > 0 || v.fatal() {
		return true
	}
	for _, c := range v.Claims {
		if len(c.Problems) > 0 {
			return true
		}
	}
	return false
}

func hasFatal(checks []Check) bool {
	for _, c := range checks {
		if c.Fatal {
			return true
		}
	}
	return false
}
