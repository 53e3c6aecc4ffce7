// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/message"
)

// statusInput has everything that determines an AcceleratorNode's status.
type statusInput struct {
	node, version string
	// bootID and podUID are of the kernel and of the plugin's pod.
	bootID, podUID string
	// bootTime is when the kernel started; zero: not known.
	bootTime time.Time
	snapshot *inventory.Snapshot
	slices   []resourceapi.ResourceSlice
	prepared int
	// held are the devices that claims hold, as POOL/DEVICE. Nil: the records cannot be read, and the last counts stay.
	held map[string]bool
	// bitstreams are the digests of the files in the node's store, sorted.
	bitstreams []string
	// presets are the presets in use by claims, sorted.
	presets []v1alpha1.NodePreset
	// kernelCaches are the node's caches, sorted.
	kernelCaches []v1alpha1.NodeCache
	// ready says why the plugin is not ready. Nil: it is ready.
	ready error
	// published says that the slices in the API server are up to date, retired that the node was asked to retire, emptied that it has.
	published, retired, emptied bool
	// quiesced is how far drivers are let go of. Nil: none is.
	quiesced *quiesce.Report
	// unconfined says that programs of vendors are less confined than they should be. Empty: they are confined.
	unconfined string
	// before is the last status, nil if there is none.
	before *v1alpha1.AcceleratorNodeStatus
	now    time.Time
}

// ReasonProgramsUnconfined: the kernel cannot keep vendors' programs from files that they are not for.
const ReasonProgramsUnconfined = "ProgramsUnconfined"

// holdsSignals is the first version of Landlock that decides on all that programs are kept from (Linux 6.12).
const holdsSignals = 6

// unconfined says what a version of Landlock does not keep vendors' programs from, "" if that is nothing.
func unconfined(version int, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case version == 0:
		return "this kernel has no Landlock, so programs of vendors (fettle-nvml, nvidia-smi, xbmgmt) reach all files of the plugin that its " +
			"root reaches: boot with lsm=landlock,..., or use Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK"
	case version < holdsSignals:
		return fmt.Sprintf("Landlock %d of this kernel does not keep programs of vendors from sending signals to the plugin: use Linux 6.12 "+
			"or newer", version)
	}
	return ""
}

// nodeStatus computes the whole status. A time changes only with the value that it dates.
func nodeStatus(in statusInput) v1alpha1.AcceleratorNodeStatus {
	status := v1alpha1.AcceleratorNodeStatus{
		PluginVersion: in.version, Vendors: vendors(in.snapshot), PreparedClaims: count(in.prepared),
	}
	if in.before != nil {
		status.Conditions = slices.Clone(in.before.Conditions)
	}
	for _, kind := range device.Kinds() {
		status.Pools = append(status.Pools, poolStatus(in, kind))
	}
	status.SetSummary(summarize(&status, in.snapshot))
	problems := problemsOf(in)
	status.Facts = &v1alpha1.NodeFacts{BootID: in.bootID, PluginPod: in.podUID, WithoutDriver: withoutDriver(problems)}
	if !in.bootTime.IsZero() {
		status.Facts.BootTime = new(metav1.NewTime(in.bootTime))
	}
	status.SetProblems(problems) // conditions read them
	setConditions(&status, in)
	fit(&status, lists{
		problems: problems, caches: in.kernelCaches, bitstreams: in.bitstreams, presets: in.presets, policies: in.snapshot.PartitionPolicies,
	})
	return status
}

// problemsOf returns the problems from discovery and the health ledger, sorted by subject.
func problemsOf(in statusInput) []v1alpha1.NodeProblem {
	found := slices.Concat(in.snapshot.Problems, healthProblems(in.node, in.snapshot))
	if in.unconfined != "" {
		found = append(found, discover.Problem{Subject: "kernel", Reason: ReasonProgramsUnconfined, Message: in.unconfined})
	}
	slices.SortStableFunc(found, func(a, b discover.Problem) int { return cmp.Compare(a.Subject, b.Subject) })
	problems := make([]v1alpha1.NodeProblem, 0, len(found))
	for _, p := range found {
		problems = append(problems, v1alpha1.NodeProblem{Subject: p.Subject, Reason: p.Reason, Message: p.Message})
	}
	return problems
}

