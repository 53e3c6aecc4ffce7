// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/dryrun"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// newAMDNode is a node with 8 GPUs whose error counters can be written.
func (c *cluster) newAMDNode(t *testing.T, name string) *node {
	t.Helper()
	n := c.newNode(t, name, "8xmi300x")
	n.config.File.Health.Interval.Duration = 100 * time.Millisecond
	return n
}

// uncorrectable sets the count of uncorrectable memory errors of a GPU by its PCI address.
func (n *node) uncorrectable(address string, errors int) {
	n.t.Helper()
	path := filepath.Join(n.config.HostRoot, "sys", "bus", "pci", "devices", address, "ras", "umc_err_count")
	check.Must(n.t, os.MkdirAll(filepath.Dir(path), 0o755))
	check.Must(n.t, os.WriteFile(path+".new", fmt.Appendf(nil, "ue: %d\nce: 0\n", errors), 0o644))
	check.Must(n.t, os.Rename(path+".new", path))
}

// baseline waits until the counters of a GPU were read once.
func (n *node) baseline(name string) {
	n.t.Helper()
	n.eventually(func() string {
		data, err := os.ReadFile(filepath.Join(n.config.StateDir, "health.json"))
		if err != nil || !strings.Contains(string(data), "ras/umc.ue") {
			return fmt.Sprintf("no baseline of %s in %s (%v)", name, data, err)
		}
		return ""
	})
}

// taints are the taints of the published GPUs by name; a GPU that is not published is not there.
func (n *node) taints() map[string][]resourceapi.DeviceTaint {
	n.t.Helper()
	out := map[string][]resourceapi.DeviceTaint{}
	for _, s := range n.slices() {
		if !strings.HasSuffix(s.Spec.Pool.Name, "/gpu") {
			continue
		}
		for _, d := range s.Spec.Devices {
			out[d.Name] = d.Taints
		}
	}
	return out
}

// tainted waits until one GPU has a taint and the others have none, and returns it.
func (n *node) tainted(name string) resourceapi.DeviceTaint {
	n.t.Helper()
	var taint resourceapi.DeviceTaint
	n.eventually(func() string {
		got := n.taints()
		for other, taints := range got {
			if other != name && len(taints) > 0 {
				return fmt.Sprintf("%s has taints %+v", other, taints)
			}
		}
		if len(got) != 8 || len(got[name]) != 1 {
			return fmt.Sprintf("taints %+v", got)
		}
		taint = got[name][0]
		return ""
	})
	return taint
}

// healthFault says what is wrong with what the AcceleratorNode says of a node with one bad GPU, or none.
func (n *node) healthFault(want metav1.ConditionStatus, unhealthy, withheld, problems int32) string {
	n.t.Helper()
	status := n.status()
	if status == nil {
		return "no AcceleratorNode"
	}
	got := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionHealthy)
	published := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionPublished)
	if got == nil || got.Status != want || status.ProblemCount != problems || !published {
		return fmt.Sprintf("conditions %+v, problems %+v", status.Conditions, status.Problems)
	}
	for _, pool := range status.Pools {
		if pool.Kind == "gpu" && (pool.Unhealthy != unhealthy || pool.Withheld != withheld) {
			return fmt.Sprintf("pool %+v", pool)
		}
	}
	return ""
}

