// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
	"github.com/fettle-dev/fettle/pkg/plan/page"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/objects"
)

const driver = "fettle.dev"

// machine discovers the GPUs of a machine in test/machines.
func machine(t testing.TB, name string) []device.Device {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../test/machines", name+".txtar"))
	check.Must(t, err)
	parsed, err := sim.Parse(text)
	check.Must(t, err)
	dir := t.TempDir()
	_, err = parsed.Expand(dir, sim.Options{})
	check.Must(t, err)
	tree, err := sysfs.Open(dir)
	check.Must(t, err)
	defer tree.Close()
	found := discover.Discover(t.Context(), tree, discover.Options{}).Devices
	if len(found) != 8 {
		t.Fatalf("%d devices on %s, want 8", len(found), name)
	}
	for i := range found { // what NVIDIA's library adds
		found[i].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{device.CapacityMemory: device.Bytes(81559 << 20)}
	}
	return found
}

// instances is what NVML says of an H100.
func instances() *nvml.MIG {
	names := map[uint32]string{
		0: "7g.80gb", 5: "4g.40gb", 9: "3g.40gb", 14: "2g.20gb", 15: "1g.20gb", 19: "1g.10gb", 20: "1g.10gb+me",
	}
	out := &nvml.MIG{}
	for _, p := range (&nvmlsim.Card{Model: nvmlsim.H100}).Kind().Profiles {
		profile := nvml.MIGProfile{
			ID: p.ID, Name: names[p.ID], Slices: p.Slices, MemoryMB: p.MemoryMiB, MaxInstances: p.Most, Multiprocessors: p.SMs,
			CopyEngines: p.Copy, Decoders: p.Decoders, JPEGEngines: p.JPEG, OFAEngines: p.OFA,
		}
		for _, start := range p.Starts {
			profile.Placements = append(profile.Placements, nvml.MIGPlacement{Start: start, Size: p.Size})
		}
		out.Profiles = append(out.Profiles, profile)
	}
	return out
}

// publish writes the slices of a node whose GPUs are divided into instances of any size, but for those that stay whole.
func publish(t testing.TB, node string, gpus []device.Device, whole ...int) []*resourceapi.ResourceSlice {
	t.Helper()
	var cards []device.Card
	var devices []device.Device
	for i, gpu := range gpus {
		settings := partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDynamic}}
		if slices.Contains(whole, i) {
			settings = partition.Settings{}
		}
		d := partition.Divide(partition.Physical{Device: gpu, MIG: instances()}, settings, partition.Kept{Counters: true})
		if d.Card != nil {
			cards = append(cards, *d.Card)
		}
		devices = append(devices, d.Devices...)
	}
	cut, err := partition.Slices(cards, devices, partition.FormSeparate)
	check.Must(t, err)
	var out []*resourceapi.ResourceSlice
	for i, s := range cut {
		object := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%02d", node, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: new(node), SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: node + "/gpu", Generation: 1, ResourceSliceCount: int64(len(cut))},
			},
		}
		for _, d := range s.Devices {
			object.Spec.Devices = append(object.Spec.Devices, d.Resource())
		}
		out = append(out, object)
	}
	return out
}

// taint taints a card's devices.
func taint(published []*resourceapi.ResourceSlice, card string) {
	for _, s := range published {
		for i := range s.Spec.Devices {
			if d := &s.Spec.Devices[i]; d.Name == card || len(d.ConsumesCounters) > 0 && d.ConsumesCounters[0].CounterSet == card {
				d.Taints = []resourceapi.DeviceTaint{{Key: "fettle.dev/unhealthy", Value: "xid-79", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
	}
}

// claim has devices of a node for pods.
func claim(node, name string, pods []string, devices ...string) *resourceapi.ResourceClaim {
	c := objects.Claim("team-a", name)
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			objects.Result("gpu", driver, node+"/gpu", d))
	}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	return c
}

// wants is a pod with a claim for a count of devices of a class, which a selector chooses.
func wants(name, class, selector string, count int64, sameRoot bool) (*corev1.Pod, *resourceapi.ResourceClaim) {
	request := resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	if selector != "" {
		request.Selectors = objects.Selectors(selector)
	}
	c := objects.Claim("team-b", name+"-gpu")
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}}
	if sameRoot {
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{
			MatchAttribute: new(resourceapi.FullyQualifiedName("resource.kubernetes.io/pcieRoot")),
		}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: name}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &c.Name}}
	return pod, c
}

