// SPDX-License-Identifier: Apache-2.0

// Package pause keeps a running controller from making again what an uninstall deletes. The uninstall holds a Lease, which the controller
// reads before it changes anything.
package pause

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/names"
)

// recheck is the longest time between two reads of the Lease while work waits for it.
const recheck = 5 * time.Second

// Reader reads the Lease of an uninstall on behalf of a controller process.
type Reader struct {
	// Live must not read from a cache.
	Live client.Reader
	// Namespace is the controller's.
	Namespace string
	Clock     clock.PassiveClock
	// Started is when the process started.
	Started time.Time
}

// Remaining returns how long the controller must still wait because an uninstall is in progress, and 0 if it may go on. It returns a few
// seconds at most, so that the controller soon notices an uninstall that failed and deleted its Lease.
func (r Reader) Remaining(ctx context.Context) (time.Duration, error) {
	var lease coordinationv1.Lease
	key := leaseKey(r.Namespace)
	err := r.Live.Get(ctx, key, &lease)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read Lease %s: %w", key, err)
	}
	return min(heldFor(&lease, r.Started, r.Clock.Now()), recheck), nil
}

// heldFor returns how long, from now, the Lease of an uninstall keeps a controller process that was started at started from working.
//
// The uninstall renews the Lease while it runs. When it succeeds it gives the Lease up (no holder) with a last renewal: Helm then deletes
// the old controller, which must still wait, while a newly installed one, started later, need not.
func heldFor(lease *coordinationv1.Lease, started, now time.Time) time.Duration {
	if lease.Spec.RenewTime == nil {
		return 0
	}
	renewed := lease.Spec.RenewTime.Time
	if ptr.Deref(lease.Spec.HolderIdentity, "") == "" && started.After(renewed) {
		return 0
	}
	until := renewed.Add(time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second)
	return max(until.Sub(now), 0)
}

func leaseKey(namespace string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: names.UninstallLease}
}
