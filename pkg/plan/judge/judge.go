// SPDX-License-Identifier: Apache-2.0

// Package judge says of each device why a claim can have it or not. It does every check of the scheduler itself and reports all that fail,
// where the scheduler stops at the first and names none. The scheduler's allocator stays the authority: tests hold the two against each
// other.
package judge

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Input is what the scheduler looks at when it tries one node for the claims of one pod. Objects have the API server's defaults, and slices
// have the taints of DeviceTaintRules.
type Input struct {
	Features structured.Features
	// Slices are those of all pools that have a device for the node. Others make no difference, and take time.
	Slices  []*resourceapi.ResourceSlice
	Classes map[string]*resourceapi.DeviceClass
	// State has what is allocated, Holders which claims have it.
	State   structured.AllocatedState
	Holders map[structured.DeviceID][]Holder
	Node    *corev1.Node
	// Claims have no allocation yet.
	Claims []*resourceapi.ResourceClaim
	// Expressions keeps compiled selectors from one node to the next. Nil means that Judge compiles its own.
	Expressions *Expressions
	// DoesNotFit says that the allocator was asked before, and found nothing.
	DoesNotFit bool
	// Timeout bounds the allocator's search. Zero means the scheduler's own limit.
	Timeout time.Duration
}

// Holder is a claim that has a device.
type Holder struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Unnamed stands for a claim that may not be named to the reader: a number that differs from claim to claim. Then there is no name.
	Unnamed int `json:"unnamed,omitempty"`
	// Consumed is what it has of a device that several claims share.
	Consumed structured.ConsumedCapacity `json:"-"`
}

// Judge checks every device of the node for every request, then lets the scheduler's allocator decide.
func Judge(ctx context.Context, in Input) Verdict {
	v := Verdict{Node: in.Node.Name}
	if IsTooLong(in.Claims) {
		v.Outcome, v.Error = TimedOut, TooLong
		return v
	}
	j := newJudgement(in)
	pools, err := j.slices.gather()
	if err != nil {
		v.Outcome, v.Error = Fatal, err.Error()
		v.Problems = []Check{{Kind: KindPool, Fatal: true, Message: err.Error()}}
		return v
	}
	j.pools = pools
	v.Pools = describePools(pools)
	needs := make([][]need, len(in.Claims))
	for i, claim := range in.Claims {
		verdict, claimNeeds := j.judgeClaim(ctx, claim)
		v.Claims = append(v.Claims, verdict)
		needs[i] = claimNeeds
	}
	if !v.fatal() {
		(&proof{features: j.features, pools: pools, held: j.held, attributes: j.attributes}).prove(ctx, &v, needs)
	}
	if ctx.Err() != nil { // a selector that was not evaluated to its end is no reason
		return Verdict{Node: v.Node, Pools: v.Pools, Outcome: TimedOut, Error: context.Cause(ctx).Error()}
	}
	if in.DoesNotFit {
		v.Outcome = DoesNotFit
		return v
	}
	j.allocate(ctx, &v)
	return v
}

// judgement is the work on one input.
type judgement struct {
	features
	in         Input
	slices     *nodeSlices
	held       *holdings
	attributes *attributes
	pools      []*pool
}

func newJudgement(in Input) *judgement {
	if in.Expressions == nil {
		in.Expressions = NewExpressions(in.Features)
	}
	f := features{in.Features, variantOf(in.Features)}
	return &judgement{
		features: f, in: in, slices: &nodeSlices{features: f, node: in.Node, all: in.Slices},
		held:       &holdings{features: f, state: in.State, holders: in.Holders},
		attributes: &attributes{features: f, cache: in.Expressions.cacheFor(in.Claims, in.Classes)},
	}
}

// features are what the scheduler can do: its feature gates, and which of its allocators they choose.
type features struct {
	structured.Features
	variant variant
}

// variant is one of the scheduler's three allocators.
type variant int

const (
	stable variant = iota
	incubating
	experimental
)

// variantOf picks the allocator as the scheduler does: the first that knows all features.
func variantOf(f structured.Features) variant {
	switch {
	case f.CompatibilityGroups, f.DerivedAttributes, f.ListTypeAttributes, f.OptionalNodeOperations:
		return experimental
	case f.ConsumableCapacity, f.DeviceBindingAndStatus, f.FractionalCapacityRange:
		return incubating
	}
	return stable
}