func nodes(names ...string) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range names {
		out = append(out, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return out
}

// snapshot has a node of eight H100: the first is published whole and held, others have instances of several sizes, and one is unhealthy.
func snapshot(t testing.TB) plan.Snapshot {
	t.Helper()
	gpus := machine(t, "8xh100-sxm")
	part := func(i int, suffix string) string { return gpus[i].Name + "-mig-" + suffix }
	s := plan.Snapshot{
		Nodes: nodes("node-1", "control-plane"), Slices: publish(t, "node-1", gpus, 0),
		Classes: []*resourceapi.DeviceClass{
			objects.Class("gpu.fettle.dev", `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "gpu"`),
			objects.Class("mig.gpu.fettle.dev", `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "mig"`),
		},
		Claims: []*resourceapi.ResourceClaim{
			claim("node-1", "pretrain-gpu-x7k2p", []string{"pretrain"}, gpus[0].Name),
			claim("node-1", "half-gpu-5c9dd", []string{"finetune"}, part(1, "3g-40gb-s4")),
			claim("node-1", "small-gpu-8zt4w", []string{"notebook-anna"}, part(1, "1g-10gb-s0")),
			claim("node-1", "small-gpu-q2b6v", []string{"notebook-ben"}, part(1, "1g-10gb-s1")),
			claim("node-1", "shared-embedder", []string{"embed-0", "embed-1", "embed-2", "embed-3"}, part(2, "2g-20gb-s0")),
			claim("node-1", "all-of-it-7hx9m", []string{"evaluate"}, gpus[4].Name),
			claim("node-1", "serve-gpu-1", []string{"serve-1"}, part(5, "4g-40gb-s0")),
			claim("node-1", "serve-gpu-2", []string{"serve-2"}, part(5, "1g-20gb-s4")),
			claim("node-1", "serve-gpu-3", []string{"serve-3"}, part(5, "1g-20gb-s6")),
		},
	}
	taint(s.Slices, gpus[6].Name)
	return s
}

func cluster(t testing.TB, s plan.Snapshot) *plan.Cluster {
	t.Helper()
	c, problems, err := plan.NewCluster(s)
	check.Must(t, err)
	if len(problems) > 0 {
		t.Fatalf("%v", problems)
	}
	return c
}

// mixed is a plan that gives parts to two more pods.
func mixed(t testing.TB) page.Input {
	t.Helper()
	s := snapshot(t)
	for name, profile := range map[string]string{"quarter": "2g.20gb", "half": "3g.40gb"} {
		pod, c := wants(name, "mig.gpu.fettle.dev", fmt.Sprintf("device.attributes[\"fettle.dev\"].profile == %q", profile), 1, false)
		s.Pods, s.Claims = append(s.Pods, pod), append(s.Claims, c)
	}
	slices.SortFunc(s.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	c := cluster(t, s)
	before := page.Allocated(c)
	report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
	check.Must(t, err)
	in := page.OfCluster(c)
	in.Title, in.Lead = "Plan for 2 pods", "All pods have a node."
	in.AddReport(report, before)
	return in
}

// pending is a pod that wants two whole GPUs on one PCIe root.
func pending(t testing.TB) page.Input {
	t.Helper()
	s := snapshot(t)
	pod, wanted := wants("pair", "gpu.fettle.dev", "", 2, true)
	s.Pods, s.Claims = append(s.Pods, pod), append(s.Claims, wanted)
	c := cluster(t, s)
	in := page.OfCluster(c)
	in.AddExplanation(explain.Pod(t.Context(), c, c.Pending()[0], explain.Options{Devices: true}))
	return in
}

// inputs are those of all pages that are looked at.
func inputs(t testing.TB) map[string]page.Input {
	t.Helper()
	return map[string]page.Input{"mixed": mixed(t), "pending": pending(t), "odd": odd(t)}
}
