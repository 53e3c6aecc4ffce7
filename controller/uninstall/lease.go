// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller"
)

const (
	leaseDuration = 30 * time.Second
	leaseRenewal  = 5 * time.Second
)

// lease is the sign to a running controller to hold still, with the meaning of [controller.UninstallLease].
type lease struct {
	client client.Client
	clock  clock.WithTicker
	key    client.ObjectKey
}

func leaseKey(namespace string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: controller.UninstallLease}
}

// hold takes the lease, whoever had it, and renews it until the returned function is called. That function takes whether the
// uninstall succeeded: then the lease is given up with a last renewal, for the old controller to stay still until Helm deletes
// it; otherwise it is deleted and the controller goes on at once.
func (l *lease) hold(ctx context.Context) (func(succeeded bool) error, error) {
	if err := l.write(ctx, "fettle-uninstall"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.renew(ctx)
	}()
	return func(succeeded bool) error {
		cancel()
		<-done
		// The work's own deadline may be over; this last word must still get through.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if succeeded {
			return l.write(ctx, "")
		}
		object := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.key.Namespace, Name: l.key.Name}}
		if err := l.client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Lease %s: %w", l.key, err)
		}
		return nil
	}, nil
}

// renew renews until ctx ends. A failure is tried again well within the lease's duration.
func (l *lease) renew(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.clock.After(leaseRenewal):
		}
		if err := l.write(ctx, "fettle-uninstall"); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "renew the uninstall's Lease")
		}
	}
}

// write creates or updates the lease; an empty holder gives it up.
func (l *lease) write(ctx context.Context, holder string) error {
	object := &coordinationv1.Lease{}
	err := l.client.Get(ctx, l.key, object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Lease %s: %w", l.key, err)
	}
	exists := err == nil
	object.Namespace, object.Name = l.key.Namespace, l.key.Name
	object.Spec = coordinationv1.LeaseSpec{
		LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)),
		RenewTime:            ptr.To(metav1.NewMicroTime(l.clock.Now())),
	}
	if holder != "" {
		object.Spec.HolderIdentity = &holder
	}
	if exists {
		err = l.client.Update(ctx, object)
	} else {
		err = l.client.Create(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("write Lease %s: %w", l.key, err)
	}
	return nil
}
