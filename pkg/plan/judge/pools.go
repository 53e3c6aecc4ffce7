// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// pool is what the scheduler knows of a pool when it looks at one node.
type pool struct {
	driver, name string
	generation   int64
	// here are the slices with devices for the node, elsewhere those for other nodes. counterSets are of both.
	here, elsewhere []*resourceapi.ResourceSlice
	counterSets     []resourceapi.CounterSet
	incomplete      string
	invalid         string
	ignored         []string
	counters        *counterTable
}

// devices returns the devices of the slices that have some for the node, each with its slice.
func (p *pool) devices() iter.Seq2[*resourceapi.ResourceSlice, *resourceapi.Device] {
	return func(yield func(*resourceapi.ResourceSlice, *resourceapi.Device) bool) {
		for _, slice := range p.here {
			for i := range slice.Spec.Devices {
				if !yield(slice, &slice.Spec.Devices[i]) {
					return
				}
			}
		}
	}
}

// poolKey names a pool.
type poolKey struct{ driver, name string }

func keyOf(s *resourceapi.ResourceSlice) poolKey { return poolKey{s.Spec.Driver, s.Spec.Pool.Name} }

// nodeSlices are the slices that the scheduler reads for one node.
type nodeSlices struct {
	features
	node *corev1.Node
	all  []*resourceapi.ResourceSlice
}

// gather collects the pools that have something for the node, sorted as the scheduler sorts them.
func (n *nodeSlices) gather() ([]*pool, error) {
	pools := map[poolKey][]*resourceapi.ResourceSlice{}
	ignored := map[poolKey][]string{}
	for _, slice := range n.considered() {
		key := keyOf(slice)
		if reason := n.unsupported(slice); reason != "" {
			ignored[key] = append(ignored[key], fmt.Sprintf("slice %s: %s", slice.Name, reason))
			continue
		}
		relevant, err := n.relevant(slice)
		if err != nil {
			return nil, err
		}
		if !relevant {
			continue
		}
		known := pools[key]
		switch {
		case len(known) == 0 || slice.Spec.Pool.Generation > known[0].Spec.Pool.Generation:
			for _, old := range known {
				ignored[key] = append(ignored[key], outdated(old, slice.Spec.Pool.Generation))
			}
			pools[key] = []*resourceapi.ResourceSlice{slice}
		case slice.Spec.Pool.Generation < known[0].Spec.Pool.Generation:
			ignored[key] = append(ignored[key], outdated(slice, known[0].Spec.Pool.Generation))
		default:
			pools[key] = append(known, slice)
		}
	}
	out := make([]*pool, 0, len(pools))
	for key, here := range pools {
		p := &pool{driver: key.driver, name: key.name, generation: here[0].Spec.Pool.Generation, ignored: ignored[key]}
		n.complete(p, here)
		slices.Sort(p.ignored)
		out = append(out, p)
		delete(ignored, key)
	}
	for key, reasons := range ignored { // nothing of the pool is left
		slices.Sort(reasons)
		out = append(out, &pool{driver: key.driver, name: key.name, ignored: reasons})
	}
	slices.SortFunc(out, func(a, b *pool) int { return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.name, b.name)) })
	return out, nil
}

func outdated(slice *resourceapi.ResourceSlice, newest int64) string {
	return fmt.Sprintf("slice %s is of generation %d and the pool of %d: its driver has replaced it", slice.Name,
		slice.Spec.Pool.Generation, newest)
}

// considered returns the slices in the order in which the scheduler reads them.
func (n *nodeSlices) considered() []*resourceapi.ResourceSlice {
	if n.variant == stable {
		return n.all
	}
	var local, shared []*resourceapi.ResourceSlice
	for _, slice := range n.all {
		switch ptr.Deref(slice.Spec.NodeName, "") {
		case n.node.Name:
			local = append(local, slice)
		case "":
			shared = append(shared, slice)
		}
	}
	return append(local, shared...)
}

// unsupported says why a slice is skipped that needs a feature which is off.
func (f features) unsupported(slice *resourceapi.ResourceSlice) string {
	if !f.PartitionableDevices && (slice.Spec.PerDeviceNodeSelection != nil || len(slice.Spec.SharedCounters) > 0) {
		return "it needs the feature gate DRAPartitionableDevices, which is off"
	}
	if !f.CompatibilityGroups && usesGroups(slice) {
		return "it needs the feature gate DRADeviceCompatibilityGroups, which is off"
	}
	return ""
}

