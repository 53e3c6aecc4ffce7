// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// conditionProgrammed is on a region that Fettle programmed, conditionPresets on a device with presets for its request.
	conditionProgrammed = "Programmed"
	conditionPresets    = "PresetsApplied"
	reasonApplied       = "Applied"
	// maxShownPresets and maxShownNames, their bytes, keep the data of an entry within the API's 10 KiB.
	maxShownPresets = 64
	maxShownNames   = 6 << 10
)

// deviceStatus is the data of a device's entry in status.devices. It also determines the entry's conditions.
type deviceStatus struct {
	Digest string `json:"digest,omitempty"`
	AFUID  string `json:"afuID,omitempty"`
	// Presets are the presets that contributed to the device's request, in the order of application.
	Presets []preset.Origin `json:"presets,omitempty"`
}

// conditions returns the conditions that correspond to the data.
func (s *deviceStatus) conditions() []metav1.Condition {
	var out []metav1.Condition
	if s.Digest != "" {
		out = append(out, metav1.Condition{Type: conditionProgrammed, Reason: conditionProgrammed, Message: "the region holds " + s.Digest})
	}
	if len(s.Presets) > 0 {
		var names []string
		for _, p := range s.Presets {
			names = append(names, fmt.Sprintf("%s (generation %d)", p, p.Generation))
		}
		out = append(out, metav1.Condition{Type: conditionPresets, Reason: reasonApplied, Message: strings.Join(names, ", ")})
	}
	return out
}

// writeDevices writes the known content of regions and the applied presets to a claim, unless it shows that already.
func (w *ClaimWriter) writeDevices(ctx context.Context, write deviceWrite) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := write.claim
	err := w.update(ctx, c, func(c *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool) {
		return withDevices(c, write.devices, w.Clock.Now())
	})
	if err != nil {
		return fmt.Errorf("write status.devices of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}

// deviceStatuses returns the devices with something to show, by POOL/DEVICE.
func (w *ClaimWriter) deviceStatuses(r *record.Record) (map[string]deviceStatus, error) {
	presets, err := w.Presets(r)
	if err != nil {
		return nil, err
	}
	programmed, err := w.Programmed(r)
	if err != nil {
		return nil, err
	}
	devices := map[string]deviceStatus{}
	for i := range r.Devices {
		d := &r.Devices[i]
		key := d.Pool + "/" + d.Name
		origins := presets[resourceclaim.BaseRequestRef(d.Request)]
		s := deviceStatus{
			Digest: programmed[key].Digest, AFUID: programmed[key].AFUID, Presets: shownPresets(origins),
		}
		if s.Digest != "" || len(s.Presets) > 0 {
			devices[key] = s
		}
	}
	return devices, nil
}

// shownPresets returns the first presets, as many as an entry has room for.
func shownPresets(origins []preset.Origin) []preset.Origin {
	origins = origins[:min(len(origins), maxShownPresets)]
	room := maxShownNames
	for i := range origins {
		if room -= len(origins[i].Namespace) + len(origins[i].Name); room < 0 {
			return origins[:i]
		}
	}
	return origins
}

// withDevices returns the claim with the given device statuses, by POOL/DEVICE, and whether that changed anything.
func withDevices(c *resourceapi.ResourceClaim, devices map[string]deviceStatus, now time.Time) (*resourceapi.ResourceClaim, bool) {
	of := func(r *resourceapi.DeviceRequestAllocationResult) (deviceStatus, bool) {
		s, ok := devices[r.Pool+"/"+r.Device]
		return s, ok && r.Driver == v1alpha1.DriverName
	}
	return withEntries(c, func(r *resourceapi.DeviceRequestAllocationResult) bool {
		_, ok := of(r)
		return ok
	}, func(r *resourceapi.DeviceRequestAllocationResult, entry *resourceapi.AllocatedDeviceStatus) bool {
		s, _ := of(r)
		raw, err := json.Marshal(s)
		if err != nil {
			return false // cannot happen: it has only strings and numbers
		}
		changed := false
		for _, condition := range s.conditions() {
			condition.Status, condition.LastTransitionTime = metav1.ConditionTrue, metav1.NewTime(now)
			condition.Message = message.Clip(condition.Message, message.MaxCondition)
			changed = meta.SetStatusCondition(&entry.Conditions, condition) || changed
		}
		if entry.Data == nil || !bytes.Equal(entry.Data.Raw, raw) {
			entry.Data, changed = &runtime.RawExtension{Raw: raw}, true
		}
		return changed
	})
}
