// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// checksAtInterval is how many claims are looked up at each interval. That only finds what no request told of, so it is little: all nodes
	// of a large cluster do it.
	checksAtInterval = 2
	// unprepareGrace is how long a claim must hold devices after it was found deleted. A pod that ends in the usual way loses its claim at
	// about the time at which kubelet unprepares it.
	unprepareGrace = time.Second
	// maxSuspects is how many refused claims may wait for a look at the holders of their devices.
	maxSuspects = 16
	// requestPause is the least time between two requests, each of which looks up all claims.
	requestPause = 5 * time.Second
)

// FollowDeleted finds claims that hold devices although the API server no longer has them, or gave them other devices. The scheduler takes
// such devices for free. It looks up all claims at the start and at each request, some at each interval, and the holder of a device that
// another claim was refused. It returns when ctx ends.
func (e *Engine) FollowDeleted(ctx context.Context, interval time.Duration, requests <-chan struct{}) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	e.checkDeleted(ctx, e.heldClaims(ctx))
	var last string
	for {
		select {
		case <-ctx.Done():
			return
		case uid := <-e.suspects:
			e.checkDeleted(ctx, []string{uid})
		case <-requests:
			e.checkDeleted(ctx, e.heldClaims(ctx))
			select {
			case <-ctx.Done():
			case <-time.After(requestPause - unprepareGrace):
			}
		case <-ticker.C:
			some := following(e.heldClaims(ctx), last, checksAtInterval)
			if len(some) > 0 {
				last = some[len(some)-1]
			}
			e.checkDeleted(ctx, some)
			e.forgetReleased()
		}
	}
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
func (e *Engine) heldClaims(ctx context.Context) []string {
	uids, err := e.Store.UIDs()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Deleted claims that hold devices are not found in this pass")
	}
	return uids
}

// checkDeleted looks claims up and remembers those that are gone and still hold devices. It forgets those that have their devices again: a
// claim that pods share may lose them between two pods.
func (e *Engine) checkDeleted(ctx context.Context, uids []string) {
	var gone []string
	for _, uid := range uids {
		r := e.holds(uid)
		if r == nil || ctx.Err() != nil {
			continue
		}
		switch isGone, err := e.lookUp(ctx, r); {
		case err != nil:
			logUnknown(ctx, r, err)
		case isGone:
			gone = append(gone, uid)
		default:
			e.forgetDeleted(uid)
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
		r := e.holds(uid)
		if r == nil || !e.setDeleted(r) {
			continue
		}
		e.report(ctx, ReasonClaimDeleted, r,
			"it was deleted, or lost its devices, while its pod runs: no other claim gets them until the pod ends")
	}
}

// holds returns the record of a claim that holds devices, or nil.
func (e *Engine) holds(uid string) *record.Record {
	r, err := e.Store.Load(uid)
	if err != nil || r.Released() || len(heldNames(r.Devices)) == 0 {
		return nil
	}
	return r
}

// setDeleted remembers a claim that is gone. It returns false if that was known, or the claim was released meanwhile.
func (e *Engine) setDeleted(r *record.Record) bool {
	e.mu.Lock()
	_, known := e.deleted[r.UID]
	e.deleted[r.UID] = r
	e.mu.Unlock()
	if known {
		return false
	}
	if e.holds(r.UID) == nil { // released between the look and now: forget may have come too early
		e.forgetDeleted(r.UID)
		return false
	}
	e.Observer.DeletedChanged()
	return true
}

// forgetDeleted is called when a claim was released.
func (e *Engine) forgetDeleted(uid string) {
	e.mu.Lock()
	_, known := e.deleted[uid]
	delete(e.deleted, uid)
	e.mu.Unlock()
	if known {
		e.Observer.DeletedChanged()
	}
}

// forgetReleased forgets the claims that another process released.
func (e *Engine) forgetReleased() {
	e.mu.Lock()
	var all []string
	for uid := range e.deleted {
		all = append(all, uid)
	}
	e.mu.Unlock()
	for _, uid := range all {
		if e.holds(uid) == nil {
			e.forgetDeleted(uid)
		}
	}
}

// HeldByDeleted returns the devices, by pool and name, that deleted claims hold, each with the record of one such claim.
func (e *Engine) HeldByDeleted() map[[2]string]*record.Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := map[[2]string]*record.Record{}
	for _, r := range e.deleted {
		for i := range r.Devices {
			d := &r.Devices[i]
			key := [2]string{d.Pool, d.Name}
			if before := held[key]; !d.AdminAccess && (before == nil || r.UID < before.UID) {
				held[key] = r
			}
		}
	}
	return held
}

// explainInUse adds to a refusal whether the holder of the device was deleted. If that is not known, it has the holder looked up.
func (e *Engine) explainInUse(err error) error {
	owner, deleted := heldBy(err)
	if owner == nil {
		return err
	}
	e.mu.Lock()
	_, *deleted = e.deleted[owner.UID]
	e.mu.Unlock()
	if !*deleted {
		select {
		case e.suspects <- owner.UID:
		default: // the next refusal asks again
		}
	}
	return err
}
