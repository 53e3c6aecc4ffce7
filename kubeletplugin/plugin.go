// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/binding"
	"github.com/fettle-dev/fettle/kubeletplugin/deviceclasses"
	"github.com/fettle-dev/fettle/kubeletplugin/devicehealth"
	"github.com/fettle-dev/fettle/kubeletplugin/dryrun"
	"github.com/fettle-dev/fettle/kubeletplugin/foreigndevices"
	"github.com/fettle-dev/fettle/kubeletplugin/fpgas"
	"github.com/fettle-dev/fettle/kubeletplugin/hostdirs"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/kernelcaches"
	"github.com/fettle-dev/fettle/kubeletplugin/nodeview"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/partitions"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/presets"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/kubeletplugin/sharing"
	"github.com/fettle-dev/fettle/kubeletplugin/status"
	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/preset/hostfiles"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Clients are the plugin's clients of the API server.
type Clients struct {
	Kube kubernetes.Interface
	// Dynamic reads and writes Fettle's own objects.
	Dynamic dynamic.Interface
	// Events records Events. It must not block.
	Events events.EventRecorder
}

// Plugin is one instance of the kubelet plugin. New only creates its directories; Run serves.
type Plugin struct {
	config  Config
	clients Clients
	metrics *metrics
	// review makes the scanner check again which devices are free, claimsChanged the reporter count again, and freed the publisher sweep.
	// claimDeleted makes the engine look up the claims that hold devices.
	review, claimsChanged, freed, claimDeleted notify.Signal

	holder     *inventory.Holder
	retirement *retirement.State
	quiesce    *quiesce.State
	records    *record.Store
	specs      *cdi.Dir
	names      *cdi.Names
	mounts     *hostmount.Dir
	node       *status.NodeEvents
	health     *devicehealth.Monitor
	view       *nodeview.View
	classes    *deviceclasses.Classes
	artifacts  *artifacts.Node
	policies   *trustpolicies.Reader
	foreign    *foreigndevices.Feature
	features   features
	engine     *prepare.Engine
	scanner    *inventory.Scanner
	// places reads where devices of the configuration are, which a disk may not answer.
	places    *sysfs.Reads
	publisher *publish.Publisher
	claims    *status.ClaimWriter
	reporter  *status.Reporter
	binder    *binding.Binder
	readiness *readiness
	parts     parts
}

// features are the plugin's features. A new one needs a line here and in list, and is made in newFeatures.
type features struct {
	hostDirs     *hostdirs.Feature
	kernelCaches *kernelcaches.Feature
	fpgas        *fpgas.Feature
	partitions   *partitions.Feature
	sharing      *sharing.Feature
	presets      *presets.Feature
}

// list returns the features in the order of their steps. The leftovers of a lost record are undone in reverse: mounts, strategies, parts of
// GPUs, regions, pins of caches, directories last.
func (f *features) list() []prepare.Feature {
	return []prepare.Feature{f.hostDirs, f.kernelCaches, f.fpgas, f.partitions, f.sharing, f.presets}
}

// nodeAge is how old the plugin's copy of its Node may be, in intervals of reconciliation: labels and other drivers' resources change
// rarely.
const nodeAge = 3

