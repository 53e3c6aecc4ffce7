// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"io"
	"maps"
	"net/http"
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
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestAPI runs whole plugins against a real API server, with the test as kubelet and scheduler. Its parts share the server to save
// time; each has a node of its own.
func TestAPI(t *testing.T) {
	c := newCluster(t, nil)
	t.Run("publish", c.testPublish)
	t.Run("restart", c.testRestart)
	t.Run("hardware", c.testHardware)
	t.Run("prepare", c.testPrepare)
	t.Run("refusals", c.testRefusals)
	t.Run("adminAccess", c.testAdminAccess)
	t.Run("deletedClaim", c.testDeletedClaim)
	t.Run("wave", c.testWave)
	t.Run("health", c.testHealth)
	t.Run("unhealthy", c.testUnhealthy)
	t.Run("retire", c.testRetire)
	t.Run("quiesce", c.testQuiesce)
	t.Run("lateBinding", c.testLateBinding)
}

func (c *cluster) testPublish(t *testing.T) {
	t.Parallel()
	for machine, gpus := range map[string]int{"8xh100-sxm": 8, "200-devices": 200, "empty": 0} {
		t.Run(machine, func(t *testing.T) {
			n := c.newNode(t, "publish-"+machine, machine)
			begin := time.Now()
			n.start("pod-1")
			want := map[string]int{n.name + "/gpu": gpus}
			n.eventually(func() string { return cmp.Diff(want, n.devices()) })
			t.Logf("%d devices published %s after New", gpus, time.Since(begin).Round(time.Millisecond))
			for _, s := range n.slices() {
				if len(s.Spec.Devices) > device.MaxPerSlice {
					t.Errorf("slice %s has %d devices", s.Name, len(s.Spec.Devices))
				}
				if owner := metav1.GetControllerOf(&s); owner == nil || owner.Kind != "Node" || owner.Name != n.name {
					t.Errorf("slice %s belongs to %v, want the Node", s.Name, owner)
				}
			}
			n.eventually(func() string { return n.statusFault(gpus) })
			checkMetrics(t, n, fmt.Sprintf(`fettle_devices{kind="gpu"} %d`, gpus))
		})
	}
}

// statusFault says what is wrong with the AcceleratorNode of a node in order with a number of GPUs.
func (n *node) statusFault(gpus int) string {
	n.t.Helper()
	status := n.status()
	if status == nil {
		return "no AcceleratorNode"
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished} {
		if !meta.IsStatusConditionTrue(status.Conditions, kind) {
			return fmt.Sprintf("condition %s: %+v", kind, status.Conditions)
		}
	}
	got := map[string]int32{}
	for _, pool := range status.Pools {
		got[pool.Name] = pool.Devices
		if there := pool.Kind == string(device.KindGPU); (pool.Generation > 0) != there || (pool.Published != nil) != there {
			return fmt.Sprintf("pool %+v", pool)
		}
	}
	want := map[string]int32{n.name + "/gpu": int32(gpus), n.name + "/fpga": 0, n.name + "/accelerator": 0, n.name + "/host": 0}
	if status.PluginVersion != "test" || status.PreparedClaims != 0 || status.ProblemCount != 0 {
		return fmt.Sprintf("status %+v", status)
	}
	return cmp.Diff(want, got)
}

func checkMetrics(t *testing.T, n *node, want string) {
	t.Helper()
	for path, want := range map[string]string{"/metrics": want, "/readyz": "ok", "/healthz": "ok"} {
		response, err := http.Get("http://" + n.config.HTTPListener.Addr().String() + path) //nolint:noctx // the server is the test's own
		check.Must(t, err)
		body, err := io.ReadAll(response.Body)
		check.Must(t, err)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: status %d, want a body with %q", path, response.StatusCode, want)
		}
	}
}

