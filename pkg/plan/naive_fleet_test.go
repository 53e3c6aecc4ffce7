// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/objects"
)

// TestFleetsLikeTheAllocator does what TestFitsLikeTheAllocator does, on clusters with all that the API allows. It compares the scores of
// nodes and the devices that pods get, too.
func TestFleetsLikeTheAllocator(t *testing.T) {
	var c fleetCounts
	for seed := range uint64(200) {
		f := newFleet(seed)
		cluster, _, err := plan.NewCluster(f.Snapshot)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range cluster.Pending() {
			want := askedNaively(t, cluster, pod)
			report, err := plan.Run(t.Context(), cluster, []*corev1.Pod{pod}, plan.Options{Parallel: 1 + int(seed%3)})
			if err != nil {
				t.Fatal(err)
			}
			got := report.Pods["default/"+pod.Name]
			if message := want.differsFrom(got); message != "" {
				t.Fatalf("seed %d, pod %s: -allocator +plan:\n%s%s", seed, pod.Name, message, got.Reason)
			}
			c.add(cluster, want)
		}
	}
	if c.fits < 1000 || c.refused < 1000 || c.fatal < 20 || c.scored < 100 {
		t.Errorf("too little of something: %+v", c)
	}
	t.Logf("%+v", c)
}

// fleetCounts are what the clusters had.
type fleetCounts struct{ fits, refused, fatal, scored int }

func (c *fleetCounts) add(cluster *plan.Cluster, n naive) {
	c.fits, c.refused, c.scored = c.fits+len(n.fits), c.refused+len(cluster.Nodes)-len(n.fits), c.scored+len(n.scores)
	if n.fatal != nil {
		c.fatal++
	}
}

// naive is what new allocators say of the nodes for a pod.
type naive struct {
	fits    []string
	scores  map[string]int64
	devices map[string][]string
	fatal   error
	// stable is true if the allocator takes pools in any order, so that scores and devices differ from run to run.
	stable bool
}

func (n naive) differsFrom(got plan.PodResult) string {
	if diff := cmp.Diff(n.fits, got.Fits); diff != "" {
		return diff
	}
	if n.stable || got.Node == nil {
		return ""
	}
	if diff := cmp.Diff(n.scores, got.Scores); diff != "" {
		return diff
	}
	var devices []string
	for _, name := range slices.Sorted(keysOf(got.Devices)) {
		devices = append(devices, got.Devices[name]...)
	}
	return cmp.Diff(n.devices[*got.Node], devices)
}

func keysOf[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// askedNaively asks a new allocator for each node.
func askedNaively(t *testing.T, c *plan.Cluster, pod *corev1.Pod) naive {
	t.Helper()
	claims, err := c.PodClaims(pod)
	if err != nil {
		t.Fatal(err)
	}
	features := c.Gates.Features()
	n := naive{
		fits: []string{}, devices: map[string][]string{},
		stable: !features.ConsumableCapacity && !features.DeviceBindingAndStatus,
	}
	for _, node := range c.Nodes {
		if n.node(t, c, node, claims); n.fatal != nil {
			n.fits, n.scores = []string{}, nil
			break
		}
	}
	return n
}

func (n *naive) node(t *testing.T, c *plan.Cluster, node *corev1.Node, claims []plan.PodClaim) {
	t.Helper()
	var asked []*resourceapi.ResourceClaim
	elsewhere := false
	for _, p := range claims {
		if a := p.Claim.Status.Allocation; a == nil {
			asked = append(asked, p.Claim)
		} else {
			elsewhere = elsewhere || !matchesNode(t, a.NodeSelector, node)
		}
	}
	features := c.Gates.Features()
	cache := cel.NewCache(10, cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity, EnableListTypeAttributes: features.ListTypeAttributes,
	})
	allocator, err := structured.NewAllocator(t.Context(), features, c.State(), classes{c.Classes}, c.Slices, cache)
	if err != nil {
		t.Fatal(err)
	}
	results, err := allocator.Allocate(t.Context(), node, asked)
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		n.fatal = err
	}
	if err != nil || len(results) != len(asked) || elsewhere {
		return
	}
	n.fits = append(n.fits, node.Name)
	n.found(node.Name, claims, asked, results)
}

