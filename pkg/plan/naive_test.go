// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/objects"
)

// TestFitsLikeTheAllocator plans pods one by one on random clusters, and compares the nodes that fit with what the allocator says when it
// gets all slices and all that is allocated, as the scheduler hands it over, and nothing is remembered.
func TestFitsLikeTheAllocator(t *testing.T) {
	fits, refused := 0, 0
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 0))
		snapshot := randomCluster
		if seed%2 == 1 {
			snapshot = randomFleet
		}
		c, _, err := plan.NewCluster(snapshot(random))
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range c.Pending() {
			want := naiveFits(t, c, pod)
			report, err := plan.Run(t.Context(), c, []*corev1.Pod{pod}, plan.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := report.Pods["default/"+pod.Name]
			if diff := cmp.Diff(want, got.Fits); diff != "" {
				t.Fatalf("seed %d, pod %s: wrong nodes (-allocator +plan):\n%s%s", seed, pod.Name, diff, got.Reason)
			}
			fits, refused = fits+len(want), refused+len(c.Nodes)-len(want)
		}
	}
	if fits < 300 || refused < 300 {
		t.Errorf("%d nodes fitted and %d did not: want enough of both", fits, refused)
	}
}

// naiveFits asks a new allocator for each node.
func naiveFits(t *testing.T, c *plan.Cluster, pod *corev1.Pod) []string {
	t.Helper()
	claims, err := c.PodClaims(pod)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, node := range c.Nodes {
		var asked []*resourceapi.ResourceClaim
		for _, p := range claims {
			asked = append(asked, p.Claim)
		}
		allocator, err := structured.NewAllocator(t.Context(), c.Gates.Features(), c.State(), classes{c.Classes}, c.Slices,
			cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
		if err != nil {
			t.Fatal(err)
		}
		results, err := allocator.Allocate(t.Context(), node, asked)
		if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
			return []string{}
		}
		if len(results) == len(asked) {
			out = append(out, node.Name)
		}
	}
	return out
}

type classes struct {
	byName map[string]*resourceapi.DeviceClass
}

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	return slices.Collect(maps.Values(c.byName)), nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := c.byName[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("no class %s", name)
}

// randomCluster has pools of nodes, pools that several nodes or all share, pools of several slices of which some are missing, shared
// counters and devices for several claims, and more pods than it can hold.
func randomCluster(random *rand.Rand) plan.Snapshot {
	s := plan.Snapshot{Classes: []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "any"}}}}
	for n := range 2 + random.IntN(3) {
		name := fmt.Sprintf("n%d", n)
		zone := []string{"a", "b"}[random.IntN(2)]
		s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}})
		s.Slices = append(s.Slices, randomPool(random, name, func(spec *resourceapi.ResourceSliceSpec) { spec.NodeName = &name })...)
	}
	s.Slices = append(s.Slices, randomPool(random, "everywhere", func(spec *resourceapi.ResourceSliceSpec) {
		spec.AllNodes = ptr.To(true)
	})...)
	s.Slices = append(s.Slices, randomPool(random, "zone-a", func(spec *resourceapi.ResourceSliceSpec) {
		spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
		}}}
	})...)
	addPods(random, &s)
	return s
}

// randomFleet has nodes of one or two kinds, each with pools of its own alone: nodes of a kind differ by their serial numbers, by how often
// their slices were published, and some by one thing more.
func randomFleet(random *rand.Rand) plan.Snapshot {
	s := plan.Snapshot{Classes: []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "any"}}}}
	kinds := [][]*resourceapi.ResourceSlice{randomPool(random, "x", func(*resourceapi.ResourceSliceSpec) {})}
	if random.IntN(2) == 0 {
		kinds = append(kinds, randomPool(random, "y", func(*resourceapi.ResourceSliceSpec) {}))
	}
	for n := range 3 + random.IntN(4) {
		name, generation := fmt.Sprintf("n%d", n), random.Int64N(5)
		s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for k, slice := range kinds[random.IntN(len(kinds))] {
			slice = slice.DeepCopy()
			slice.Name, slice.Spec.NodeName, slice.Spec.Pool.Name = fmt.Sprint(name, "-", k), &name, name
			slice.Spec.Pool.Generation += generation
			for d := range slice.Spec.Devices {
				slice.Spec.Devices[d].Attributes["serial"] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprint(n))}
			}
			if len(slice.Spec.Devices) > 0 && random.IntN(6) == 0 {
				vary(random, &slice.Spec.Devices[random.IntN(len(slice.Spec.Devices))])
			}
			s.Slices = append(s.Slices, slice)
		}
	}
	addPods(random, &s)
	return s
}

