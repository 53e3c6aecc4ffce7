// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// conditionPrepared is the condition on a claim's device that says why it could not be prepared.
	conditionPrepared = "Prepared"
	// fieldManager owns our entries of status.devices; other drivers' entries are never touched.
	fieldManager = "fettle.dev"

	reasonPrepared      = "Prepared"
	reasonPrepareFailed = "PrepareFailed"
	reasonInUse         = "DeviceInUse"
	reasonDeviceGone    = "DeviceGone"
	reasonRetired       = "NodeRetired"

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
	switch {
	case errors.Is(err, errDeviceGone):
		return reasonDeviceGone
	case errors.Is(err, errRetired):
		return reasonRetired
	default:
		return reasonPrepareFailed
	}
}

// refused tells that a claim could not be prepared.
func (t *teller) refused(ctx context.Context, c *resourceapi.ResourceClaim, cause error) error {
	reason := reasonFor(cause)
	t.events.Eventf(c, nil, corev1.EventTypeWarning, reason, "Prepare", "%s", truncate(cause.Error(), maxEventMessage))
	return t.setCondition(ctx, c, metav1.ConditionFalse, reason, cause.Error())
}

// prepared takes back what refused said. Where it said nothing there is nothing to do.
func (t *teller) prepared(ctx context.Context, c *resourceapi.ResourceClaim) error {
	for i := range c.Status.Devices {
		d := &c.Status.Devices[i]
		if d.Driver == v1alpha1.DriverName && meta.IsStatusConditionFalse(d.Conditions, conditionPrepared) {
			return t.setCondition(ctx, c, metav1.ConditionTrue, reasonPrepared, "the device is ready for the pod")
		}
	}
	return nil
}

func (t *teller) setCondition(
	ctx context.Context, c *resourceapi.ResourceClaim, status metav1.ConditionStatus, reason, message string,
) error {
	if c.Status.Allocation == nil {
		return nil
	}
	apply := resourceapply.ResourceClaimStatus()
	// Two requests with adminAccess may have the same device, which status.devices lists once.
	told := map[deviceKey]bool{}
	for i := range c.Status.Allocation.Devices.Results {
		result := &c.Status.Allocation.Devices.Results[i]
		key := keyOf(result.Driver, result.Pool, result.Device, (*string)(result.ShareID))
		if result.Driver != v1alpha1.DriverName || told[key] {
			continue
		}
		told[key] = true
		condition := metaapply.Condition().WithType(conditionPrepared).WithStatus(status).WithReason(reason).
			WithMessage(truncate(message, maxMessage)).WithLastTransitionTime(t.transition(c, result, status))
		device := resourceapply.AllocatedDeviceStatus().WithDriver(result.Driver).WithPool(result.Pool).
			WithDevice(result.Device).WithConditions(condition)
		if result.ShareID != nil {
			device.WithShareID(string(*result.ShareID))
		}
		apply.WithDevices(device)
	}
	object := resourceapply.ResourceClaim(c.Name, c.Namespace).WithUID(c.UID).WithStatus(apply)
	_, err := t.client.ResourceV1().ResourceClaims(c.Namespace).ApplyStatus(ctx, object, metav1.ApplyOptions{
		FieldManager: fieldManager, Force: true,
	})
	if err != nil {
		return fmt.Errorf("set the condition %s of claim %s/%s: %w", conditionPrepared, c.Namespace, c.Name, err)
	}
	return nil
}

// transition keeps the time of a condition that does not change, so that a retry every few seconds leaves the claim as it is.
func (t *teller) transition(
	c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult, status metav1.ConditionStatus,
) metav1.Time {
	for i := range c.Status.Devices {
		d := &c.Status.Devices[i]
		if keyOf(d.Driver, d.Pool, d.Device, d.ShareID) != keyOf(r.Driver, r.Pool, r.Device, (*string)(r.ShareID)) {
			continue
		}
		if have := meta.FindStatusCondition(d.Conditions, conditionPrepared); have != nil && have.Status == status {
			return have.LastTransitionTime
		}
	}
	return metav1.NewTime(t.now())
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
