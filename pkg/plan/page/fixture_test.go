// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/page"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

const driver = "fettle.dev"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine discovers the GPUs of a machine in test/machines.
func machine(t testing.TB, name string) []device.Device {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../test/machines", name+".txtar"))
	must(t, err)
	parsed, err := sim.Parse(text)
	must(t, err)
	dir := t.TempDir()
	_, err = parsed.Expand(dir, sim.Options{})
	must(t, err)
	tree, err := sysfs.Open(dir)
	must(t, err)
	defer tree.Close() //nolint:errcheck // it was only read
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
		d := partition.Divide(partition.Physical{Device: gpu, MIG: instances()}, settings, true)
		if d.Card != nil {
			cards = append(cards, *d.Card)
		}
		devices = append(devices, d.Devices...)
	}
	cut, err := partition.Slices(cards, devices, partition.FormSeparate)
	must(t, err)
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
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: node + "/gpu", Device: d})
	}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	return c
}

func nodes(names ...string) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range names {
		out = append(out, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return out
}

// mixed is a node of eight H100: the first is published whole and held, others have instances of several sizes, one is unhealthy, and a plan
// gives two more pods something.
func mixed(t testing.TB) page.Input {
	t.Helper()
	gpus := machine(t, "8xh100-sxm")
	published := publish(t, "node-1", gpus, 0)
	part := func(i int, suffix string) string { return gpus[i].Name + "-mig-" + suffix }
	taint(published, gpus[6].Name)
	in := page.Input{
		Title: "Plan for 2 pods", Lead: "All pods have a node.",
		Nodes: append(nodes("node-1"), nodes("control-plane")...), Slices: published,
		Claims: []*resourceapi.ResourceClaim{
			claim("node-1", "pretrain-gpu-x7k2p", []string{"pretrain"}, gpus[0].Name),
			claim("node-1", "half-gpu-5c9dd", []string{"finetune-0"}, part(1, "3g-40gb-s4")),
			claim("node-1", "small-gpu-8zt4w", []string{"notebook-anna"}, part(1, "1g-10gb-s0")),
			claim("node-1", "small-gpu-q2b6v", []string{"notebook-ben"}, part(1, "1g-10gb-s1")),
			claim("node-1", "shared-embedder", []string{"embed-0", "embed-1", "embed-2", "embed-3"}, part(2, "2g-20gb-s0")),
			claim("node-1", "all-of-it-7hx9m", []string{"evaluate"}, gpus[4].Name),
			claim("node-1", "serve-gpu-1", []string{"serve-1"}, part(5, "4g-40gb-s0")),
			claim("node-1", "serve-gpu-2", []string{"serve-2"}, part(5, "1g-20gb-s4")),
			claim("node-1", "serve-gpu-3", []string{"serve-3"}, part(5, "1g-20gb-s6")),
			claim("node-1", "quarter-gpu-new", []string{"finetune-1"}, part(2, "2g-20gb-s4")),
			claim("node-1", "half-gpu-new", []string{"finetune-2"}, part(3, "3g-40gb-s4")),
		},
		New: map[string]bool{"team-a/quarter-gpu-new": true, "team-a/half-gpu-new": true},
		Pods: map[string]plan.PodResult{
			"team-a/finetune-1": {
				Node: new("node-1"), Fits: []string{"node-1"},
				Devices: map[string][]string{"gpu": {"fettle.dev/node-1/gpu/" + part(2, "2g-20gb-s4")}},
			},
			"team-a/finetune-2": {
				Node: new("node-1"), Fits: []string{"node-1"},
				Devices: map[string][]string{"gpu": {"fettle.dev/node-1/gpu/" + part(3, "3g-40gb-s4")}},
			},
		},
	}
	return in
}

// pending is the same node as it was before the plan, and a pod that wants two whole GPUs on one PCIe root.
func pending(t testing.TB) page.Input {
	t.Helper()
	in := mixed(t)
	in.Title = "Why pod team-b/pair waits"
	in.Lead = "Two GPUs are free, but on different PCIe roots: a pod that needs two on one root would have a node if one of the claims " +
		"half-gpu-5c9dd and shared-embedder were gone."
	in.Pods, in.New = nil, nil
	in.Claims = slices.DeleteFunc(in.Claims, func(c *resourceapi.ResourceClaim) bool {
		return c.Name == "quarter-gpu-new" || c.Name == "half-gpu-new"
	})
	in.Why = &page.Why{
		Nodes:   map[string]string{"node-1": "2 devices would do, 2 are needed together", "control-plane": "has no devices of class gpu.fettle.dev"},
		Devices: map[string]page.Judged{},
	}
	held := map[string]string{}
	for _, c := range in.Claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			held[r.Device] = c.Namespace + "/" + c.Name
		}
	}
	for _, s := range in.Slices {
		for _, d := range s.Spec.Devices {
			in.Why.Devices[driver+"/"+s.Spec.Pool.Name+"/"+d.Name] = page.Judged{
				Matches: device.StringOf(d.Attributes[device.AttributeType]) == "gpu", Failed: checksOf(d, held),
			}
		}
	}
	return in
}

// checksOf is what a judge would say of a device, in short.
func checksOf(d resourceapi.Device, held map[string]string) []page.Check {
	var checks []page.Check
	if by := held[d.Name]; by != "" {
		checks = append(checks, page.Check{Name: "in use", Message: "claim " + by + " has it"})
	}
	if device.StringOf(d.Attributes[device.AttributeType]) != "gpu" {
		checks = append(checks, page.Check{
			Name: "class selector", Message: `class gpu.fettle.dev: device.attributes["fettle.dev"].type == "gpu" is false: type is "mig"`,
		})
	}
	if len(d.Taints) > 0 {
		checks = append(checks, page.Check{Name: "taint", Message: "fettle.dev/unhealthy=xid-79:NoSchedule is not tolerated"})
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		if len(d.ConsumesCounters) > 0 && d.Name == d.ConsumesCounters[0].CounterSet && len(name) > len(d.Name) && name[:len(d.Name)] == d.Name {
			checks = append(checks, page.Check{Name: "counters", Message: "claim " + held[name] + " has a part of it"})
			break
		}
	}
	return checks
}
