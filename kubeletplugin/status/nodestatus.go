// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
)

// statusInput is everything that an AcceleratorNode's status follows from.
type statusInput struct {
	node, version string
	snapshot      *inventory.Snapshot
	slices        []resourceapi.ResourceSlice
	prepared      int
	// bitstreams are the digests of the files in the node's store, sorted.
	bitstreams []string
	// presets are those that claims have something from, sorted.
	presets []v1alpha1.NodePreset
	// kernelCaches are the node's, sorted.
	kernelCaches []v1alpha1.NodeCache
	// ready is why the plugin is not ready, nil if it is.
	ready error
	// published: the API server holds what is wanted. retired: asked to. emptied: and done.
	published, retired, emptied bool
	// before is the last status, nil if there is none.
	before *v1alpha1.AcceleratorNodeStatus
	now    time.Time
}

// nodeStatus computes the whole status. Times change only where what they date changed.
func nodeStatus(in statusInput) v1alpha1.AcceleratorNodeStatus {
	status := v1alpha1.AcceleratorNodeStatus{
		PluginVersion: in.version, Vendors: vendors(in.snapshot), PreparedClaims: count(in.prepared),
		Bitstreams: in.bitstreams[:min(len(in.bitstreams), v1alpha1.MaxBitstreams)],
		Presets:    in.presets[:min(len(in.presets), v1alpha1.MaxNodePresets)],
	}
	status.SetKernelCaches(in.kernelCaches)
	if in.before != nil {
		status.Conditions = slices.Clone(in.before.Conditions)
	}
	for _, kind := range device.Kinds() {
		status.Pools = append(status.Pools, poolStatus(in, kind))
	}
	status.SetProblems(problemsOf(in))
	setConditions(&status, in)
	return status
}

// problemsOf are what discovery and the health ledger found, in the order of their subjects.
func problemsOf(in statusInput) []v1alpha1.NodeProblem {
	found := slices.Concat(in.snapshot.Problems, healthProblems(in.node, in.snapshot))
	slices.SortStableFunc(found, func(a, b discover.Problem) int { return cmp.Compare(a.Subject, b.Subject) })
	problems := make([]v1alpha1.NodeProblem, 0, len(found))
	for _, p := range found {
		problems = append(problems, v1alpha1.NodeProblem{Subject: p.Subject, Reason: p.Reason, Message: p.Message})
	}
	return problems
}

func poolStatus(in statusInput, kind device.Kind) v1alpha1.PoolStatus {
	pool := v1alpha1.PoolStatus{Name: inventory.PoolName(in.node, kind), Kind: string(kind)}
	for i := range in.slices {
		spec := &in.slices[i].Spec
		if spec.Pool.Name != pool.Name {
			continue
		}
		pool.Devices += count(len(spec.Devices))
		pool.Generation = max(pool.Generation, spec.Pool.Generation)
	}
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

func setConditions(status *v1alpha1.AcceleratorNodeStatus, in statusInput) {
	set := func(kind string, ok bool, reason, message string) {
		value := metav1.ConditionFalse
		if ok {
			value = metav1.ConditionTrue
		}
		condition := metav1.Condition{Type: kind, Status: value, Reason: reason, Message: message}
		condition.LastTransitionTime = metav1.NewTime(in.now.Truncate(time.Second))
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if in.ready != nil {
		set(v1alpha1.ConditionReady, false, "NotReady", in.ready.Error())
	} else {
		set(v1alpha1.ConditionReady, true, "Serving", "the plugin serves claims")
	}
	if in.retired {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHealthy)
	} else {
		value, reason, message := healthCondition(in.snapshot)
		condition := metav1.Condition{Type: v1alpha1.ConditionHealthy, Status: value, Reason: reason, Message: message}
		condition.LastTransitionTime = metav1.NewTime(in.now.Truncate(time.Second))
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	switch {
	case in.published && in.retired:
		set(v1alpha1.ConditionPublished, false, "Retired", "the node publishes nothing")
	case in.published:
		set(v1alpha1.ConditionPublished, true, "AsDiscovered", "the API server holds what discovery found")
	default:
		set(v1alpha1.ConditionPublished, false, "Pending", "the API server does not hold what discovery found yet")
	}
	switch {
	case in.emptied:
		set(v1alpha1.ConditionRetired, true, "Emptied", "nothing is published, no claim is prepared, the node's files are removed")
	case in.retired:
		set(v1alpha1.ConditionRetired, false, "ClaimsPrepared", "waits for the pods of prepared claims to end")
	default:
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionRetired)
	}
}

// vendors counts published devices by maker.
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
		if version := device.StringOf(d.Attributes["driverVersion"]); version != "" {
			byName[name].DriverVersion = version
		}
	}
	var out []v1alpha1.VendorStatus
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, *byName[name])
	}
	return out
}

// count is a count as the API holds it.
func count(n int) int32 { return int32(min(n, math.MaxInt32)) }
