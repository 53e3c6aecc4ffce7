// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan/alike"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// view is what the allocator sees of the cluster when it tries one node: the pools that have a device for the node, each with all of its
// slices, since an incomplete pool is judged by them. The scheduler gives it all slices; the others make no difference, only time.
type view struct {
	pools  []*pool
	slices []*resourceapi.ResourceSlice
	// requested is what the pods of the node ask for.
	requested corev1.ResourceList
	pods      int64
	// ports are those of the host that they take.
	ports []podspec.Port
}

// addPools sorts the slices into pools, and finds the pools of each node.
func (c *Cluster) addPools() {
	var order []*pool
	for _, slice := range c.Slices {
		id := poolID{slice.Spec.Driver, slice.Spec.Pool.Name}
		p := c.pool(id)
		if len(p.slices) == 0 {
			order = append(order, p)
		}
		p.slices = append(p.slices, slice)
	}
	byNode := map[string]*view{}
	for _, node := range c.Nodes {
		v := &view{requested: corev1.ResourceList{}}
		c.views = append(c.views, v)
		byNode[node.Name] = v
	}
	for _, p := range order {
		for _, v := range c.viewsOf(p, byNode) {
			v.pools = append(v.pools, p)
			v.slices = append(v.slices, p.slices...)
		}
	}
}

// viewsOf returns the views of the nodes that a pool has devices for.
func (c *Cluster) viewsOf(p *pool, byNode map[string]*view) []*view {
	var out []*view
	added := map[*view]bool{}
	add := func(v *view) {
		if v != nil && !added[v] {
			added[v] = true
			out = append(out, v)
		}
	}
	for _, slice := range p.slices {
		if name := ptr.Deref(slice.Spec.NodeName, ""); name != "" {
			add(byNode[name])
			continue
		}
		for i, node := range c.Nodes {
			if c.reaches(slice, node) {
				add(c.views[i])
			}
		}
	}
	return out
}

// reaches says whether a slice may have a device for a node. A node selector that cannot be read reaches all: the allocator refuses it.
func (c *Cluster) reaches(slice *resourceapi.ResourceSlice, node *corev1.Node) bool {
	matches := func(name *string, all *bool, selector *corev1.NodeSelector) bool {
		match, err := structured.NodeMatches(c.Gates.Features(), node, ptr.Deref(name, ""), ptr.Deref(all, false), selector)
		return match || err != nil
	}
	if matches(slice.Spec.NodeName, slice.Spec.AllNodes, slice.Spec.NodeSelector) {
		return true
	}
	if !ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) {
		return false
	}
	for i := range slice.Spec.Devices {
		if d := &slice.Spec.Devices[i]; matches(d.NodeName, d.AllNodes, d.NodeSelector) {
			return true
		}
	}
	return false
}

// takesOfNode says whether a device for the node takes CPU, memory or the like of it.
func (v *view) takesOfNode() bool {
	for _, slice := range v.slices {
		for i := range slice.Spec.Devices {
			if len(slice.Spec.Devices[i].NodeAllocatableResources) > 0 {
				return true
			}
		}
	}
	return false
}

// stateVersion is larger than all before it after each change of what is allocated of the view's pools.
func (v *view) stateVersion() uint64 {
	sum := uint64(1) // so that a view without pools differs from one that has no allocator yet
	for _, p := range v.pools {
		sum += p.version
	}
	return sum
}

// state returns what is allocated of the pools of a view.
func (v *view) state() structured.AllocatedState {
	if len(v.pools) == 1 {
		return v.pools[0].state // the allocator only reads it
	}
	state := newState()
	for _, p := range v.pools {
		p.addTo(&state)
	}
	return state
}

// allocate tries one node, by its index, for claims without an allocation, as the scheduler does. No results and no error mean that they
// do not fit.
func (c *Cluster) allocate(ctx context.Context, node int, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	v, reads := c.views[node], c.reads.of(claims, c.Classes)
	allocator, err := structured.NewAllocator(ctx, sorted(c.Gates.Features()), v.state(), classLister{c}, reading(v.slices, reads), c.cel)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, c.Nodes[node], claims)
}

