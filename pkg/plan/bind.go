// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan/gates"
)

// scoreOf is the scheduler's score of a node by its devices: of each request with alternatives, the earlier the chosen one the more.
func scoreOf(claims []*resourceapi.ResourceClaim, results []resourceapi.AllocationResult) int64 {
	score := int64(0)
	for i, claim := range claims {
		got := map[string]bool{}
		for _, result := range results[i].Devices.Results {
			got[result.Request] = true
		}
		for _, request := range claim.Spec.Devices.Requests {
			chosen := slices.IndexFunc(request.FirstAvailable, func(sub resourceapi.DeviceSubRequest) bool {
				return got[resourceclaim.CreateSubRequestRef(request.Name, sub.Name)]
			})
			if chosen >= 0 {
				score += int64(resourceapi.FirstAvailableDeviceRequestMaxSize - chosen)
			}
		}
	}
	return score
}

// bind gives the pod a node: allocates its claims there, reserves them for it, and counts what it asks for.
func (r *run) bind(ctx context.Context, i int) (map[string][]string, error) {
	for _, p := range r.claims {
		if err := r.reservable(p.Claim); err != nil {
			return nil, err
		}
	}
	asked, err := r.ask(i)
	if err != nil {
		return nil, err
	}
	claims := slices.Clone(r.claims)
	if asked.extended != nil {
		if err := r.admit(asked.extended, nil); err != nil {
			return nil, refusal("running PreBind plugin \"DynamicResources\"", "%s", err.Error())
		}
		claims = append(claims, PodClaim{Name: ExtendedResources, Claim: asked.extended, New: true})
	}
	if err := r.allocateClaims(ctx, i, asked.claims); err != nil {
		return nil, err
	}
	if err := r.once(claims); err != nil {
		return nil, err
	}
	devices := map[string][]string{}
	for _, p := range claims {
		r.reserve(p)
		devices[p.Name] = deviceNames(p.Claim)
	}
	settle(r.Cluster, r.pod, i)
	return devices, nil
}

// settle puts a pod on a node.
func settle(c *Cluster, pod *corev1.Pod, i int) {
	pod.Spec.NodeName = c.Nodes[i].Name
	c.journal.note(func() { pod.Spec.NodeName = "" })
	c.occupy(pod)
}

// allocateClaims gives devices of a node that fits to the claims that have none.
func (r *run) allocateClaims(ctx context.Context, i int, pending []*resourceapi.ResourceClaim) error {
	pending = slices.DeleteFunc(slices.Clone(pending), func(claim *resourceapi.ResourceClaim) bool { return claim.Status.Allocation != nil })
	if len(pending) == 0 {
		return nil
	}
	results, err := r.tryNode(ctx, i, pending)
	if err != nil {
		return err
	}
	if len(results) != len(pending) {
		return fmt.Errorf("node %s fitted and then did not: the allocator decides differently for the same state", r.Nodes[i].Name)
	}
	for j, claim := range pending {
		if claim.Status.Allocation != nil {
			continue // the pod names it twice
		}
		take(r.Cluster, claim, &results[j])
	}
	return nil
}

// take gives devices to a claim that has none.
func take(c *Cluster, claim *resourceapi.ResourceClaim, result *resourceapi.AllocationResult) {
	claim.Status.Allocation = result
	c.journal.note(func() { claim.Status.Allocation = nil })
	nameShares(c, claim)
	if c.Gates.On(gates.DeviceBindingConditions) {
		result.AllocationTimestamp = &metav1.Time{Time: time.Unix(0, 0).UTC()}
	}
	if c.Claims[keyOf(claim)] == claim {
		c.hold(claim)
	}
}

