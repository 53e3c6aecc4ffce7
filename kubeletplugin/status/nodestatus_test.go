// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// published is what the API server holds after a view was published as generation 1.
func published(v *inventory.Snapshot) []resourceapi.ResourceSlice {
	var out []resourceapi.ResourceSlice
	for name, pool := range publish.Resources(nodefixture.Node, v).Pools {
		for _, slice := range pool.Slices {
			out = append(out, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, Devices: slice.Devices,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			}})
		}
	}
	return out
}

// TestLongReason: an API server that refuses slices says so of each device, and the node's status is written all the same.
func TestLongReason(t *testing.T) {
	refused := errors.New(strings.Repeat("spec.devices[7].attributes: Invalid value; ", 1000))
	status := nodeStatus(statusInput{node: nodefixture.Node, snapshot: nodefixture.SnapshotWith(), ready: refused, now: time.Unix(0, 0)})
	for _, c := range status.Conditions {
		if n := len(c.Message); n > message.MaxCondition {
			t.Errorf("the message of condition %s has %d characters, which no API server takes", c.Type, n)
		}
	}
}

func TestNodeStatus(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	disks := nodefixture.Snapshot(t, "4xlocalssd")
	disks.Withheld[disks.Devices[0].Name] = "is being emptied after its last claim"
	broken := nodefixture.Snapshot(t, "broken-no-driver")
	silent := nodefixture.Snapshot(t, "8xh100-sxm")
	silent = silent.With(inventory.Health{
		Unknown:       map[string]string{silent.Devices[0].Name: "nvml says nothing of the device"},
		LedgerProblem: "the health ledger is in memory only: no space",
	})
	tests := map[string]statusInput{
		"8xh100-sxm":      {snapshot: nodefixture.Snapshot(t, "8xh100-sxm"), prepared: 3, published: true},
		"4xlocalssd":      {snapshot: disks, published: true},
		"broken":          {snapshot: broken, ready: errors.New("kubelet has not registered the plugin yet")},
		"retiring":        {snapshot: broken, prepared: 1, retired: true, published: true},
		"retired":         {snapshot: broken, retired: true, published: true, emptied: true},
		"empty-unwritten": {snapshot: nodefixture.Snapshot(t, "empty")},
		"unhealthy":       {snapshot: nodefixture.Ailing(t, true), published: true},
		"unhealthy-older": {snapshot: nodefixture.Ailing(t, false), published: true},
		"silent":          {snapshot: silent, published: true},
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			in.node, in.version, in.now = nodefixture.Node, "v1.2.3", now
			in.bootID, in.podUID = "boot-1", "pod-1"
			if in.published && !in.retired {
				in.slices = published(in.snapshot)
			}
			status := nodeStatus(in)
			check.GoldenJSON(t, "testdata/nodestatus-"+name+".golden.json", status)
			in.before, in.now = &status, now.Add(time.Hour)
			if diff := cmp.Diff(status, nodeStatus(in)); diff != "" {
				t.Errorf("an hour later, with no change (-before +after):\n%s", diff)
			}
		})
	}
}

// TestNodeStatusTimes: a time changes with what it dates, and nothing else does.
func TestNodeStatusTimes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	v := nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0))
	in := statusInput{node: nodefixture.Node, snapshot: v, slices: published(v), published: true, now: now}
	before := nodeStatus(in)
	in.before, in.now, in.ready = &before, now.Add(time.Hour), errors.New("not ready")
	for i := range in.slices {
		if in.slices[i].Spec.Pool.Name == nodefixture.Node+"/gpu" {
			in.slices[i].Spec.Pool.Generation++
		}
	}
	after := nodeStatus(in)
	for i, pool := range after.Pools {
		moved := !pool.Published.Equal(before.Pools[i].Published)
		if want := pool.Kind == "gpu"; moved != want {
			t.Errorf("pool %s: time moved %v, want %v", pool.Name, moved, want)
		}
	}
	for _, c := range after.Conditions {
		was := meta.FindStatusCondition(before.Conditions, c.Type)
		if moved, want := !c.LastTransitionTime.Equal(&was.LastTransitionTime), c.Type == v1alpha1.ConditionReady; moved != want {
			t.Errorf("condition %s: time moved %v, want %v", c.Type, moved, want)
		}
	}
	if was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady); was.Status != metav1.ConditionTrue {
		t.Error("the former status was changed")
	}
}

// TestWithoutDriver: the circumstances are counted before the list of problems is cut, and a device that is set aside is not counted.
func TestWithoutDriver(t *testing.T) {
	v := nodefixture.Snapshot(t, "broken-no-driver")
	in := statusInput{node: nodefixture.Node, snapshot: v, bootID: "b", podUID: "p", now: time.Now()}
	want := v1alpha1.NodeFacts{BootID: "b", PluginPod: "p", WithoutDriver: 2}
	if got := nodeStatus(in).Facts; *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
	in.bootTime = time.Unix(1700000000, 0)
	if got := nodeStatus(in).Facts.BootTime; got == nil || !got.Time.Equal(in.bootTime) {
		t.Errorf("the boot was at %v, want %v", got, in.bootTime)
	}
	for i := range v1alpha1.MaxProblems {
		v.Problems = append(v.Problems, discover.Problem{Subject: fmt.Sprintf("0001:%02x:00.0", i), Reason: discover.ReasonDriverNotSupported})
	}
	if got := nodeStatus(in).Facts.WithoutDriver; got != 2+v1alpha1.MaxProblems {
		t.Errorf("%d, want %d", got, 2+v1alpha1.MaxProblems)
	}
}

// TestStatusListsBitstreams: as many as there is room for. The others are told in short.
func TestStatusListsBitstreams(t *testing.T) {
	in := statusInput{snapshot: nodefixture.Snapshot(t, "empty"), now: time.Now()}
	for i := range v1alpha1.MaxBitstreams + 1 {
		in.bitstreams = append(in.bitstreams, fmt.Sprintf("sha256:%064x", i))
	}
	many := nodeStatus(in)
	if n := len(many.Bitstreams); n == 0 || !slices.Equal(many.Bitstreams, in.bitstreams[:n]) {
		t.Errorf("listed %v", many.Bitstreams)
	}
	for _, digest := range in.bitstreams {
		if !many.HasBitstream(digest) {
			t.Errorf("file %s is not told", digest)
		}
	}
	in.bitstreams = in.bitstreams[:1]
	if diff := cmp.Diff(in.bitstreams, nodeStatus(in).Bitstreams); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	in.bitstreams = nil
	if got := nodeStatus(in).Bitstreams; got != nil {
		t.Errorf("listed %v", got)
	}
}
