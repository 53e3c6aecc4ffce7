// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// patience is how long one write may take, and all that are left when the plugin ends.
	patience = 5 * time.Second
	// writesAtOnce is how many claims are written at once.
	writesAtOnce = 4
)

// deviceWrites are the entries of claims' devices that are to be written after kubelet's answer.
type deviceWrites struct {
	wake notify.Signal

	mu      sync.Mutex
	pending map[types.UID]deviceWrite
}

// deviceWrite is what one claim's entries shall say.
type deviceWrite struct {
	claim   *resourceapi.ResourceClaim
	devices map[string]deviceStatus
}

// WriteDevicesLater has Run write the known content of regions and the applied presets to a claim. A claim with neither costs nothing. What
// the process does not come to write is written when the claim is looked at again, which happens to each at the plugin's start.
func (w *ClaimWriter) WriteDevicesLater(c *resourceapi.ResourceClaim, r *record.Record) error {
	devices, err := w.deviceStatuses(r)
	if err != nil || len(devices) == 0 {
		return err
	}
	w.later.mu.Lock()
	defer w.later.mu.Unlock()
	w.later.pending[c.UID] = deviceWrite{c, devices}
	w.later.wake.Send()
	return nil
}

// Run writes what was to be written later, until ctx ends and nothing is left.
func (w *ClaimWriter) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			w.writePending(ctx)
			return
		case <-w.later.wake:
			w.writePending(ctx)
		}
	}
}

// writePending writes to all claims that wait for it.
func (w *ClaimWriter) writePending(ctx context.Context) {
	w.later.mu.Lock()
	pending := w.later.pending
	w.later.pending = map[types.UID]deviceWrite{}
	w.later.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	for _, write := range pending {
		group.Go(func() error {
			err := w.writeDevices(ctx, write)
			if ctx.Err() != nil { // the plugin ends, which has a last try
				w.later.keep(write)
			} else if err != nil && !apierrors.IsNotFound(err) {
				klog.FromContext(ctx).Error(err, "Cannot write bitstreams and presets to the claim's status", "claim", klog.KObj(write.claim))
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
}

// keep puts a write back that was not made, unless there is a newer one for the claim.
func (l *deviceWrites) keep(write deviceWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, newer := l.pending[write.claim.UID]; !newer {
		l.pending[write.claim.UID] = write
	}
}
