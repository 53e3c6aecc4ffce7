// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/devicehealth"
	"github.com/fettle-dev/fettle/kubeletplugin/foreigndevices"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Plugin implements kubelet's interface.
var _ kubeletplugin.DRAPlugin = (*Plugin)(nil)

// PrepareResourceClaims prepares each claim on its own, so that a failure does not affect the others.
func (p *Plugin) PrepareResourceClaims(
	ctx context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	if len(claims) == 0 {
		return map[types.UID]kubeletplugin.PrepareResult{}, nil
	}
	if _, err := p.holder.Await(ctx); err != nil { // kubelet may call before the first scan is done
		return nil, err
	}
	results := make([]kubeletplugin.PrepareResult, len(claims))
	inParallel(len(claims), func(i int) { results[i] = p.prepareClaim(ctx, claims[i], claims) })
	byUID := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for i, c := range claims {
		byUID[c.UID] = results[i]
	}
	p.claimsChanged.Send()
	return byUID, nil
}

// inParallel calls do for 0 to n-1 concurrently. Most calls are for one claim, which needs no goroutine of its own.
func inParallel(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := 1; i < n; i++ {
		wg.Go(func() { do(i) })
	}
	if n > 0 {
		do(0)
	}
	wg.Wait()
}

// prepareClaim prepares one of the claims of a call.
func (p *Plugin) prepareClaim(
	ctx context.Context, c *resourceapi.ResourceClaim, siblings []*resourceapi.ResourceClaim,
) kubeletplugin.PrepareResult {
	start := time.Now()
	logger := klog.FromContext(ctx).WithValues("claim", klog.KObj(c), "claimUID", c.UID)
	r, err := p.prepareUnlessRetired(ctx, c, siblings)
	if err != nil {
		result := "error"
		if _, ok := errors.AsType[*claim.RefusedError](err); ok {
			result = "refused"
		}
		p.metrics.observeCall("prepare", result, start)
		p.metrics.refusals.WithLabelValues(p.parts.reason(err)).Inc()
		if holder := prepare.Holder(err); holder != "" {
			logger.Info("Another claim holds what a claim needs", "holder", holder, "refusal", err)
		}
		if writeErr := p.claims.WriteRefusal(ctx, c, err); writeErr != nil {
			logger.Error(writeErr, "Cannot write the refusal to the claim's status", "refusal", err)
		}
		return kubeletplugin.PrepareResult{Err: err}
	}
	took := time.Since(start)
	p.metrics.observeCall("prepare", "ok", start)
	if err := p.claims.ClearRefusal(ctx, c); err != nil {
		logger.Error(err, "Cannot clear an earlier refusal in the claim's status")
	}
	p.claims.WarnIgnored(c)
	if holdsRegion(r) {
		p.review.Send() // now only this tenant may use its siblings
	}
	if err := p.claims.WriteDevicesLater(c, r); err != nil {
		logger.Error(err, "Cannot tell bitstreams and presets for the claim's status")
	}
	logger.V(2).Info("Prepared", "devices", len(r.Devices), "seconds", took.Seconds())
	return kubeletplugin.PrepareResult{Devices: p.kubeletDevices(r)}
}

func (p *Plugin) prepareUnlessRetired(
	ctx context.Context, c *resourceapi.ResourceClaim, siblings []*resourceapi.ResourceClaim,
) (*record.Record, error) {
	if err := p.checkRetired(c); err != nil {
		return nil, err
	}
	return p.engine.Prepare(ctx, c, arrival(ctx, p.engine.Now), siblings...)
}

// checkRetired refuses a new claim on a retired node. A prepared claim stays usable: kubelet asks again when a container or kubelet
// restarts.
func (p *Plugin) checkRetired(c *resourceapi.ResourceClaim) error {
	if p.retirement.On() && !p.engine.HasRecord(string(c.UID)) {
		return fmt.Errorf("node %s: %w", p.config.Node, retirement.ErrRetired)
	}
	return nil
}

// healthCheck refuses devices of a retired node, those that are left to another driver and those whose driver is quiesced, before the
// monitor refuses those that failed.
type healthCheck struct {
	*devicehealth.Monitor
	retired func(*resourceapi.ResourceClaim) error
	foreign *foreigndevices.Feature
	quiesce *quiesce.State
	holder  *inventory.Holder
}

// Check refuses a device that a claim without devices must not get. It is called under the claim's lock, and a node is emptied under all
// locks: a claim that fetched its files meanwhile gets nothing.
func (h healthCheck) Check(c *resourceapi.ResourceClaim, r *claim.Result) error {
	if err := h.retired(c); err != nil {
		return err
	}
	s, _ := h.holder.Get()
	if err := h.foreign.Check(s, r); err != nil {
		return err
	}
	if err := h.quiesce.Check(s, r); err != nil {
		return err
	}
	return h.Monitor.Check(c, r)
}

