// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

// place is a request of a claim, both by name. A claim of one node may be another on the next, or missing: that of extended resources asks
// for the resources that devices stand for on the node. So no index of one node's claims may be used on another's.
type place struct{ claim, request string }

// constraintPlace is a constraint of a claim by its index. Claims with constraints are the same on all nodes.
type constraintPlace struct {
	claim string
	index int
}

// claimIn returns a claim by its name, nil if it is not there.
func claimIn(claims []*resourceapi.ResourceClaim, name string) *resourceapi.ResourceClaim {
	at := slices.IndexFunc(claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == name })
	if at < 0 {
		return nil
	}
	return claims[at]
}

// exactly returns what a place asks for, nil if the place is not there or has alternatives.
func (p place) exactly(claims []*resourceapi.ResourceClaim) *resourceapi.ExactDeviceRequest {
	claim := claimIn(claims, p.claim)
	if claim == nil {
		return nil
	}
	for i := range claim.Spec.Devices.Requests {
		if r := &claim.Spec.Devices.Requests[i]; r.Name == p.request {
			return r.Exactly
		}
	}
	return nil
}

// constraint returns a constraint, nil if it is not there.
func (p constraintPlace) constraint(claims []*resourceapi.ResourceClaim) *resourceapi.DeviceConstraint {
	claim := claimIn(claims, p.claim)
	if claim == nil || p.index >= len(claim.Spec.Devices.Constraints) {
		return nil
	}
	return &claim.Spec.Devices.Constraints[p.index]
}

// verdictOf returns what was found of a claim, an empty verdict if the claim is not there.
func (n *nodeWork) verdictOf(claim string) *judge.ClaimVerdict {
	for i, c := range n.input.Claims {
		if c.Name == claim && i < len(n.verdict.Claims) {
			return &n.verdict.Claims[i]
		}
	}
	return &judge.ClaimVerdict{}
}

// places lists the constraints and the requests on the nodes where changes are tried, once each.
func (w *work) places() (constraints []constraintPlace, requests []place) {
	for i := range w.nodes[:min(triedNodes, len(w.nodes))] {
		for _, claim := range w.nodes[i].input.Claims {
			for k := range claim.Spec.Devices.Constraints {
				constraints = addOnce(constraints, constraintPlace{claim.Name, k})
			}
			for _, r := range claim.Spec.Devices.Requests {
				requests = addOnce(requests, place{claim.Name, r.Name})
			}
		}
	}
	return constraints, requests
}

// addOnce appends a value unless it is there.
func addOnce[T comparable](list []T, value T) []T {
	if slices.Contains(list, value) {
		return list
	}
	return append(list, value)
}
