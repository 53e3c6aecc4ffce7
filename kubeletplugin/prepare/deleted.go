// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// checksAtOnce is how many claims are looked up at a time without a request: every interval of those that are known to be deleted, since
	// they may have their devices again, and rarely of all others. The latter only finds what no request told of, and all nodes of a large
	// cluster do it.
	checksAtOnce = 2
	// leastRarely is how many intervals pass at least between two looks at others, and rarelySpread how much later a look may come: ten
	// intervals, a fifth more or less, so that nodes that start together do not ask together.
	leastRarely, rarelySpread = 8, 0.5
	// unprepareGrace is how long a claim must hold devices after it was found deleted. A pod that ends in the usual way loses its claim at
	// about the time at which kubelet unprepares it.
	unprepareGrace = time.Second
	// maxSuspects is how many refused claims may wait for a look at the holders of their devices.
	maxSuspects = 16
	// requestPause is the least time between two requests, each of which looks up all claims.
	requestPause = 5 * time.Second
)

// deletedClaims are the claims that hold devices although the API server no longer has them, or gave them other devices. The scheduler
// takes such devices for free.
type deletedClaims struct {
	*Config
	// suspects are the UIDs of claims that hold what another claim was refused.
	suspects chan string

	mu sync.Mutex
	// found are the records of the claims that are known to be deleted.
	found map[string]*record.Record
}

func newDeletedClaims(c *Config) *deletedClaims {
	return &deletedClaims{Config: c, suspects: make(chan string, maxSuspects), found: map[string]*record.Record{}}
}

// follow finds deleted claims until ctx ends, see Engine.FollowDeleted.
func (d *deletedClaims) follow(ctx context.Context, interval time.Duration, requests <-chan struct{}) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	later := func() time.Duration { return wait.Jitter(leastRarely*interval, rarelySpread) }
	rarely := time.NewTimer(later())
	defer rarely.Stop()
	d.check(ctx, d.heldClaims(ctx))
	var others, known turn
	for {
		select {
		case <-ctx.Done():
			return
		case uid := <-d.suspects:
			d.check(ctx, []string{uid})
		case <-requests:
			d.check(ctx, d.heldClaims(ctx))
			select {
			case <-ctx.Done():
			case <-time.After(requestPause - unprepareGrace):
			}
		case <-ticker.C:
			d.check(ctx, known.next(d.forgetReleased()))
		case <-rarely.C:
			rarely.Reset(later())
			d.check(ctx, others.next(d.heldClaims(ctx)))
		}
	}
}

// turn is the last claim that was looked up of a list.
type turn string

// next returns the claims of a sorted list that have their turn.
func (t *turn) next(sorted []string) []string {
	some := following(sorted, string(*t), checksAtOnce)
	if len(some) > 0 {
		*t = turn(some[len(some)-1])
	}
	return some
}

// following returns up to n elements of a sorted list that follow an element, from the beginning again after the end.
func following(sorted []string, last string, n int) []string {
	i, found := slices.BinarySearch(sorted, last)
	if found {
		i++
	}
	round := slices.Concat(sorted[i:], sorted[:i])
	return round[:min(n, len(round))]
}

// heldClaims lists the claims with a record, sorted.
func (d *deletedClaims) heldClaims(ctx context.Context) []string {
	uids, err := d.Store.UIDs()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Deleted claims that hold devices are not found in this pass")
	}
	return uids
}

// check looks claims up and remembers those that are gone and still hold devices. It forgets those that have their devices again: a
// claim that pods share may lose them between two pods.
func (d *deletedClaims) check(ctx context.Context, uids []string) {
	var gone []string
	for _, uid := range uids {
		r := d.holds(uid)
		if r == nil || ctx.Err() != nil {
			continue
		}
		switch c, err := d.lookUp(ctx, r); {
		case err != nil:
			logUnknown(ctx, r, err)
		case c == nil:
			gone = append(gone, uid)
		default:
			d.tellHeld(ctx, c, r)
		}
	}
	if len(gone) == 0 {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(unprepareGrace):
	}
	for _, uid := range gone {
		switch r := d.holds(uid); {
		case r == nil || d.knows(r):
		case !d.isGone(ctx, r): // prepared meanwhile, perhaps with other devices
			d.forget(uid)
		case d.remember(r):
			d.report(ctx, ReasonClaimDeleted, r,
				"it was deleted, or lost its devices, while its pod runs: no other claim gets them until the pod ends")
		}
	}
}

