// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/kubeletclaims"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// fileInterval is how often the files in the CDI directory are looked for: containers that restart need them.
	fileInterval = 5 * time.Second
	// askPatience is how long a pass asks the API server. While that does not answer, no claim is collected, but a wiped CDI directory is
	// still noticed soon.
	askPatience = fileInterval
)

// missesToCollect is how many passes in a row must find a claim gone before the plugin releases it.
const missesToCollect = 2

// Run recovers and checks all claims now and at every interval until ctx ends. It calls changed when withheld devices become free.
func (e *Engine) Run(ctx context.Context, interval time.Duration, changed func()) {
	fileTicker, passTicker := time.NewTicker(fileInterval), time.NewTicker(interval)
	defer fileTicker.Stop()
	defer passTicker.Stop()
	expected := e.collection.pass(ctx, changed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-passTicker.C:
			e.collect(ctx)
			expected = e.collection.pass(ctx, changed)
		case <-fileTicker.C:
			if e.specs.anyMissing(expected) {
				expected = e.collection.pass(ctx, changed)
			}
		}
	}
}

// collect releases claims that kubelet will never unprepare.
func (e *Engine) collect(ctx context.Context) {
	lost := e.collection.lost(ctx)
	waiting, cancel := context.WithTimeout(ctx, passPatience)
	defer cancel()
	for _, uid := range lost {
		e.operations.attend(waiting, uid, func() { e.releaseLost(ctx, uid) })
	}
}

// releaseLost releases a claim, unless somebody works on it: then it is not lost. It looks again when it has the claim's lock, since
// kubelet may have prepared the claim after the pass looked.
func (e *Engine) releaseLost(ctx context.Context, uid string) {
	hold, err := e.Store.TryLockClaim(uid)
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err, "A lost claim is given back at the next pass", "claimUID", uid)
		return
	case hold == nil:
		return
	}
	hold.Release()
	accept := func(*operation) bool { return false }
	//nolint:contextcheck // the work has its operation's context
	r, err := e.operations.do(ctx, uid, recovering, accept, func(op *operation) (*record.Record, error) {
		return e.unprepare(op, e.Now(), false, func(ctx context.Context) bool { return e.collection.isLost(ctx, uid) })
	})
	switch {
	case errors.Is(err, errNotLost), Overtaken(err):
		return
	case err != nil:
		e.report(ctx, ReasonRecoveryFailed, &record.Record{UID: uid}, "give back a claim that is gone: "+err.Error())
		return
	case e.Store.InDoubt(uid):
		return // it keeps devices that are not here now
	case r == nil:
		r = &record.Record{UID: uid}
	}
	e.report(ctx, ReasonClaimCollected, r, "neither kubelet nor the API server knows that it holds devices here: they are free again")
}

// lost returns the claims that kubelet will never unprepare, sorted: kubelet does not have them (its state was lost, or the pod was removed
// by force while kubelet was down), and the API server has no such claim or has given it other devices. If either cannot be read, it
// returns none.
func (c *collection) lost(ctx context.Context) []string {
	if c.KubeletState == "" {
		return nil
	}
	missed := map[string]int{}
	defer func() { c.missed = missed }() // a pass that cannot read something begins the count anew
	known, err := kubeletclaims.Read(c.KubeletState)
	if err != nil {
		klog.FromContext(ctx).Error(err, "No claim is collected: the claims that kubelet holds are not known", "path", c.KubeletState)
		return nil
	}
	uids, err := c.Store.UIDs()
	damaged, err2 := c.Store.Damaged()
	if err := errors.Join(err, err2); err != nil {
		klog.FromContext(ctx).Error(err, "No claim is collected")
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, min(c.Budget, askPatience))
	defer cancel()
	var lost []string
	for _, uid := range append(uids, damaged...) {
		if known[uid] || missed[uid] > 0 || !c.goneFromAPI(asking, uid) {
			continue
		}
		if missed[uid] = c.missed[uid] + 1; missed[uid] >= missesToCollect {
			lost = append(lost, uid)
		}
	}
	slices.Sort(lost)
	return lost
}

// goneFromAPI reports whether the API server has no claim with the devices of the record.
func (c *collection) goneFromAPI(ctx context.Context, uid string) bool {
	r, err := c.Store.Load(uid)
	if errors.Is(err, record.ErrDamaged) || isNotExist(err) && c.Store.InDoubt(uid) {
		return true // the name was in the record only, and kubelet does not have the claim
	}
	return err == nil && c.deleted.isGone(ctx, r)
}

// isLost reports whether neither kubelet nor the API server has a claim. It returns false if one of them cannot be asked.
func (c *collection) isLost(ctx context.Context, uid string) bool {
	asking, cancel := context.WithTimeout(ctx, c.Budget)
	defer cancel()
	known, err := kubeletclaims.Read(c.KubeletState)
	return err == nil && !known[uid] && c.goneFromAPI(asking, uid)
}
