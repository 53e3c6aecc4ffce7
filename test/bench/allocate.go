// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// The figures of allocation.
const (
	allocate      = "allocate"
	allocateRate  = "allocate.rate"
	allocateCost  = "allocate.over_whole"
	allocateGiven = "allocate.given"
)

const (
	// caseMixed are claims for 1g, 3g and whole GPUs, some with a constraint.
	caseMixed = "mixed"
	// caseWhole are claims for one whole GPU each.
	caseWhole = "whole"
	// filters is how many nodes the scheduler tries at once (its default parallelism).
	filters = 16
)

// allocationForm says how many nodes there are, and how many claims come one after the other.
type allocationForm struct{ nodes, claims int }

// measureAllocation has the scheduler's own allocator give the GPUs of many nodes to claims, one after the other, each as in a scheduling
// cycle: all nodes are tried. The bench takes the first node that fits, so that nodes fill up.
func (b *bench) measureAllocation(ctx context.Context) error {
	form := b.form.allocation
	b.say("allocating %d claims on %d nodes", form.claims, form.nodes)
	median := map[string]float64{}
	at := point{Machine: wholeMachine, Parallel: filters, Case: caseWhole, Nodes: form.nodes}
	for _, one := range []struct {
		machine, what string
		divided       bool
		claims        []*resourceapi.ResourceClaim
	}{
		{wholeMachine, caseWhole, false, wholeClaims(form.claims / 5)},
		{dividedMachine, caseWhole, true, wholeClaims(form.claims / 5)},
		{dividedMachine, caseMixed, true, mixedClaims(form.claims)},
	} {
		at.Machine, at.Case = one.machine, one.what
		nodes, err := newDividedNodes(form.nodes, one.divided)
		if err != nil {
			return err
		}
		s, wall, given, err := nodes.allocateAll(ctx, one.claims)
		if err != nil {
			return fmt.Errorf("allocate %s claims on %s: %w", one.what, one.machine, err)
		}
		median[one.machine+one.what] = s.median(allocate)
		err = errors.Join(b.report.series(at, s), b.report.value(allocateGiven, &at, len(one.claims), float64(given)),
			b.report.value(allocateRate, &at, len(one.claims), float64(len(one.claims))/wall.Seconds()))
		if err != nil {
			return err
		}
	}
	at = point{Machine: dividedMachine, Parallel: filters, Case: caseWhole, Nodes: form.nodes}
	return b.report.value(allocateCost, &at, form.claims/5, median[dividedMachine+caseWhole]/median[wholeMachine+caseWhole])
}

// dividedNodes are nodes as the scheduler sees them.
type dividedNodes struct {
	nodes     []*corev1.Node
	slices    []*resourceapi.ResourceSlice
	parts     map[structured.DeviceID]partition.Part
	allocated sets.Set[structured.DeviceID]
	cache     *cel.Cache
	// taken are the claims that have the memory slices of a card, by node, card and slice.
	taken map[[2]string]map[uint32]string
}

func newDividedNodes(count int, divided bool) (*dividedNodes, error) {
	n := &dividedNodes{
		parts: map[structured.DeviceID]partition.Part{}, allocated: sets.New[structured.DeviceID](),
		cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}), taken: map[[2]string]map[uint32]string{},
	}
	for i := range count {
		name := fmt.Sprintf("node-%03d", i)
		one, err := newDividedNode(i, divided)
		if err != nil {
			return nil, err
		}
		n.nodes = append(n.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		v := &inventory.Snapshot{Devices: one.devices, Cards: one.cards, Counters: partition.FormSeparate}
		pool := device.PoolName(name, device.KindGPU)
		published := publish.Resources(name, v).Pools[pool].Slices
		for j := range published {
			n.slices = append(n.slices, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%x-%s", j, name)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: v1alpha1.DriverName, NodeName: &name, SharedCounters: published[j].SharedCounters, Devices: published[j].Devices,
					Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(published))},
				},
			})
		}
		for device, part := range one.parts {
			n.parts[structured.MakeDeviceID(v1alpha1.DriverName, pool, device)] = part
		}
	}
	return n, nil
}

// allocateAll gives each claim what it asks for, if any node has it, and checks that nothing is given twice.
func (n *dividedNodes) allocateAll(ctx context.Context, claims []*resourceapi.ResourceClaim) (samples, time.Duration, int, error) {
	s := samples{}
	given := 0
	begin := time.Now()
	for _, c := range claims {
		start := time.Now()
		result, err := n.cycle(ctx, c)
		s.add(allocate, time.Since(start))
		if err != nil {
			return nil, 0, 0, err
		}
		if result == nil {
			continue
		}
		given++
		for i := range result.Devices.Results {
			if err := n.take(c.Name, &result.Devices.Results[i]); err != nil {
				return nil, 0, 0, err
			}
		}
	}
	return s, time.Since(begin), given, nil
}