// tellHeld notes that a claim has its devices.
func (d *deletedClaims) tellHeld(ctx context.Context, c *resourceapi.ResourceClaim, r *record.Record) {
	d.forget(r.UID)
	if r.Phase == record.Prepared && r.BootID == d.BootID {
		d.Observer.Held(ctx, c, r)
	}
}

// knows reports whether a claim is known to be gone with the devices of a record.
func (d *deletedClaims) knows(r *record.Record) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.found[r.UID]
	return known != nil && slices.Equal(heldNames(known.Devices), heldNames(r.Devices))
}

// holds returns the record of a claim that holds devices, or nil.
func (d *deletedClaims) holds(uid string) *record.Record {
	r, err := d.Store.Load(uid)
	if err != nil || r.Released() || len(heldNames(r.Devices)) == 0 {
		return nil
	}
	return r
}

// remember adds a claim that is gone, or in place of the devices that it had before another process gave it these. It returns false if it
// was released meanwhile. One goroutine calls it, for claims that are not known.
func (d *deletedClaims) remember(r *record.Record) bool {
	d.mu.Lock()
	d.found[r.UID] = r
	d.mu.Unlock()
	if d.holds(r.UID) == nil { // released between the look and now: forget may have come too early
		d.forget(r.UID)
		return false
	}
	d.Observer.DeletedChanged()
	return true
}

// forget removes a claim that was released or has its devices again.
func (d *deletedClaims) forget(uid string) {
	d.mu.Lock()
	_, known := d.found[uid]
	delete(d.found, uid)
	d.mu.Unlock()
	if known {
		d.Observer.DeletedChanged()
	}
}

// forgetReleased forgets the claims that another process released. It returns the others that are known, sorted.
func (d *deletedClaims) forgetReleased() []string {
	d.mu.Lock()
	all := slices.Sorted(maps.Keys(d.found))
	d.mu.Unlock()
	return slices.DeleteFunc(all, func(uid string) bool {
		released := d.holds(uid) == nil
		if released {
			d.forget(uid)
		}
		return released
	})
}

// held returns the devices, by pool and name, that deleted claims hold, each with the record of one such claim.
func (d *deletedClaims) held() map[[2]string]*record.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := map[[2]string]*record.Record{}
	for _, r := range d.found {
		for i := range r.Devices {
			one := &r.Devices[i]
			key := [2]string{one.Pool, one.Name}
			if before := held[key]; !one.AdminAccess && (before == nil || r.UID < before.UID) {
				held[key] = r
			}
		}
	}
	return held
}

// explain adds to a refusal whether the holder of the device was deleted. If that is not known, it has the holder looked up.
func (d *deletedClaims) explain(err error) error {
	owner, deleted := heldBy(err)
	if owner == nil {
		return err
	}
	d.mu.Lock()
	_, *deleted = d.found[owner.UID]
	d.mu.Unlock()
	if !*deleted {
		select {
		case d.suspects <- owner.UID:
		default: // the next refusal asks again
		}
	}
	return err
}

// isGone reports whether the API server has no claim with the devices of a record. It returns false if it cannot be asked.
func (d *deletedClaims) isGone(ctx context.Context, r *record.Record) bool {
	c, err := d.lookUp(ctx, r)
	if err != nil {
		logUnknown(ctx, r, err)
	}
	return err == nil && c == nil
}

func logUnknown(ctx context.Context, r *record.Record, err error) {
	klog.FromContext(ctx).V(2).Info("Cannot look up a claim that holds devices", "claim", klog.KRef(r.Namespace, r.Name), "reason", err)
}

// lookUp asks the API server for the claim with the devices of a record. It returns nil if there is none.
func (d *deletedClaims) lookUp(ctx context.Context, r *record.Record) (*resourceapi.ResourceClaim, error) {
	c, err := d.Claim(ctx, r.Namespace, r.Name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // documented above
	case err != nil:
		return nil, err
	case string(c.UID) != r.UID || c.Status.Allocation == nil || !matchesAllocation(r, allocatedTo(c)):
		return nil, nil //nolint:nilnil // documented above
	}
	return c, nil
}

// allocatedTo returns which devices a claim was allocated, whatever the configurations beside them are worth.
func allocatedTo(c *resourceapi.ResourceClaim) (a claim.Allocation) {
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == v1alpha1.DriverName {
			a.Results = append(a.Results, claim.Result{
				Request: r.Request, Pool: r.Pool, Device: r.Device, ShareID: r.ShareID, AdminAccess: r.AdminAccess != nil && *r.AdminAccess,
			})
		}
	}
	return a
}
