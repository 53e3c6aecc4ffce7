// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/caches"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// conditionPrepared is the condition on a claim's device that says why it could not be prepared.
	conditionPrepared = "Prepared"
	// fieldManager writes our entries of status.devices; other drivers' entries are never touched.
	fieldManager = "fettle.dev"

	reasonPrepared         = "Prepared"
	reasonPrepareFailed    = "PrepareFailed"
	reasonInUse            = "DeviceInUse"
	reasonDeviceGone       = "DeviceGone"
	reasonRetired          = "NodeRetired"
	reasonPending          = "PreparePending"
	reasonOvertaken        = "PrepareOvertaken"
	reasonUnhealthy        = "DeviceUnhealthy"
	reasonChipInUse        = "ChipInUse"
	reasonBitstream        = "BitstreamUnusable"
	reasonRegion           = "RegionUnusable"
	reasonPreset           = "PresetUnmet"
	reasonPresetRefused    = "PresetRefused"
	reasonPresets          = "Applied"
	reasonPresetOverridden = "PresetOverridden"
	reasonPresetAmbiguous  = "PresetAmbiguous"
	reasonCacheRefused     = "KernelCacheRefused"
	reasonCacheNotReady    = "KernelCacheNotReady"
	reasonProgrammed       = "Programmed"
	reasonProgramFailed    = "ProgramFailed"

	// maxMessage is the API's limit for a condition's message; an Event allows 1024 bytes.
	maxMessage      = 32768
	maxEventMessage = 1024
)

// teller says on the claim what became of it: an Event for people, a condition in status.devices for machines. A claim that is
// prepared at the first attempt costs nothing here.
type teller struct {
	client kubernetes.Interface
	events events.EventRecorder
	now    func() time.Time
}

// reasonFor is the stable reason of a failure.
func reasonFor(err error) string {
	if refused, ok := errors.AsType[*claim.RefusedError](err); ok {
		return string(refused.Reason)
	}
	if _, ok := errors.AsType[*record.InUseError](err); ok {
		return reasonInUse
	}
	if _, ok := errors.AsType[*engine.PendingError](err); ok {
		return reasonPending
	}
	switch {
	case overtaken(err):
		return reasonOvertaken
	case errors.Is(err, record.ErrBusy):
		return reasonPending
	case errors.Is(err, engine.ErrDeviceGone):
		return reasonDeviceGone
	case errors.Is(err, errPresetUnmet), errors.Is(err, errPresetsUnread):
		return reasonPreset
	case caches.IsRefused(err):
		return reasonCacheRefused
	case caches.IsNotReady(err):
		return reasonCacheNotReady
	}
	return fpgaReason(err)
}

// fpgaReason is the reason of a failure that has to do with a region.
func fpgaReason(err error) string {
	_, tenant := errors.AsType[*engine.TenantError](err)
	_, driver := errors.AsType[*backend.Error](err)
	among := func(causes ...error) bool {
		return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
	}
	switch {
	case tenant:
		return reasonChipInUse
	case among(errNotThere, errNotResolved, errNoFit, errNotStaged, errNotFetched, region.ErrImage):
		return reasonBitstream
	case driver && backend.KindOf(err) == backend.Unknown:
		return reasonProgramFailed
	case driver, among(region.ErrGone, region.ErrOther, region.ErrTraces, region.ErrUnknownState):
		return reasonRegion
	case errors.Is(err, errUnhealthy):
		return reasonUnhealthy
	case errors.Is(err, errRetired):
		return reasonRetired
	default:
		return reasonPrepareFailed
	}
}

// overtaken says whether a call came too late for what its claim is now. That is nothing to tell about the claim as it is.
func overtaken(err error) bool {
	_, stale := errors.AsType[*record.StaleError](err)
	return stale || errors.Is(err, engine.ErrChanged) || errors.Is(err, engine.ErrOvertaken)
}

// event tells people of a claim that is prepared all the same.
func (t *teller) event(c *resourceapi.ResourceClaim, eventType, reason, note string) {
	t.events.Eventf(c, nil, eventType, reason, "Prepare", "%s", truncate(note, maxEventMessage))
}

// refused tells that a claim could not be prepared.
func (t *teller) refused(ctx context.Context, c *resourceapi.ResourceClaim, cause error) error {
	if overtaken(cause) {
		return nil
	}
	reason := reasonFor(cause)
	t.events.Eventf(c, nil, corev1.EventTypeWarning, reason, "Prepare", "%s", truncate(cause.Error(), maxEventMessage))
	return t.setCondition(ctx, c, metav1.Condition{
		Type: conditionPrepared, Status: metav1.ConditionFalse, Reason: reason, Message: cause.Error(),
	})
}

// prepared takes back what refused said. Where it said nothing there is nothing to do.
func (t *teller) prepared(ctx context.Context, c *resourceapi.ResourceClaim) error {
	for i := range c.Status.Devices {
		d := &c.Status.Devices[i]
		if d.Driver == v1alpha1.DriverName && meta.IsStatusConditionFalse(d.Conditions, conditionPrepared) {
			return t.setCondition(ctx, c, metav1.Condition{
				Type: conditionPrepared, Status: metav1.ConditionTrue, Reason: reasonPrepared, Message: "the device is ready for the pod",
			})
		}
	}
	return nil
}

