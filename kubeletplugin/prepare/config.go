// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Config has the settings and services of an engine. All are required but KubeletState.
type Config struct {
	// Node is the name of the Node object.
	Node string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	Store  *record.Store
	Specs  *cdi.Dir
	// Names names the CDI devices of new claims.
	Names *cdi.Names
	// Features contribute to each claim, in this order. The leftovers of a lost record are undone in reverse order.
	Features Features
	// Machine returns the result of the newest scan, nil before the first.
	Machine func() Machine
	// PlaceOf returns where a device of the configuration is now, which may be elsewhere than the newest scan found it. It is the zero
	// value for any other device.
	PlaceOf func(ctx context.Context, d *device.Device) (container.Place, error)
	// ScanAgain has the machine scanned, and returns once Machine has what a scan found that began after the call.
	ScanAgain func(ctx context.Context) error
	Health    Health
	// Claim reads a claim from the API server. Its errors are those of package api/errors.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// NamespaceUID reads the UID of a namespace from the API server. It is asked for claims with regions only.
	NamespaceUID func(ctx context.Context, name string) (string, error)
	// Classes returns the DeviceClasses of these names as they are now, without those that do not exist.
	Classes func(ctx context.Context, names []string) (map[string]*resourceapi.DeviceClass, error)
	// KubeletState is the path of kubelet's dra_manager_state, or of the socket of fettle-claims. If it is empty, no claim is collected.
	KubeletState string
	// Uptime returns CLOCK_BOOTTIME.
	Uptime func() time.Duration
	// Budget is how long a call waits for background work. It is below kubelet's 45 s.
	Budget   time.Duration
	Observer Observer
	// Limits are the most that claims may hold of what the steps of the features need.
	Limits budget.Limits
}

// Health says which devices claims must not get.
type Health interface {
	// Check refuses an allocated device that a claim without devices must not get.
	Check(c *resourceapi.ResourceClaim, r *claim.Result) error
	// Quarantine withholds a record's devices from all other claims after a step could not be undone. Clear ends that, unless another record
	// still withholds a device that both share.
	Quarantine(r *record.Record, cause error)
	Clear(r *record.Record)
}

// Observer receives reports about claims outside of kubelet's calls. Its methods must not block.
type Observer interface {
	// Incident reports something that no answer to kubelet contains.
	Incident(ctx context.Context, i Incident)
	// Released is called when all work on an unprepared claim is done, after kubelet has its answer.
	Released(r *record.Record)
	// DeletedChanged is called when HeldByDeleted returns something else than before.
	DeletedChanged()
	// Held is called when a prepared claim of this boot was looked up, and has the devices of its record.
	Held(ctx context.Context, c *resourceapi.ResourceClaim, r *record.Record)
}

// Machine is the result of one scan of the node's devices.
type Machine = conflict.Machine

// Incident is an event of a claim outside of kubelet's calls.
type Incident struct {
	// Reason is stable. It is the reason of an Event and the label of a metric.
	Reason string
	// Namespace and Name are those of the claim, if they are known.
	Namespace, Name, UID string
	Message              string
}

// The reasons of incidents.
const (
	ReasonRecordDamaged  = "RecordDamaged"
	ReasonRecordForeign  = "RecordForeign"
	ReasonRolledBack     = "RolledBack"
	ReasonRecoveryFailed = "RecoveryFailed"
	ReasonClaimCollected = "ClaimCollected"
	ReasonDeviceMoved    = "DeviceMoved"
	ReasonSpecRestored   = "SpecRestored"
	ReasonEffectLost     = "EffectLost"
	ReasonClaimDeleted   = "ClaimDeleted"
	ReasonAbandoned      = "Abandoned"
)

// report sends an incident to the observer. The record identifies the claim and may be nil.
func (c *Config) report(ctx context.Context, reason string, r *record.Record, message string) {
	i := Incident{Reason: reason, Message: message}
	if r != nil {
		i.Namespace, i.Name, i.UID = r.Namespace, r.Name, r.UID
	}
	c.Observer.Incident(ctx, i)
}