func (n *naive) found(node string, claims []plan.PodClaim, asked []*resourceapi.ResourceClaim, results []resourceapi.AllocationResult) {
	for i := range asked {
		if score := scoreOf(asked[i], results[i]); score > 0 {
			if n.scores == nil {
				n.scores = map[string]int64{}
			}
			n.scores[node] += score
		}
	}
	for _, p := range claims { // the names of the claims are in this order
		allocation := p.Claim.Status.Allocation
		if i := slices.Index(asked, p.Claim); i >= 0 {
			allocation = &results[i]
		}
		for _, r := range allocation.Devices.Results {
			n.devices[node] = append(n.devices[node], r.Driver+"/"+r.Pool+"/"+r.Device)
		}
	}
}

func matchesNode(t *testing.T, selector *corev1.NodeSelector, node *corev1.Node) bool {
	t.Helper()
	if selector == nil {
		return true
	}
	s, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Match(node)
}

// scoreOf is what the scheduler gives for the alternatives that a claim got.
func scoreOf(claim *resourceapi.ResourceClaim, result resourceapi.AllocationResult) (score int64) {
	for _, request := range claim.Spec.Devices.Requests {
		for i, sub := range request.FirstAvailable {
			if slices.ContainsFunc(result.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
				return r.Request == request.Name+"/"+sub.Name
			}) {
				score += int64(resourceapi.FirstAvailableDeviceRequestMaxSize - i)
			}
		}
	}
	return score
}

// naiveFleet makes a random cluster of nodes that are mostly alike.
type naiveFleet struct {
	*rand.Rand
	plan.Snapshot
	// groups is set if devices may say with which others they go together.
	groups bool
	// stable is set if the allocator takes pools in any order: then nothing is made that gives an error for one order alone.
	stable bool
}

func newFleet(seed uint64) *naiveFleet {
	f := &naiveFleet{Rand: rand.New(rand.NewPCG(seed, 7))}
	f.version()
	f.Classes = []*resourceapi.DeviceClass{
		objects.Class("any"), objects.Class("a", `device.attributes["d.io"].kind == "a"`), objects.Class("d", `device.driver == "d.io"`),
	}
	kinds := []fleetKind{f.kind(), f.kind()}[:1+f.IntN(2)]
	for i := range 3 + f.IntN(4) {
		f.node(fmt.Sprintf("n%d", i), kinds[f.IntN(len(kinds))])
	}
	if f.often(2) {
		f.shared()
	}
	f.hold()
	for i := range 8 {
		f.pod(fmt.Sprintf("p%d", i))
	}
	f.Shuffle(len(f.Slices), func(i, k int) { f.Slices[i], f.Slices[k] = f.Slices[k], f.Slices[i] })
	return f
}

// often is true n times of ten.
func (f *naiveFleet) often(n int) bool { return f.IntN(10) < n }

func (f *naiveFleet) pick(from ...string) string { return from[f.IntN(len(from))] }

// version chooses the version of Kubernetes and its gates.
func (f *naiveFleet) version() {
	f.Version, f.Gates = f.pick("1.35", "1.36", "1.37", "1.37", "1.37"), map[string]bool{}
	var may []string
	switch f.Version {
	case "1.35":
		may = []string{"DRAPartitionableDevices", "DRADeviceTaints", "DRAConsumableCapacity", "DRADeviceBindingConditions"}
	case "1.36":
		may = []string{"DRAListTypeAttributes"}
	default:
		may = []string{
			"DRAListTypeAttributes", "DRADerivedAttributes", "DRADeviceCompatibilityGroups", "DRAOptionalNodeOperations",
			"DRAFractionalCapacityRange",
		}
	}
	for _, gate := range may {
		if f.often(4) {
			f.Gates[gate] = true
		}
	}
	f.groups = f.Gates["DRADeviceCompatibilityGroups"]
	f.stable = f.Version == "1.35" && !f.Gates["DRAConsumableCapacity"] && !f.Gates["DRADeviceBindingConditions"]
	if f.stable {
		delete(f.Gates, "DRAPartitionableDevices")
	}
}