// vary makes a device another one than those of the other nodes.
func vary(random *rand.Rand, d *resourceapi.Device) {
	switch random.IntN(4) {
	case 0:
		d.Attributes["kind"] = resourceapi.DeviceAttribute{StringValue: new("c")}
	case 1:
		d.Taints = []resourceapi.DeviceTaint{{Key: "t", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	case 2:
		for i := range d.ConsumesCounters {
			d.ConsumesCounters[i].Counters = map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("2")}}
		}
	default:
		delete(d.Attributes, "serial")
	}
}

// addPods adds more pods than a small cluster can hold, each with a claim.
func addPods(random *rand.Rand, s *plan.Snapshot) {
	for p := range 8 {
		name := fmt.Sprintf("p%d", p)
		claim := objects.Claim("default", name)
		for r := range 1 + random.IntN(2) {
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, randomRequest(random, fmt.Sprintf("r%d", r)))
		}
		if random.IntN(3) == 0 {
			claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("d.io/root"))}}
		}
		s.Claims = append(s.Claims, claim)
		s.Pods = append(s.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &claim.Name}}},
		})
	}
}

func randomRequest(random *rand.Rand, name string) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "any", Count: 1 + int64(random.IntN(3)),
	}}
	switch random.IntN(11) {
	case 0:
		request.Exactly.AllocationMode, request.Exactly.Count = resourceapi.DeviceAllocationModeAll, 0
	case 1, 2:
		request.Exactly.Selectors = objects.Selectors(`device.attributes["d.io"].kind == "a"`)
	case 3:
		request.FirstAvailable = []resourceapi.DeviceSubRequest{
			{Name: "many", DeviceClassName: "any", Count: 3}, {Name: "one", DeviceClassName: "any"},
		}
		request.Exactly = nil
	case 4:
		request.Exactly.Selectors = objects.Selectors(`device.attributes["d.io"].?serial.orValue("2") != "2"`)
	case 5:
		request.Exactly.Selectors = objects.Selectors(`device.attributes["d.io"].size() > 2`)
	}
	return request
}

// randomPool has one or two slices of devices, and sometimes one of counters. Now and then a slice is missing.
func randomPool(random *rand.Rand, name string, reach func(*resourceapi.ResourceSliceSpec)) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	count := 1 + random.IntN(2)
	counters := random.IntN(2) == 0
	total := count
	if counters {
		total++
	}
	slice := func(suffix string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name + suffix}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "d.io", Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(total)},
		}}
		reach(&s.Spec)
		out = append(out, s)
		return s
	}
	for i := range count {
		s := slice(fmt.Sprintf("-%d", i))
		for d := range 1 + random.IntN(3) {
			device := resourceapi.Device{
				Name: fmt.Sprintf("d%d-%d", i, d),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"kind": {StringValue: ptr.To([]string{"a", "b"}[random.IntN(2)])},
					"root": {StringValue: ptr.To([]string{"x", "y"}[random.IntN(2)])},
				},
			}
			if counters {
				device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
					CounterSet: "card", Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("1")}},
				}}
			}
			if random.IntN(4) == 0 {
				device.AllowMultipleAllocations = ptr.To(true)
				device.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {
					Value: resource.MustParse("2"), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("1"))},
				}}
			}
			s.Spec.Devices = append(s.Spec.Devices, device)
		}
	}
	if counters {
		slice("-counters").Spec.SharedCounters = []resourceapi.CounterSet{{
			Name: "card", Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("2")}},
		}}
	}
	if random.IntN(8) == 0 {
		return out[1:]
	}
	return out
}
