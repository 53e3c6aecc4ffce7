// SPDX-License-Identifier: Apache-2.0

// Package usage says what nodes publish and which claims have it: devices with their card, what each takes of it, what keeps it from being
// allocated, and what is left. It is made from ResourceSlices and ResourceClaims alone, with the rules of the scheduler, in both forms that
// slices with counters have.
package usage

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Report is what was found. The same objects give the same report.
type Report struct {
	// Devices are in the order of nodes, kinds and cards: of each card what is whole comes first, then its parts as they are published.
	Devices []Device `json:"devices"`
	// Cards are those with counters, in the order of nodes and names.
	Cards []Card `json:"cards,omitempty"`
	// Problems are in the order of the pools and claims that they are about.
	Problems []Problem `json:"problems,omitempty"`
}

// Device is a published device.
type Device struct {
	// Node is empty for a pool that is not of one node.
	Node string      `json:"node,omitempty"`
	Pool string      `json:"pool"`
	Kind device.Kind `json:"kind"`
	Name string      `json:"name"`

	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes,omitempty"`
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity,omitempty"`
	// Card is the counter set that the device consumes of, and Consumes what it takes; empty if it shares nothing.
	Card     string                         `json:"card,omitempty"`
	Consumes map[string]resourceapi.Counter `json:"consumes,omitempty"`
	// Part says that the device is a part of a physical one, or the whole of it for a virtual machine. Group is the same for all that is made
	// of one physical device: the card, else the name of the whole device, else its uuid or PCI address where only parts are published.
	Part  bool   `json:"part,omitempty"`
	Group string `json:"group"`

	// Shares says what several claims may have of the device; nil for one that a claim has for itself.
	Shares *Shares `json:"shares,omitempty"`

	State State `json:"state"`
	// Claims have the device, in the order of namespaces and names.
	Claims []Claim `json:"claims,omitempty"`
	// Lacks are the counters that other devices hold of what this one takes.
	Lacks map[string]resourceapi.Counter `json:"lacks,omitempty"`
	// Taints keep claims without a toleration from a device.
	Taints []resourceapi.DeviceTaint `json:"taints,omitempty"`
}

// State says whether a claim could get a device.
type State string

// The states.
const (
	// StateFree: no claim has it, and its card has enough left.
	StateFree State = "Free"
	// StateHeld: a claim has it, or claims have all shares of it or all of its memory.
	StateHeld State = "Held"
	// StateShared: claims have shares of it, and a further one could get one.
	StateShared State = "Shared"
	// StateTaken: no claim has it, but claims for other devices of the card hold what it needs.
	StateTaken State = "Taken"
	// StateUnknown: the claims are not known, or slices of the pool are missing.
	StateUnknown State = "Unknown"
)

// Claim is a claim that has a device allocated.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// AdminAccess is access beside the one who holds the device. It takes nothing.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Shares is how many shares of the device the claim has, Granted what it was granted of the device's capacities in all of them.
	Shares  int                                             `json:"shares,omitempty"`
	Granted map[resourceapi.QualifiedName]resource.Quantity `json:"granted,omitempty"`
}

// Shares is what several claims may have of a device.
type Shares struct {
	// Total is how many shares there are, Left how many no claim has.
	Total int64 `json:"total"`
	Left  int64 `json:"left"`
	// LeftOf is what no claim was granted of the capacities that are counted. It is nil while the claims are not known.
	LeftOf map[resourceapi.QualifiedName]resource.Quantity `json:"leftOf,omitempty"`
	// full says that not even the smallest share is left.
	full bool
}

// Card is a counter set.
type Card struct {
	Node     string                         `json:"node,omitempty"`
	Pool     string                         `json:"pool"`
	Name     string                         `json:"name"`
	Counters map[string]resourceapi.Counter `json:"counters"`
	// Left is what no claim has. It is nil while the claims are not known.
	Left map[string]resourceapi.Counter `json:"left,omitempty"`
}

// Problem is something that makes the report differ from what the scheduler would do, or that should not be.
type Problem struct {
	// Subject is a pool, a card of a pool, or a claim as NAMESPACE/NAME.
	Subject string `json:"subject"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// The reasons of problems.
const (
	// ReasonIncompletePool: slices of the pool's newest generation are missing, and the scheduler allocates nothing of it.
	ReasonIncompletePool = "IncompletePool"
	// ReasonNotPublished: a claim has a device that is in no slice, so that its counters count as free.
	ReasonNotPublished = "NotPublished"
	// ReasonOvercommitted: claims have more of a card, or of a shared device, than there is.
	ReasonOvercommitted = "Overcommitted"
)

// Objects are what a report is made from.
type Objects struct {
	// Driver is whose devices are reported.
	Driver string
	// Node keeps the report to one node; empty: all.
	Node   string
	Slices []*resourceapi.ResourceSlice
	// Claims are those of all namespaces. ClaimsUnknown says that they could not be read.
	Claims        []*resourceapi.ResourceClaim
	ClaimsUnknown bool
}

// Of makes the report. Slices of an older generation than the newest of their pool are left out, as the scheduler leaves them out.
func Of(o Objects) Report {
	out := Report{Devices: []Device{}}
	pools := poolsOf(o, &out)
	holders := holdersOf(o)
	for _, p := range pools {
		left := p.left(o.ClaimsUnknown, holders, &out)
		p.addCards(left, &out)
		p.addDevices(left, holders, &out)
	}
	if o.Node == "" {
		out.Problems = append(out.Problems, notPublished(pools, holders)...)
	}
	return out
}

// isPart says whether a device is a part of a physical one, or its form for virtual machines.
func isPart(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) bool {
	parts := []string{device.TypeMIG, device.TypePartition, device.TypeVF, device.TypeVFIO}
	return slices.Contains(parts, device.StringOf(attributes[device.AttributeType]))
}