// withoutDriver counts the problems that mean that a driver is missing or does not work.
func withoutDriver(problems []v1alpha1.NodeProblem) (n int32) {
	for i := range problems {
		if discover.OfDriver(problems[i].Reason) {
			n++
		}
	}
	return n
}

func poolStatus(in statusInput, kind device.Kind) v1alpha1.PoolStatus {
	pool := v1alpha1.PoolStatus{Name: device.PoolName(in.node, kind), Kind: string(kind)}
	for i := range in.slices {
		spec := &in.slices[i].Spec
		if spec.Pool.Name != pool.Name {
			continue
		}
		pool.Devices += count(len(spec.Devices))
		pool.Generation = max(pool.Generation, spec.Pool.Generation)
	}
	pool.Used, pool.Free = useOf(in, pool.Name)
	for _, d := range in.snapshot.Devices {
		if _, held := in.snapshot.Withheld[d.Name]; held && d.Kind == kind {
			pool.Withheld++
		}
		if _, bad := in.snapshot.Health.Statuses[d.Name]; bad && d.Kind == kind {
			pool.Unhealthy++
		}
	}
	published := metav1.NewTime(in.now.Truncate(time.Second))
	if in.before != nil {
		for i := range in.before.Pools {
			if old := &in.before.Pools[i]; old.Name == pool.Name && old.Generation == pool.Generation && old.Published != nil {
				published = *old.Published
			}
		}
	}
	if pool.Generation > 0 {
		pool.Published = &published
	}
	return pool
}

// useOf returns how many devices of a pool are used and free, as in the last status if the records cannot be read.
func useOf(in statusInput, pool string) (used, free int32) {
	if in.held != nil || in.before == nil {
		return countUse(pool, in.slices, in.held)
	}
	for i := range in.before.Pools {
		if old := &in.before.Pools[i]; old.Name == pool {
			return old.Used, old.Free
		}
	}
	return 0, 0
}

func setConditions(status *v1alpha1.AcceleratorNodeStatus, in statusInput) {
	set := func(kind string, value metav1.ConditionStatus, reason, text string) {
		condition := metav1.Condition{Type: kind, Status: value, Reason: reason, Message: message.Clip(text, message.MaxCondition)}
		condition.LastTransitionTime = metav1.NewTime(in.now.Truncate(time.Second))
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if in.ready != nil {
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "NotReady", in.ready.Error())
	} else {
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving", "the plugin serves claims")
	}
	if in.retired {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHealthy)
	} else {
		value, reason, message := healthCondition(in.snapshot)
		set(v1alpha1.ConditionHealthy, value, reason, message)
	}
	switch {
	case in.published && in.retired:
		set(v1alpha1.ConditionPublished, metav1.ConditionFalse, "Retired", "the node publishes nothing")
	case in.published:
		set(v1alpha1.ConditionPublished, metav1.ConditionTrue, "AsDiscovered", "the API server holds what discovery found")
	default:
		set(v1alpha1.ConditionPublished, metav1.ConditionFalse, "Pending", "the API server does not hold what discovery found yet")
	}
	switch {
	case in.emptied:
		set(v1alpha1.ConditionRetired, metav1.ConditionTrue, "Emptied",
			"nothing is published, no claim is prepared, the node's files are removed")
	case in.retired:
		set(v1alpha1.ConditionRetired, metav1.ConditionFalse, "ClaimsPrepared", "waits for the pods of prepared claims to end")
	default:
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionRetired)
	}
	switch q := in.quiesced; {
	case q == nil:
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionQuiesced)
	case q.Done:
		set(v1alpha1.ConditionQuiesced, metav1.ConditionTrue, q.Reason, q.Message)
	default:
		set(v1alpha1.ConditionQuiesced, metav1.ConditionFalse, q.Reason, q.Message)
	}
}

