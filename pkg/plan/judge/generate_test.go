// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/test/objects"
)

// identity is an attribute that every generated device has, with a value of its own.
const identity = "test.fettle.dev/id"

// generator makes random inputs.
type generator struct {
	*rand.Rand
	in Input
}

func generate(seed uint64) Input {
	g := generator{Rand: rand.New(rand.NewPCG(seed, 20))}
	g.in = Input{
		Features: g.features(),
		Node:     &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}},
		Classes:  g.classes(),
		State: structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		},
		Holders: map[structured.DeviceID][]Holder{},
	}
	if g.often(5) {
		g.in.Node.Status.DeclaredFeatures = []string{optionalOperations}
	}
	for i := range 1 + g.IntN(3) {
		g.pool(i)
	}
	g.in.Slices = shuffled(g.Rand, g.in.Slices)
	for i := range 1 + g.IntN(2) {
		g.in.Claims = append(g.in.Claims, g.claim(i))
	}
	return g.in
}

// often is true n times of ten.
func (g *generator) often(n int) bool { return g.IntN(10) < n }

// rarely is true n times of a hundred.
func (g *generator) rarely(n int) bool { return g.IntN(100) < n }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func shuffled[T any](r *rand.Rand, in []T) []T {
	r.Shuffle(len(in), func(i, k int) { in[i], in[k] = in[k], in[i] })
	return in
}

// features are those of one of the allocators, mostly all of them.
func (g *generator) features() structured.Features {
	f := structured.Features{
		AdminAccess: !g.rarely(5), PrioritizedList: !g.rarely(5), PartitionableDevices: !g.often(2), DeviceTaints: !g.often(2),
	}
	kind := g.IntN(4)
	if kind > 0 {
		f.ConsumableCapacity, f.DeviceBindingAndStatus, f.FractionalCapacityRange = !g.often(2), !g.often(2), g.often(5)
	}
	if kind == 3 {
		f.CompatibilityGroups, f.DerivedAttributes = g.often(7), g.often(7)
		f.ListTypeAttributes, f.OptionalNodeOperations = g.often(7), g.often(7)
	}
	return f
}

func (g *generator) classes() map[string]*resourceapi.DeviceClass {
	out := map[string]*resourceapi.DeviceClass{}
	for name, selectors := range map[string][]string{
		"any": nil,
		"gpu": {`device.attributes["fettle.dev"].type == "gpu"`},
		"big": {`device.driver == "fettle.dev"`, `device.capacity["fettle.dev"].memory.compareTo(quantity("40Gi")) >= 0`},
		"bad": {`device.attributes["fettle.dev"].model == "a"`}, // an error for a device without a model
	} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, text := range selectors {
			class.Spec.Selectors = append(class.Spec.Selectors, objects.Selectors(text)...)
		}
		out[name] = class
	}
	return out
}

// pool adds the slices of a pool: some of an old generation, some missing, some with mistakes.
func (g *generator) pool(i int) {
	name, driver := fmt.Sprintf("pool%d", i), pick(g.Rand, "fettle.dev", "fettle.dev", "nic.example")
	counters := g.often(5)
	var made []*resourceapi.ResourceSlice
	number := 1 + g.IntN(2)
	for k := range number {
		slice := g.slice(driver, name, fmt.Sprintf("%s-%d", name, k), 2)
		g.place(slice)
		for d := range 1 + g.IntN(4) {
			device := g.device(fmt.Sprintf("d%d-%d", k, d), slice, counters)
			slice.Spec.Devices = append(slice.Spec.Devices, device)
			g.allocate(slice, &device)
		}
		made = append(made, slice)
	}
	if g.rarely(4) {
		made[0].Spec.Devices = append(made[0].Spec.Devices, made[0].Spec.Devices[0])
	}
	if counters && !g.rarely(4) {
		made = append(made, g.counters(driver, name))
	}
	if g.rarely(2) {
		made = append(made, g.counters(driver, name))
		made[len(made)-1].Name += "-again"
	}
	count := int64(len(made))
	if g.rarely(7) {
		count++
	}
	for _, slice := range made {
		slice.Spec.Pool.ResourceSliceCount = count
	}
	if g.often(1) {
		old := g.slice(driver, name, name+"-old", pick[int64](g.Rand, 1, 1, 3))
		g.place(old)
		old.Spec.Pool.ResourceSliceCount = 1
		old.Spec.Devices = []resourceapi.Device{g.device("old", old, false)}
		made = append(made, old)
	}
	g.in.Slices = append(g.in.Slices, made...)
}

func (g *generator) slice(driver, pool, name string, generation int64) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceSliceSpec{Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: generation}},
	}
}

func zoneSelector(zone string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}},
	}}}}
}

