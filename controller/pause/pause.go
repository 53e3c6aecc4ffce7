// SPDX-License-Identifier: Apache-2.0

// Package pause keeps a running controller from making again what an uninstall deletes. The uninstall holds a Lease, which the controller
// reads before it changes anything and remembers for some seconds, which the uninstall waits for.
package pause

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/names"
)

const (
	// remembered is how long an answer counts, and the longest time that work waits before it asks again.
	remembered = 5 * time.Second
	// settle is how long an uninstall waits with its first change after it took the Lease. By then no controller goes by an earlier answer,
	// and what it began before has had a second to end.
	settle = remembered + time.Second
)

// Reader reads the Lease of an uninstall on behalf of a controller process. Every reconcile asks it, so it remembers the answer.
type Reader struct {
	// Live must not read from a cache.
	Live client.Reader
	// Namespace is the controller's.
	Namespace string
	Clock     clock.PassiveClock
	// Started is when the process started.
	Started time.Time

	mu sync.Mutex
	// asked is when the API server was last asked, held how long from then the Lease keeps the controller from working.
	asked time.Time
	held  time.Duration
	// renewal is the last one that was seen, and renewed when, by this process's clock. It is zero for that of the first look, whose age is
	// not known: the clocks of nodes differ.
	looked           bool
	renewal, renewed time.Time
	// during says that an uninstall has held the Lease while this process ran.
	during bool
}

// Remaining returns how long the controller must still wait because an uninstall is in progress, and 0 if it may go on. It returns a few
// seconds at most, so that the controller soon notices an uninstall that failed and deleted its Lease.
func (r *Reader) Remaining(ctx context.Context) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Clock.Now()
	// A Lease that has run out since may have been renewed.
	if age := now.Sub(r.asked); !r.asked.IsZero() && age < remembered && (r.held == 0 || age < r.held) {
		return min(max(r.held-age, 0), remembered), nil
	}
	held, err := r.ask(ctx, now)
	if err != nil {
		return 0, err
	}
	r.asked, r.held = now, held // since before the question
	return min(held, remembered), nil
}

// ask reads the Lease.
func (r *Reader) ask(ctx context.Context, now time.Time) (time.Duration, error) {
	var lease coordinationv1.Lease
	key := leaseKey(r.Namespace)
	err := r.Live.Get(ctx, key, &lease)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read Lease %s: %w", key, err)
	}
	r.follow(&lease, now)
	held, holder := heldFor(&lease, r.Started, now), ptr.Deref(lease.Spec.HolderIdentity, "")
	if lease.Spec.RenewTime == nil || r.renewed.IsZero() || holder == "" && !r.during {
		return held, nil
	}
	return max(held, r.renewed.Add(duration(&lease)).Sub(now)), nil
}

// follow notes when this process has seen a renewal. One that is old by the times in the Lease may be of a moment ago.
func (r *Reader) follow(lease *coordinationv1.Lease, now time.Time) {
	renewal := ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time
	if r.looked && !renewal.Equal(r.renewal) {
		r.renewed = now
	}
	r.looked, r.renewal = true, renewal
	held := ptr.Deref(lease.Spec.HolderIdentity, "") != "" && !r.renewed.IsZero()
	r.during = !renewal.IsZero() && (r.during || held)
}

func duration(lease *coordinationv1.Lease) time.Duration {
	return time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
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
	return max(renewed.Add(duration(lease)).Sub(now), 0)
}

func leaseKey(namespace string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: names.UninstallLease}
}

const (
	leaseDuration = 30 * time.Second
	leaseRenewal  = 5 * time.Second
	// releaseTimeout bounds the last write, which must succeed even if the deadline of the uninstall is over.
	releaseTimeout = 10 * time.Second
)

// Lease is the uninstall's side of the Lease.
type Lease struct {
	// Client must not read from a cache.
	Client client.Client
	// Namespace is the controller's.
	Namespace string
	Clock     clock.WithTicker
}

// Hold takes the Lease from any earlier holder, renews it until release is called, and returns once controllers know it. If the uninstall
// succeeded, release gives the Lease up with a last renewal, so that the old controller waits until Helm deletes it. Otherwise release
// deletes the Lease, and the controller goes on a few seconds later.
func (l Lease) Hold(ctx context.Context) (release func(succeeded bool) error, err error) {
	if err := l.write(ctx, names.UninstallLease); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.renew(ctx)
	}()
	release = func(succeeded bool) error {
		cancel()
		<-done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if succeeded {
			return l.write(ctx, "")
		}
		key := leaseKey(l.Namespace)
		object := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if err := l.Client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Lease %s: %w", key, err)
		}
		return nil
	}
	select {
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), release(false))
	case <-l.Clock.After(settle):
		return release, nil
	}
}

// renew renews until ctx ends. A failed renewal is repeated well within the Lease's duration.
func (l Lease) renew(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.Clock.After(leaseRenewal):
		}
		if err := l.renewOnce(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Renew the uninstall's Lease")
		}
	}
}

// renewOnce gives up a renewal without an answer while there is time for others.
func (l Lease) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseRenewal)
	defer cancel()
	return l.write(ctx, names.UninstallLease)
}

// write creates or updates the Lease. An empty holder gives it up.
func (l Lease) write(ctx context.Context, holder string) error {
	object, key := &coordinationv1.Lease{}, leaseKey(l.Namespace)
	err := l.Client.Get(ctx, key, object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Lease %s: %w", key, err)
	}
	exists := err == nil
	object.Namespace, object.Name = key.Namespace, key.Name
	object.Spec = coordinationv1.LeaseSpec{
		LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)),
		RenewTime:            ptr.To(metav1.NewMicroTime(l.Clock.Now())),
	}
	if holder != "" {
		object.Spec.HolderIdentity = &holder
	}
	if exists {
		err = l.Client.Update(ctx, object)
	} else {
		err = l.Client.Create(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("write Lease %s: %w", key, err)
	}
	return nil
}