// setCondition sets the condition on our devices of a claim. It is an update and not an apply: applying encodes opaque
// configurations anew, and where their keys were not in order the API server takes that for a change of the allocation.
func (t *teller) setCondition(ctx context.Context, c *resourceapi.ResourceClaim, condition metav1.Condition) error {
	return t.setConditionOf(ctx, c, ours, condition)
}

func ours(r *resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == v1alpha1.DriverName }

// setConditionOf is setCondition for some of the devices.
func (t *teller) setConditionOf(
	ctx context.Context, c *resourceapi.ResourceClaim, meant func(*resourceapi.DeviceRequestAllocationResult) bool, condition metav1.Condition,
) error {
	condition.Message = truncate(condition.Message, maxMessage)
	condition.LastTransitionTime = metav1.NewTime(t.now())
	err := t.update(ctx, c, func(c *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool) {
		return withCondition(c, meant, condition)
	})
	if err != nil {
		return fmt.Errorf("set the condition %s of claim %s/%s: %w", condition.Type, c.Namespace, c.Name, err)
	}
	return nil
}

// update writes what change makes of the claim, unless that is nothing new or another claim has the name by now.
func (t *teller) update(
	ctx context.Context, c *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool),
) error {
	claims := t.client.ResourceV1().ResourceClaims(c.Namespace)
	current := c
	return retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = claims.Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		updated, changed := change(current)
		current = nil
		if !changed || updated.UID != c.UID {
			return nil
		}
		_, err = claims.UpdateStatus(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
}

// withCondition returns the claim with a condition on each of its devices that is meant, and whether that changed anything. A condition
// that has the same status already keeps its time, so that a retry every few seconds leaves the claim as it is.
func withCondition(
	c *resourceapi.ResourceClaim, meant func(*resourceapi.DeviceRequestAllocationResult) bool, condition metav1.Condition,
) (*resourceapi.ResourceClaim, bool) {
	return withEntries(c, meant, func(_ *resourceapi.DeviceRequestAllocationResult, entry *resourceapi.AllocatedDeviceStatus) bool {
		return meta.SetStatusCondition(&entry.Conditions, condition)
	})
}

// withEntries returns the claim with the entries of those of its devices changed that are meant, and whether any was.
func withEntries(
	c *resourceapi.ResourceClaim, meant func(*resourceapi.DeviceRequestAllocationResult) bool,
	change func(*resourceapi.DeviceRequestAllocationResult, *resourceapi.AllocatedDeviceStatus) bool,
) (*resourceapi.ResourceClaim, bool) {
	out := c.DeepCopy()
	if out.Status.Allocation == nil {
		return out, false
	}
	changed := false
	for i := range out.Status.Allocation.Devices.Results {
		result := &out.Status.Allocation.Devices.Results[i]
		if meant(result) && change(result, entryOf(&out.Status, result)) {
			changed = true
		}
	}
	return out, changed
}

// entryOf is the entry of status.devices for an allocated device, made where there is none. Two requests with adminAccess may have
// the same device, which is listed once.
func entryOf(status *resourceapi.ResourceClaimStatus, r *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	share := (*string)(r.ShareID)
	for i := range status.Devices {
		d := &status.Devices[i]
		if keyOf(d.Driver, d.Pool, d.Device, d.ShareID) == keyOf(r.Driver, r.Pool, r.Device, share) {
			return d
		}
	}
	status.Devices = append(status.Devices, resourceapi.AllocatedDeviceStatus{
		Driver: r.Driver, Pool: r.Pool, Device: r.Device, ShareID: share,
	})
	return &status.Devices[len(status.Devices)-1]
}

// deviceKey is what tells the entries of status.devices apart.
type deviceKey struct{ driver, pool, device, share string }

func keyOf(driver, pool, device string, share *string) deviceKey {
	key := deviceKey{driver: driver, pool: pool, device: device}
	if share != nil {
		key.share = *share
	}
	return key
}

// truncate cuts a text to at most limit bytes, at a rune, and says that it did. File names may be any bytes, but the API takes
// UTF-8 only.
func truncate(text string, limit int) string {
	const mark = "…"
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= limit {
		return text
	}
	cut := max(limit-len(mark), 0)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}

// tell says what happened outside of kubelet's calls: an Event on the node, and a count by reason.
func (p *Plugin) tell(ctx context.Context, i engine.Incident) {
	klog.FromContext(ctx).Info("Happened to a claim", "reason", i.Reason, "claim", klog.KRef(i.Namespace, i.Name), "claimUID", i.UID,
		"message", i.Message)
	p.metrics.incidents.WithLabelValues(i.Reason).Inc()
	kind := corev1.EventTypeWarning
	if i.Reason == engine.ReasonSpecRestored || i.Reason == engine.ReasonRolledBack {
		kind = corev1.EventTypeNormal
	}
	if p.teller == nil {
		return // before Run
	}
	// Events that differ in their text alone become one that keeps the first text.
	related := &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: i.Namespace, Name: i.Name, UID: types.UID(i.UID),
	}
	p.teller.events.Eventf(p.nodeReference(), related, kind, i.Reason, "Recover", "%s",
		truncate(fmt.Sprintf("claim %s/%s (UID %s): %s", i.Namespace, i.Name, i.UID, i.Message), maxEventMessage))
}

// tellNode makes an Event on the Node.
func (p *Plugin) tellNode(eventType, reason, note string) {
	p.teller.events.Eventf(p.nodeReference(), nil, eventType, reason, "Watch", "%s", truncate(note, maxEventMessage))
}

func (p *Plugin) nodeReference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: p.config.Node, UID: types.UID(p.config.Node)}
}