// cycle is one scheduling cycle: an allocator for the claim, which tries every node.
func (n *dividedNodes) cycle(ctx context.Context, c *resourceapi.ResourceClaim) (*resourceapi.AllocationResult, error) {
	// What the scheduler of Kubernetes 1.37 has on by default.
	features := structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, FractionalCapacityRange: true,
		PartitionableDevices: true, PrioritizedList: true,
	}
	state := structured.AllocatedState{
		AllocatedDevices: n.allocated.Clone(), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(ctx, features, state, gpuClasses{}, n.slices, n.cache)
	if err != nil {
		return nil, fmt.Errorf("make an allocator: %w", err)
	}
	results := make([][]resourceapi.AllocationResult, len(n.nodes))
	work, inner := errgroup.WithContext(ctx)
	work.SetLimit(filters)
	for i, node := range n.nodes {
		work.Go(func() (err error) {
			results[i], err = allocator.Allocate(inner, node, []*resourceapi.ResourceClaim{c})
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return nil, fmt.Errorf("allocate claim %s: %w", c.Name, err)
	}
	for _, result := range results {
		if len(result) == 1 {
			return &result[0], nil
		}
	}
	return nil, nil //nolint:nilnil // no node has what the claim asks for
}

// take records a device as the claim's. A memory slice that another claim has is an error. It is seen from the places of instances, not
// from counters.
func (n *dividedNodes) take(claim string, r *resourceapi.DeviceRequestAllocationResult) error {
	id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
	part, isPart := n.parts[id]
	card, from, to := [2]string{r.Pool, r.Device}, uint32(0), uint32(8)
	if isPart {
		card[1], from, to = part.Parent, part.Placement.Start, part.Placement.Start+part.Placement.Size
	}
	if n.taken[card] == nil {
		n.taken[card] = map[uint32]string{}
	}
	for slice := from; slice < to; slice++ {
		if other := n.taken[card][slice]; other != "" {
			return fmt.Errorf("memory slice %d of GPU %s on %s is given to %s and to %s", slice, card[1], card[0], other, claim)
		}
		n.taken[card][slice] = claim
	}
	n.allocated.Insert(id)
	return nil
}

// gpuClasses has one class: Fettle's devices.
type gpuClasses struct{}

func (gpuClasses) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (gpuClasses) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.DeviceClassSpec{Selectors: selectors(`device.driver == "fettle.dev"`)},
	}, nil
}

func selectors(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

// wholeClaims ask for one whole GPU each.
func wholeClaims(n int) []*resourceapi.ResourceClaim {
	var out []*resourceapi.ResourceClaim
	for i := range n {
		out = append(out, gpuClaim(i, "", 1, "whole"))
	}
	return out
}

// mixedClaims are, of each ten: four for 1g, two for 3g, two for a whole GPU, one for two 1g of one GPU, one for a 1g and a 3g of one GPU.
func mixedClaims(n int) []*resourceapi.ResourceClaim {
	const ofOneGPU = v1alpha1.GroupName + "/" + resourceapi.FullyQualifiedName(device.AttributeParentUUID)
	var out []*resourceapi.ResourceClaim
	for i := range n {
		switch i % 10 {
		case 0, 3, 5, 8:
			out = append(out, gpuClaim(i, "", 1, "1g.10gb"))
		case 1, 6:
			out = append(out, gpuClaim(i, "", 1, "3g.40gb"))
		case 2, 7:
			out = append(out, gpuClaim(i, "", 1, "whole"))
		case 4:
			out = append(out, gpuClaim(i, ofOneGPU, 2, "1g.10gb"))
		case 9:
			out = append(out, gpuClaim(i, ofOneGPU, 1, "1g.10gb", "3g.40gb"))
		}
	}
	return out
}

// gpuClaim asks for so many of each profile.
func gpuClaim(number int, match resourceapi.FullyQualifiedName, count int64, profiles ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "claim-" + strconv.Itoa(number)}}
	for _, profile := range profiles {
		expression := fmt.Sprintf(`device.attributes["fettle.dev"].type == "mig" && device.attributes["fettle.dev"].profile == %q`, profile)
		if profile == "whole" {
			expression = `device.attributes["fettle.dev"].type == "gpu"`
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: "r" + strconv.Itoa(len(c.Spec.Devices.Requests)), Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Selectors: selectors(expression),
			},
		})
	}
	if match != "" {
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &match}}
	}
	return c
}
