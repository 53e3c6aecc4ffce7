// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// RetireAnnotation on an AcceleratorNode tells that node's plugin to unpublish, to remove its files and to prepare no more.
	RetireAnnotation = "fettle.dev/retire"
	// RetireByUninstall is the value that an uninstall sets and a running controller takes back.
	RetireByUninstall = "true"
	// RetireByAdmin is the value for an admin's own use; neither the controller nor an uninstall removes it.
	RetireByAdmin = "admin"

	// UninstallLease is held, in the controller's namespace, while an uninstall runs. The controller that is still up then
	// must not make again what the uninstall deletes.
	UninstallLease = "fettle-uninstall"

	// recheck is the longest time between two looks at that Lease while work waits for it.
	recheck = 5 * time.Second
)

// heldFor says for how long, from now, the Lease of an uninstall keeps a controller process started at started from working.
//
// The uninstall renews the Lease while it runs and gives it up (no holder) at its success, with a last renewal: from then on Helm
// deletes the old controller, which must still hold still, while a newly installed one, started later, need not wait.
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

// leasePause reads the uninstall's Lease each time it is asked, which is seldom.
type leasePause struct {
	reader  client.Reader // not cached
	key     client.ObjectKey
	clock   clock.PassiveClock
	started time.Time
}

// remaining implements pauser. It never says more than a few seconds, so that an uninstall that gives up, and deletes its Lease,
// is noticed soon.
func (p leasePause) remaining(ctx context.Context) (time.Duration, error) {
	var lease coordinationv1.Lease
	err := p.reader.Get(ctx, p.key, &lease)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read Lease %s: %w", p.key, err)
	}
	return min(heldFor(&lease, p.started, p.clock.Now()), recheck), nil
}