// kubeletDevices returns the devices of a record in kubelet's form.
func (p *Plugin) kubeletDevices(r *record.Record) []kubeletplugin.Device {
	devices := make([]kubeletplugin.Device, 0, len(r.Devices))
	for i := range r.Devices {
		d := &r.Devices[i]
		answer := kubeletplugin.Device{
			Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Name, CDIDeviceIDs: answerNames(d),
		}
		if d.ShareID != "" {
			answer.ShareID = new(types.UID(d.ShareID))
		}
		if p.config.File.Metadata() {
			snapshot, _ := p.holder.Get()
			answer.Metadata = metadata(snapshot, d)
		}
		devices = append(devices, answer)
	}
	return devices
}

// answerNames puts the name that shows a device before the names of its CDI devices, since kubelet shows the first one in the pod's status.
// Without any, kubelet shows DRIVER/POOL/DEVICE.
func answerNames(d *record.Device) []string {
	names := d.CDIDevices()
	if len(names) == 0 {
		return names
	}
	return append([]string{cdi.ShownName(string(d.Kind()), d.Name)}, names...)
}

func holdsRegion(r *record.Record) bool {
	return slices.ContainsFunc(r.Devices, func(d record.Device) bool { return d.CoTenancy != "" })
}

// metadata returns the published attributes of a device, for the file that KEP-5304 puts into the container.
func metadata(s *inventory.Snapshot, d *record.Device) *kubeletplugin.DeviceMetadata {
	m := &kubeletplugin.DeviceMetadata{Attributes: map[string]resourceapi.DeviceAttribute{}}
	dev, _ := s.Find(d.Kind(), d.Name)
	for name, value := range dev.Attributes {
		m.Attributes[string(name)] = value
	}
	return m
}

// UnprepareResourceClaims releases each claim on its own.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	errs := make([]error, len(claims))
	inParallel(len(claims), func(i int) { errs[i] = p.unprepareClaim(ctx, claims[i]) })
	results := make(map[types.UID]error, len(claims))
	for i, c := range claims {
		results[c.UID] = errs[i]
	}
	p.claimsChanged.Send()
	return results, nil
}

func (p *Plugin) unprepareClaim(ctx context.Context, c kubeletplugin.NamespacedObject) error {
	start := time.Now()
	r, err := p.engine.Unprepare(ctx, string(c.UID), arrival(ctx, p.engine.Now))
	if p.namesOldSpec(r) {
		p.freed.Send()
	}
	if err != nil && r != nil && len(r.Steps) > 0 {
		p.review.Send()
	}
	result := "ok"
	if err != nil {
		result = "error"
		err = fmt.Errorf("unprepare claim %s: %w", c.NamespacedName, err)
	}
	p.metrics.observeCall("unprepare", result, start)
	klog.FromContext(ctx).V(2).Info("Unprepared", "claim", c.NamespacedName, "claimUID", c.UID, "err", err)
	return err
}

// namesOldSpec reports whether a released record named a CDI spec of no present device, so that its file may be a leftover now: the device
// left or changed, or another version of Fettle made the name.
func (p *Plugin) namesOldSpec(r *record.Record) bool {
	v, _ := p.holder.Get()
	if r == nil || v == nil {
		return false
	}
	return slices.ContainsFunc(r.Devices, func(d record.Device) bool {
		if !strings.HasPrefix(d.CDIDevice, cdi.CommonKind) {
			return false
		}
		dev, _ := v.Find(d.Kind(), d.Name)
		spec, err := p.names.Common(dev.Edits)
		return err != nil || spec.Device != d.CDIDevice
	})
}

// HandleError handles background errors, all of which the helper retries. It counts them, writes an Event on the node, and makes the plugin
// unready until the published slices are up to date.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	p.metrics.backgroundErrors.WithLabelValues("publish").Inc()
	if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
		// The plugin serves an older API as far as it goes: it names the missing features and publishes the rest.
		for _, feature := range dropped.DisabledFeatures() {
			p.metrics.droppedFeatures.WithLabelValues(feature).Set(1)
		}
		for _, user := range having[fieldsUser](p.parts) {
			user.FieldsDropped(ctx, dropped)
		}
		p.node.Event("Publish", "", corev1.EventTypeWarning, "FeatureMissing", err.Error())
		return
	}
	p.node.Event("Publish", "", corev1.EventTypeWarning, "PublishFailed", msg+": "+err.Error())
	p.readiness.setPublishError(err)
}

// WatchHealthStatus reports the health of the node's devices to kubelet.
func (p *Plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	return p.health.Watch(ctx, reports)
}

// arrivalKey is the context's key of the arrival time of a call.
type arrivalKey struct{}

// stampArrivals stamps each call with its arrival, before kubelet's helper reads the claims. That read may take long, and the claim may be
// unprepared meanwhile.
func stampArrivals(now func() record.Moment) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(context.WithValue(ctx, arrivalKey{}, now()), req)
	}
}

// arrival returns when the call of a context arrived, or the present time if the call was not stamped.
func arrival(ctx context.Context, now func() record.Moment) record.Moment {
	if m, ok := ctx.Value(arrivalKey{}).(record.Moment); ok {
		return m
	}
	return now()
}

// uptime returns CLOCK_BOOTTIME, which all processes share, which continues during suspend, and which cannot be set.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // cannot happen on a kernel since 2.6.39
	}
	return time.Duration(t.Nano())
}
