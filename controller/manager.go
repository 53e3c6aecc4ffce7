// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/nodes"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/controller/webhook"
)

// manager makes the controller-runtime manager: caches, servers and the election.
func (c Controller) manager(scheme *runtime.Scheme, s *webhook.Server) (manager.Manager, error) {
	kept, err := cacheOptions()
	if err != nil {
		return nil, err
	}
	mgr, err := manager.New(c.Config, manager.Options{
		Scheme:                        scheme,
		Logger:                        klog.Background(),
		Metrics:                       server.Options{BindAddress: c.Options.MetricsAddress},
		Cache:                         kept,
		HealthProbeBindAddress:        c.Options.ProbeAddress,
		LeaderElection:                true,
		LeaderElectionID:              names.Controller,
		LeaderElectionNamespace:       c.Options.Namespace,
		LeaderElectionReleaseOnCancel: true,
		WebhookServer:                 s.Listener(c.Options.WebhookPort),
		// A test sees that the names are distinct. The check would only keep a process from running a second replica.
		Controller: config.Controller{CacheSyncTimeout: 2 * time.Minute, SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

// cacheOptions keep the manager's memory to what reconcilers read.
func cacheOptions() (cache.Options, error) {
	byObject := map[client.Object]cache.ByObject{}
	webhook.Cached(byObject)
	err := volumes.Cached(byObject)
	return cache.Options{DefaultTransform: nodes.Trim, ByObject: byObject}, err
}