// seen is what the allocator sees of a node, by its index.
func (c *Cluster) seen(node int) alike.Seen {
	s := alike.Seen{Node: c.Nodes[node], State: c.views[node].state()}
	for _, p := range c.views[node].pools {
		s.Pools = append(s.Pools, p.slices)
	}
	return s
}

// reading returns slices whose devices have the attributes only that make a difference. The allocator makes a map of all of them for each
// expression that it evaluates, which takes longer than the evaluation.
func reading(all []*resourceapi.ResourceSlice, reads selector.Reads) []*resourceapi.ResourceSlice {
	if reads.Everything() {
		return all
	}
	out := make([]*resourceapi.ResourceSlice, len(all))
	for i, slice := range all {
		same := *slice
		same.Spec.Devices = slices.Clone(slice.Spec.Devices)
		for k := range same.Spec.Devices {
			d := &same.Spec.Devices[k]
			d.Attributes = reads.Attributes(slice.Spec.Driver, d.Attributes)
		}
		out[i] = &same
	}
	return out
}

// readings know what the expressions of claims and classes read. Several goroutines may use it.
type readings struct {
	checker selector.Checker
	mu      sync.Mutex
	known   map[string]selector.Reads
}

// of returns what claims and the classes that they name read of devices.
func (r *readings) of(claims []*resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass) (out selector.Reads) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for expression := range judge.ExpressionsOf(claims, classes) {
		reads, known := r.known[expression]
		if !known {
			reads = r.checker.Reads(expression)
			r.known[expression] = reads
		}
		out.Add(reads)
	}
	for _, claim := range claims {
		for _, c := range claim.Spec.Devices.Constraints {
			out.AddAttribute(c.MatchAttribute)
			out.AddAttribute(c.DistinctAttribute)
		}
	}
	return out
}

// sorted has the allocator take pools and slices by their names. The variant for the features of Kubernetes 1.34 and 1.35 takes them in
// random order, so a plan would differ from run to run; the next one decides the same otherwise. It is chosen by a feature that does
// nothing without consumable capacity.
func sorted(features structured.Features) structured.Features {
	if !features.ConsumableCapacity {
		features.FractionalCapacityRange = true
	}
	return features
}

// classLister gives the classes to the allocator.
type classLister struct{ *Cluster }

// List returns the classes in no order.
func (l classLister) List() ([]*resourceapi.DeviceClass, error) {
	out := make([]*resourceapi.DeviceClass, 0, len(l.Classes))
	for _, class := range l.Classes {
		out = append(out, class)
	}
	return out, nil
}

// Get returns a class by name.
func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := l.Classes[name]; class != nil {
		return class, nil
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclass"), name)
}

// verdict is what the allocator said of a node, for claims that ask for the same.
type verdict struct {
	// version of the node's view; 0 means that the node was not tried.
	version uint64
	fits    bool
	score   int64
}

// verdicts remembers for some claims which nodes they fit, so that a node is tried again only after devices that it sees changed hands.
type verdicts struct {
	bySpec map[string][]verdict
	order  []string
}

// remembered is for how many different claims verdicts are kept.
const remembered = 64

// of returns the verdicts for claims, one a node, to be read and written.
func (v *verdicts) of(claims []*resourceapi.ResourceClaim, nodes int) ([]verdict, error) {
	key := make([]byte, 0, 512)
	for _, claim := range claims {
		spec, err := json.Marshal(claim.Spec)
		if err != nil {
			return nil, fmt.Errorf("encode the spec of claim %s: %w", claim.Name, err)
		}
		key = append(append(key, spec...), '\n')
	}
	if known := v.bySpec[string(key)]; known != nil {
		return known, nil
	}
	if v.bySpec == nil {
		v.bySpec = map[string][]verdict{}
	}
	if len(v.order) == remembered {
		delete(v.bySpec, v.order[0])
		v.order = v.order[1:]
	}
	all := make([]verdict, nodes)
	v.bySpec[string(key)] = all
	v.order = append(v.order, string(key))
	return all, nil
}