func (g *generator) place(slice *resourceapi.ResourceSlice) {
	switch g.IntN(10) {
	case 0:
		slice.Spec.AllNodes = ptr.To(true)
	case 1:
		slice.Spec.NodeSelector = zoneSelector(pick(g.Rand, "a", "b"))
	case 2:
		slice.Spec.PerDeviceNodeSelection = ptr.To(true)
	case 3:
		slice.Spec.NodeName = ptr.To("n2")
	default:
		slice.Spec.NodeName = ptr.To("n1")
	}
	if g.rarely(5) {
		slice.Spec.SkipNodeOperations = []resourceapi.SkipNodeOperation{"NodePrepareResources"}
	}
}

func (g *generator) counters(driver, pool string) *resourceapi.ResourceSlice {
	slice := g.slice(driver, pool, pool+"-counters", 2)
	slice.Spec.NodeName = ptr.To("n1")
	for _, set := range []string{"card0", "card1"} {
		slice.Spec.SharedCounters = append(slice.Spec.SharedCounters, resourceapi.CounterSet{Name: set, Counters: map[string]resourceapi.Counter{
			"memory": {Value: resource.MustParse("80Gi")}, "engines": {Value: resource.MustParse(pick(g.Rand, "3", "7"))},
		}})
	}
	return slice
}

func (g *generator) device(name string, slice *resourceapi.ResourceSlice, counters bool) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		identity:          {StringValue: ptr.To(slice.Name + "/" + name)},
		"fettle.dev/type": {StringValue: ptr.To(pick(g.Rand, "gpu", "gpu", "fpga"))},
	}}
	if !g.often(1) {
		d.Attributes["fettle.dev/model"] = resourceapi.DeviceAttribute{StringValue: ptr.To(pick(g.Rand, "a", "b"))}
	}
	if !g.often(1) {
		d.Attributes["resource.kubernetes.io/pcieRoot"] = resourceapi.DeviceAttribute{StringValue: ptr.To(pick(g.Rand, "r0", "r1"))}
	}
	switch {
	case g.often(1) && g.in.Features.ListTypeAttributes:
		d.Attributes["numa"] = resourceapi.DeviceAttribute{IntValues: []int64{0, g.Int64N(3)}}
	case !g.often(1):
		d.Attributes["numa"] = resourceapi.DeviceAttribute{IntValue: ptr.To(g.Int64N(2))}
	}
	if g.often(8) {
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"fettle.dev/memory": g.capacity()}
	}
	if g.often(3) {
		d.AllowMultipleAllocations = ptr.To(true)
	}
	if counters && g.often(7) {
		d.ConsumesCounters = g.consumption()
	}
	if g.often(2) {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{
			Key: pick(g.Rand, "ill", "busy"), Value: pick(g.Rand, "", "x"),
			Effect: pick(g.Rand, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNone),
		})
	}
	if g.rarely(8) {
		d.BindingConditions, d.BindingFailureConditions = []string{"ready"}, []string{"failed"}
	}
	if ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) {
		switch g.IntN(4) {
		case 0:
			d.NodeName = ptr.To("n2")
		case 1:
			d.NodeSelector = zoneSelector(pick(g.Rand, "a", "b"))
		case 2:
			d.AllNodes = ptr.To(true)
		default:
			d.NodeName = ptr.To("n1")
		}
	}
	return d
}

func (g *generator) consumption() []resourceapi.DeviceCounterConsumption {
	out := []resourceapi.DeviceCounterConsumption{{CounterSet: pick(g.Rand, "card0", "card1"), Counters: map[string]resourceapi.Counter{
		"memory": {Value: resource.MustParse(pick(g.Rand, "10Gi", "40Gi", "80Gi"))},
	}}}
	if g.often(3) {
		out[0].Counters["engines"] = resourceapi.Counter{Value: resource.MustParse(pick(g.Rand, "1", "3", "4"))}
	}
	if g.rarely(4) {
		out[0].CompatibilityGroups = []string{pick(g.Rand, "x", "y")}
	}
	if g.rarely(2) {
		out[0].CounterSet = "card2"
	}
	return out
}

func (g *generator) capacity() resourceapi.DeviceCapacity {
	c := resourceapi.DeviceCapacity{Value: resource.MustParse(pick(g.Rand, "10Gi", "40Gi", "80Gi"))}
	switch g.IntN(4) {
	case 0:
		c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("1Gi"))}
		c.RequestPolicy.ValidRange = &resourceapi.CapacityRequestPolicyRange{
			Min: ptr.To(resource.MustParse("1Gi")), Max: ptr.To(resource.MustParse("40Gi")),
		}
		if g.often(5) {
			c.RequestPolicy.ValidRange.Step = ptr.To(resource.MustParse("1Gi"))
		}
		if g.often(3) {
			c.RequestPolicy.Default = nil
		}
	case 1:
		c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("10Gi")), ValidValues: []resource.Quantity{
			resource.MustParse("5Gi"), resource.MustParse("10Gi"), resource.MustParse("20Gi"),
		}}
	}
	return c
}