// New checks the configuration, opens the plugin's directories and builds all services. bootID is the host's, see BootID.
func New(ctx context.Context, config Config, clients Clients, bootID string) (*Plugin, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid configuration: %w", err)
	}
	p := &Plugin{
		config: config, clients: clients, metrics: newMetrics(), holder: inventory.NewHolder(), retirement: retirement.New(),
		review: notify.New(), claimsChanged: notify.New(), freed: notify.New(), claimDeleted: notify.New(),
		node:   &status.NodeEvents{Node: config.Node, Events: clients.Events},
		mounts: hostmount.In(filepath.Join(config.StateDir, "mounts"), config.HostRoot),
		places: sysfs.NewReads(clock.RealClock{}, placePatience),
	}
	p.readiness = &readiness{holder: p.holder}
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	rescan, requery := notify.New(), notify.New()
	var err error
	if p.quiesce, err = quiesce.Open(quiesce.Config{
		Dir: config.StateDir, NVMLCommand: config.NVMLCommand, Review: p.review, Requery: requery, Retired: p.retirement.On,
		HostRoot: config.HostRoot, SeesProcesses: config.File.Partitions.PCI,
	}); err != nil {
		return nil, err
	}
	if p.view, err = nodeview.New(clients.Kube, config.Node, nodeAge*config.File.ReconcileInterval.Duration, clock.RealClock{}); err != nil {
		return nil, err
	}
	p.health = devicehealth.New(devicehealth.Config{
		Node: config.Node, HostRoot: config.HostRoot, StateDir: config.StateDir, BootID: bootID, NVMLCommand: config.NVMLCommand,
		File: &p.config.File, Client: clients.Kube, ReadNode: p.view.Node, ReadSlices: p.view.Slices,
		Holder: p.holder, Retirement: p.retirement, Quiesce: p.quiesce,
		Held: p.records.Held, HeldBy: p.records.HeldBy,
		Event:    p.node.EventOf("Watch"),
		Registry: p.metrics.registry, Errors: p.metrics.backgroundErrors,
	})
	if err := p.newFeatures(bootID, rescan, requery); err != nil {
		return nil, err
	}
	if p.classes, err = deviceclasses.New(clients.Kube); err != nil {
		return nil, err
	}
	holdings := partitions.HoldingsOf(p.features.partitions)
	p.foreign = foreigndevices.New(foreigndevices.Config{
		Node: config.Node, Entries: config.File.ForeignDevices, Interval: config.File.ReconcileInterval.Duration, ReadNode: p.view.Node,
		Records: p.records, PartsHeld: holdings.Parts, Absent: holdings.Absent, Recheck: p.review,
	})
	p.parts = p.listParts()
	p.engine = prepare.New(prepare.Config{
		Node: config.Node, BootID: bootID, Store: p.records, Specs: p.specs, Names: p.names, Features: p.features.list(),
		Machine: p.machine, PlaceOf: p.placeOf, ScanAgain: func(ctx context.Context) error { return p.scanner.Again(ctx) },
		Health: healthCheck{p.health, p.checkRetired, p.foreign, p.quiesce, p.holder}, Claim: p.claim, Classes: p.classes.Of,
		NamespaceUID: p.namespaceUID,
		KubeletState: config.KubeletState,
		Uptime:       uptime, Budget: callBudget,
		Limits: p.limits(),
		Observer: &observer{
			node: p.node, metrics: p.metrics, settling: p.features.partitions.Settling, review: p.review, claims: p.claimsChanged,
			show: func(c *resourceapi.ResourceClaim, r *record.Record) error { return p.claims.WriteDevicesLater(c, r) },
		},
	})
	p.newServices(bootID, rescan, requery)
	return p, nil
}

// listParts returns what claims and reviews of the machine need. The devices of other drivers come before the features, which do not see
// them. Files are destroyed in this order: the features' before those of the store
// that they fetch into.
func (p *Plugin) listParts() parts {
	parts := parts{p.view, p.classes, p.foreign}
	if p.config.File.KernelCaches.Enabled || p.config.File.FPGA.Programming {
		parts = append(parts, p.policies)
	}
	for _, feature := range p.features.list() {
		parts = append(parts, feature)
	}
	return append(parts, p.health, p.retirement, p.quiesce, p.artifacts)
}

// limits returns what claims may hold on this machine.
func (p *Plugin) limits() budget.Limits {
	return p.config.File.Budget.Limits(machineMemory(), p.config.File.Artifacts.MaxSize.Value())
}

// machineMemory returns the machine's memory in bytes.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0 // fails for a bad address only
	}
	return int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64)) //nolint:unconvert // the types differ by architecture
}

// callBudget is how long a call of kubelet waits for its claim. kubelet gives up after 45 s and then waits a minute or two before it tries
// again.
const callBudget = 30 * time.Second

