// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fettle-dev/fettle/controller/bitstreams"
	"github.com/fettle-dev/fettle/controller/claims"
	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/nodes"
	"github.com/fettle-dev/fettle/controller/pause"
	"github.com/fettle-dev/fettle/controller/presets"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/stacks"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/httpserver"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Controller is one replica.
type Controller struct {
	// Config reaches the API server.
	Config *rest.Config
	// Options are the administrator's.
	Options Options
	// CRDs are the files to apply.
	CRDs fs.FS
	// Table lists the reconcilers: it is [Table], unless a test adds its own.
	Table func(Parts) []reconciler.Row
	// Registry takes the metrics, and Gatherer has all that are served. Those of queues and clients are in controller-runtime's registry.
	Registry prometheus.Registerer
	Gatherer prometheus.Gatherer
	Clock    clock.WithTicker
	// Probes is served instead of the address for probes in Options, if it is not nil. Run closes it.
	Probes net.Listener
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
	shares := &preset.Shares{}
	mgr, err := c.manager(scheme, shares)
	if err != nil {
		return err
	}
	scratch, removeScratch, err := c.scratch()
	if err != nil {
		return err
	}
	defer removeScratch()
	parts, err := c.parts(mgr, live, scratch, shares)
	if err != nil {
		return err
	}
	if err := errors.Join(c.serve(mgr), c.reconcile(mgr, live, parts)); err != nil {
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
func (c Controller) parts(mgr manager.Manager, live client.Client, scratch string, shares *preset.Shares) (Parts, error) {
	config := c.Options.Registries
	config.UserAgent = names.Controller
	config.Ranges, config.Report = clusterAddresses(mgr.GetClient()), logReason
	config.Tries = 2 // the queue tries again, and other objects wait
	registry, err := registry.NewClient(config)
	if err != nil {
		return Parts{}, fmt.Errorf("registries: %w", err)
	}
	pauses := &pause.Reader{Live: live, Namespace: c.Options.Namespace, Clock: c.Clock, Started: c.Clock.Now()}
	services := reconciler.Services{
		Budget: status.NewBudget(c.Clock),
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder(names.Controller), Clock: c.Clock,
		Pause: pauses.Remaining, Namespace: c.Options.Namespace,
	}
	return Parts{
		Services: services, Options: c.Options, Registry: registry, Scratch: bitstreams.NewScratch(scratch),
		Policies: trustpolicies.NewReader(services.Client, c.Options.PublicTrustRoot, c.Options.Registries.Mirrors.Names()),
		Volumes:  volumes.NewPlanner(services, c.Options.KernelCacheVolumes),
		Presets:  shares,
		Version:  c.version,
	}, nil
}

// version asks the API server for its version, "1.37".
func (c Controller) version() (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		return "", err
	}
	version, err := client.ServerVersion()
	if err != nil {
		return "", err
	}
	return version.Major + "." + strings.TrimSuffix(version.Minor, "+"), nil
}

// serve adds what every replica serves to the manager.
func (c Controller) serve(mgr manager.Manager) error {
	probes := &httpserver.Server{
		Name: "probes", Address: c.Options.ProbeAddress, Listener: c.Probes, Handler: httpserver.Health(func() error { return nil }),
	}
	return errors.Join(mgr.Add(everyReplica(probes.Run)), mgr.Add(everyReplica(func(ctx context.Context) error {
		return c.Options.Metrics.Run(ctx, c.Gatherer)
	})))
}

// everyReplica runs in every replica and not only in the leader.
type everyReplica func(context.Context) error

func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }

func (everyReplica) NeedLeaderElection() bool { return false }

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
func (c Controller) manager(scheme *runtime.Scheme, shares *preset.Shares) (manager.Manager, error) {
	kept, err := cacheOptions(c.Options, shares)
	if err != nil {
		return nil, err
	}
	mgr, err := manager.New(c.Config, manager.Options{
		Scheme: scheme,
		Logger: klog.Background(),
		// Both are served by httpserver, within its limits.
		Metrics:                       server.Options{BindAddress: "0"},
		HealthProbeBindAddress:        "0",
		Cache:                         kept,
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
func cacheOptions(o Options, shares *preset.Shares) (cache.Options, error) {
	byObject := map[client.Object]cache.ByObject{}
	claims.Cached(byObject)
	cachedNodes(byObject)
	err := errors.Join(stacks.Cached(byObject, o.Namespace, o.Checks, o.DriverNamespace), volumes.Cached(byObject))
	return cache.Options{DefaultTransform: presets.Transform(shares, nodes.Trim), ByObject: byObject}, err
}