// testUnhealthy: a GPU that fails is tainted, told of and refused, over a restart too, until it is forgiven.
func (c *cluster) testUnhealthy(t *testing.T) {
	t.Parallel()
	n := c.newAMDNode(t, "unhealthy")
	const address = "0000:05:00.0"
	n.uncorrectable(address, 2)
	n.start("pod-1")
	gpu := n.gpus()[0]
	n.baseline(gpu)
	if kept, err := dryrun.KeepsTaints(t.Context(), c.clients.Kube, n.name); !kept || err != nil {
		t.Errorf("the trial says that taints are kept: %v, %v", kept, err)
	}
	if kept, err := dryrun.KeepsShares(t.Context(), c.clients.Kube, n.name); !kept || err != nil {
		t.Errorf("the trial says that shares are dropped: %v", err)
	}
	if form, err := dryrun.CounterForm(t.Context(), c.clients.Kube, n.name); form != partition.FormSeparate || err != nil {
		t.Errorf("the trial says that counters are kept in form %q: %v", form, err)
	}
	stream := n.watchHealth(t)
	allocatedBefore := n.claim("unhealthy-late", nil, nodefixture.Result("gpu", device.KindGPU, gpu))

	n.uncorrectable(address, 3)
	taint := n.tainted(gpu)
	want := resourceapi.DeviceTaint{
		Key: inventory.TaintUnhealthy, Value: "RasUmcUe", Effect: resourceapi.DeviceTaintEffectNoExecute, TimeAdded: taint.TimeAdded,
	}
	if diff := cmp.Diff(want, taint); diff != "" || taint.TimeAdded == nil {
		t.Errorf("taint (-want +got):\n%s", diff)
	}
	n.eventually(func() string { return n.healthFault(metav1.ConditionFalse, 1, 0, 1) })
	stream.await(gpu, drahealth.HealthStatus_UNHEALTHY, "uncorrectable errors")
	n.eventually(func() string {
		list, err := n.clients.Kube.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		check.Must(t, err)
		for _, e := range list.Items {
			if e.Regarding.Name == n.name && e.Reason == "DeviceUnhealthy" && strings.Contains(e.Note, gpu) {
				return ""
			}
		}
		return "no Event on the Node"
	})
	if answer := n.prepare(allocatedBefore); !strings.Contains(answer.Error, "uncorrectable errors") {
		t.Errorf("a claim got the device: %+v", answer)
	}
	n.refusedWith(allocatedBefore, "DeviceUnhealthy", gpu)

	before := n.slices()
	n.stop()
	n.start("pod-2")
	n.eventually(func() string { return n.healthFault(metav1.ConditionFalse, 1, 0, 1) })
	if diff := cmp.Diff(before, n.slices()); diff != "" {
		t.Errorf("a restart wrote slices (-before +after):\n%s", diff)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.RecoverAnnotation, gpu)
	objects := n.clients.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes"))
	_, err := objects.Patch(t.Context(), n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	check.Must(t, err)
	n.eventually(func() string { return n.healthFault(metav1.ConditionTrue, 0, 0, 0) })
	if got := n.taints(); len(got) != 8 || len(got[gpu]) != 0 {
		t.Errorf("taints %v", got)
	}
	if answer := n.prepare(allocatedBefore); answer.Error != "" {
		t.Errorf("after it was forgiven: %s", answer.Error)
	}
}

// healthStream is what kubelet is told of devices.
type healthStream struct {
	t      *testing.T
	client drahealth.DRAResourceHealth_NodeWatchResourcesClient
	end    context.CancelFunc
}

func (n *node) watchHealth(t *testing.T) *healthStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	client, err := n.health.NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	check.Must(t, err)
	return &healthStream{t, client, cancel}
}

// until waits for a report.
func (s *healthStream) until(what string, is func(*drahealth.NodeWatchResourcesResponse) bool) {
	s.t.Helper()
	stop := time.AfterFunc(apitest.Patience(), s.end)
	defer stop.Stop()
	var last *drahealth.NodeWatchResourcesResponse
	for {
		report, err := s.client.Recv()
		if err != nil {
			s.t.Fatalf("kubelet was never told that %s: %v; last %v", what, err, last)
		}
		if is(report) {
			return
		}
		last = report
	}
}

// await waits until kubelet is told something of a device.
func (s *healthStream) await(name string, want drahealth.HealthStatus, text string) {
	s.t.Helper()
	s.until(fmt.Sprintf("%s is %s", name, want), func(report *drahealth.NodeWatchResourcesResponse) bool {
		return slices.ContainsFunc(report.Devices, func(d *drahealth.DeviceHealth) bool {
			return d.Device.DeviceName == name && d.Health == want && strings.Contains(d.Message, text)
		})
	})
}

// TestOlderAPI: where the API server drops taints a device that fails is not published, and comes back by itself.
func TestOlderAPI(t *testing.T) {
	c := newCluster(t, map[string]string{
		"feature-gates": "DRADeviceTaints=false,DRADeviceTaintRules=false,DRAPartitionableDevices=false,DRAConsumableCapacity=false",
	})
	if form, err := dryrun.CounterForm(t.Context(), c.clients.Kube, "older"); form != "" || err != nil {
		t.Errorf("the trial says that counters are kept in form %q: %v", form, err)
	}
	if kept, err := dryrun.KeepsShares(t.Context(), c.clients.Kube, "older"); kept || err != nil {
		t.Errorf("the trial says that shares are kept: %t, %v", kept, err)
	}
	n := c.newAMDNode(t, "older")
	const address = "0000:05:00.0"
	n.uncorrectable(address, 2)
	n.start("pod-1")
	gpu := n.gpus()[0]
	n.baseline(gpu)
	if kept, err := dryrun.KeepsTaints(t.Context(), c.clients.Kube, n.name); kept || err != nil {
		t.Errorf("the trial says that taints are kept: %v, %v", kept, err)
	}
	n.uncorrectable(address, 3)
	n.eventually(func() string { return n.healthFault(metav1.ConditionFalse, 1, 1, 1) })
	got := n.taints()
	if _, published := got[gpu]; published || len(got) != 7 {
		t.Errorf("published %v", got)
	}
	if s, _ := n.plugin.holder.Get(); s.Health.TaintsKept {
		t.Error("the plugin believes that taints are kept")
	}
	n.uncorrectable(address, 0)
	n.eventually(func() string { return n.healthFault(metav1.ConditionTrue, 0, 0, 0) })
	if got := n.taints(); len(got) != 8 {
		t.Errorf("published %v", got)
	}

	// An API server that kept taints a moment ago does not any more: whoever is asked to publish one finds out.
	n.plugin.health.SetTaintsKept(t.Context(), true)
	n.uncorrectable(address, 1)
	n.eventually(func() string { return n.healthFault(metav1.ConditionFalse, 1, 1, 1) })
	if _, published := n.taints()[gpu]; published {
		t.Error("the device is still published, without its taint")
	}
}
