// SPDX-License-Identifier: Apache-2.0

// Package devicehealth watches the node's devices: the kernel's counters, NVIDIA's library, and other drivers that hand out the same
// devices. The ledger of package health decides what each finding means; this package puts the verdicts into the snapshots, tells kubelet
// and people, and keeps claims from devices that failed.
package devicehealth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

const (
	// kubeletForgets is when kubelet takes a device's health for unknown; ours becomes unknown no sooner.
	kubeletForgets = 30 * time.Second
	// missedReadings is how many readings in a row a source may miss.
	missedReadings = 3
	// sourceSysfs stands for aer and ras, which are read together.
	sourceSysfs = "the kernel's counters"
)

// Config is what a Keeper works with.
type Config struct {
	// Node is the name of the Node object, HostRoot the directory of the host's tree, StateDir that of the ledger.
	Node, HostRoot, StateDir string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// NVMLCommand is the path of the fettle-nvml binary. Empty: NVIDIA's library is never asked.
	NVMLCommand string
	File        *nodeconfig.File
	Client      kubernetes.Interface
	Holder      *inventory.Holder
	Retirement  *retirement.State
	// Held says whether a claim holds a device.
	Held func(pool, name string) bool
	// Event makes an Event on the Node. It must not block.
	Event    func(eventType, reason, note string)
	Registry prometheus.Registerer
	// Errors counts errors outside of kubelet's calls, by where they happened.
	Errors *prometheus.CounterVec
}

// Keeper runs the sources of health and puts what the ledger makes of them into the snapshots.
type Keeper struct {
	Config
	ledger  *health.Ledger
	pulse   *pulse
	metrics *metrics
	// dropped carries a value after the API server dropped a taint.
	dropped notify.Signal
	poller  *health.Poller
	// watcher is nil where NVIDIA's library is not asked.
	watcher *nvml.Watcher

	// announced are the statuses that Events were made of; only keep uses it.
	announced map[string]health.Status
}

// New opens the ledger and puts what it says into the holder: a device that was in quarantine is not published for a moment.
func New(config Config) *Keeper {
	c := config.File.Health
	k := &Keeper{
		Config: config, pulse: newPulse(), metrics: newMetrics(config.Registry, config.Errors), dropped: notify.New(),
		poller: &health.Poller{Root: config.HostRoot, Disabled: c.DisabledSources, Patience: min(c.Interval.Duration, 5*time.Second)},
	}
	k.ledger = health.Open(health.Options{
		Dir: config.StateDir, BootID: config.BootID, Table: append(slices.Clone(c.Rules), health.DefaultTable()...),
		Disabled: c.Disabled(), Now: time.Now, Seen: k.metrics.seen,
	})
	if file := config.File.NVML; !file.Disabled && config.NVMLCommand != "" && !slices.Contains(c.DisabledSources, health.SourceNVML) {
		k.watcher = &nvml.Watcher{Interval: c.Interval.Duration, Command: nvml.Command{
			Path: config.NVMLCommand, DriverRoot: file.DriverRoot, Timeout: file.Timeout.Duration,
		}}
	}
	k.Refresh()
	k.announced = k.ledger.Statuses()
	return k
}

// Destroy removes the ledger, for a node that holds no claim any more.
func (k *Keeper) Destroy() error { return k.ledger.Destroy() }

// held says whether a claim holds a device.
func (k *Keeper) held(kind device.Kind, name string) bool {
	return k.Held(inventory.PoolName(k.Node, kind), name)
}

// Run watches until ctx ends. A retired node is not watched: its files are gone, and its GPUs are let go of.
func (k *Keeper) Run(ctx context.Context) {
	var group errgroup.Group
	for _, part := range []func(context.Context){k.keep, k.poll, k.watchNVML, k.watchConflicts, k.watchTaints} {
		group.Go(func() error { part(ctx); return nil })
	}
	_ = group.Wait() // no part returns an error
}

// keep takes what the last look saw into the ledger and shows what the ledger says, after every change of either and at the interval.
func (k *Keeper) keep(ctx context.Context) {
	ticker := time.NewTicker(k.File.Health.Interval.Duration)
	defer ticker.Stop()
	for {
		retired := k.Retirement.Changed()
		v, changed := k.Holder.Get()
		if v != nil && !k.Retirement.On() {
			there := make(map[string]device.Kind, len(v.Devices))
			for i := range v.Devices {
				there[v.Devices[i].Name] = v.Devices[i].Kind
			}
			k.note(ctx, errors.Join(k.ledger.Present(there, k.held), k.ledger.Expire()))
		}
		k.Refresh()
		k.announce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retired:
		case <-k.ledger.Changed():
		case <-ticker.C:
		}
	}
}

// Refresh puts the newest verdicts into the snapshots. Run does so after every change.
func (k *Keeper) Refresh() {
	c := inventory.Health{
		Statuses: k.ledger.Statuses(), Unknown: k.pulse.silent(time.Now()),
		TaintsKept: k.ledger.TaintsKept(), NoEviction: k.File.Health.DisableEviction, LedgerProblem: k.ledger.Trouble(),
	}
	k.Holder.SetHealth(c)
	k.metrics.show(c)
}