// relevant says whether a slice has something for the node.
func (n *nodeSlices) relevant(slice *resourceapi.ResourceSlice) (bool, error) {
	spec := &slice.Spec
	switch {
	case n.variant == stable && len(spec.SharedCounters) > 0:
		return true, nil
	case ptr.Deref(spec.NodeName, "") != "" || ptr.Deref(spec.AllNodes, false) || spec.NodeSelector != nil:
		match, err := structured.NodeMatches(n.Features, n.node, ptr.Deref(spec.NodeName, ""), ptr.Deref(spec.AllNodes, false), spec.NodeSelector)
		if err != nil {
			return false, fmt.Errorf("ResourceSlice %s, spec.nodeSelector: %w", slice.Name, err)
		}
		return match, nil
	case ptr.Deref(spec.PerDeviceNodeSelection, false):
		return n.anyOnNode(slice)
	}
	return false, nil
}

// anyOnNode says whether one of the devices of a slice that says it of each is for the node.
func (n *nodeSlices) anyOnNode(slice *resourceapi.ResourceSlice) (bool, error) {
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		match, err := n.deviceOnNode(d)
		if err != nil {
			return match, fmt.Errorf("ResourceSlice %s, device %s: %w", slice.Name, d.Name, err)
		}
		if match {
			return true, nil
		}
	}
	return false, nil
}

func (n *nodeSlices) deviceOnNode(d *resourceapi.Device) (bool, error) {
	return structured.NodeMatches(n.Features, n.node, ptr.Deref(d.NodeName, ""), ptr.Deref(d.AllNodes, false), d.NodeSelector)
}

// complete looks whether all slices of a pool are there and agree, and fills in the pool.
func (n *nodeSlices) complete(p *pool, here []*resourceapi.ResourceSlice) {
	want := here[0].Spec.Pool.ResourceSliceCount
	var all []*resourceapi.ResourceSlice
	if int64(len(here)) != want {
		for _, slice := range n.all {
			if keyOf(slice) != keyOf(here[0]) {
				continue
			}
			switch generation := slice.Spec.Pool.Generation; {
			case generation > p.generation:
				p.ignored = append(p.ignored, fmt.Sprintf("all slices: generation %d of the pool has come, and has nothing for this node", generation))
				return
			case generation == p.generation && (n.CompatibilityGroups || !usesGroups(slice)):
				all = append(all, slice)
			}
		}
		if int64(len(all)) != want {
			p.incomplete = fmt.Sprintf("%d of %d slices of generation %d are there: its driver is still publishing, or gave up", len(all), want,
				p.generation)
			p.here = devicesOnly(here)
			return
		}
	}
	p.fill(here, all, n.PartitionableDevices)
}

// fill sorts the slices into devices and counters, and checks that they agree.
func (p *pool) fill(here, all []*resourceapi.ResourceSlice, partitionable bool) {
	sorted := slices.SortedFunc(slices.Values(here), func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	for _, slice := range all {
		if !slices.ContainsFunc(here, func(h *resourceapi.ResourceSlice) bool { return h.Name == slice.Name }) {
			p.elsewhere = append(p.elsewhere, slice)
		}
	}
	if !partitionable {
		p.here = sorted
		p.invalid = duplicateDevice(p.here)
		return
	}
	for _, slice := range slices.Concat(sorted, p.elsewhere) {
		p.counterSets = append(p.counterSets, slice.Spec.SharedCounters...)
	}
	p.here, p.elsewhere = devicesOnly(sorted), devicesOnly(p.elsewhere)
	p.invalid = cmp.Or(duplicateDevice(p.here), invalidCounters(p.counterSets, p.here), invalidCounters(p.counterSets, p.elsewhere))
}

// devicesOnly leaves out slices of counters.
func devicesOnly(in []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	return slices.DeleteFunc(slices.Clone(in), func(s *resourceapi.ResourceSlice) bool { return len(s.Spec.SharedCounters) > 0 })
}

func duplicateDevice(in []*resourceapi.ResourceSlice) string {
	seen := map[string]bool{}
	for _, slice := range in {
		for i := range slice.Spec.Devices {
			name := slice.Spec.Devices[i].Name
			if seen[name] {
				return "two devices have the name " + name
			}
			seen[name] = true
		}
	}
	return ""
}

func describePools(pools []*pool) []PoolVerdict {
	var out []PoolVerdict
	for _, p := range pools {
		v := PoolVerdict{Driver: p.driver, Pool: p.name, Incomplete: p.incomplete, Invalid: p.invalid, Ignored: p.ignored}
		for _, slice := range p.here {
			v.Devices += len(slice.Spec.Devices)
		}
		out = append(out, v)
	}
	return out
}
