// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/plan"
)

// maxUsers is from how many users on a claim is known without them. Such a claim is never free for another pod.
const maxUsers = 32

// pool is one of the pools of a snapshot's slices.
type pool struct{ driver, name string }

// claimKeeper keeps of the claims of a cluster what decides about devices: those of the pods, of others which devices of the snapshot's
// pools they have, and what they count in quotas.
type claimKeeper struct {
	left  int
	pools map[pool]bool
	// charged are the namespaces with a quota for claims, of the sizes that these count.
	charged map[string]bool
	of      *tenants
	// own are the claims that are kept already, askers the pods by their UID.
	own    map[types.NamespacedName]bool
	askers map[types.UID]*Asker

	kept []*resourceapi.ResourceClaim
}

// readClaims reads the claims page by page, and adds what is kept of them to the snapshot.
func (r Reader) readClaims(ctx context.Context, of *tenants, s *Snapshot, askers []Asker) error {
	k := &claimKeeper{
		pools: map[pool]bool{}, charged: chargedNamespaces(s.Quotas), of: of, own: map[types.NamespacedName]bool{},
		askers: map[types.UID]*Asker{},
	}
	for _, slice := range s.Slices {
		k.pools[pool{slice.Spec.Driver, slice.Spec.Pool.Name}] = true
	}
	for i := range askers {
		a := &askers[i]
		k.askers[a.Pod.UID] = a
		for _, claim := range a.claims {
			k.own[client.ObjectKeyFromObject(claim)] = true
		}
	}
	of.reduce = append(of.reduce, k.forgetCharges)
	tenantsLeft, sizes := of.left, maps.Clone(of.sizes)
	before := slices.Clone(askers)
	begin := func() {
		k.kept, k.left, of.left, of.sizes = nil, claimBytes, tenantsLeft, maps.Clone(sizes)
		for i := range askers { // what they keep of an attempt that was begun anew does not count
			askers[i].left, askers[i].TooLarge = before[i].left, before[i].TooLarge
		}
	}
	claims := reconciler.Listing{Reader: r.Live, List: &resourceapi.ResourceClaimList{}}
	err := claims.Read(ctx, begin, func(o runtime.Object) error {
		claim, ok := o.(*resourceapi.ResourceClaim)
		if !ok {
			return fmt.Errorf("list has a %T", o)
		}
		return k.take(claim)
	})
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	s.Claims = k.kept
	return nil
}

// With returns the snapshot with the claims and templates of pods.
func (s *Snapshot) With(askers ...Asker) plan.Snapshot {
	out := s.Snapshot
	out.Claims, out.Templates = nil, nil
	for i := range askers {
		out.Claims, out.Templates = append(out.Claims, askers[i].claims...), append(out.Templates, askers[i].templates...)
	}
	out.Claims, out.Templates = unique(append(out.Claims, s.Claims...)), unique(out.Templates)
	return out
}

// unique returns the objects, each once.
func unique[T metav1.Object](objects []T) []T {
	seen := map[types.NamespacedName]bool{}
	return slices.DeleteFunc(objects, func(o T) bool {
		key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
		again := seen[key]
		seen[key] = true
		return again
	})
}

// take keeps what decides of a claim.
func (k *claimKeeper) take(c *resourceapi.ResourceClaim) error {
	if k.own[client.ObjectKeyFromObject(c)] {
		return nil
	}
	if asker := k.askerOf(c); asker != nil {
		if c = trimClaim(c); asker.keep(c.Size()) {
			k.kept = append(k.kept, c)
		}
		return nil
	}
	kept := k.bare(c)
	if kept != nil {
		if k.left -= kept.Size(); k.left < 0 {
			return ErrTooMuch
		}
	}
	if k.charged[c.Namespace] && !k.of.reduced[c.Namespace] {
		if kept == nil {
			kept = &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID}}
		}
		kept.Spec = chargedSpec(&c.Spec)
		k.kept = append(k.kept, kept)
		return k.of.count(c.Namespace, kept.Spec.Size()+len(c.Namespace)+len(c.Name)+len(c.UID))
	}
	if kept != nil {
		k.kept = append(k.kept, kept)
	}
	return nil
}

// askerOf returns the pod that owns a claim, nil if that is none of those that are explained. A claim of another namespace may name any
// pod.
func (k *claimKeeper) askerOf(c *resourceapi.ResourceClaim) *Asker {
	owner := metav1.GetControllerOfNoCopy(c)
	if owner == nil {
		return nil
	}
	if asker := k.askers[owner.UID]; asker != nil && asker.Pod.Namespace == c.Namespace {
		return asker
	}
	return nil
}

// bare returns the devices that a claim has of the snapshot's pools, and who uses them. It returns nil for a claim that has none.
func (k *claimKeeper) bare(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	a := c.Status.Allocation
	if a == nil {
		return nil
	}
	var results []resourceapi.DeviceRequestAllocationResult
	for _, r := range a.Devices.Results {
		if !ptr.Deref(r.AdminAccess, false) && k.pools[pool{r.Driver, r.Pool}] {
			r.Tolerations, r.BindingConditions, r.BindingFailureConditions = nil, nil, nil
			results = append(results, r)
		}
	}
	if len(results) == 0 {
		return nil
	}
	out := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.Namespace, Name: c.Name, UID: c.UID, CreationTimestamp: c.CreationTimestamp, DeletionTimestamp: c.DeletionTimestamp,
	}}
	out.OwnerReferences = ownerOf(c)
	if len(c.Status.ReservedFor) <= maxUsers {
		out.Status.ReservedFor = c.Status.ReservedFor
	}
	out.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: a.NodeSelector}
	out.Status.Allocation.Devices.Results = results
	return out
}

// forgetCharges forgets what the claims of a namespace count in quotas.
func (k *claimKeeper) forgetCharges(namespace string) error {
	k.kept = slices.DeleteFunc(k.kept, func(c *resourceapi.ResourceClaim) bool {
		if c.Namespace != namespace {
			return false
		}
		if k.askerOf(c) != nil {
			return false
		}
		c.Spec = resourceapi.ResourceClaimSpec{}
		return c.Status.Allocation == nil
	})
	return nil
}

// chargedNamespaces returns the namespaces with a quota that counts claims or devices.
func chargedNamespaces(quotas []*corev1.ResourceQuota) map[string]bool {
	out := map[string]bool{}
	for _, q := range quotas {
		for name := range q.Spec.Hard {
			text := string(name)
			if name == plan.ClaimCount || strings.HasSuffix(text, corev1.ResourceClaimsPerClass) || strings.Contains(text, "/") {
				out[q.Namespace] = true
			}
		}
	}
	return out
}

// chargedSpec returns what a claim counts in quotas.
func chargedSpec(spec *resourceapi.ResourceClaimSpec) (out resourceapi.ResourceClaimSpec) {
	for _, r := range spec.Devices.Requests {
		kept := resourceapi.DeviceRequest{}
		if e := r.Exactly; e != nil {
			kept.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: e.DeviceClassName, AllocationMode: e.AllocationMode, Count: e.Count}
		}
		for _, sub := range r.FirstAvailable {
			kept.FirstAvailable = append(kept.FirstAvailable, resourceapi.DeviceSubRequest{
				DeviceClassName: sub.DeviceClassName, AllocationMode: sub.AllocationMode, Count: sub.Count,
			})
		}
		out.Devices.Requests = append(out.Devices.Requests, kept)
	}
	return out
}
