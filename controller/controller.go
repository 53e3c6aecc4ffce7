// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fettle-dev/fettle/controller/bitstreams"
	"github.com/fettle-dev/fettle/controller/claims"
	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/nodes"
	"github.com/fettle-dev/fettle/controller/pause"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/controller/webhook"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// Controller is one replica.
type Controller struct {
	// Config reaches the API server.
	Config *rest.Config
	// Options are the administrator's.
	Options Options
	// CRDs are the files to apply.
	CRDs fs.FS
	// Validate judges the objects that the webhook reviews.
	Validate func(runtime.Object) field.ErrorList
	// Table lists the reconcilers: it is [Table], unless a test adds its own.
	Table func(Parts) []reconciler.Row
	// Registry takes the metrics. The manager serves controller-runtime's registry.
	Registry prometheus.Registerer
	Clock    clock.WithTicker
}

// Run serves until ctx ends or the leader's Lease is lost, which is an error: the process must end then.
func (c Controller) Run(ctx context.Context) error {
	if err := c.Options.Validate(); err != nil {
		return err
	}
	scheme, err := reconciler.Scheme()
	if err != nil {
		return err
	}
	live, err := client.New(c.Config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	server := webhook.NewServer(live, c.Clock, c.Options.Namespace)
	mgr, err := c.manager(scheme)
	if err != nil {
		return err
	}
	scratch, removeScratch, err := c.scratch()
	if err != nil {
		return err
	}
	defer removeScratch()
	parts, err := c.parts(mgr, live, server, scratch)
	if err != nil {
		return err
	}
	if err := errors.Join(c.serve(mgr, server), c.reconcile(mgr, live, parts)); err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	return mgr.Start(ctx)
}

// scratch returns the directory through which bitstreams are read. If none was given it makes one, which remove removes.
func (c Controller) scratch() (dir string, remove func(), err error) {
	if c.Options.ScratchDir != "" {
		return c.Options.ScratchDir, func() {}, nil
	}
	dir, err = os.MkdirTemp("", names.Controller+"-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory to read bitstreams by way of: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}

// parts builds what the reconcilers are built from.
func (c Controller) parts(mgr manager.Manager, live client.Client, server *webhook.Server, scratch string) (Parts, error) {
	config := c.Options.Registries
	config.UserAgent = names.Controller
	config.Ranges, config.Report = clusterAddresses(mgr.GetClient()), logReason
	config.Tries = 2 // the queue tries again, and other objects wait
	registry, err := registry.NewClient(config)
	if err != nil {
		return Parts{}, fmt.Errorf("registries: %w", err)
	}
	pauses := pause.Reader{Live: live, Namespace: c.Options.Namespace, Clock: c.Clock, Started: c.Clock.Now()}
	services := reconciler.Services{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder(names.Controller), Clock: c.Clock,
		Pause: pauses.Remaining, Namespace: c.Options.Namespace,
	}
	return Parts{
		Services: services, Options: c.Options, Registry: registry, Scratch: bitstreams.NewScratch(scratch), Webhook: server,
		Policies: trustpolicies.NewReader(services.Client, c.Options.PublicTrustRoot),
		Volumes:  volumes.NewPlanner(services, c.Options.KernelCacheVolumes),
	}, nil
}

// serve adds what every replica serves to the manager.
func (c Controller) serve(mgr manager.Manager, server *webhook.Server) error {
	err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping))
	if c.Options.Webhook {
		err = errors.Join(err, server.Register(mgr, c.Options.WebhookPort, c.Validate))
	}
	return err
}

// reconcile adds what the leader does to the manager: the reconcilers of Kubernetes' own kinds, and the CRDs, after which all others
// start.
func (c Controller) reconcile(mgr manager.Manager, live client.Client, p Parts) error {
	rows := c.Table(p)
	register := func(beforeCRDs bool) error {
		var errs []error
		for _, row := range rows {
			if row.BeforeCRDs == beforeCRDs {
				errs = append(errs, row.Register(mgr, p.Pause))
			}
		}
		return errors.Join(errs...)
	}
	installer := crd.NewInstaller(crd.Installation{
		Client: live, Recorder: p.Recorder, Clock: c.Clock, Files: c.CRDs, Manage: c.Options.ManageCRDs,
		Established: func() error { return register(false) },
	})
	return errors.Join(c.registerMetrics(rows, installer), register(true), mgr.Add(installer))
}

func (c Controller) registerMetrics(rows []reconciler.Row, installer *crd.Installer) error {
	metrics := []prometheus.Collector{installer.Metrics()}
	for _, row := range rows {
		metrics = append(metrics, row.Metrics...)
	}
	for _, m := range metrics {
		if err := c.Registry.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// manager makes the controller-runtime manager: caches, servers and the election.
func (c Controller) manager(scheme *runtime.Scheme) (manager.Manager, error) {
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
	claims.Cached(byObject)
	cachedNodes(byObject)
	err := volumes.Cached(byObject)
	return cache.Options{DefaultTransform: nodes.Trim, ByObject: byObject}, err
}
