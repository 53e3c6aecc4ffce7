// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// RecoverAnnotation on a node's AcceleratorNode names devices, separated by commas, or "*", that are to be forgiven all that the
// ledger knows against them. It is carried out once; removing it makes way for the next time.
const RecoverAnnotation = "fettle.dev/recover"

// TaintUnhealthy is the key of the taint on a device that is not healthy. Its value is the reason.
const TaintUnhealthy = "fettle.dev/unhealthy"

const (
	// kubeletForgets is when kubelet takes a device's health for unknown; ours becomes unknown no sooner.
	kubeletForgets = 30 * time.Second
	// missedReadings is how many readings in a row a source may miss.
	missedReadings = 3
	// sourceSysfs stands for aer and ras, which are read together.
	sourceSysfs = "the kernel's counters"
)

// healthKeeper runs the sources of health and shows everybody what the ledger makes of them.
type healthKeeper struct {
	config  *Config
	client  kubernetes.Interface
	ledger  *health.Ledger
	latest  *latest
	retired *retirement
	metrics *healthMetrics
	// held says whether a claim holds a device.
	held func(device.Kind, string) bool
	// tell makes an Event on the Node; Run sets it.
	tell func(eventType, reason, note string)
	// dropped carries a value after the API server dropped a taint.
	dropped chan struct{}
	poller  *health.Poller
	// watcher is nil where NVIDIA's library is not asked.
	watcher *nvml.Watcher

	// told are the statuses that Events were made of; only keep uses it.
	told map[string]health.Status
}

func newHealthKeeper(
	config *Config, client kubernetes.Interface, bootID string, l *latest, r *retirement, m *metrics, held func(pool, name string) bool,
) *healthKeeper {
	c := config.File.Health
	k := &healthKeeper{
		config: config, client: client, latest: l, retired: r, metrics: newHealthMetrics(m),
		held:    func(kind device.Kind, name string) bool { return held(poolName(config.Node, kind), name) },
		tell:    func(string, string, string) {},
		dropped: make(chan struct{}, 1),
		poller:  &health.Poller{Root: config.HostRoot, Disabled: c.DisabledSources, Patience: min(c.Interval.Duration, 5*time.Second)},
	}
	k.ledger = health.Open(health.Options{
		Dir: config.StateDir, BootID: bootID, Table: append(slices.Clone(c.Rules), health.DefaultTable()...),
		Disabled: c.Disabled(), Now: time.Now, Seen: k.metrics.seen,
	})
	if file := config.File.NVML; !file.Disabled && config.NVMLCommand != "" && !slices.Contains(c.DisabledSources, health.SourceNVML) {
		k.watcher = &nvml.Watcher{Interval: c.Interval.Duration, Command: nvml.Command{
			Path: config.NVMLCommand, DriverRoot: file.DriverRoot, Timeout: file.Timeout.Duration,
		}}
	}
	// Known before the first look, so that a device which was in quarantine is not published for a moment.
	k.show()
	k.told = k.ledger.Statuses()
	return k
}

// run watches until ctx ends. A retired node is not watched: its files are gone, and its GPUs are let go of.
func (k *healthKeeper) run(ctx context.Context) {
	var group errgroup.Group
	for _, part := range []func(context.Context){k.keep, k.poll, k.watchNVML, k.watchRivals, k.probeTaints} {
		group.Go(func() error { part(ctx); return nil })
	}
	_ = group.Wait() // no part returns an error
}

