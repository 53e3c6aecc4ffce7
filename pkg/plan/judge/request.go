// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// request is a request, or one alternative of it, in one form.
type request struct {
	// base is the name of the request, alternative that of the alternative or empty.
	base, alternative string
	resourceapi.ExactDeviceRequest
	class *resourceapi.DeviceClass
	claim *resourceapi.ResourceClaim
}

func (r *request) name() string {
	if r.alternative == "" {
		return r.base
	}
	return r.base + "/" + r.alternative
}

func (r *request) all() bool   { return r.AllocationMode == resourceapi.DeviceAllocationModeAll }
func (r *request) admin() bool { return ptr.Deref(r.AdminAccess, false) }

// named says whether a list of a constraint has the request. An empty list means all.
func (r *request) named(in []string) bool {
	return len(in) == 0 || slices.Contains(in, r.base) || r.alternative != "" && slices.Contains(in, r.name())
}

// alternativesOf returns the ways to satisfy a request, in the order of preference.
func alternativesOf(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequest) []*request {
	if len(r.FirstAvailable) == 0 {
		if r.Exactly == nil {
			return nil
		}
		return []*request{{base: r.Name, ExactDeviceRequest: *r.Exactly, claim: claim}}
	}
	var out []*request
	for _, sub := range r.FirstAvailable {
		out = append(out, &request{base: r.Name, alternative: sub.Name, claim: claim, ExactDeviceRequest: resourceapi.ExactDeviceRequest{
			DeviceClassName: sub.DeviceClassName, Selectors: sub.Selectors, AllocationMode: sub.AllocationMode, Count: sub.Count,
			Tolerations: sub.Tolerations, Capacity: sub.Capacity, DerivedAttributes: sub.DerivedAttributes,
		}})
	}
	return out
}

// judgeClaim judges every request of a claim, and returns what each needs.
func (j *judgement) judgeClaim(ctx context.Context, claim *resourceapi.ResourceClaim) (ClaimVerdict, []need) {
	v := ClaimVerdict{Namespace: claim.Namespace, Name: claim.Name, Requests: []RequestVerdict{}}
	var needs []need
	least := 0
	for i := range claim.Spec.Devices.Requests {
		api := &claim.Spec.Devices.Requests[i]
		n := need{claim: claim, name: api.Name}
		if problem := j.checkForm(api); problem != "" {
			v.Problems = append(v.Problems, Check{Kind: formKind(api), Fatal: true, Message: fmt.Sprintf("request %s: %s", api.Name, problem)})
		}
		fewest := math.MaxInt
		for _, r := range alternativesOf(claim, api) {
			verdict := j.judgeRequest(ctx, r)
			n.admin = n.admin || verdict.Admin
			n.alternatives = append(n.alternatives, alternative{request: r, verdict: len(v.Requests)})
			v.Requests = append(v.Requests, verdict)
			fewest = min(fewest, verdict.Count)
		}
		if len(n.alternatives) == 0 {
			continue
		}
		needs = append(needs, n)
		if fewest > resourceapi.AllocationResultsMaxSize-least {
			v.Problems = append(v.Problems, Check{Kind: KindLimit, Fatal: true, Message: fmt.Sprintf(
				"request %s: the claim needs more than %d devices, the most that a claim can have: split it into several claims", api.Name,
				resourceapi.AllocationResultsMaxSize)})
			continue
		}
		least += fewest
	}
	v.Problems = append(v.Problems, j.checkConstraints(claim)...)
	for a := range allOf(needs) {
		a.devices = v.Requests[a.verdict].Devices
		a.count = v.Requests[a.verdict].Count
	}
	return v, needs
}

