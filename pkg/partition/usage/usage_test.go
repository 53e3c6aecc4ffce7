// SPDX-License-Identifier: Apache-2.0

package usage_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	driver = "fettle.dev"
	node   = "node-1"
	pool   = node + "/gpu"
)

func text(t testing.TB, value string) resourceapi.DeviceAttribute {
	t.Helper()
	a, err := device.String(value)
	check.Must(t, err)
	return a
}

// whole is a GPU with four memory slices.
func whole(t testing.TB, name string) device.Device {
	return device.Device{
		Kind: device.KindGPU, Name: name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			device.AttributeType: text(t, "gpu"), device.AttributeUUID: text(t, "GPU-"+name), device.AttributePCIAddress: text(t, "0000:1b:00.0"),
			device.AttributeProductName: text(t, "Example 24 GB"),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			device.CapacityMemory: device.Bytes(24 << 30), device.CapacityMultiprocessors: device.Count(56),
		},
	}
}

func instances() *nvml.MIG {
	m := &nvml.MIG{}
	for i, slices := range []uint32{1, 2, 4} {
		p := nvml.MIGProfile{
			ID: uint32(i), Name: fmt.Sprintf("%dg.%dgb", slices, 6*slices), Slices: slices, MemoryMB: uint64(slices) * 5952,
			Multiprocessors: 14 * slices, MaxInstances: 4 / slices,
		}
		for start := uint32(0); start < 4; start += slices {
			p.Placements = append(p.Placements, nvml.MIGPlacement{Start: start, Size: slices})
		}
		m.Profiles = append(m.Profiles, p)
	}
	return m
}

// divided is the GPU whole, in parts and for virtual machines.
func divided(t testing.TB, name string) partition.Division {
	t.Helper()
	d := partition.Divide(partition.Physical{Device: whole(t, name), MIG: instances(), IOMMU: true},
		partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDynamic}, Passthrough: true}, partition.Kept{Counters: true})

	if len(d.Devices) != 9 {
		t.Fatalf("%d devices: %v", len(d.Devices), d.Reasons)
	}
	return d
}

// published are the node's slices.
func published(t testing.TB, form partition.Form, divisions ...partition.Division) []*resourceapi.ResourceSlice {
	t.Helper()
	var cards []device.Card
	var devices []device.Device
	for _, d := range divisions {
		if d.Card != nil {
			cards = append(cards, *d.Card)
		}
		devices = append(devices, d.Devices...)
	}
	cut, err := partition.Slices(cards, devices, form)
	check.Must(t, err)
	var out []*resourceapi.ResourceSlice
	for i, s := range cut {
		object := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%x-%s", i, node)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: new(node), SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: pool, Generation: 3, ResourceSliceCount: int64(len(cut))},
			},
		}
		for _, d := range s.Devices {
			object.Spec.Devices = append(object.Spec.Devices, d.Resource())
		}
		out = append(out, object)
	}
	return out
}

// claim has devices of the pool.
func claim(name string, devices ...string) *resourceapi.ResourceClaim {
	c := objects.Claim("team", name)
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			objects.Result("gpu", driver, pool, d))
	}
	return c
}

// lines are the devices as "GROUP NAME STATE LACKS CLAIMS", in the order of the report.
func lines(r usage.Report) []string {
	cards := map[string]usage.Card{}
	for _, c := range r.Cards {
		cards[c.Name] = c
	}
	var out []string
	for _, d := range r.Devices {
		line := fmt.Sprintf("%s: %s %s", d.Group, d.Name, d.State)
		if len(d.Lacks) > 0 {
			line += " " + partition.Short(d.Lacks, cards[d.Card].Counters)
		}
		for _, c := range d.Claims {
			line += " " + c.Name
		}
		out = append(out, line)
	}
	return out
}

