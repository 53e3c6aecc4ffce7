// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	testDriver = "fettle.dev"
	testNode   = "node-1"
	testPool   = testNode + "/gpu"
)

// oneClass is a cluster with one DeviceClass.
type oneClass struct{ class *resourceapi.DeviceClass }

func (c oneClass) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{c.class}, nil
}

func (c oneClass) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != c.class.Name {
		return nil, fmt.Errorf("no class %s", name)
	}
	return c.class, nil
}

// TestSchedulerAllocatesAll claims every device of the 200-device machine, one claim each, from the scheduler's own allocator.
func TestSchedulerAllocatesAll(t *testing.T) {
	devices := discoverIn(t, expand(t, parseMachine(t, "../../test/machines/200-devices.txtar")), machineOptions()).Devices
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.fettle.dev"}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "" +
		`device.driver == "fettle.dev" && device.attributes["fettle.dev"].vendor == "nvidia" && ` +
		`device.attributes["fettle.dev"].driverVersion.isGreaterThan(semver("570.0.0"))`}}}
	var claims []*resourceapi.ResourceClaim
	for i := range devices {
		claims = append(claims, newClaim(fmt.Sprintf("claim-%03d", i), class.Name))
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}}
	slices := newSlices(devices)
	if len(slices) != 4 {
		t.Errorf("%d slices, want 4 of at most %d devices", len(slices), device.MaxPerSlice)
	}
	// Claims come to the scheduler a pod at a time; what earlier ones got is gone for later ones.
	allocated := sets.New[structured.DeviceID]()
	const perPod = 8
	for len(claims) > 0 {
		pod := claims[:min(perPod, len(claims))]
		claims = claims[len(pod):]
		allocator, err := structured.NewAllocator(t.Context(), structured.Features{},
			structured.AllocatedState{AllocatedDevices: allocated}, oneClass{class}, slices, cel.NewCache(1, cel.Features{}))
		check.Must(t, err)
		results, err := allocator.Allocate(t.Context(), node, pod)
		check.Must(t, err)
		if len(results) != len(pod) {
			t.Fatalf("%d of %d claims allocated after %d devices", len(results), len(pod), allocated.Len())
		}
		for _, result := range results {
			for _, r := range result.Devices.Results {
				allocated.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
			}
		}
	}
	for _, d := range devices {
		if !allocated.Has(structured.MakeDeviceID(testDriver, testPool, d.Name)) {
			t.Errorf("%s was never allocated", d.Name)
		}
	}
	if allocated.Len() != 200 {
		t.Errorf("%d devices allocated, want 200", allocated.Len())
	}
}

// TestSchedulerKeepsToOneClique: of eight GPUs two each are in two cliques, so that a claim with the constraint gets two of one and never
// three.
func TestSchedulerKeepsToOneClique(t *testing.T) {
	devices := withNVML(t).Devices
	cliques := map[string]string{}
	for _, d := range devices {
		cliques[d.Name] = device.StringOf(d.Attributes[device.AttributeFabricClique])
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nvidia.gpu.fettle.dev"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}}
	allocator, err := structured.NewAllocator(t.Context(), structured.Features{}, structured.AllocatedState{}, oneClass{class},
		newSlices(devices), cel.NewCache(1, cel.Features{}))
	check.Must(t, err)
	for count, fits := range map[int64]bool{2: true, 3: false} {
		claim := newClaim("clique", class.Name)
		claim.Spec.Devices.Requests[0].Exactly.Count = count
		name := resourceapi.FullyQualifiedName("fettle.dev/fabricClique")
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &name}}
		results, err := allocator.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
		check.Must(t, err)
		if (len(results) == 1) != fits {
			t.Fatalf("%d GPUs of one clique: %d results, want that it fits: %t", count, len(results), fits)
		}
		if !fits {
			continue
		}
		got := results[0].Devices.Results
		if first := cliques[got[0].Device]; first == "" || cliques[got[1].Device] != first {
			t.Errorf("got %s of clique %q and %s of %q", got[0].Device, first, got[1].Device, cliques[got[1].Device])
		}
	}
}

func newSlices(devices []device.Device) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	cut := device.Slices(devices, device.MaxPerSlice)
	node := testNode
	for i, run := range cut {
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%03x-%s", i, testNode)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: testDriver, NodeName: &node, Devices: run,
				Pool: resourceapi.ResourcePool{Name: testPool, Generation: 1, ResourceSliceCount: int64(len(cut))},
			},
		})
	}
	return out
}

func newClaim(name, class string) *resourceapi.ResourceClaim {
	return objects.Claim("default", name, objects.Request("gpu", class))
}
