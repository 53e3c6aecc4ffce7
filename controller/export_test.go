// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
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