// testRestart: a new version of the plugin finds its slices as they should be and writes none of them. A change of one pool then
// proves that it looked, and leaves the others alone.
func (c *cluster) testRestart(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "restart", "200-devices")
	n.start("pod-1")
	n.eventually(func() string { return n.statusFault(200) })
	before, status := n.slices(), n.status()
	n.stop()
	if left, err := os.ReadDir(n.config.RegistryDir); err != nil || len(left) > 0 {
		t.Errorf("sockets left: %v, %v", left, err)
	}
	n.start("pod-2")
	check.Must(t, os.MkdirAll(filepath.Join(n.config.HostRoot, "mnt", "disks", "ssd0"), 0o755))
	n.eventually(func() string {
		if got := n.devices()[n.name+"/host"]; got != 1 {
			return fmt.Sprintf("%d disks", got)
		}
		return ""
	})
	for name, was := range before {
		now := n.slices()[name]
		if strings.HasSuffix(was.Spec.Pool.Name, "/host") {
			continue
		}
		if diff := cmp.Diff(was, now); diff != "" {
			t.Errorf("slice %s of pool %s was written (-before +after):\n%s", name, was.Spec.Pool.Name, diff)
		}
	}
	n.eventually(func() string {
		after := n.status()
		if pool := after.Pools[len(after.Pools)-1]; pool.Kind != string(device.KindHost) || pool.Devices != 1 {
			return fmt.Sprintf("pools %+v", after.Pools)
		}
		return ""
	})
	after := n.status()
	others := len(after.Pools) - 1
	if diff := cmp.Diff(status.Pools[:others], after.Pools[:others]); diff != "" {
		t.Errorf("the pools that did not change (-before +after):\n%s", diff)
	}
	was, now := publishedCondition(status), publishedCondition(after)
	if was == nil || now == nil || now.LastTransitionTime.Time.Before(was.LastTransitionTime.Time) {
		t.Errorf("condition %+v, then %+v", was, now)
	}
}

func publishedCondition(s *v1alpha1.AcceleratorNodeStatus) *metav1.Condition {
	return meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionPublished)
}

// testHardware swaps the machine while the plugin runs.
func (c *cluster) testHardware(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "hardware", "empty")
	n.start("pod-1")
	n.eventually(func() string { return n.statusFault(0) })
	for _, step := range []struct {
		machine string
		gpus    int
	}{{"8xh100-sxm", 8}, {"2xa100-2xn6000", 2}, {"empty", 0}} {
		check.Must(t, os.RemoveAll(n.config.HostRoot))
		nodefixture.ExpandInto(t, step.machine, n.config.HostRoot)
		n.eventually(func() string {
			if got := n.devices()[n.name+"/gpu"]; got != step.gpus {
				return fmt.Sprintf("%s: %d GPUs published", step.machine, got)
			}
			return ""
		})
	}
	n.eventually(func() string { return n.statusFault(0) })
	if got := n.slices(); len(got) != 1 {
		t.Errorf("%d slices, want an empty one", len(got))
	}
	// Whoever removes the node's object, as a Node that joins again does, does not remove it for good.
	nodes := c.clients.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes"))
	check.Must(t, nodes.Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	n.eventually(func() string { return n.statusFault(0) })
}

// gpus are the names of the published GPUs, sorted.
func (n *node) gpus() []string {
	n.t.Helper()
	var names []string
	n.eventually(func() string {
		names = nil
		for _, s := range n.slices() {
			if strings.HasSuffix(s.Spec.Pool.Name, "/gpu") {
				for _, d := range s.Spec.Devices {
					names = append(names, d.Name)
				}
			}
		}
		if len(names) == 0 {
			return "no GPU is published"
		}
		return ""
	})
	slices.Sort(names)
	return names
}

