// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/caches"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Clients are the plugin's ways to the API server.
type Clients struct {
	Kube kubernetes.Interface
	// Dynamic writes AcceleratorNode objects.
	Dynamic dynamic.Interface
}

// Plugin is one instance of the kubelet plugin. New builds it without any effect but its directories; Run serves.
type Plugin struct {
	config  Config
	clients Clients
	metrics *metrics
	store   *record.Store
	specs   *specKeeper
	engine  *engine.Engine
	looker  *looker
	latest  *latest
	retired *retirement
	health  *healthKeeper
	fpgas   *fpgas
	presets *presets
	caches  *caches.Keeper
	pods    *pods
	// mounts are those that one claim alone has.
	mounts *hostmount.Dir
	// hooks is nil where none are installed.
	hooks *hooks
	// claims carries a value after the set of prepared claims, or of the files that the node holds, changed.
	claims chan struct{}
	// kept carries a value after what objects say of caches changed.
	kept chan struct{}
	// freed carries a value after a claim gave back a CDI spec of its own.
	freed chan struct{}

	mu sync.Mutex
	// teller and helper exist while Run does.
	teller *teller
	helper *kubeletplugin.Helper
	// publishErr is the last error of publishing that no success followed.
	publishErr error
}

// New checks the configuration and opens the plugin's directories. bootID is the host's, see BootID.
func New(config Config, clients Clients, bootID string) (*Plugin, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid configuration: %w", err)
	}
	store, err := record.Open(disk.OS{}, config.StateDir)
	if err != nil {
		return nil, err
	}
	dir, err := cdi.Open(disk.OS{}, config.CDIRoot)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(config.pluginDir(), 0o750); err != nil {
		return nil, fmt.Errorf("make the plugin's directory: %w", err)
	}
	m := newMetrics()
	p := &Plugin{
		config: config, clients: clients, metrics: m, store: store, latest: newLatest(), retired: newRetirement(),
		claims: make(chan struct{}, 1), kept: make(chan struct{}, 1), freed: make(chan struct{}, 1),
	}
	p.health = newHealthKeeper(&p.config, clients.Kube, bootID, p.latest, p.retired, m, store.Held)
	if p.fpgas, err = p.newFPGAs(bootID); err != nil {
		return nil, err
	}
	if config.HookCommand != "" {
		if p.hooks, err = installHook(store, config.HookCommand, filepath.Join(config.StateDir, "hooks")); err != nil {
			return nil, err
		}
	}
	p.mounts = hostmount.In(filepath.Join(p.config.StateDir, "mounts"), p.config.HostRoot)
	p.presets = p.newPresets()
	p.pods = &pods{kube: clients.Kube, node: config.Node}
	p.caches = p.newCaches()
	p.engine = p.newEngine(bootID, dir)
	p.specs = &specKeeper{store: store, dir: dir, engine: p.engine, metrics: m}
	p.looker = &looker{
		config: &p.config, store: store, latest: p.latest, metrics: p.metrics, purger: newPurger(p.metrics), query: p.nvmlQuery(),
		wake: make(chan struct{}, 1), again: make(chan struct{}, 1), contents: p.fpgas.contents, bootID: bootID, recovering: p.engine.Recovering,
	}
	return p, nil
}

// storeInterval is how often what was evicted from the store of bitstreams is deleted.
const storeInterval = 10 * time.Minute

// callBudget is how long a call of kubelet's waits for its claim. kubelet itself gives up after 45 s, and a pod whose call it gave up
// waits for a minute or two.
const callBudget = 30 * time.Second

func (p *Plugin) newEngine(bootID string, dir *cdi.Dir) *engine.Engine {
	kinds := p.fpgas.kinds()
	kinds[hostdir.StepKind] = hostdir.Kind(p.config.HostRoot, hostdir.OpenRoot)
	kinds[cdi.StepKind] = dir.Kind()
	kinds[hostmount.StepKind] = p.mounts.Kind()
	kinds[caches.StepKind] = p.caches.Kind()
	return engine.New(engine.Config{
		Node: p.config.Node, HostRoot: p.config.HostRoot, BootID: bootID, Store: p.store, Specs: dir,
		Kinds: kinds, Effects: p.fpgas.effects, Remains: p.remains, Orphans: p.orphans,
		Presets: p.additions,
		Machine: p.machine, MayUse: p.health.mayPrepare, Quarantine: p.health.quarantine,
		Clear: p.health.clear, GivenBack: p.givenBack, Claim: p.claim, KubeletState: p.config.KubeletState,
		Uptime: uptime, Budget: callBudget, Report: p.tell,
	})
}

// remains are the steps that a claim whose record is lost may have had.
func (p *Plugin) remains(ctx context.Context, uid string, dev device.Device) ([]step.Step, error) {
	steps, err := p.fpgas.remains(ctx, uid, dev)
	if err != nil {
		return nil, err
	}
	left, err := p.mounts.Left(uid)
	if err != nil {
		return nil, err
	}
	kept, err := p.caches.Remains(uid) // undone last: their mounts are left ones
	return append(append(kept, steps...), left...), err
}

