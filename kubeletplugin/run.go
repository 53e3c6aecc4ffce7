// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatav1alpha1 "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/disk"
)

// Run serves kubelet until ctx ends or a fatal error occurs. It returns after everything that it started has ended, and removes its
// sockets, which a newer instance cannot do.
func (p *Plugin) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	uevents, err := inventory.WatchUevents(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("No uevents: hardware changes are noticed at the interval only",
			"interval", p.config.File.DiscoveryInterval.Duration, "reason", err)
	}
	live, err := newLiveness(&p.config)
	if err != nil {
		return err
	}
	if err := p.engine.Index(ctx); err != nil {
		return fmt.Errorf("read what claims hold on this node: %w", err)
	}
	defer p.engine.Stop()
	if err := p.config.removeDeadSockets(time.Now()); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the sockets of earlier instances")
	}
	for _, part := range having[watcher](p.parts) {
		defer part.Watch(ctx)()
	}
	// If a service fails while ctx goes on, the watches above end before their ends are waited for.
	defer cancel()
	helper, err := kubeletplugin.Start(ctx, p, p.options()...)
	if err != nil {
		return fmt.Errorf("start serving kubelet: %w", err)
	}
	defer helper.Stop()
	p.readiness.serve(helper.RegistrationStatus)

	group, ctx := errgroup.WithContext(ctx)
	for _, service := range p.services(uevents, helper) {
		group.Go(func() error { service(ctx); return nil })
	}
	group.Go(func() error { return p.serveHealth(ctx, live) })
	group.Go(func() error { return p.serveHTTP(ctx) })
	if p.config.Metrics.Address != "" {
		group.Go(func() error { return p.config.Metrics.Run(ctx, p.metrics.registry) })
	}
	group.Go(func() error { return live.listen(ctx, p.config.HealthPort) })
	err = group.Wait()
	p.features.hostDirs.Wait()
	return err
}

// services returns the background services. Each runs until its context ends.
func (p *Plugin) services(uevents <-chan struct{}, helper *kubeletplugin.Helper) []func(context.Context) {
	services := []func(context.Context){
		func(ctx context.Context) { p.scanner.Run(ctx, uevents) },
		func(ctx context.Context) { p.publisher.Run(ctx, helper.PublishResources) },
		p.runEngine,
		p.watchRequests,
		p.followDeleted,
	}
	for _, part := range having[runner](p.parts) {
		services = append(services, part.Run)
	}
	return services
}

func (p *Plugin) options() []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(v1alpha1.DriverName),
		kubeletplugin.KubeClient(p.clients.Kube),
		kubeletplugin.NodeName(p.config.Node),
		kubeletplugin.PluginDataDirectoryPath(p.config.pluginDir()),
		kubeletplugin.RegistrarDirectoryPath(p.config.RegistryDir),
		kubeletplugin.CDIDirectory(p.config.CDIRoot),
		kubeletplugin.RollingUpdate(types.UID(p.config.PodUID)),
		// The records' own locks are per claim and device, honour deadlines and also work between processes.
		kubeletplugin.Serialize(false),
		kubeletplugin.GRPCInterceptor(stampArrivals(p.engine.Now)),
	}
	if p.config.File.Metadata() {
		options = append(options, kubeletplugin.EnableDeviceMetadata(true, metadataVersions()))
	}
	return options
}

// metadataVersions are the versions in which files describe devices to containers, newest first. KubeVirt 1.9 reads v1alpha1 only
// (pkg/dra/metadata/types.go, d923fdb8).
func metadataVersions() []schema.GroupVersion {
	return []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion, metadatav1alpha1.SchemeGroupVersion}
}

// runEngine waits for the first scan, then recovers interrupted claims and checks prepared ones.
func (p *Plugin) runEngine(ctx context.Context) {
	if _, err := p.holder.Await(ctx); err != nil {
		return
	}
	p.engine.Run(ctx, p.config.File.ReconcileInterval.Duration, p.review.Send)
}

// watchRequests follows what the annotations of the node's AcceleratorNode ask for.
func (p *Plugin) watchRequests(ctx context.Context) {
	p.retirement.Watch(ctx, p.clients.Dynamic, p.config.Node, retirement.Requests{
		Recover: p.recoverDevices, Upgrade: p.quiesce.SetUpgrade, Quiesce: p.quiesce.Set, ClaimDeleted: p.claimDeleted.Send,
		Waiting: p.binder.Named,
	})
}

// recoverDevices forgives devices their faults. Of those that are named, not only meant by "*", it gives up the data of claims that the
// plugin cannot find to delete.
func (p *Plugin) recoverDevices(ctx context.Context, request string) {
	p.engine.Abandon(ctx, p.health.Recover(ctx, request))
}

// followDeleted finds deleted claims that hold devices. The first look comes after the first scan, which others wait for.
func (p *Plugin) followDeleted(ctx context.Context) {
	if _, err := p.holder.Await(ctx); err != nil {
		return
	}
	p.engine.FollowDeleted(ctx, p.config.File.ReconcileInterval.Duration, p.claimDeleted)
}

// removeNodeFiles removes all files of the plugin on the node. It returns false if a claim was prepared meanwhile.
func (p *Plugin) removeNodeFiles(ctx context.Context) (bool, error) {
	hold, err := p.records.LockAll(ctx)
	if err != nil {
		return false, err
	}
	defer hold.Release()
	uids, err := p.records.Claims()
	if err != nil || len(uids) > 0 {
		return false, err
	}
	files, err := p.specs.Unwanted(nil)
	err = errors.Join(err, p.specs.Sweep(files))
	for _, part := range having[destroyer](p.parts) {
		err = errors.Join(err, part.Destroy())
	}
	err = errors.Join(err, p.config.removeDeadSockets(time.Now()), p.config.removeMetadata())
	err = errors.Join(err, p.mounts.Destroy(), cdi.RemoveSecret(disk.OS{}, p.config.StateDir), p.records.Destroy())
	return err == nil, err
}