// TestForms: the two forms of slices, in any order, are the same to a reader.
func TestForms(t *testing.T) {
	claims := []*resourceapi.ResourceClaim{claim("b", "a-mig-2g-12gb-s2"), {ObjectMeta: metav1.ObjectMeta{Name: "pending"}}}
	var reports []usage.Report
	for _, form := range []partition.Form{partition.FormSeparate, partition.FormCombined} {
		objects := published(t, form, divided(t, "a"), divided(t, "b"))
		slices.Reverse(objects)
		reports = append(reports, usage.Of(usage.Objects{Driver: driver, Slices: objects, Claims: claims}))
	}
	if diff := cmp.Diff(reports[0], reports[1]); diff != "" {
		t.Errorf("the forms differ:\n%s", diff)
	}
	want := []string{
		"a: a Taken slices 2-3, 28 SMs, 11.6 GiB",
		"a: a-mig-1g-6gb-s0 Free",
		"a: a-mig-1g-6gb-s1 Free",
		"a: a-mig-1g-6gb-s2 Taken slice 2",
		"a: a-mig-1g-6gb-s3 Taken slice 3",
		"a: a-mig-2g-12gb-s0 Free",
		"a: a-mig-2g-12gb-s2 Held b",
		"a: a-mig-4g-24gb-s0 Taken slices 2-3, 28 SMs, 10.9 GiB",
		"a: a-vfio Taken slices 2-3, 28 SMs, 11.6 GiB",
	}
	if diff := cmp.Diff(want, lines(reports[0])[:9]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := reports[0].Cards[0]; partition.Short(got.Left, got.Counters) != "slices 0-1, 28 SMs, 12.4 GiB" {
		t.Errorf("left: %s", partition.Short(got.Left, got.Counters))
	}
	if got := reports[0].Cards[1]; partition.Short(got.Left, got.Counters) != "all" {
		t.Errorf("left of the other card: %s", partition.Short(got.Left, got.Counters))
	}
	if len(reports[0].Problems) > 0 {
		t.Errorf("problems: %v", reports[0].Problems)
	}
}

type noClasses struct{}

func (noClasses) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (noClasses) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

// TestSchedulerAgrees: whatever claims come and go, a device is free exactly if the scheduler's own allocator would give it.
func TestSchedulerAgrees(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 4815))
	divisions := []partition.Division{divided(t, "a"), divided(t, "b")}
	var names []string
	for _, d := range divisions {
		for i := range d.Devices {
			d.Devices[i].Attributes["testName"] = text(t, d.Devices[i].Name)
			names = append(names, d.Devices[i].Name)
		}
	}
	objects := published(t, partition.FormSeparate, divisions...)
	cache := cel.NewCache(32, cel.Features{})
	held, states := map[string]bool{}, map[usage.State]int{}
	for range 60 {
		var claims []*resourceapi.ResourceClaim
		allocated := sets.New[structured.DeviceID]()
		for name := range held {
			claims = append(claims, claim("of-"+name, name))
			allocated.Insert(structured.MakeDeviceID(driver, pool, name))
		}
		allocator, err := structured.NewAllocator(t.Context(), structured.Features{PartitionableDevices: true},
			structured.AllocatedState{AllocatedDevices: allocated}, noClasses{}, objects, cache)
		check.Must(t, err)
		var free []string
		for _, d := range usage.Of(usage.Objects{Driver: driver, Slices: objects, Claims: claims}).Devices {
			states[d.State]++
			if given := gives(t, allocator, d.Name); given != (d.State == usage.StateFree) {
				t.Fatalf("%s is %s beside %v, and the scheduler gives it: %t", d.Name, d.State, sets.List(sets.KeySet(held)), given)
			}
			if (d.State == usage.StateHeld) != held[d.Name] {
				t.Fatalf("%s is %s beside %v", d.Name, d.State, sets.List(sets.KeySet(held)))
			}
			if d.State == usage.StateFree {
				free = append(free, d.Name)
			}
		}
		if len(free) > 0 && random.IntN(100) < 70 {
			held[free[random.IntN(len(free))]] = true
		} else {
			delete(held, names[random.IntN(len(names))])
		}
	}
	if states[usage.StateFree] == 0 || states[usage.StateHeld] == 0 || states[usage.StateTaken] == 0 {
		t.Errorf("states seen: %v", states)
	}
}

// gives says whether a claim for one device would get it.
func gives(t *testing.T, allocator structured.Allocator, name string) bool {
	t.Helper()
	c := objects.Claim("team", "asks")
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: objects.Selectors(fmt.Sprintf(`device.attributes["fettle.dev"].testName == %q`, name)),
	}}}
	results, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, []*resourceapi.ResourceClaim{c})
	check.Must(t, err)
	return len(results) > 0
}