func (c *cluster) testPrepare(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "prepare", "8xh100-sxm")
	n.start("pod-1")
	gpus := n.gpus()
	claim := n.claim("prepared", nil, nodefixture.Result("a", device.KindGPU, gpus[0]), nodefixture.Result("b", device.KindGPU, gpus[1]))
	first := n.prepare(claim)
	if first.Error != "" || len(first.Devices) != 2 {
		t.Fatalf("answer %+v", first)
	}
	got := first.Devices[0]
	if !slices.Equal(got.RequestNames, []string{"a"}) || got.PoolName != n.name+"/gpu" || got.DeviceName != gpus[0] ||
		len(got.CdiDeviceIds) != 2 || got.CdiDeviceIds[0] != "fettle.dev/gpu="+gpus[0] {
		t.Errorf("device %+v", got)
	}
	if !n.plugin.specs.Has(got.CdiDeviceIds[1]) {
		t.Errorf("%s is not in the CDI directory", got.CdiDeviceIds[1])
	}
	r, err := n.plugin.records.Load(string(claim.UID))
	check.Must(t, err)
	if r.Name != claim.Name || r.BootID != "boot-1" || len(r.Devices) != 2 || r.Devices[1].Name != gpus[1] {
		t.Errorf("record %+v", r)
	}
	files, err := os.ReadDir(n.config.CDIRoot)
	check.Must(t, err)
	if len(files) != 2*8 {
		t.Errorf("%d spec files: a claim of plain devices writes none, and each device has one and another for its name", len(files))
	}
	n.eventually(func() string {
		if s := n.status(); s == nil || s.PreparedClaims != 1 {
			return fmt.Sprintf("status %+v", s)
		}
		return ""
	})
	// The old plugin is replaced while the pod runs: the new one gives the same answer.
	n.stop()
	n.start("pod-2")
	if second := n.prepare(claim); second.String() != first.String() {
		t.Errorf("answer of the next version %v, want %v", second, first)
	}
	if was, err := c.clients.Kube.ResourceV1().ResourceClaims(namespace).Get(t.Context(), claim.Name, metav1.GetOptions{}); err != nil ||
		was.ResourceVersion != claim.ResourceVersion {
		t.Errorf("a claim that was prepared at once was written: %v, %v", was.Status.Devices, err)
	}
	for range 2 {
		n.unprepare(claim)
	}
	n.eventually(func() string { return n.statusFault(8) })
}

// testRefusals wants an Event and a condition where a claim is refused, and the condition taken back where it is prepared later.
func (c *cluster) testRefusals(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "refusals", "8xh100-sxm")
	n.start("pod-1")
	gpu := n.gpus()[0]
	wrong := n.claim("wrong-config", func(c *resourceapi.ResourceClaim) {
		nodefixture.Configured(c, resourceapi.AllocationConfigSourceClaim,
			`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","colour":"red"}`)
		c.Status.Allocation.Devices.Config[0].Requests = []string{"gpu"}
	}, nodefixture.Result("gpu", device.KindGPU, gpu))
	if answer := n.prepare(wrong); !strings.Contains(answer.Error, "colour") {
		t.Errorf("answer %q, want it to name the field", answer.Error)
	}
	n.refusedWith(wrong, "ConfigInvalid", "colour")

	holder := n.claim("holder", nil, nodefixture.Result("gpu", device.KindGPU, gpu))
	if answer := n.prepare(holder); answer.Error != "" {
		t.Fatal(answer.Error)
	}
	waiter := n.claim("waiter", nil, nodefixture.Result("gpu", device.KindGPU, gpu))
	for range 2 {
		if answer := n.prepare(waiter); !strings.Contains(answer.Error, "team-a/holder") {
			t.Errorf("answer %q, want it to name the holder", answer.Error)
		}
	}
	n.refusedWith(waiter, "DeviceInUse", "team-a/holder")
	n.unprepare(holder)
	if answer := n.prepare(waiter); answer.Error != "" {
		t.Fatal(answer.Error)
	}
	if got := n.conditionOf(waiter); got == nil || got.Status != metav1.ConditionTrue || got.Reason != "Prepared" {
		t.Errorf("condition %+v after it was prepared", got)
	}
	checkMetrics(t, n, `fettle_claim_refusals_total{reason="DeviceInUse"} 2`)
}