// fleetKind is a kind of nodes.
type fleetKind struct {
	slices   []*resourceapi.ResourceSlice
	declared []string
}

func (f *naiveFleet) kind() (k fleetKind) {
	for i := range 1 + f.IntN(2) {
		k.slices = append(k.slices, f.pool(f.pick("d.io", "d.io", "e.io"), fmt.Sprintf("-p%d", i))...)
	}
	if f.often(8) {
		k.declared = []string{"DRAOptionalNodeOperations"}
	}
	return k
}

// pool makes the slices of a pool whose name ends like this.
func (f *naiveFleet) pool(driver, name string) (out []*resourceapi.ResourceSlice) {
	counters := f.often(4)
	slice := func(suffix string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name + suffix}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, Pool: resourceapi.ResourcePool{Name: name, Generation: 1},
		}}
		out = append(out, s)
		return s
	}
	for i := range 1 + f.IntN(2) {
		s := slice(f.pick("-b", "-a", "-c") + fmt.Sprint(i))
		for d := range 1 + f.IntN(3) {
			s.Spec.Devices = append(s.Spec.Devices, f.device(fmt.Sprintf("d%d-%d", i, d), counters))
		}
		if f.Gates["DRAOptionalNodeOperations"] && f.often(4) {
			s.Spec.SkipNodeOperations = []resourceapi.SkipNodeOperation{"NodePrepareResources"}
		}
	}
	if counters {
		slice("-counters").Spec.SharedCounters = []resourceapi.CounterSet{
			{Name: "card", Counters: f.memory("2", "3")}, {Name: "card1", Counters: f.memory("2")},
		}
	}
	for _, s := range out {
		s.Spec.Pool.ResourceSliceCount = int64(len(out))
	}
	return out
}

func (f *naiveFleet) device(name string, counters bool) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"root":   {StringValue: new(f.pick("x", "y"))},
		"serial": {StringValue: new(name)},
		"other":  {IntValue: new(f.Int64N(3))},
	}}
	if !f.often(1) {
		d.Attributes["d.io/kind"] = resourceapi.DeviceAttribute{StringValue: new(f.pick("a", "b"))}
	}
	if f.often(3) {
		d.Attributes["s.io/numa"] = resourceapi.DeviceAttribute{IntValue: new(f.Int64N(2))}
	} else if f.often(4) && f.Gates["DRAListTypeAttributes"] {
		d.Attributes["s.io/numa"] = resourceapi.DeviceAttribute{IntValues: []int64{0, f.Int64N(3)}}
	}
	if f.often(5) {
		d.Attributes["version"] = resourceapi.DeviceAttribute{VersionValue: new(f.pick("1.0.0", "2.0.0"))}
	}
	if f.often(6) {
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": f.capacity()}
	}
	if f.often(3) {
		d.AllowMultipleAllocations = new(true)
	}
	if counters && f.often(8) {
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: f.pick("card", "card", "card1"), Counters: f.memory("1", "2")}}
		if f.groups && f.often(5) {
			d.ConsumesCounters[0].CompatibilityGroups = []string{f.pick("g", "h")}
		}
	}
	f.vary(&d, 15)
	return d
}

// memory is a counter with one of some values.
func (f *naiveFleet) memory(values ...string) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{"memory": {Value: resource.MustParse(f.pick(values...))}}
}

