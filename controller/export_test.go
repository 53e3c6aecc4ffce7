// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/controller/volumes"
)

// NewNodeReconciler gives the tests a reconciler with a clock of their own and no manager, cache or queue around it.
func NewNodeReconciler(direct client.Client, c clock.PassiveClock, namespace string) (reconcile.Reconciler, error) {
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	pause := leasePause{
		reader: direct, clock: c, started: c.Now(), key: client.ObjectKey{Namespace: namespace, Name: UninstallLease},
	}
	return &nodeReconciler{client: direct, live: direct, clock: c, metrics: m, pause: pause, absent: map[string]absence{}}, nil
}

// RunVolumes runs nothing but what makes the volumes of caches, so that a test can say what images mean.
func RunVolumes(ctx context.Context, access *rest.Config, options volumes.Options) error {
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	kept, err := cacheOptions()
	if err != nil {
		return err
	}
	mgr, err := manager.New(access, manager.Options{
		Scheme: scheme, Cache: kept, Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return err
	}
	pause := leasePause{
		reader: mgr.GetAPIReader(), clock: clock.RealClock{}, key: client.ObjectKey{Namespace: "none", Name: UninstallLease},
	}
	if err := newVolumesReconciler(mgr, pause, &volumeFaults{}, Options{KernelCacheVolumes: options}).register(mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