// checkForm says what the scheduler has against a request before it looks at any device.
func (f features) checkForm(r *resourceapi.DeviceRequest) string {
	switch {
	case len(r.FirstAvailable) > 0 && !f.PrioritizedList:
		return "it has firstAvailable, and the feature gate DRAPrioritizedList is off"
	case len(r.FirstAvailable) == 0 && r.Exactly == nil:
		return "it has neither exactly nor firstAvailable: set one"
	case f.ConsumableCapacity || f.variant == stable:
		return ""
	case r.Exactly != nil && r.Exactly.Capacity != nil:
		return "it asks for capacity, and the feature gate DRAConsumableCapacity is off"
	}
	for _, sub := range r.FirstAvailable {
		if sub.Capacity != nil {
			return "its alternative " + sub.Name + " asks for capacity, and the feature gate DRAConsumableCapacity is off"
		}
	}
	return ""
}

func formKind(r *resourceapi.DeviceRequest) Kind {
	if len(r.FirstAvailable) == 0 && r.Exactly == nil {
		return KindRequest
	}
	return KindGate
}

// judgeRequest judges all devices of the node for one request.
func (j *judgement) judgeRequest(ctx context.Context, r *request) RequestVerdict {
	r.class = j.in.Classes[r.DeviceClassName]
	v := RequestVerdict{Name: r.name(), Class: r.DeviceClassName, All: r.all(), Admin: r.admin(), Problems: j.checkRequest(r)}
	for _, p := range j.pools {
		for slice, d := range p.devices() {
			v.Devices = append(v.Devices, j.judgeDevice(ctx, r, p, slice, d))
		}
	}
	switch r.AllocationMode {
	case resourceapi.DeviceAllocationModeAll:
		for i := range v.Devices {
			if v.Devices[i].Matches {
				v.Count++
			}
		}
		v.Problems = append(v.Problems, j.checkAll(v)...)
	case resourceapi.DeviceAllocationModeExactCount:
		v.Count = int(min(r.Count, math.MaxInt32))
	default:
		v.Problems = append(v.Problems, Check{Kind: KindRequest, Fatal: true, Message: fmt.Sprintf(
			"allocationMode %q is unknown: set ExactCount or All", r.AllocationMode)})
	}
	return v
}

// checkRequest says what ends the scheduler's attempt before it looks at a device.
func (j *judgement) checkRequest(r *request) []Check {
	var checks []Check
	fatal := func(kind Kind, format string, args ...any) {
		checks = append(checks, Check{Kind: kind, Fatal: true, Message: fmt.Sprintf(format, args...)})
	}
	if len(r.DerivedAttributes) > 0 && !j.DerivedAttributes {
		fatal(KindGate, "it has derivedAttributes, and the feature gate DRADerivedAttributes is off")
	}
	for i, selector := range r.Selectors {
		if selector.CEL == nil {
			fatal(KindRequest, "selectors[%d] has no CEL expression", i)
		}
	}
	if r.AdminAccess != nil && !j.AdminAccess {
		fatal(KindAdminAccess, "it has adminAccess, and the feature gate DRAAdminAccess is off")
	}
	switch {
	case r.DeviceClassName == "":
		fatal(KindClass, "it names no device class")
	case r.class == nil:
		fatal(KindClass, "the class %s does not exist: create it, or name another", r.DeviceClassName)
	}
	return checks
}

// checkAll says what speaks against all matching devices.
func (j *judgement) checkAll(v RequestVerdict) []Check {
	var checks []Check
	for _, p := range j.pools {
		switch {
		case p.incomplete != "":
			checks = append(checks, Check{Kind: KindPool, Fatal: true, Message: fmt.Sprintf(
				"it wants all devices, and pool %s/%s is incomplete: %s", p.driver, p.name, p.incomplete)})
		case p.invalid != "":
			checks = append(checks, Check{Kind: KindPool, Fatal: true, Message: fmt.Sprintf(
				"it wants all devices, and pool %s/%s is invalid: %s", p.driver, p.name, p.invalid)})
		}
	}
	for i := range v.Devices {
		d := &v.Devices[i]
		if !d.Matches && d.Aborts() {
			checks = append(checks, Check{Kind: d.Failed[0].Kind, Fatal: true, Message: fmt.Sprintf(
				"it wants all devices, and %s/%s/%s cannot be judged: %s", d.Driver, d.Pool, d.Device, d.Failed[0].Message)})
		}
	}
	return checks
}
