// SPDX-License-Identifier: Apache-2.0

// Package devicehealth watches the node's devices: the kernel's counters, NVIDIA's library, and other drivers that allocate the same
// devices. The ledger of package health decides what each finding means. This package adds the verdicts to the snapshots, reports them to
// kubelet and in Events, and refuses devices that failed.
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/dryrun"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/kubeletplugin/retry"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

const (
	// kubeletHealthTimeout is when kubelet takes a device's health for unknown. The plugin does so no sooner.
	kubeletHealthTimeout = 30 * time.Second
	// missedReadings is how many readings in a row a source may miss.
	missedReadings = 3
	// sourceSysfs stands for aer and ras, which are read together.
	sourceSysfs = "the kernel's counters"
)

// Config has the settings and dependencies of a Monitor.
type Config struct {
	// Node is the name of the Node object, HostRoot the directory of the host's tree, StateDir that of the ledger.
	Node, HostRoot, StateDir string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// NVMLCommand is the path of the fettle-nvml binary. Empty: NVIDIA's library is not used.
	NVMLCommand string
	File        *nodeconfig.File
	Client      kubernetes.Interface
	// ReadNode and ReadSlices return the Node and the slices of all drivers on it, for reading only: what other drivers do here.
	ReadNode   func(context.Context) (*corev1.Node, error)
	ReadSlices func(context.Context) ([]resourceapi.ResourceSlice, error)
	Holder     *inventory.Holder
	Retirement *retirement.State
	// Quiesce says whose devices must not be touched. Nil: all may.
	Quiesce *quiesce.State
	// Held reports whether a claim holds a device.
	Held func(pool, name string) bool
	// HeldBy reports whether a claim's record holds a device. It returns true if that cannot be read.
	HeldBy func(pool, name, uid string) bool
	// Event makes an Event on the Node about one of its devices. It must not block.
	Event    func(device, eventType, reason, note string)
	Registry prometheus.Registerer
	// Errors counts errors outside of kubelet's calls, by where they happened.
	Errors *prometheus.CounterVec
}

// Monitor runs the sources of health and adds the ledger's verdicts to the snapshots.
type Monitor struct {
	Config
	ledger  *health.Ledger
	sources *sources
	metrics *metrics
	// dropped signals that the API server dropped a taint.
	dropped notify.Signal
	poller  *health.Poller
	// watcher is nil if NVIDIA's library is not used.
	watcher *nvml.Watcher

	// announced has the statuses that Events were made for. Only maintain uses it.
	announced map[string]health.Status
	// excess is what an Event said of a device plugin that gives out too many GPUs. Only watchConflicts uses it.
	excess string
}

// New opens the ledger and puts its verdicts into the holder, so that a device in quarantine is not published even for a moment.
func New(config Config) *Monitor {
	c := config.File.Health
	m := &Monitor{
		Config: config, sources: newSources(), metrics: newMetrics(config.Registry, config.Errors), dropped: notify.New(),
		poller: &health.Poller{Root: config.HostRoot, Disabled: c.DisabledSources, Patience: min(c.Interval.Duration, 5*time.Second)},
	}
	if file := config.File.NVML; !file.Disabled && config.NVMLCommand != "" && !slices.Contains(c.DisabledSources, health.SourceNVML) {
		m.watcher = &nvml.Watcher{Interval: c.Interval.Duration, Command: nvml.Command{
			Path: config.NVMLCommand, DriverRoot: file.DriverRoot, Timeout: file.Timeout.Duration,
		}}
	}
	disabled := slices.Clone(c.Disabled())
	// Without its source, a level would never end.
	if m.watcher == nil {
		disabled = append(disabled, health.SourceNVML)
	}
	if config.File.Partitions.MPSSupervisor == "" {
		disabled = append(disabled, health.SourceMPS)
	}
	m.ledger = health.Open(health.Options{
		Dir: config.StateDir, BootID: config.BootID, Table: append(slices.Clone(c.Rules), health.DefaultTable()...),
		Disabled: disabled, Now: time.Now, Seen: m.metrics.countEvent,
	})
	m.Refresh()
	m.announced = m.ledger.Statuses()
	return m
}

// Destroy removes the ledger. It is called when the node has no claim any more.
func (m *Monitor) Destroy() error { return m.ledger.Destroy() }

// isHeld reports whether a claim holds a device.
func (m *Monitor) isHeld(kind device.Kind, name string) bool {
	return m.Held(device.PoolName(m.Node, kind), name)
}

// Run watches the devices until ctx ends. It does not watch those of a retired node, whose files are gone and whose GPUs are released.
func (m *Monitor) Run(ctx context.Context) {
	var group errgroup.Group
	for _, part := range []func(context.Context){m.maintain, m.poll, m.watchNVML, m.watchConflicts, m.watchTaints} {
		group.Go(func() error { part(ctx); return nil })
	}
	_ = group.Wait() // no part returns an error
}

// maintain enters the devices of the last scan into the ledger and shows its verdicts, after every change of either and at the interval.
func (m *Monitor) maintain(ctx context.Context) {
	ticker := time.NewTicker(m.File.Health.Interval.Duration)
	defer ticker.Stop()
	for {
		retired := m.Retirement.Changed()
		v, changed := m.Holder.Get()
		if v != nil && !m.Retirement.On() {
			m.logLedgerError(ctx, m.updateLedger(v))
		}
		m.Refresh()
		m.announce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retired:
		case <-m.ledger.Changed():
		case <-ticker.C:
		}
	}
}