// keep takes what the last look saw into the ledger and shows what the ledger says, after every change of either and at the interval.
func (k *healthKeeper) keep(ctx context.Context) {
	ticker := time.NewTicker(k.config.File.Health.Interval.Duration)
	defer ticker.Stop()
	for {
		retired := k.retired.wait()
		v, changed := k.latest.get()
		if v != nil && !k.retired.is() {
			there := make(map[string]device.Kind, len(v.devices))
			for i := range v.devices {
				there[v.devices[i].Name] = v.devices[i].Kind
			}
			k.note(ctx, errors.Join(k.ledger.Present(there, k.held), k.ledger.Expire()))
		}
		k.show()
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

// show gives everybody the newest state.
func (k *healthKeeper) show() {
	c := verdicts{
		statuses: k.ledger.Statuses(), silent: k.latest.pulse.silent(time.Now()),
		taintsKept: k.ledger.TaintsKept(), noEviction: k.config.File.Health.DisableEviction, trouble: k.ledger.Trouble(),
	}
	k.latest.setHealth(c)
	k.metrics.show(c)
}

// announce says on the Node what became of devices.
func (k *healthKeeper) announce(ctx context.Context) {
	now := k.ledger.Statuses()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		s, was := now[name], k.told[name]
		if s == was {
			continue
		}
		klog.FromContext(ctx).Info("Device is not healthy", "device", name, "state", s.State, "reason", s.Reason, "message", s.Message)
		k.tell(corev1.EventTypeWarning, "Device"+string(s.State), fmt.Sprintf("device %s: %s", name, s.Message))
	}
	for _, name := range slices.Sorted(maps.Keys(k.told)) {
		if _, bad := now[name]; bad {
			continue
		}
		klog.FromContext(ctx).Info("Device is healthy again", "device", name, "was", k.told[name].Reason)
		k.tell(corev1.EventTypeNormal, "DeviceHealthy", fmt.Sprintf("device %s is healthy again", name))
	}
	k.told = now
}

func (k *healthKeeper) note(ctx context.Context, err error) {
	if err != nil {
		klog.FromContext(ctx).Error(err, "The health ledger is not on disk as it should be")
		k.metrics.errors.Inc()
	}
}

// poll reads the kernel's counters at the interval.
func (k *healthKeeper) poll(ctx context.Context) {
	interval := k.config.File.Health.Interval.Duration
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for v, looked := k.latest.get(); v == nil && ctx.Err() == nil; v, looked = k.latest.get() {
		select {
		case <-ctx.Done():
		case <-looked:
		}
	}
	for {
		targets := k.targets("")
		names := make([]string, 0, len(targets))
		for _, target := range targets {
			names = append(names, target.Name)
		}
		k.latest.pulse.expect(sourceSysfs, max(missedReadings*interval, kubeletForgets), time.Now(), names...)
		k.pollOnce(ctx, targets)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (k *healthKeeper) pollOnce(ctx context.Context, targets []health.Target) {
	if len(targets) == 0 {
		return
	}
	instances := map[string]string{}
	var reports []health.Report
	for _, one := range k.poller.Poll(targets) {
		k.latest.pulse.heard(sourceSysfs, one.Name, time.Now(), one.Err)
		if one.Instance != "" {
			instances[one.Name] = one.Instance
		}
		reports = append(reports, one.Reports...)
	}
	k.note(ctx, errors.Join(k.ledger.Instances(instances), k.ledger.Report(reports...)))
}

// targets are the PCI devices of a vendor, or of all.
func (k *healthKeeper) targets(vendor string) []health.Target {
	v, _ := k.latest.get()
	if v == nil || k.retired.is() {
		return nil
	}
	var targets []health.Target
	for i := range v.devices {
		d := &v.devices[i]
		address := stringOf(d.Attributes[device.AttributePCIAddress])
		if address != "" && (vendor == "" || stringOf(d.Attributes[device.AttributeVendor]) == vendor) {
			targets = append(targets, health.Target{Name: d.Name, Address: address})
		}
	}
	return targets
}

// forgive carries out what the annotation RecoverAnnotation asks for.
func (k *healthKeeper) forgive(ctx context.Context, request string) {
	k.note(ctx, k.ledger.Recover(request))
}

// mayPrepare says why an allocated device must not be given to a claim now. Degraded is good enough for a claim that has it already,
// and so is anything for an admin's look. A claim that tolerates the taint may have a device that failed, to find out why, but never
// one in quarantine.
func (k *healthKeeper) mayPrepare(c *resourceapi.ResourceClaim, r *claim.Result) error {
	s, bad := k.ledger.Check(r.Device)
	if !bad || s.State == health.Worn || r.AdminAccess {
		return nil
	}
	if s.State == health.Unhealthy && tolerated(c, r, taintOf(s, k.config.File.Health.DisableEviction)) {
		return nil
	}
	return fmt.Errorf("device %s/%s %w: %s", r.Pool, r.Device, errUnhealthy, s.Message)
}

// tolerated says whether a result was allocated in spite of a taint.
func tolerated(c *resourceapi.ResourceClaim, r *claim.Result, taint resourceapi.DeviceTaint) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Request != r.Request || result.Pool != r.Pool || result.Device != r.Device {
			continue
		}
		if slices.ContainsFunc(result.Tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		}) {
			return true
		}
	}
	return false
}

// errUnhealthy is about a device that was healthy when the claim was allocated.
var errUnhealthy = errors.New("is not healthy, retried until it is, or delete the pod so that it gets another")

// taintOf is the taint of a device that is not healthy. What a device can still do decides over its pods: they leave one that
// failed. Quarantine keeps others away; whoever had the device when its step failed is told why it waits.
func taintOf(s health.Status, noEviction bool) resourceapi.DeviceTaint {
	taint := resourceapi.DeviceTaint{Key: TaintUnhealthy, Value: s.Reason, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if s.State == health.Unhealthy && !noEviction {
		taint.Effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return taint
}

// droppedTaints takes in what the helper reports of a slice. Unhealthy devices are withheld from then on.
func (k *healthKeeper) droppedTaints(ctx context.Context, err *resourceslice.DroppedFieldsError) {
	if !slices.Contains(err.DisabledFeatures(), "DRADeviceTaints") {
		return
	}
	k.note(ctx, k.ledger.SetTaintsKept(false))
	signal(k.dropped)
}

// probeTaints finds out whether the API server keeps taints before one is needed: a device whose taint is dropped would be given to
// pods until somebody noticed. Where they are dropped it asks again now and then, since API servers are upgraded.
func (k *healthKeeper) probeTaints(ctx context.Context) {
	const (
		again = 10 * time.Minute
		retry = 5 * time.Second
	)
	for {
		kept, err := k.taintsKept(ctx)
		wait := time.After(again)
		switch {
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).V(2).Info("Whether the API server keeps taints is not known yet", "reason", err)
			wait = time.After(retry)
		case err == nil:
			k.note(ctx, k.ledger.SetTaintsKept(kept))
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

// taintsKept asks for a slice with a taint to be made, without making it.
func (k *healthKeeper) taintsKept(ctx context.Context) (bool, error) {
	node := k.config.Node
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fettle-taint-probe-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: poolName(node, device.KindHost), ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "probe", Taints: []resourceapi.DeviceTaint{{
				Key: TaintUnhealthy, Value: "Probe", Effect: resourceapi.DeviceTaintEffectNoSchedule,
			}}}},
		},
	}
	made, err := k.client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return false, fmt.Errorf("try a ResourceSlice with a taint: %w", err)
	}
	return len(made.Spec.Devices) == 1 && len(made.Spec.Devices[0].Taints) == 1, nil
}