// allocate gives some devices to claims that exist.
func (g *generator) allocate(slice *resourceapi.ResourceSlice, d *resourceapi.Device) {
	if !g.often(3) {
		return
	}
	id := structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)
	g.in.Holders[id] = append(g.in.Holders[id], Holder{Namespace: "other", Name: "claim-" + d.Name})
	if !g.in.Features.ConsumableCapacity || !ptr.Deref(d.AllowMultipleAllocations, false) {
		g.in.State.AllocatedDevices.Insert(id)
		return
	}
	share := types.UID("share-" + d.Name)
	g.in.State.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &share))
	if len(d.Capacity) > 0 {
		g.in.State.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, map[resourceapi.QualifiedName]resource.Quantity{
			"fettle.dev/memory": resource.MustParse(pick(g.Rand, "5Gi", "10Gi", "40Gi")),
		}))
	}
}

func (g *generator) claim(i int) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("claim%d", i)}}
	names := []string{}
	for k := range 1 + g.IntN(3) {
		r := resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", k)}
		names = append(names, r.Name)
		if g.often(2) {
			for n := range 1 + g.IntN(3) {
				e := g.exactly()
				sub := resourceapi.DeviceSubRequest{
					Name: fmt.Sprintf("s%d", n), DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode,
					Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity, DerivedAttributes: e.DerivedAttributes,
				}
				names = append(names, r.Name+"/"+sub.Name)
				r.FirstAvailable = append(r.FirstAvailable, sub)
			}
		} else {
			r.Exactly = g.exactly()
			if g.often(1) {
				r.Exactly.AdminAccess = ptr.To(true)
			}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, r)
	}
	for range g.IntN(6) / 3 {
		claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints, g.constraint(names))
	}
	return claim
}

func (g *generator) exactly() *resourceapi.ExactDeviceRequest {
	r := &resourceapi.ExactDeviceRequest{
		DeviceClassName: pick(g.Rand, "any", "any", "gpu", "gpu", "big"), AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count: pick[int64](g.Rand, 1, 1, 1, 2, 2, 3),
	}
	switch {
	case g.rarely(2):
		r.DeviceClassName = "missing"
	case g.rarely(5):
		r.DeviceClassName = "bad"
	}
	switch {
	case g.often(1):
		r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
	case g.rarely(1):
		r.Count = 33
	}
	for range g.IntN(5) / 2 {
		r.Selectors = append(r.Selectors, objects.Selectors(g.expression())...)
	}
	if g.often(3) {
		key := pick(g.Rand, "ill", "busy", "")
		r.Tolerations = append(r.Tolerations, resourceapi.DeviceToleration{Key: key, Operator: resourceapi.DeviceTolerationOpExists})
	}
	if g.often(2) {
		name := pick[resourceapi.QualifiedName](g.Rand, "fettle.dev/memory", "fettle.dev/memory", "fettle.dev/memory", "fettle.dev/none")
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			name: resource.MustParse(pick(g.Rand, "500Mi", "1Gi", "1500Mi", "5Gi", "12Gi", "30Gi", "50Gi", "1500m", "9223372036854775807", "20E")),
		}}
	}
	if g.rarely(5) {
		r.DerivedAttributes = []resourceapi.DeviceDerivedAttribute{{Name: "resource.kubernetes.io/pcieRoot", Expression: `"same"`}}
	}
	return r
}

func (g *generator) expression() string {
	if g.rarely(3) {
		return pick(g.Rand, `device.attributes["fettle.dev"].nothing == "x"`, `device.attributes["none.example"].x`, `1 + 1`, `device.nothing`)
	}
	return pick(g.Rand,
		`device.attributes["fettle.dev"].type == "gpu"`,
		`device.attributes["fettle.dev"].?model.orValue("") != "b" || device.driver == "nic.example"`,
		`!("memory" in device.capacity["fettle.dev"]) || device.capacity["fettle.dev"].memory.compareTo(quantity("20Gi")) > 0`,
		`"memory" in device.capacity["fettle.dev"] && device.capacity["fettle.dev"].memory.isGreaterThan(quantity("10Gi"))`,
		`has(device.attributes["fettle.dev"].model) ? device.attributes["fettle.dev"].model == "a" : true`,
		`device.driver.startsWith("fettle")`,
		`true`,
	)
}

func (g *generator) constraint(names []string) resourceapi.DeviceConstraint {
	attributes := []resourceapi.FullyQualifiedName{"resource.kubernetes.io/pcieRoot", "fettle.dev/model", "fettle.dev/numa", identity}
	attribute := ptr.To(pick(g.Rand, attributes...))
	c := resourceapi.DeviceConstraint{MatchAttribute: attribute}
	switch {
	case g.often(3):
		c.MatchAttribute, c.DistinctAttribute = nil, attribute
	case g.rarely(2):
		c.MatchAttribute = nil
	}
	if g.often(5) {
		c.Requests = []string{pick(g.Rand, names...), pick(g.Rand, names...)}
	}
	return c
}