func (f *naiveFleet) capacity() resourceapi.DeviceCapacity {
	c := resourceapi.DeviceCapacity{Value: resource.MustParse(f.pick("2Gi", "4Gi"))}
	switch f.IntN(4) {
	case 0:
		c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: new(resource.MustParse("1Gi"))}
	case 1:
		c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: new(resource.MustParse("1Gi")), ValidValues: []resource.Quantity{
			resource.MustParse("1Gi"), resource.MustParse("2Gi"),
		}}
	case 2:
		c.RequestPolicy = &resourceapi.CapacityRequestPolicy{
			Default: new(resource.MustParse("1Gi")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(resource.MustParse("1Gi"))},
		}
	}
	return c
}

// vary makes a device another one now and then, once in so many times for each of the things.
func (f *naiveFleet) vary(d *resourceapi.Device, seldom int) {
	for i, change := range []func(){
		func() { d.Attributes["root"] = resourceapi.DeviceAttribute{StringValue: new("z")} },
		func() { d.Attributes["d.io/kind"] = resourceapi.DeviceAttribute{StringValue: new("c")} },
		func() { delete(d.Attributes, "d.io/kind") },
		func() { d.Attributes["s.io/numa"] = resourceapi.DeviceAttribute{IntValue: new(int64(7))} },
		func() { d.Attributes["e.io/other"] = resourceapi.DeviceAttribute{BoolValue: new(true)} },
		func() { f.malformed(d) },
		func() { d.Attributes["serial"] = resourceapi.DeviceAttribute{StringValue: new("s")} },
		func() {
			d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("1Gi")}}
		},
		func() { d.AllowMultipleAllocations = new(!ptr.Deref(d.AllowMultipleAllocations, false)) },
		func() {
			effect := resourceapi.DeviceTaintEffect(f.pick("NoSchedule", "NoExecute", "None"))
			d.Taints = []resourceapi.DeviceTaint{{Key: f.pick("t", "u"), Effect: effect}}
		},
		func() { d.BindingConditions, d.BindingFailureConditions = []string{"ready"}, []string{"failed"} },
		func() { d.BindsToNode = new(true) },
		func() {
			for i := range d.ConsumesCounters {
				d.ConsumesCounters[i].Counters = f.memory("1", "2", "3")
			}
		},
		func() {
			for i := range d.ConsumesCounters {
				d.ConsumesCounters[i].CounterSet = f.pick("card1", "card", "no-card")
			}
		},
	} {
		if f.IntN(seldom) == i {
			change()
		}
	}
}

// malformed gives a device an attribute with which no expression can be evaluated.
func (f *naiveFleet) malformed(d *resourceapi.Device) {
	if !f.stable && f.often(1) {
		d.Attributes["version"] = resourceapi.DeviceAttribute{VersionValue: new("1.x")}
	}
}

// node adds a node of a kind. Now and then it has one thing of its own.
func (f *naiveFleet) node(name string, k fleetKind) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": f.pick("a", "b")}}}
	node.Status.DeclaredFeatures = k.declared
	if f.often(3) {
		node.Status.DeclaredFeatures = nil
	}
	f.Nodes = append(f.Nodes, node)
	generation := f.Int64N(4)
	fewCounters, smallDevices, tainted := f.often(2), f.often(2), f.often(2)
	own := -1
	if f.often(6) {
		own = f.IntN(len(k.slices))
	}
	for i, slice := range k.slices {
		slice = slice.DeepCopy()
		slice.Name, slice.Spec.NodeName, slice.Spec.Pool.Name = name+slice.Name, &name, name+slice.Spec.Pool.Name
		slice.Spec.Pool.Generation += generation
		for d := range slice.Spec.Devices {
			device := &slice.Spec.Devices[d]
			device.Attributes["id"] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprint(name, "-", i, "-", d))}
			if tainted && d == 0 {
				device.Taints = []resourceapi.DeviceTaint{{Key: f.pick("t", "u"), Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
			if smallDevices && len(device.Capacity) > 0 {
				device.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("1Gi")}}
			}
		}
		for d := range slice.Spec.SharedCounters {
			if fewCounters {
				slice.Spec.SharedCounters[d].Counters = f.memory("1")
			}
		}
		if i == own && f.ownSlice(slice) {
			continue
		}
		f.Slices = append(f.Slices, slice)
	}
}