func (p *Plugin) machine() engine.Machine {
	if v, _ := p.latest.get(); v != nil {
		return v
	}
	return nil
}

func (p *Plugin) claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return p.clients.Kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (p *Plugin) nvmlQuery() func(context.Context) (nvml.Report, error) {
	file := p.config.File.NVML
	if file.Disabled || p.config.NVMLCommand == "" {
		return nil
	}
	command := nvml.Command{Path: p.config.NVMLCommand, DriverRoot: file.DriverRoot, Timeout: file.Timeout.Duration}
	return nvml.NewProber(command).Query
}

// Run serves kubelet until ctx ends or something fatal happens, and returns after everything it started has ended. The sockets are
// removed on the way out, which a newer instance cannot do for an older one.
func (p *Plugin) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: p.clients.Kube.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("start the recorder of Events: %w", err)
	}
	defer broadcaster.Shutdown()
	p.teller = &teller{client: p.clients.Kube, events: broadcaster.NewRecorder(scheme.Scheme, "fettle-kubeletplugin"), now: time.Now}

	uevents, err := watchUevents(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("Hardware changes are seen at the interval only",
			"interval", p.config.File.DiscoveryInterval.Duration, "reason", err)
	}
	p.looker.uevents = uevents
	live, err := newLiveness(&p.config)
	if err != nil {
		return err
	}
	if err := p.engine.Index(ctx); err != nil {
		return fmt.Errorf("read what claims hold on this node: %w", err)
	}
	defer p.engine.Stop()
	if p.hooks != nil {
		if err := p.hooks.sweep(); err != nil {
			klog.FromContext(ctx).Error(err, "Builds of the hook that nobody needs may stay")
		}
	}
	unwatched, err := p.presets.watch(ctx)
	if err != nil {
		return err
	}
	defer unwatched()
	var cachesAhead *forerunner
	if p.config.File.KernelCaches.Enabled {
		var stopped func()
		if cachesAhead, stopped, err = p.watchCaches(ctx); err != nil {
			return err
		}
		defer stopped()
	}
	helper, err := kubeletplugin.Start(ctx, p, p.options()...)
	if err != nil {
		return fmt.Errorf("start serving kubelet: %w", err)
	}
	defer helper.Stop()
	p.setHelper(helper)
	p.health.tell = p.tellNode

	group, ctx := errgroup.WithContext(ctx)
	run := func(f func(context.Context)) { group.Go(func() error { f(ctx); return nil }) }
	run(p.looker.run)
	run(p.health.run)
	run(p.publish)
	run(p.keepOrder)
	run(func(ctx context.Context) { p.fpgas.artifacts.tend(ctx, storeInterval) })
	run(p.newReporter().run)
	if len(p.config.File.BindLate()) > 0 {
		run(p.newBinder().run)
	}
	if p.config.File.FPGA.FetchAhead {
		ahead := bitstreamsAhead{bitstreams: p.fpgas.bitstreams, files: p.fpgas.artifacts}
		run(p.newForerunner(ahead.forerunner()).run)
	}
	run(p.tendCaches)
	if cachesAhead != nil && p.config.File.KernelCaches.FetchAhead {
		run(cachesAhead.run)
	}
	run(func(ctx context.Context) { p.retired.watch(ctx, p.clients.Dynamic, p.config.Node, p.health.forgive) })
	group.Go(func() error { return serveHTTP(ctx, p.config.HTTPAddress, p.metrics.registry, p.Ready) })
	group.Go(func() error { return live.serve(ctx, p.config.HealthPort) })
	err = group.Wait()
	p.looker.purger.wait()
	return err
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
		// The state's own locks are per claim and device, honour deadlines and count between processes too.
		kubeletplugin.Serialize(false),
		kubeletplugin.GRPCInterceptor(stampArrivals(p.engine.Now)),
	}
	if p.config.File.DeviceMetadata {
		options = append(options, kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}))
	}
	return options
}

// keepOrder undoes what earlier processes left halfway and looks after prepared claims, once the machine was looked at.
func (p *Plugin) keepOrder(ctx context.Context) {
	if _, err := p.awaitView(ctx); err != nil {
		return
	}
	p.engine.Run(ctx, p.config.File.ReconcileInterval.Duration, func() { signal(p.looker.wake) })
}

func (p *Plugin) setHelper(h *kubeletplugin.Helper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.helper = h
}

// Ready returns nil once kubelet knows the plugin, the machine was looked at, and the API server took what was published.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.helper == nil {
		return errors.New("not started yet")
	}
	status := p.helper.RegistrationStatus()
	switch {
	case status == nil:
		return errors.New("kubelet has not registered the plugin yet")
	case !status.PluginRegistered:
		return fmt.Errorf("kubelet refused to register the plugin: %s", status.Error)
	}
	if v, _ := p.latest.get(); v == nil {
		return errors.New("the machine was not looked at yet")
	}
	if p.publishErr != nil {
		return fmt.Errorf("ResourceSlices are not as wanted: %w", p.publishErr)
	}
	return nil
}