// nameShares gives shares of devices names that are the same in every run, where the allocator gives random ones.
func nameShares(c *Cluster, claim *resourceapi.ResourceClaim) {
	for i := range claim.Status.Allocation.Devices.Results {
		if result := &claim.Status.Allocation.Devices.Results[i]; result.ShareID != nil {
			c.shares++
			result.ShareID = ptr.To(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", c.shares)))
		}
	}
}

// reservable says whether the API server lets one more pod use a claim.
func (r *run) reservable(claim *resourceapi.ResourceClaim) error {
	if resourceclaim.IsReservedForPod(r.pod, claim, false) {
		return nil
	}
	if len(claim.Status.ReservedFor) >= resourceapi.ResourceClaimReservedForMaxSize {
		const most = resourceapi.ResourceClaimReservedForMaxSize
		return notReserved(claim, fmt.Sprintf("status.reservedFor: Too many: %d: must have at most %d items", most+1, most),
			"ResourceClaim %s is reserved for %d pods, and no more can use it: give the pod another claim",
			claim.Name, len(claim.Status.ReservedFor))
	}
	dated := r.Gates.On(gates.DeviceBindingConditions) && r.Gates.On(gates.ResourceClaimDeviceStatus)
	if a := claim.Status.Allocation; dated && a != nil && a.AllocationTimestamp == nil {
		return notReserved(claim, "status.allocation: Invalid value: null: field cannot be modified once set",
			"ResourceClaim %s was allocated without allocationTimestamp, which the scheduler would add and the API server does not let it: "+
				"make the claim again", claim.Name)
	}
	return nil
}

// notReserved is the refusal of a claim's status, as the scheduler passes it on. The format is of the meaning.
func notReserved(claim *resourceapi.ResourceClaim, cause, format string, args ...any) *Refusal {
	return refusal(fmt.Sprintf("running PreBind plugin %q: add reservation to claim %s/%s: ResourceClaim.resource.k8s.io %q is invalid: %s",
		"DynamicResources", claim.Namespace, claim.Name, claim.Name, cause), format, args...)
}

// once refuses a pod two of whose claims are the same object. The scheduler has allocated it by then and cannot reserve it twice.
func (r *run) once(claims []PodClaim) error {
	for i, p := range claims {
		before := slices.IndexFunc(claims[:i], func(q PodClaim) bool { return q.Claim == p.Claim })
		if before < 0 || resourceclaim.IsReservedForPod(r.pod, p.Claim, false) {
			continue
		}
		return notReserved(p.Claim, fmt.Sprintf("status.reservedFor[%d]: Duplicate value", len(p.Claim.Status.ReservedFor)+1),
			"claims %s and %s of the pod are both ResourceClaim %s: name it once", claims[before].Name, p.Name, p.Claim.Name)
	}
	return nil
}

// reserve notes that the pod uses a claim, and adds that of extended resources to the cluster.
func (r *run) reserve(p PodClaim) {
	if before := p.Claim.Status.ReservedFor; !resourceclaim.IsReservedForPod(r.pod, p.Claim, false) {
		r.journal.note(func() { p.Claim.Status.ReservedFor = before })
		p.Claim.Status.ReservedFor = append(slices.Clip(before), resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: r.pod.Name, UID: r.pod.UID,
		})
	}
	if p.Name == ExtendedResources {
		r.addClaim(p.Claim)
		before := r.pod.Status.ExtendedResourceClaimStatus
		r.journal.note(func() { r.pod.Status.ExtendedResourceClaimStatus = before })
		r.pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: p.Claim.Name}
	}
}

// createClaims adds the claims that are made of templates for the pod to the cluster. They exist also if the pod finds no node.
func (r *run) createClaims() {
	for i := range r.claims {
		p := &r.claims[i]
		if !p.New {
			continue
		}
		p.New = false
		r.addClaim(p.Claim)
		r.pod.Status.ResourceClaimStatuses = append(r.pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{
			Name: p.Name, ResourceClaimName: &p.Claim.Name,
		})
	}
}

// deviceNames are the devices of a claim as DRIVER/POOL/DEVICE, in the order of allocation.
func deviceNames(claim *resourceapi.ResourceClaim) []string {
	out := []string{}
	for _, r := range claim.Status.Allocation.Devices.Results {
		out = append(out, r.Driver+"/"+r.Pool+"/"+r.Device)
	}
	return out
}

// Free returns the devices that no claim has, as DRIVER/POOL/DEVICE, sorted. A device whose counters are used up by others counts as
// free.
func (c *Cluster) Free() []string {
	out := []string{}
	for id, p := range c.pools {
		for _, name := range p.free() {
			out = append(out, id.driver+"/"+id.name+"/"+name)
		}
	}
	slices.Sort(out)
	return out
}

// free returns the names of devices of the newest generation that no claim has.
func (p *pool) free() []string {
	newest := int64(0)
	for _, slice := range p.slices {
		newest = max(newest, slice.Spec.Pool.Generation)
	}
	held := map[string]bool{}
	for id := range p.holders {
		held[id.Device.String()] = true
	}
	var out []string
	for _, slice := range p.slices {
		if slice.Spec.Pool.Generation < newest {
			continue
		}
		for i := range slice.Spec.Devices {
			if name := slice.Spec.Devices[i].Name; !held[name] {
				out = append(out, name)
			}
		}
	}
	return out
}