// refusedWith wants an Event and a condition on the claim.
func (n *node) refusedWith(c *resourceapi.ResourceClaim, reason, text string) {
	n.t.Helper()
	got := n.conditionOf(c)
	if got == nil || got.Status != metav1.ConditionFalse || got.Reason != reason || !strings.Contains(got.Message, text) {
		n.t.Errorf("claim %s has condition %+v, want %s with %q", c.Name, got, reason, text)
	}
	n.eventually(func() string {
		list, err := n.clients.Kube.EventsV1().Events(namespace).List(n.t.Context(), metav1.ListOptions{})
		check.Must(n.t, err)
		for _, e := range list.Items {
			if e.Regarding.UID == c.UID && e.Reason == reason && strings.Contains(e.Note, text) {
				return ""
			}
		}
		return fmt.Sprintf("no Event %s with %q on claim %s", reason, text, c.Name)
	})
}

// conditionOf is the claim's first device's.
func (n *node) conditionOf(c *resourceapi.ResourceClaim) *metav1.Condition {
	n.t.Helper()
	now, err := n.clients.Kube.ResourceV1().ResourceClaims(namespace).Get(n.t.Context(), c.Name, metav1.GetOptions{})
	check.Must(n.t, err)
	if len(now.Status.Devices) == 0 {
		return nil
	}
	return meta.FindStatusCondition(now.Status.Devices[0].Conditions, "Prepared")
}

// testAdminAccess looks at one device through two requests, held by another claim, and then at one that is gone.
func (c *cluster) testAdminAccess(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "admin", "8xh100-sxm")
	n.start("pod-1")
	gpu := n.gpus()[0]
	holder := n.claim("admin-holder", nil, nodefixture.Result("gpu", device.KindGPU, gpu))
	if answer := n.prepare(holder); answer.Error != "" {
		t.Fatal(answer.Error)
	}
	twice := n.claim("admin-twice", nil, nodefixture.Look(nodefixture.Result("a", device.KindGPU, gpu)),
		nodefixture.Look(nodefixture.Result("b", device.KindGPU, gpu)))
	if answer := n.prepare(twice); answer.Error != "" || len(answer.Devices) != 2 {
		t.Errorf("answer %+v", answer)
	}
	r, err := n.plugin.records.Load(string(twice.UID))
	check.Must(t, err)
	for _, d := range r.Devices {
		for _, node := range d.Edits.Nodes {
			if strings.Contains(node.Permissions, "w") {
				t.Errorf("node %+v may be written", node)
			}
		}
	}
	n.unprepare(twice)
	if !n.plugin.records.Held(n.name+"/gpu", gpu) {
		t.Error("the end of a look freed the holder's device")
	}
	gone := n.claim("admin-gone", nil, nodefixture.Look(nodefixture.Result("a", device.KindGPU, "nvidia-gone")),
		nodefixture.Look(nodefixture.Result("b", device.KindGPU, "nvidia-gone")))
	if answer := n.prepare(gone); answer.Error == "" {
		t.Error("prepared a device that is not there")
	}
	n.refusedWith(gone, "DeviceGone", "nvidia-gone")
}

// testWave prepares and unprepares 64 claims in one call, as after a node's reboot.
func (c *cluster) testWave(t *testing.T) {
	const size = 64
	n := c.newNode(t, "wave", "200-devices")
	n.start("pod-1")
	gpus := n.gpus()
	var wave []*drapb.Claim
	for i := range size {
		wave = append(wave, wire(n.claim(fmt.Sprintf("wave-%d", i), nil, nodefixture.Result("gpu", device.KindGPU, gpus[i]))))
	}
	before := n.requests.Load()
	prepared, err := n.dra.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: wave})
	check.Must(t, err)
	asked := n.requests.Load() - before
	ids := map[string]bool{}
	for uid, answer := range prepared.Claims {
		if answer.Error != "" {
			t.Fatalf("claim %s: %s", uid, answer.Error)
		}
		ids[answer.Devices[0].CdiDeviceIds[0]] = true
	}
	if len(ids) != size {
		t.Errorf("%d devices were given to %d claims", len(ids), size)
	}
	before = n.requests.Load()
	unprepared, err := n.dra.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: wave})
	check.Must(t, err)
	for uid, answer := range unprepared.Claims {
		if answer.Error != "" {
			t.Errorf("claim %s: %s", uid, answer.Error)
		}
	}
	t.Logf("%d claims: prepared with %d requests to the API server, unprepared with %d", size, asked, n.requests.Load()-before)
	if most := int64(2 * size); asked > most { // more than the client's burst would be throttled, and kubelet gives 45 s
		t.Errorf("preparing took %d requests to the API server, want at most %d", asked, most)
	}
	hold, err := n.plugin.records.LockAll(t.Context()) // what follows the answers is done
	check.Must(t, err)
	defer hold.Release()
	if uids, err := n.plugin.records.UIDs(); err != nil || len(uids) > 0 {
		t.Errorf("records left: %v, %v", uids, err)
	}
}