// vendors counts published devices by vendor.
func vendors(v *inventory.Snapshot) []v1alpha1.VendorStatus {
	byName := map[string]*v1alpha1.VendorStatus{}
	for i := range v.Devices {
		d := &v.Devices[i]
		name := device.StringOf(d.Attributes["vendor"])
		if _, held := v.Withheld[d.Name]; held || name == "" {
			continue
		}
		if byName[name] == nil {
			byName[name] = &v1alpha1.VendorStatus{Name: name}
		}
		byName[name].Devices++
		version := cmp.Or(device.StringOf(d.Attributes[device.AttributeDriverVersion]),
			device.StringOf(d.Attributes[device.AttributeDriverVersionText])) // which is all there is of a text that is no version
		if version != "" {
			byName[name].DriverVersion = version
		}
	}
	var out []v1alpha1.VendorStatus
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, *byName[name])
	}
	return out
}

// count converts to the API's type.
func count(n int) int32 { return int32(min(n, math.MaxInt32)) }

// The reasons of the condition Healthy, and of problems without a fault in the ledger.
const (
	reasonAllHealthy        = "AllHealthy"
	reasonDevicesUnhealthy  = "DevicesUnhealthy"
	reasonHealthUnknown     = "HealthUnknown"
	reasonLedgerUnavailable = "HealthLedgerUnavailable"
)

// maxNamed is how many devices a condition names. The problems list all.
const maxNamed = 8

// healthProblems returns the health problems for the AcceleratorNode.
func healthProblems(node string, v *inventory.Snapshot) []discover.Problem {
	var problems []discover.Problem
	for _, name := range slices.Sorted(maps.Keys(v.Health.Statuses)) {
		s := v.Health.Statuses[name]
		problems = append(problems, discover.Problem{
			Subject: subject(v, name), Reason: s.Reason,
			Message: fmt.Sprintf("device %s is %s since %s: %s",
				name, strings.ToLower(string(s.State)), s.Since.Format(time.RFC3339), s.Detail()),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(v.Health.Unknown)) {
		if _, bad := v.Health.Statuses[name]; !bad {
			problems = append(problems, discover.Problem{Subject: subject(v, name), Reason: reasonHealthUnknown, Message: v.Health.Unknown[name]})
		}
	}
	if v.Health.LedgerProblem != "" {
		problems = append(problems, discover.Problem{Subject: node, Reason: reasonLedgerUnavailable, Message: v.Health.LedgerProblem})
	}
	return problems
}

// subject returns the PCI address of a device, or its name.
func subject(v *inventory.Snapshot, name string) string {
	for i := range v.Devices {
		if v.Devices[i].Name == name {
			return cmp.Or(device.StringOf(v.Devices[i].Attributes[device.AttributePCIAddress]), name)
		}
	}
	return name
}

// healthCondition returns the node's condition Healthy.
func healthCondition(v *inventory.Snapshot) (value metav1.ConditionStatus, reason, message string) {
	switch bad, silent := v.Health.Statuses, v.Health.Unknown; {
	case len(bad) > 0:
		return metav1.ConditionFalse, reasonDevicesUnhealthy, "not healthy: " + enumerate(bad)
	case len(silent) > 0:
		return metav1.ConditionUnknown, reasonHealthUnknown, "nothing is known of the health of " + enumerate(silent)
	default:
		return metav1.ConditionTrue, reasonAllHealthy, "nothing is known against any device"
	}
}

// enumerate lists the first names and counts the rest.
func enumerate[V any](devices map[string]V) string {
	names := slices.Sorted(maps.Keys(devices))
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