// updateLedger enters the devices of a scan into the ledger, and ends what is over without a report.
func (m *Monitor) updateLedger(v *inventory.Snapshot) error {
	present := make(map[string]device.Kind, len(v.Devices))
	for _, d := range slices.Concat(v.Devices, v.Hardware()) {
		present[d.Name] = d.Kind
	}
	return errors.Join(m.ledger.Present(present, m.isHeld), m.ledger.Expire(), m.endStale())
}

// Refresh puts the newest verdicts into the snapshots. Run does so after every change.
func (m *Monitor) Refresh() {
	c := inventory.Health{
		Statuses: m.ledger.Statuses(), Unknown: m.sources.overdue(time.Now()),
		TaintsKept: m.ledger.TaintsKept(), NoEviction: m.File.Health.DisableEviction, LedgerProblem: m.ledger.Trouble(),
	}
	m.Holder.SetHealth(c)
	m.metrics.setStates(c)
}

// announce makes Events on the Node for the devices whose status changed.
func (m *Monitor) announce(ctx context.Context) {
	now := m.ledger.Statuses()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		s, was := now[name], m.announced[name]
		if s == was {
			continue
		}
		klog.FromContext(ctx).Info("Device is not healthy", "device", name, "state", s.State, "reason", s.Reason, "message", s.Detail())
		m.Event(name, corev1.EventTypeWarning, "Device"+string(s.State), fmt.Sprintf("device %s: %s", name, s.Detail()))
	}
	for _, name := range slices.Sorted(maps.Keys(m.announced)) {
		if _, bad := now[name]; bad {
			continue
		}
		klog.FromContext(ctx).Info("Device is healthy again", "device", name, "was", m.announced[name].Reason)
		m.Event(name, corev1.EventTypeNormal, "DeviceHealthy", fmt.Sprintf("device %s is healthy again", name))
	}
	m.announced = now
}

func (m *Monitor) logLedgerError(ctx context.Context, err error) {
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot keep the health ledger on disk up to date")
		m.metrics.errors.Inc()
	}
}

// poll reads the kernel's counters at the interval.
func (m *Monitor) poll(ctx context.Context) {
	interval := m.File.Health.Interval.Duration
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	if _, err := m.Holder.Await(ctx); err != nil {
		return
	}
	for {
		targets := m.targets("")
		names := make([]string, 0, len(targets))
		for _, target := range targets {
			names = append(names, target.Name)
		}
		m.sources.expect(sourceSysfs, max(missedReadings*interval, kubeletHealthTimeout), time.Now(), names...)
		m.pollOnce(ctx, targets)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (m *Monitor) pollOnce(ctx context.Context, targets []health.Target) {
	if len(targets) == 0 {
		return
	}
	instances := map[string]string{}
	var reports []health.Report
	for _, one := range m.poller.Poll(targets) {
		m.sources.reported(sourceSysfs, one.Name, time.Now(), one.Err)
		if one.Instance != "" {
			instances[one.Name] = one.Instance
		}
		reports = append(reports, one.Reports...)
	}
	m.logLedgerError(ctx, errors.Join(m.ledger.Instances(instances), m.ledger.Report(reports...)))
}

// targets returns the PCI devices of all vendors, or those that the library of one vendor sees, without those whose driver is quiesced.
// While a GPU of the vendor is about to leave its driver, the library must see none.
func (m *Monitor) targets(vendor string) []health.Target {
	v, _ := m.Holder.Get()
	if v == nil || m.Retirement.On() || vendor != "" && v.Unbinding[vendor] {
		return nil
	}
	var targets []health.Target
	for _, d := range v.Hardware() {
		address := device.StringOf(d.Attributes[device.AttributePCIAddress])
		maker := device.StringOf(d.Attributes[device.AttributeVendor])
		if address != "" && (vendor == "" || maker == vendor && !v.ForVMs[d.Name]) && !m.Quiesce.Holds(maker) {
			targets = append(targets, health.Target{Name: d.Name, Address: address})
		}
	}
	return targets
}

// Recover carries out what the annotation v1alpha1.RecoverAnnotation asks for, and returns the devices that it
// names and for which there was something to do.
func (m *Monitor) Recover(ctx context.Context, request string) []string {
	forgiven, err := m.ledger.Recover(request)
	m.logLedgerError(ctx, err)
	return forgiven
}

// FieldsDropped handles the helper's report of dropped fields. If taints were dropped, unhealthy devices are withheld from then on.
func (m *Monitor) FieldsDropped(ctx context.Context, err *resourceslice.DroppedFieldsError) {
	if !slices.Contains(err.DisabledFeatures(), "DRADeviceTaints") {
		return
	}
	m.SetTaintsKept(ctx, false)
	m.dropped.Send()
}

// watchTaints finds out whether the API server keeps taints before one is needed: pods could get a device whose taint was dropped. If
// taints are dropped it asks again at an interval, since API servers are upgraded.
func (m *Monitor) watchTaints(ctx context.Context) {
	const (
		again        = 10 * time.Minute
		longestRetry = time.Minute
	)
	failing := retry.New(longestRetry)
	for {
		kept, err := dryrun.KeepsTaints(ctx, m.Client, m.Node)
		wait := time.After(again)
		switch {
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).V(2).Info("Whether the API server keeps taints is not known yet", "reason", err)
			wait = time.After(failing.Next())
		case err == nil:
			failing.Reset()
			m.SetTaintsKept(ctx, kept)
		}
		if kept {
			wait = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		case <-m.dropped:
			// Another API server may have answered. Wait, since an upgrade may be in progress.
			select {
			case <-ctx.Done():
				return
			case <-time.After(again):
			}
		}
	}
}

// SetTaintsKept records whether the API server keeps taints. If it does not, devices that are not healthy are withheld.
func (m *Monitor) SetTaintsKept(ctx context.Context, kept bool) {
	m.logLedgerError(ctx, m.ledger.SetTaintsKept(kept))
}
