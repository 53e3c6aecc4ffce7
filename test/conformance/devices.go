// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// device is the identity of one published device.
type device struct{ pool, name string }

func (d device) String() string { return d.pool + "/" + d.name }

func compareDevices(a, b device) int {
	return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.name, b.name))
}

// pool is what the newest generation of a pool's slices publishes.
type pool struct {
	name   string
	slices []resourceapi.ResourceSlice
}

// errNotPublished is the state before the plugin published a whole pool.
var errNotPublished = errors.New("not published")

// listSlices are the driver's slices, those of other nodes too.
func (s *session) listSlices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	selector := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + s.config.Driver}
	list, err := s.config.Kube.ResourceV1().ResourceSlices().List(ctx, selector)
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices of driver %s: %w", s.config.Driver, err)
	}
	return slices.DeleteFunc(list.Items, func(slice resourceapi.ResourceSlice) bool { return slice.Spec.Driver != s.config.Driver }), nil
}

// findNode is the node that the user named, or the only one for which the driver publishes.
func (s *session) findNode(ctx context.Context) (string, error) {
	if s.config.Node != "" {
		return s.config.Node, nil
	}
	all, err := s.listSlices(ctx)
	if err != nil {
		return "", err
	}
	nodes := map[string]bool{}
	for i := range all {
		if name := ptr.Deref(all[i].Spec.NodeName, ""); name != "" {
			nodes[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(nodes))
	switch len(names) {
	case 0:
		return "", fmt.Errorf("%w: driver %s has no ResourceSlice for a node", errNotPublished, s.config.Driver)
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("driver %s publishes for %d nodes: name the one whose plugin is checked, such as %s", s.config.Driver, len(names),
		names[0])
}

// nodeSlices are those that concern the node. Slices with a node selector are left out, since this is no scheduler.
func (s *session) nodeSlices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	all, err := s.listSlices(ctx)
	if err != nil {
		return nil, err
	}
	local := slices.DeleteFunc(all, func(slice resourceapi.ResourceSlice) bool {
		spec := slice.Spec
		return ptr.Deref(spec.NodeName, "") != s.node && !ptr.Deref(spec.AllNodes, false) && !ptr.Deref(spec.PerDeviceNodeSelection, false)
	})
	slices.SortFunc(local, func(a, b resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return local, nil
}

// pools are the node's complete pools by name. A pool that is being written is errNotPublished, and so is none at all.
func (s *session) pools(ctx context.Context) ([]pool, error) {
	local, err := s.nodeSlices(ctx)
	if err != nil {
		return nil, err
	}
	pools := newestPools(local)
	for _, p := range pools {
		if want := p.slices[0].Spec.Pool.ResourceSliceCount; int64(len(p.slices)) != want {
			return nil, fmt.Errorf("%w: pool %s has %d slices of generation %d, want %d", errNotPublished, p.name, len(p.slices),
				p.slices[0].Spec.Pool.Generation, want)
		}
	}
	if len(pools) == 0 {
		return nil, fmt.Errorf("%w: driver %s has no ResourceSlice for node %q", errNotPublished, s.config.Driver, s.node)
	}
	return pools, nil
}

// newestPools groups slices by pool, without those of older generations.
func newestPools(all []resourceapi.ResourceSlice) []pool {
	newest := map[string][]resourceapi.ResourceSlice{}
	for _, slice := range all {
		name, generation := slice.Spec.Pool.Name, slice.Spec.Pool.Generation
		if have := newest[name]; len(have) > 0 && have[0].Spec.Pool.Generation != generation {
			if have[0].Spec.Pool.Generation > generation {
				continue
			}
			newest[name] = nil
		}
		newest[name] = append(newest[name], slice)
	}
	var pools []pool
	for _, name := range slices.Sorted(maps.Keys(newest)) {
		pools = append(pools, pool{name: name, slices: newest[name]})
	}
	return pools
}

// published are all devices of the node's pools.
func (s *session) published(ctx context.Context) ([]device, error) {
	pools, err := s.pools(ctx)
	if err != nil {
		return nil, err
	}
	var all []device
	for _, p := range pools {
		for _, slice := range p.slices {
			for i := range slice.Spec.Devices {
				if d := &slice.Spec.Devices[i]; s.here(&slice.Spec, d) {
					all = append(all, device{p.name, d.Name})
				}
			}
		}
	}
	return all, nil
}

// here says whether a device can be used on the node.
func (s *session) here(slice *resourceapi.ResourceSliceSpec, d *resourceapi.Device) bool {
	return !ptr.Deref(slice.PerDeviceNodeSelection, false) || ptr.Deref(d.NodeName, "") == s.node || ptr.Deref(d.AllNodes, false)
}

// freeDevices are devices that no claim holds and that can all be held at once, in the order of their slices: those that one claim holds
// alone, and those that allow several allocations.
func (s *session) freeDevices(ctx context.Context) (exclusive, shared []device, err error) {
	taken, err := s.takenDevices(ctx)
	if err != nil {
		return nil, nil, err
	}
	pools, err := s.pools(ctx)
	if errors.Is(err, errNotPublished) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	s.shares = map[device]consumed{}
	for _, p := range pools {
		budget := newCounters(p)
		var candidates []*resourceapi.Device
		for i := range p.slices {
			for j := range p.slices[i].Spec.Devices {
				d := &p.slices[i].Spec.Devices[j]
				switch {
				case taken[device{p.name, d.Name}]:
					budget.consume(d)
				case s.here(&p.slices[i].Spec, d) && s.usable(p.name, d):
					candidates = append(candidates, d)
				}
			}
		}
		for _, d := range candidates {
			id := device{p.name, d.Name}
			switch share, ok := shareOf(d); {
			case !ok || !budget.consume(d):
			case share != nil:
				s.shares[id], shared = share, append(shared, id)
			default:
				exclusive = append(exclusive, id)
			}
		}
	}
	return exclusive, shared, nil
}

// consumed is how much of a device's capacities one allocation consumes.
type consumed map[resourceapi.QualifiedName]resource.Quantity

// shareOf is what one of several claims consumes of a device, nil where the device allows one only. It is false where two do not fit.
func shareOf(d *resourceapi.Device) (consumed, bool) {
	if !ptr.Deref(d.AllowMultipleAllocations, false) {
		return nil, true
	}
	share := consumed{}
	for name, capacity := range d.Capacity {
		amount := leastOf(capacity)
		twice := amount.DeepCopy()
		twice.Add(amount)
		if twice.Cmp(capacity.Value) > 0 {
			return nil, false
		}
		share[name] = amount
	}
	return share, true
}

// leastOf is the least that the policy of a capacity lets a claim consume. Without a policy it is half.
func leastOf(c resourceapi.DeviceCapacity) resource.Quantity {
	policy := c.RequestPolicy
	switch {
	case policy == nil:
		return *resource.NewQuantity(c.Value.Value()/2, c.Value.Format)
	case len(policy.ValidValues) > 0:
		return policy.ValidValues[0].DeepCopy()
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return policy.ValidRange.Min.DeepCopy()
	case policy.Default != nil:
		return policy.Default.DeepCopy()
	}
	return c.Value.DeepCopy()
}

// usable says whether an allocation can be written for the device without being a scheduler: one with binding conditions wants somebody to
// set them, and one with taints tolerations.
func (s *session) usable(pool string, d *resourceapi.Device) bool {
	tainted := slices.ContainsFunc(d.Taints, func(taint resourceapi.DeviceTaint) bool {
		return taint.Effect == resourceapi.DeviceTaintEffectNoSchedule || taint.Effect == resourceapi.DeviceTaintEffectNoExecute
	})
	return !tainted && len(d.BindingConditions) == 0 &&
		(s.config.Devices == nil || s.config.Devices.MatchString(device{pool, d.Name}.String()))
}

// takenDevices are those of the driver that some claim of the cluster holds.
func (s *session) takenDevices(ctx context.Context) (map[device]bool, error) {
	list, err := s.config.Kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ResourceClaims: %w", err)
	}
	taken := map[device]bool{}
	for i := range list.Items {
		allocation := list.Items[i].Status.Allocation
		if allocation == nil {
			continue
		}
		for _, result := range allocation.Devices.Results {
			if result.Driver == s.config.Driver && !ptr.Deref(result.AdminAccess, false) {
				taken[device{result.Pool, result.Device}] = true
			}
		}
	}
	return taken, nil
}

// counters are what is left of a pool's shared counters, by "SET/COUNTER".
type counters map[string]resource.Quantity

func newCounters(p pool) counters {
	left := counters{}
	for _, slice := range p.slices {
		for _, set := range slice.Spec.SharedCounters {
			for name, counter := range set.Counters {
				left[set.Name+"/"+name] = counter.Value.DeepCopy()
			}
		}
	}
	return left
}

// consume takes what a device needs, all or nothing.
func (c counters) consume(d *resourceapi.Device) bool {
	after := maps.Clone(c)
	for _, consumption := range d.ConsumesCounters {
		for name, counter := range consumption.Counters {
			key := consumption.CounterSet + "/" + name
			left := after[key].DeepCopy()
			left.Sub(counter.Value)
			if left.Sign() < 0 {
				return false
			}
			after[key] = left
		}
	}
	maps.Copy(c, after)
	return true
}