// open opens the plugin's directories.
func (p *Plugin) open(ctx context.Context) (err error) {
	if p.records, err = record.Open(disk.OS{}, p.config.StateDir); err != nil {
		return err
	}
	if p.specs, err = cdi.Open(disk.OS{}, p.config.CDIRoot); err != nil {
		return err
	}
	if err := os.MkdirAll(p.config.pluginDir(), 0o750); err != nil {
		return fmt.Errorf("make the plugin's directory: %w", err)
	}
	return p.openNames(ctx)
}

// openNames opens the node's secret. The lock keeps the other plugin of a rolling update from making another one.
func (p *Plugin) openNames(ctx context.Context) error {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	hold, err := p.records.LockSpecs(ctx, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	names, err := cdi.OpenNames(disk.OS{}, p.config.StateDir)
	if names == nil {
		return err
	}
	if err != nil {
		klog.Background().Error(err, "New claims get CDI names by a new secret")
	}
	p.names = names
	return nil
}

func (p *Plugin) newFeatures(bootID string, rescan, requery notify.Signal) error {
	c, file := &p.config, &p.config.File
	addresses := &artifacts.Addresses{Kube: p.clients.Kube, Node: c.Node, Clock: clock.RealClock{}}
	registries := c.Registries
	registries.UserAgent = "fettle-kubeletplugin"
	registries.Ranges, registries.Report = addresses.Ranges, artifacts.LogReason
	client, err := registry.NewClient(registries)
	if err != nil {
		return fmt.Errorf("registries: %w", err)
	}
	mounter := &cachemount.Mounter{
		Mounts: p.mounts, Dir: filepath.Join(c.StateDir, "caches"), Context: c.containerContext(), MaxEntries: file.Budget.MaxSeedEntries,
		Turns: budget.NewTurns(budget.Limit{Node: seedTurns(), Namespace: 1}),
	}
	limits := file.Artifacts.StoreConfig()
	limits.InUse = mounter.InUse
	limits.NamespaceBytes = p.limits()[budget.PinnedBytes].Namespace
	p.artifacts = artifacts.New(artifacts.Config{
		Dir: filepath.Join(c.StateDir, "artifacts"), Limits: limits, Client: client, Kube: p.clients.Kube, Retired: p.retirement.On,
	})
	p.metrics.registry.MustRegister(p.artifacts.Metrics())
	if p.policies, err = trustpolicies.NewReader(p.clients.Dynamic, c.PublicTrustRoot, c.Registries.Mirrors.Names()); err != nil {
		return err
	}
	f := &p.features
	f.hostDirs = hostdirs.New(hostdirs.Config{
		Node: c.Node, HostRoot: c.HostRoot, Held: p.records.Held, Recorded: p.records.Recorded, Emptied: p.review,
		Errors: p.metrics.backgroundErrors,
	})
	if f.kernelCaches, err = kernelcaches.New(kernelcaches.Config{
		Node: c.Node, Enabled: file.KernelCaches.Enabled, Kube: p.clients.Kube,
		Dynamic: p.clients.Dynamic, Namespace: c.Namespace, Client: client, Store: p.artifacts.Store, Credentials: p.artifacts.Credentials,
		Mounter: mounter, CanMount: hostmount.CanMount, Policies: p.policies, Clock: clock.RealClock{}, Changed: p.claimsChanged.Send,
		MaxWritable: file.Budget.MaxWritableLimit.Value(), Unpacking: kernelcaches.Lanes(file.Budget.Unpacking.Limit()),
		Event: p.node.ClaimEvent, ObjectEvent: p.node.KeepEvent,
	}); err != nil {
		return err
	}
	f.fpgas = fpgas.New(fpgas.Config{
		Node: c.Node, HostRoot: c.HostRoot, StateDir: c.StateDir, BootID: bootID, Namespace: c.Namespace, File: &file.FPGA,
		Dynamic: p.clients.Dynamic, Policies: p.policies, Clock: clock.RealClock{}, Records: p.records, Artifacts: p.artifacts,
		Holder: p.holder, Rescan: rescan, Registry: p.metrics.registry, Names: p.names,
		Event: p.node.ProgramEvent,
	})
	library := c.nvmlProber()
	if f.partitions, err = partitions.New(partitions.Config{
		Node: c.Node, HostRoot: c.HostRoot, StateDir: c.StateDir, BootID: bootID, PCI: file.Partitions.PCI,
		Interval: file.ReconcileInterval.Duration, ReadNode: p.view.Node, Kube: p.clients.Kube, Dynamic: p.clients.Dynamic, Records: p.records,
		CounterForm: func(ctx context.Context) (partition.Form, error) {
			return dryrun.CounterForm(ctx, p.clients.Kube, c.Node)
		},
		KeepsShares: func(ctx context.Context) (bool, error) { return dryrun.KeepsShares(ctx, p.clients.Kube, c.Node) },
		Registry:    p.metrics.registry,
		Quiesced:    p.quiesce.Holds,
		Retired:     p.retirement.On,
		Library:     library, Recheck: p.review, Requery: requery, Errors: p.metrics.backgroundErrors,
		Event: p.node.EventOf("Partition"),
	}); err != nil {
		return err
	}
	if f.sharing, err = sharing.New(sharing.Config{
		HostRoot: c.HostRoot, StateDir: c.StateDir, BootID: bootID, Enabled: file.Partitions.Strategies,
		Supervisor: file.Partitions.MPSSupervisor, ContainerContext: c.containerContext(),
		HostDriverRoot: file.NVML.HostRoot(), DriverRoot: cmp.Or(file.NVML.DriverRoot, "/"), Allowed: f.partitions.Allowed,
		Library: library, Load: p.records.Load, Devices: p.gpus,
		Level: func(ctx context.Context, device, problem string) {
			p.health.ReportLevel(ctx, health.SourceMPS, health.MPSDaemon, device, problem)
		},
		Event:      p.node.EventOf("Share"),
		ClaimEvent: p.node.RecordEvent,
	}); err != nil {
		return err
	}
	return p.newPresets()
}

// gpus returns the UUIDs of the GPUs that the last scan found, and of their parts, by name.
func (p *Plugin) gpus() map[string]string {
	uuids := map[string]string{}
	if v, _ := p.holder.Get(); v != nil {
		for i := range v.Devices {
			if d := &v.Devices[i]; d.Kind == device.KindGPU {
				uuids[d.Name] = device.StringOf(d.Attributes[device.AttributeUUID])
			}
		}
	}
	return uuids
}

// seedTurns returns how many caches are looked through and seeds made at once: two, but on no more than half of the processors, since
// claims that need none of it wait for one, too.
func seedTurns() int64 { return int64(max(1, min(2, runtime.NumCPU()/2))) }

func (p *Plugin) newPresets() (err error) {
	c, file := &p.config, &p.config.File.Presets
	finder := &hostfiles.Finder{
		Root: c.HostRoot, Drivers: hostfiles.NewDrivers(c.HostRoot, c.NVMLCommand, &c.File.NVML), Allowed: file.AllowedHostPaths,
		Scratch: file.Scratch, MaxScratch: c.File.Budget.MaxSizeLimit.Value(), Mounts: p.mounts,
		Copies: c.File.Mounts(), Writable: c.writable(),
	}
	if c.HostRoot != "/" {
		finder.Directories = file.HostDirectories
	}
	var hook *presets.Hook
	if c.HookCommand != "" {
		if hook, err = presets.InstallHook(p.records, c.HookCommand, filepath.Join(c.StateDir, "hooks")); err != nil {
			return err
		}
		finder.Hook = hook.Ready
	}
	p.features.presets, err = presets.New(presets.Config{
		Kube: p.clients.Kube, Dynamic: p.clients.Dynamic, Holder: p.holder, Records: p.records, Namespace: c.Namespace,
		Find: finder.FindBeside, Mounts: p.mounts, Hook: hook, Event: p.node.ClaimEvent, PodEvent: p.node.PodEvent,
		Configured: finder.ContainersWrite(), ReportMissing: file.ReportMissing,
	})
	return err
}

// askNVML returns the scanner's question to NVIDIA's library, or nil if it is not asked. While its driver is quiesced no child is started:
// the last answer serves, for devices that are withheld.
func (p *Plugin) askNVML() func(context.Context) (nvml.Report, error) {
	ask := p.features.partitions.Query(p.config.nvmlQuery())
	if ask == nil {
		return nil
	}
	var last *nvml.Report // the scanner asks once at a time
	return func(ctx context.Context) (nvml.Report, error) {
		if p.quiesce.Holds("nvidia") && last != nil {
			return *last, nil
		}
		if p.quiesce.Holds("nvidia") {
			return nvml.Report{}, errors.New("the driver is quiesced (annotation " + v1alpha1.QuiesceAnnotation + " on the node's AcceleratorNode)")
		}
		report, err := ask(ctx)
		if err == nil {
			last = &report
		}
		return report, err
	}
}

// newServices builds the background services.
func (p *Plugin) newServices(bootID string, rescan, requery notify.Signal) {
	c, f, errs := &p.config, &p.features, p.metrics.backgroundErrors
	p.scanner = inventory.NewScanner(inventory.Config{
		Node: c.Node, HostRoot: c.HostRoot, File: &c.File, Query: p.askNVML(), Holder: p.holder,
		Rescan: rescan, Requery: requery, Review: p.review,
		Reviewers: having[inventory.Reviewer](p.parts), Recovering: p.engine.Recovering,
		HeldByDeleted: p.engine.HeldByDeleted, Metrics: inventory.NewMetrics(p.metrics.registry, errs, callBuckets()),
	})
	p.publisher = publish.New(publish.Config{
		Node: c.Node, Holder: p.holder, Retirement: p.retirement, Records: p.records, Specs: p.specs, Names: p.names,
		Sweep: p.engine.SweepSpecs, Freed: p.freed, Failed: p.HandleError, Errors: errs,
	})
	p.claims = status.NewClaimWriter(status.ClaimConfig{
		Client: p.clients.Kube, Events: p.clients.Events, Clock: clock.RealClock{}, Reason: p.parts.reason, Overtaken: prepare.Overtaken,
		Programmed: f.fpgas.Programmed, Presets: f.presets.Origins,
	})
	p.reporter = status.NewReporter(status.ReporterConfig{
		Node: c.Node, Version: c.Version, BootID: bootID, BootTime: c.BootTime, PodUID: c.PodUID,
		ReadSlices: p.view.Slices, SlicesNow: p.view.SlicesNow, Dynamic: p.clients.Dynamic,
		Holder: p.holder, Retirement: p.retirement, Quiesce: p.quiesce, Records: p.records, Changed: p.claimsChanged,
		Bitstreams: p.artifacts.Held, Presets: f.presets.NodeStatus,
		KernelCaches: f.kernelCaches.NodeStatus, UpToDate: publish.UpToDate, Published: p.published, Ready: p.Ready, Empty: p.removeNodeFiles,
		Containers: c.containers(), Registry: p.metrics.registry, Errors: errs,
	})
	p.binder = binding.New(binding.Config{
		Node: c.Node, Client: p.clients.Kube, Claims: p.claims, Holder: p.holder, Resolve: p.engine.Resolve, Kinds: p.bindingKinds(),
		Reason:   p.parts.reason,
		Underway: isUnderway, Permanent: p.parts.isPermanent,
		Prepare: func(ctx context.Context, claim *resourceapi.ResourceClaim) error {
			return p.prepareClaim(ctx, claim, nil).Err
		},
	})
	p.view.OnSlices(p.claimsChanged.Send)
	p.parts = append(p.parts, p.reporter, p.claims)
	if len(c.File.BindLate()) > 0 {
		p.parts = append(p.parts, p.binder)
	}
	p.parts = append(p.parts, p.prefetchers()...)
}

// prefetchers fetch files that fit the node before a claim needs them, one for each kind of file.
func (p *Plugin) prefetchers() (all parts) {
	file := &p.config.File
	config := artifacts.PrefetchConfig{
		Node: p.config.Node, Holder: p.holder, Retirement: p.retirement, Clock: clock.RealClock{}, Fetched: p.claimsChanged.Send,
	}
	if file.FPGA.FetchAhead {
		all = append(all, artifacts.NewPrefetcher(config, p.features.fpgas.Source()))
	}
	if file.KernelCaches.Enabled && file.KernelCaches.FetchAhead {
		all = append(all, artifacts.NewPrefetcher(config, p.features.kernelCaches.Source()))
	}
	return all
}

// bindingKinds returns the device kinds whose pods are bound only after the plugin allows it.
func (p *Plugin) bindingKinds() []binding.Kind {
	all := []binding.Kind{
		{
			Kind: device.KindFPGA, Subject: "the bitstream is", BindAfter: fpgas.BindAfter,
			Ready: func(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, s *inventory.Snapshot) error {
				return p.fetchBitstreams(ctx, c, a, findIn(s))
			},
		},
		{
			Kind: device.KindGPU, Subject: "the kernel caches are", BindAfter: kernelcaches.BindAfter,
			Ready: func(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, s *inventory.Snapshot) error {
				if err := p.checkRetired(c); err != nil {
					return err
				}
				return p.features.kernelCaches.Await(ctx, c, a, findIn(s))
			},
		},
	}
	late := p.config.File.BindLate()
	return slices.DeleteFunc(all, func(k binding.Kind) bool { return !slices.Contains(late, k.Kind) })
}

// isUnderway reports whether an error means that work for a claim goes on, which is no failure.
func isUnderway(err error) bool {
	_, pending := errors.AsType[*prepare.PendingError](err)
	return pending || kernelcaches.IsUnderway(err)
}

// findIn returns a lookup of allocated devices in a snapshot.
func findIn(s *inventory.Snapshot) prepare.Find {
	return func(r *claim.Result) (device.Device, bool) { return s.Find(r.Kind, r.Device) }
}

func (p *Plugin) machine() prepare.Machine {
	if s, _ := p.holder.Get(); s != nil {
		return s
	}
	return nil
}

// placePatience is how long a disk may take to say where a directory is.
const placePatience = 2 * time.Second

// placeOf returns where a device of the configuration is now. Of a disk that does not answer it is where it was.
func (p *Plugin) placeOf(ctx context.Context, d *device.Device) (container.Place, error) {
	var now container.Place // of a late answer, nobody looks at it
	_, err := p.places.Read(ctx, d.Name, func() (string, error) {
		tree, err := sysfs.Open(p.config.HostRoot)
		if err == nil {
			defer tree.Close()
			now, err = discover.PlaceOf(tree, d)
		}
		return "", err
	})
	if errors.Is(err, sysfs.ErrNoAnswer) {
		return d.Place, nil
	}
	if err != nil {
		return container.Place{}, err
	}
	return now, nil
}

func (p *Plugin) claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return p.clients.Kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// fetchBitstreams brings the files of a claim to the node, as its Prepare does.
func (p *Plugin) fetchBitstreams(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, find prepare.Find) error {
	if err := p.checkRetired(c); err != nil {
		return err
	}
	uid, err := p.namespaceUID(ctx, c.Namespace)
	if err != nil {
		return err
	}
	fetch := p.features.fpgas.Fetch(&prepare.Request{Claim: c, NamespaceUID: uid, Allocation: a, Find: find})
	if fetch == nil {
		return nil
	}
	return fetch(ctx)
}

// namespaceUID reads the UID of a namespace.
func (p *Plugin) namespaceUID(ctx context.Context, name string) (string, error) {
	namespace, err := p.clients.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the UID of namespace %s, by which the data of tenants are kept apart: %w", name, err)
	}
	return string(namespace.UID), nil
}

// published is called each time the slices in the API server are seen to be up to date.
func (p *Plugin) published() {
	p.readiness.setPublishError(nil)
	p.metrics.lastPublished.SetToCurrentTime()
}

// Ready returns nil when kubelet has registered the plugin, the machine was scanned, and the API server has the published slices.
func (p *Plugin) Ready() error { return p.readiness.ready() }