// ownSlice changes a slice of one node. It returns true if the node has no such slice.
func (f *naiveFleet) ownSlice(slice *resourceapi.ResourceSlice) (gone bool) {
	switch f.IntN(11) {
	case 0:
		return true
	case 1:
		slice.Spec.Pool.Generation++
	case 2:
		slice.Spec.SkipNodeOperations = []resourceapi.SkipNodeOperation{"NodePrepareResources"}
	case 3:
		if len(slice.Spec.Devices) > 1 {
			slice.Spec.Devices[1].Name = slice.Spec.Devices[0].Name
		}
	default:
		for i := range slice.Spec.Devices {
			f.vary(&slice.Spec.Devices[i], 20)
		}
	}
	return false
}

// shared adds a pool that several nodes reach.
func (f *naiveFleet) shared() {
	zoneA := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
	}}}
	how := f.IntN(3)
	for _, slice := range f.pool("d.io", "net") {
		switch how {
		case 0:
			slice.Spec.AllNodes = new(true)
		case 1:
			slice.Spec.NodeSelector = zoneA
		default:
			slice.Spec.PerDeviceNodeSelection = new(true)
			for i := range slice.Spec.Devices {
				d := &slice.Spec.Devices[i]
				switch f.IntN(3) {
				case 0:
					d.AllNodes = new(true)
				case 1:
					d.NodeSelector = zoneA
				default:
					d.NodeName = new("n1")
				}
			}
			if len(slice.Spec.Devices) == 0 {
				slice.Spec.PerDeviceNodeSelection, slice.Spec.AllNodes = nil, new(true)
			}
		}
		f.Slices = append(f.Slices, slice)
	}
}

// hold adds claims that have devices.
func (f *naiveFleet) hold() {
	for i := range f.IntN(6) {
		slice := f.Slices[f.IntN(len(f.Slices))]
		if len(slice.Spec.Devices) == 0 {
			continue
		}
		d := slice.Spec.Devices[f.IntN(len(slice.Spec.Devices))]
		claim := objects.Claim("default", fmt.Sprintf("held%d", i), objects.Request("r", "any"))
		claim.UID = types.UID(claim.Name)
		result := objects.Result("r", slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)
		switch {
		case ptr.Deref(d.AllowMultipleAllocations, false):
			result.ShareID = new(types.UID("share-" + claim.Name))
			if len(d.Capacity) > 0 {
				result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")}
			}
		case f.IntN(5) == 0:
			result.AdminAccess = new(true)
		}
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		claim.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{result}
		f.Claims = append(f.Claims, claim)
	}
}

// pod adds a pod with claims of its own, or with that of another pod.
func (f *naiveFleet) pod(name string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	for i := range 1 + f.IntN(5)/4 {
		claim := f.claim(fmt.Sprint(name, "-", i))
		if last := len(f.Pods) - 1; last >= 0 && f.IntN(8) == 0 && i == 0 {
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, f.Pods[last].Spec.ResourceClaims[0])
			continue
		}
		f.Claims = append(f.Claims, claim)
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: fmt.Sprint("c", i), ResourceClaimName: &claim.Name,
		})
	}
	f.Pods = append(f.Pods, pod)
}

