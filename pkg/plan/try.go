// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/plan/alike"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// tryDevices says whether a node has the devices. What is missing is said before what is allocated elsewhere, as the scheduler does.
func (r *run) tryDevices(ctx context.Context, i int) (reasons []string, score int64, err error) {
	elsewhere := false
	for _, p := range r.claims {
		available, err := r.availableOn(p.Claim, r.Nodes[i])
		if err != nil {
			return nil, 0, err
		}
		elsewhere = elsewhere || !available
	}
	asked, err := r.ask(i)
	if err != nil {
		return nil, 0, err
	}
	if len(asked.claims) > 0 {
		if reasons, score, err = r.judged(ctx, i, asked); err != nil || len(reasons) > 0 {
			return reasons, 0, err
		}
	}
	if elsewhere {
		return []string{NotAvailable}, 0, nil
	}
	return nil, score, nil
}

// judged asks the allocator, unless it is known what it says.
func (r *run) judged(ctx context.Context, i int, asked request) (reasons []string, score int64, err error) {
	if v := asked.known[i]; v.version == r.views[i].stateVersion() {
		return notAllocatableIf(!v.fits), v.score, nil
	}
	like, hasLike, err := asked.alike.Like(r.seen(i), asked.reads)
	if err != nil {
		return nil, 0, err
	}
	if v, found := asked.alike.Known(like); hasLike && found {
		v.version = r.views[i].stateVersion()
		asked.known[i] = v
		return notAllocatableIf(!v.fits), v.score, nil
	}
	results, err := r.tryNode(ctx, i, asked.claims)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return []string{err.Error()}, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	v := verdict{version: r.views[i].stateVersion(), fits: len(results) == len(asked.claims)}
	if v.fits {
		v.score = scoreOf(asked.claims, results)
	}
	asked.known[i] = v
	if hasLike {
		asked.alike.Remember(like, v)
	}
	return notAllocatableIf(!v.fits), v.score, nil
}

func notAllocatableIf(refused bool) []string {
	if refused {
		return []string{NotAllocatable}
	}
	return nil
}

// request is what the allocator is asked for on some nodes.
type request struct {
	// claims have no devices yet. That of extended resources is the last.
	claims []*resourceapi.ResourceClaim
	// extended is set if there is one.
	extended *resourceapi.ResourceClaim
	// known is what the allocator said before, by the index of the node.
	known []verdict
	// alike is what it said of nodes that are like others to what the claims read.
	alike *alike.Nodes[verdict]
	reads selector.Reads
}

// ask returns what to ask for on a node: the same on all nodes, but for extended resources, which a device plugin may have there.
func (r *run) ask(i int) (request, error) {
	r.asking.Lock()
	defer r.asking.Unlock()
	names := r.delegated(r.wanted.extended, r.Nodes[i])
	key := fmt.Sprint(names)
	if known, found := r.requests[key]; found {
		return known, nil
	}
	out := request{claims: r.unallocated(), extended: r.extendedClaim(r.pod, names)}
	if out.extended != nil {
		out.claims = append(out.claims, out.extended)
	}
	if len(out.claims) > 0 {
		var err error
		if out.known, err = r.verdicts.of(out.claims, len(r.Nodes)); err != nil {
			return request{}, err
		}
		out.alike, out.reads = alike.New[verdict](), r.reads.of(out.claims, r.Classes)
	}
	r.requests[key] = out
	return out, nil
}

// tryNode asks the allocator, for as long as the scheduler would.
func (r *run) tryNode(caller context.Context, i int, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	ctx, cancel := context.WithTimeout(caller, r.options.Timeout)
	defer cancel()
	results, err := r.allocate(ctx, i, claims)
	switch {
	case caller.Err() != nil:
		return nil, stopped(fmt.Sprintf("asked by caller to stop allocating devices: %v", context.Cause(caller)),
			"the plan was stopped on node %s", r.Nodes[i].Name)
	case errors.Is(err, context.DeadlineExceeded):
		words := fmt.Sprintf("node %s: timed out trying to allocate devices", r.Nodes[i].Name)
		return nil, stopped(words, "%s", slowSearch(r.options.Timeout, claims))
	}
	return results, err
}

// slowSearch says what makes a search long.
func slowSearch(timeout time.Duration, claims []*resourceapi.ResourceClaim) string {
	requests := 0
	for _, claim := range claims {
		requests += len(claim.Spec.Devices.Requests)
	}
	return fmt.Sprintf("the scheduler stops the search after %s and tries the pod again later; it tries the devices of %d requests in every "+
		"order, so ask for equal devices in one request with a count", timeout, requests)
}

// availableOn says whether a claim that has devices can be used on a node: its devices can be reached there, the node's kubelet can do
// without what they skip, and none failed to be bound.
func (c *Cluster) availableOn(claim *resourceapi.ResourceClaim, node *corev1.Node) (bool, error) {
	if claim.Status.Allocation == nil {
		return true, nil
	}
	if BindingFailed(c.Gates, claim) {
		return false, nil
	}
	if SkipsOperations(claim) && !slices.Contains(node.Status.DeclaredFeatures, gates.OptionalNodeOperations) {
		return false, nil
	}
	if claim.Status.Allocation.NodeSelector == nil {
		return true, nil
	}
	selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
	if err != nil {
		return false, fmt.Errorf("claim %s/%s: status.allocation.nodeSelector: %w", claim.Namespace, claim.Name, err)
	}
	return selector.Match(node), nil
}

// SkipsOperations says whether a claim has a device that skips operations of kubelet, which only some nodes can do without.
func SkipsOperations(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil &&
		slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
			return len(r.SkipNodeOperations) > 0
		})
}

// BindingFailed says whether a device of a claim that has devices has one of the conditions by which its driver says that it cannot be
// bound. As the scheduler does, it looks at no device after one that is still waited for.
func BindingFailed(set gates.Set, claim *resourceapi.ResourceClaim) bool {
	if !set.Features().DeviceBindingAndStatus {
		return false
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		at := slices.IndexFunc(claim.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
			return d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device
		})
		if at < 0 {
			return false
		}
		isTrue := func(name string) bool {
			return apimeta.IsStatusConditionTrue(claim.Status.Devices[at].Conditions, name)
		}
		if slices.ContainsFunc(r.BindingFailureConditions, isTrue) {
			return true
		}
		if slices.ContainsFunc(r.BindingConditions, func(name string) bool { return !isTrue(name) }) {
			return false
		}
	}
	return false
}
