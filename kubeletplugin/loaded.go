// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/record"
)

// conditionProgrammed is the condition on a claim's region that Fettle programmed, with what is in it as the entry's data.
const conditionProgrammed = "Programmed"

// loadedData is the data of a region's entry in status.devices.
type loadedData struct {
	// Digest is the file's that was programmed, AFUID what the region shows.
	Digest string `json:"digest"`
	AFUID  string `json:"afuID,omitempty"`
}

// showLoaded says on a claim what its regions hold, where that is known.
func (p *Plugin) showLoaded(ctx context.Context, c *resourceapi.ResourceClaim, r *record.Record) error {
	const patience = 5 * time.Second // kubelet waits
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	loaded := map[string]loadedData{}
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.CoTenancy == "" || d.AdminAccess {
			continue // not a region
		}
		content, err := p.fpgas.contents.Read(d.Name)
		if err != nil {
			return err
		}
		if !content.Unknown && content.Digest != "" && content.BootID == p.looker.bootID && content.Claim == r.UID {
			loaded[d.Pool+"/"+d.Name] = loadedData{Digest: content.Digest, AFUID: content.AFU}
		}
	}
	if len(loaded) == 0 {
		return nil
	}
	err := p.teller.update(ctx, c, func(c *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool) {
		return withLoaded(c, loaded, p.teller.now())
	})
	if err != nil {
		return fmt.Errorf("write status.devices of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}

// withLoaded returns the claim with what its regions hold, by POOL/DEVICE, and whether that changed anything.
func withLoaded(c *resourceapi.ResourceClaim, loaded map[string]loadedData, now time.Time) (*resourceapi.ResourceClaim, bool) {
	of := func(r *resourceapi.DeviceRequestAllocationResult) (loadedData, bool) {
		data, ok := loaded[r.Pool+"/"+r.Device]
		return data, ok && r.Driver == v1alpha1.DriverName
	}
	return withEntries(c, func(r *resourceapi.DeviceRequestAllocationResult) bool {
		_, ok := of(r)
		return ok
	}, func(r *resourceapi.DeviceRequestAllocationResult, entry *resourceapi.AllocatedDeviceStatus) bool {
		data, _ := of(r)
		raw, err := json.Marshal(data)
		if err != nil {
			return false // two strings
		}
		changed := meta.SetStatusCondition(&entry.Conditions, metav1.Condition{
			Type: conditionProgrammed, Status: metav1.ConditionTrue, Reason: reasonProgrammed, LastTransitionTime: metav1.NewTime(now),
			Message: "the region holds " + data.Digest,
		})
		if entry.Data == nil || !bytes.Equal(entry.Data.Raw, raw) {
			entry.Data, changed = &runtime.RawExtension{Raw: raw}, true
		}
		return changed
	})
}