func (f *naiveFleet) claim(name string) *resourceapi.ResourceClaim {
	claim := objects.Claim("default", name)
	spec := &claim.Spec.Devices
	names := []string{}
	for i := range 1 + f.IntN(2) {
		request := resourceapi.DeviceRequest{Name: fmt.Sprint("r", i)}
		names = append(names, request.Name)
		if !f.often(3) {
			request.Exactly = f.exactly()
			if f.IntN(8) == 0 {
				request.Exactly.AdminAccess = new(true)
			}
			spec.Requests = append(spec.Requests, request)
			continue
		}
		for k := range 1 + f.IntN(3) {
			e := f.exactly()
			request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: fmt.Sprint("s", k), DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode,
				Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity, DerivedAttributes: e.DerivedAttributes,
			})
			names = append(names, fmt.Sprint(request.Name, "/s", k))
		}
		spec.Requests = append(spec.Requests, request)
	}
	for range f.IntN(5) / 2 {
		spec.Constraints = append(spec.Constraints, f.constraint(names))
	}
	return claim
}

// constraint is one on some of the requests.
func (f *naiveFleet) constraint(requests []string) resourceapi.DeviceConstraint {
	names := []string{"d.io/root", "d.io/kind", "s.io/numa", "d.io/version", "d.io/other", "d.io/serial"}
	attribute := new(resourceapi.FullyQualifiedName(f.pick(names...)))
	c := resourceapi.DeviceConstraint{MatchAttribute: attribute}
	if f.often(4) && f.Version != "1.35" {
		c = resourceapi.DeviceConstraint{DistinctAttribute: attribute}
	}
	if f.often(3) {
		c.Requests = []string{f.pick(requests...)}
	}
	return c
}

// expression is a selector.
func (f *naiveFleet) expression() string {
	return f.pick(
		`device.attributes["d.io"].?kind.orValue("a") == "a"`,
		`"d.io" in device.attributes`,
		`device.attributes["d.io"].?root.orValue("") != "z"`,
		`!has(device.attributes["s.io"].numa) || device.attributes["s.io"].numa == 0`,
		`device.attributes["d.io"].size() > 4`,
		`device.attributes["d.io"].?other.orValue(0) < 2`,
		`device.allowMultipleAllocations == false`,
		f.mayFail(`device.attributes["d.io"].root == "x"`),
		`device.attributes["d.io"].?root.orValue("") == "x"`,
		`device.driver == "e.io"`,
		`device.capacity["d.io"].?memory.orValue(quantity("0")).compareTo(quantity("1500Mi")) > 0`,
		`!("other" in device.attributes["e.io"])`,
		`device.attributes["d.io"].?version.orValue(semver("1.0.0")).compareTo(semver("2.0.0")) < 0`,
		`device.attributes["d.io"].?id.orValue("n1-0-0") != "n1-0-0"`,
	)
}

// mayFail is an expression that fails for some devices.
func (f *naiveFleet) mayFail(expression string) string {
	if f.stable {
		return "true"
	}
	return expression
}

func (f *naiveFleet) exactly() *resourceapi.ExactDeviceRequest {
	e := &resourceapi.ExactDeviceRequest{
		DeviceClassName: f.pick("any", "any", "d"), AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1 + f.Int64N(4)/2,
	}
	if f.IntN(50) == 0 && !f.stable {
		e.DeviceClassName = "a"
	}
	if f.IntN(12) == 0 && !f.stable {
		e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeAll, 0
	}
	if f.often(4) {
		e.Selectors = objects.Selectors(f.expression())
	}
	if f.often(2) {
		e.Tolerations = []resourceapi.DeviceToleration{{Key: "t", Operator: resourceapi.DeviceTolerationOpExists}}
	}
	if f.often(2) {
		e.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(f.pick("1Gi", "1500Mi", "2Gi", "4Gi")),
		}}
	}
	if f.Gates["DRADerivedAttributes"] && f.often(3) {
		e.DerivedAttributes = []resourceapi.DeviceDerivedAttribute{{
			Name: resourceapi.FullyQualifiedName(f.pick("d.io/root", "s.io/numa", "d.io/kind")),
			Expression: f.pick(
				`device.attributes["d.io"].?serial.orValue("none")`, `device.attributes["d.io"].?root.orValue("none")`, `device.driver`,
				`device.attributes["d.io"].id`, `device.attributes["d.io"].size()`,
			),
		}}
	}
	return e
}