func (c *cluster) testHealth(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "health", "8xh100-sxm")
	n.start("pod-1")
	n.gpus()
	stream := n.watchHealth(t)
	count := func(report *drahealth.NodeWatchResourcesResponse) map[drahealth.HealthStatus]int {
		out := map[drahealth.HealthStatus]int{}
		for _, d := range report.Devices {
			out[d.Health]++
		}
		return out
	}
	stream.until("anything", func(report *drahealth.NodeWatchResourcesResponse) bool {
		if diff := cmp.Diff(map[drahealth.HealthStatus]int{drahealth.HealthStatus_HEALTHY: 8}, count(report)); diff != "" {
			t.Errorf("health (-want +got):\n%s", diff)
		}
		return true
	})
	check.Must(t, os.RemoveAll(n.config.HostRoot))
	nodefixture.ExpandInto(t, "empty", n.config.HostRoot)
	stream.until("all devices left", func(report *drahealth.NodeWatchResourcesResponse) bool {
		return maps.Equal(count(report), map[drahealth.HealthStatus]int{drahealth.HealthStatus_UNHEALTHY: 8})
	})
}

// testRetire empties a node step by step, and takes it back.
func (c *cluster) testRetire(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "retire", "8xh100-sxm")
	n.start("pod-1")
	n.eventually(func() string { return n.statusFault(8) })
	gpus := n.gpus()
	held := n.claim("retire-held", nil, nodefixture.Result("gpu", device.KindGPU, gpus[0]))
	if answer := n.prepare(held); answer.Error != "" {
		t.Fatal(answer.Error)
	}
	n.annotate(`"leaving"`)
	n.eventually(func() string {
		if got := n.slices(); len(got) > 0 {
			return fmt.Sprintf("%d slices are still published", len(got))
		}
		return ""
	})
	n.eventually(func() string { return n.retiredFault(metav1.ConditionFalse) })
	if answer := n.prepare(held); answer.Error != "" {
		t.Errorf("a pod that has its claim lost it: %s", answer.Error)
	}
	late := n.claim("retire-late", nil, nodefixture.Result("gpu", device.KindGPU, gpus[1]))
	if answer := n.prepare(late); !strings.Contains(answer.Error, "retired") {
		t.Errorf("answer %q, want a refusal", answer.Error)
	}
	n.refusedWith(late, "NodeRetired", retirement.Annotation)
	n.unprepare(held)
	n.eventually(func() string { return n.retiredFault(metav1.ConditionTrue) })
	for _, dir := range []string{n.config.CDIRoot, n.config.StateDir} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s holds %v (%v)", dir, left, err)
		}
	}
	n.annotate("null")
	n.eventually(func() string { return n.statusFault(8) })
	if meta.FindStatusCondition(n.status().Conditions, v1alpha1.ConditionRetired) != nil {
		t.Error("still says that it is retired")
	}
	if answer := n.prepare(late); answer.Error != "" {
		t.Errorf("after it was taken back: %s", answer.Error)
	}
	if _, err := n.plugin.records.Load(string(late.UID)); err != nil {
		t.Error(err)
	}
}

// annotate sets the annotation that retires a node to a JSON value.
func (n *node) annotate(value string) {
	n.t.Helper()
	n.annotateWith(retirement.Annotation, value)
}

func (n *node) retiredFault(want metav1.ConditionStatus) string {
	n.t.Helper()
	got := meta.FindStatusCondition(n.status().Conditions, v1alpha1.ConditionRetired)
	if got == nil || got.Status != want {
		return fmt.Sprintf("condition Retired is %+v, want %s", got, want)
	}
	return ""
}