// announce says on the Node what became of devices.
func (k *Keeper) announce(ctx context.Context) {
	now := k.ledger.Statuses()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		s, was := now[name], k.announced[name]
		if s == was {
			continue
		}
		klog.FromContext(ctx).Info("Device is not healthy", "device", name, "state", s.State, "reason", s.Reason, "message", s.Message)
		k.Event(corev1.EventTypeWarning, "Device"+string(s.State), fmt.Sprintf("device %s: %s", name, s.Message))
	}
	for _, name := range slices.Sorted(maps.Keys(k.announced)) {
		if _, bad := now[name]; bad {
			continue
		}
		klog.FromContext(ctx).Info("Device is healthy again", "device", name, "was", k.announced[name].Reason)
		k.Event(corev1.EventTypeNormal, "DeviceHealthy", fmt.Sprintf("device %s is healthy again", name))
	}
	k.announced = now
}

func (k *Keeper) note(ctx context.Context, err error) {
	if err != nil {
		klog.FromContext(ctx).Error(err, "The health ledger is not on disk as it should be")
		k.metrics.errors.Inc()
	}
}

// poll reads the kernel's counters at the interval.
func (k *Keeper) poll(ctx context.Context) {
	interval := k.File.Health.Interval.Duration
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	if _, err := k.Holder.Await(ctx); err != nil {
		return
	}
	for {
		targets := k.targets("")
		names := make([]string, 0, len(targets))
		for _, target := range targets {
			names = append(names, target.Name)
		}
		k.pulse.expect(sourceSysfs, max(missedReadings*interval, kubeletForgets), time.Now(), names...)
		k.pollOnce(ctx, targets)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (k *Keeper) pollOnce(ctx context.Context, targets []health.Target) {
	if len(targets) == 0 {
		return
	}
	instances := map[string]string{}
	var reports []health.Report
	for _, one := range k.poller.Poll(targets) {
		k.pulse.heard(sourceSysfs, one.Name, time.Now(), one.Err)
		if one.Instance != "" {
			instances[one.Name] = one.Instance
		}
		reports = append(reports, one.Reports...)
	}
	k.note(ctx, errors.Join(k.ledger.Instances(instances), k.ledger.Report(reports...)))
}

// targets are the PCI devices of a vendor, or of all.
func (k *Keeper) targets(vendor string) []health.Target {
	v, _ := k.Holder.Get()
	if v == nil || k.Retirement.On() {
		return nil
	}
	var targets []health.Target
	for i := range v.Devices {
		d := &v.Devices[i]
		address := device.StringOf(d.Attributes[device.AttributePCIAddress])
		if address != "" && (vendor == "" || device.StringOf(d.Attributes[device.AttributeVendor]) == vendor) {
			targets = append(targets, health.Target{Name: d.Name, Address: address})
		}
	}
	return targets
}

// Recover carries out what the annotation retirement.RecoverAnnotation asks for.
func (k *Keeper) Recover(ctx context.Context, request string) {
	k.note(ctx, k.ledger.Recover(request))
}

// DroppedTaints takes in what the helper reports of a slice. Unhealthy devices are withheld from then on.
func (k *Keeper) DroppedTaints(ctx context.Context, err *resourceslice.DroppedFieldsError) {
	if !slices.Contains(err.DisabledFeatures(), "DRADeviceTaints") {
		return
	}
	k.SetTaintsKept(ctx, false)
	k.dropped.Send()
}

// watchTaints finds out whether the API server keeps taints before one is needed: a device whose taint is dropped would be given to
// pods until somebody noticed. Where they are dropped it asks again now and then, since API servers are upgraded.
func (k *Keeper) watchTaints(ctx context.Context) {
	const (
		again = 10 * time.Minute
		retry = 5 * time.Second
	)
	for {
		kept, err := k.ProbeTaints(ctx)
		wait := time.After(again)
		switch {
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).V(2).Info("Whether the API server keeps taints is not known yet", "reason", err)
			wait = time.After(retry)
		case err == nil:
			k.SetTaintsKept(ctx, kept)
		}
		if kept {
			wait = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		case <-k.dropped:
			// Another API server may have answered; one that is being upgraded is given its time.
			select {
			case <-ctx.Done():
				return
			case <-time.After(again):
			}
		}
	}
}

// SetTaintsKept notes whether the API server keeps taints. Where it does not, devices that are not healthy are withheld.
func (k *Keeper) SetTaintsKept(ctx context.Context, kept bool) {
	k.note(ctx, k.ledger.SetTaintsKept(kept))
}

// ProbeTaints asks for a slice with a taint to be made, without making it.
func (k *Keeper) ProbeTaints(ctx context.Context) (bool, error) {
	node := k.Node
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fettle-taint-probe-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: inventory.PoolName(node, device.KindHost), ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "probe", Taints: []resourceapi.DeviceTaint{{
				Key: inventory.TaintUnhealthy, Value: "Probe", Effect: resourceapi.DeviceTaintEffectNoSchedule,
			}}}},
		},
	}
	made, err := k.Client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return false, fmt.Errorf("try a ResourceSlice with a taint: %w", err)
	}
	return len(made.Spec.Devices) == 1 && len(made.Spec.Devices[0].Taints) == 1, nil
}
