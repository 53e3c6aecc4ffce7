// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

// poolID names a pool of devices.
type poolID struct{ driver, name string }

// pool has the slices of a pool, and what is allocated of it.
type pool struct {
	slices  []*resourceapi.ResourceSlice
	state   structured.AllocatedState
	holders map[structured.DeviceID][]judge.Holder
	// version counts the changes of the state.
	version uint64
}

// incomplete says whether slices of the newest generation are missing.
func (p *pool) incomplete() bool {
	newest, there, want := int64(-1), int64(0), int64(0)
	for _, slice := range p.slices {
		switch generation := slice.Spec.Pool.Generation; {
		case generation > newest:
			newest, there, want = generation, 1, slice.Spec.Pool.ResourceSliceCount
		case generation == newest:
			there++
		}
	}
	return there != want
}

func newState() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// pool returns a pool by name. One without slices exists as long as a claim has a device of it.
func (c *Cluster) pool(id poolID) *pool {
	p := c.pools[id]
	if p == nil {
		p = &pool{state: newState(), holders: map[structured.DeviceID][]judge.Holder{}}
		c.pools[id] = p
	}
	return p
}

// journal has what takes back the changes of a trial, the last first.
type journal struct {
	on   bool
	back []func()
}

// note adds how a change is taken back.
func (j *journal) note(back func()) {
	if j.on {
		j.back = append(j.back, back)
	}
}

// trial begins one, or one within another. Back takes back what was changed since, keep ends the trial with what is left of it.
func (j *journal) trial() (back, keep func()) {
	outermost, from := !j.on, len(j.back)
	j.on = true
	back = func() {
		for last := len(j.back) - 1; last >= from; last-- {
			j.back[last]()
			j.back = j.back[:last]
		}
	}
	return back, func() {
		if outermost {
			j.on, j.back = false, nil
		}
	}
}

// addClaim adds a claim that exists from now on.
func (c *Cluster) addClaim(claim *resourceapi.ResourceClaim) {
	key := keyOf(claim)
	c.Claims[key] = claim
	if c.journal.on {
		charged := c.charged[claim.Namespace].DeepCopy()
		c.journal.note(func() {
			delete(c.Claims, key)
			c.charged[claim.Namespace] = charged
		})
	}
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil {
		owned := c.owned[owner.UID]
		c.owned[owner.UID] = append(owned, key)
		c.journal.note(func() { c.owned[owner.UID] = owned })
	}
	c.charge(claim.Namespace, c.Charge(claim))
	c.hold(claim)
}

// hold counts the devices of a claim as allocated. Devices with admin access do not count.
func (c *Cluster) hold(claim *resourceapi.ResourceClaim) {
	c.eachResult(claim, func(p *pool, id structured.DeviceID, share *types.UID, consumed structured.DeviceConsumedCapacity) {
		if share == nil {
			p.state.AllocatedDevices.Insert(id)
		} else {
			p.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, share))
			if len(consumed.ConsumedCapacity) > 0 {
				p.state.AggregatedCapacity.Insert(consumed)
			}
		}
		before := p.holders[id]
		if c.journal.on { // who saw the list in the trial keeps it
			before = slices.Clip(before)
		}
		p.holders[id] = append(before, judge.Holder{
			Namespace: claim.Namespace, Name: claim.Name, Consumed: consumed.ConsumedCapacity,
		})
		p.version++
		c.journal.note(func() { p.release(id, share, consumed, before) })
	})
}

// release takes back what hold did for one device that nobody had in this way before.
func (p *pool) release(id structured.DeviceID, share *types.UID, consumed structured.DeviceConsumedCapacity, before []judge.Holder) {
	if share == nil {
		p.state.AllocatedDevices.Delete(id)
	} else {
		p.state.AllocatedSharedDeviceIDs.Delete(structured.MakeSharedDeviceID(id, share))
		if len(consumed.ConsumedCapacity) > 0 {
			p.state.AggregatedCapacity.Remove(consumed)
		}
	}
	if p.holders[id] = before; len(before) == 0 {
		delete(p.holders, id)
	}
	p.version++
}

// eachResult calls a function for each device that a claim keeps from others. Without the gate for shares, a shared device is a whole
// one.
func (c *Cluster) eachResult(
	claim *resourceapi.ResourceClaim, each func(*pool, structured.DeviceID, *types.UID, structured.DeviceConsumedCapacity),
) {
	if claim.Status.Allocation == nil {
		return
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if ptr.Deref(r.AdminAccess, false) {
			continue
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		share := r.ShareID
		if !c.Gates.On(gates.ConsumableCapacity) {
			share = nil
		}
		var consumed structured.DeviceConsumedCapacity
		if share != nil {
			consumed = structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity)
		}
		each(c.pool(poolID{r.Driver, r.Pool}), id, share, consumed)
	}
}

// State returns what is allocated in the cluster as it is now. It is a copy.
func (c *Cluster) State() structured.AllocatedState {
	state := newState()
	for _, p := range c.pools {
		p.addTo(&state)
	}
	return state
}

func (p *pool) addTo(state *structured.AllocatedState) {
	for id := range p.state.AllocatedDevices {
		state.AllocatedDevices.Insert(id)
	}
	for id := range p.state.AllocatedSharedDeviceIDs {
		state.AllocatedSharedDeviceIDs.Insert(id)
	}
	for id, consumed := range p.state.AggregatedCapacity {
		state.AggregatedCapacity.Insert(structured.DeviceConsumedCapacity{DeviceID: id, ConsumedCapacity: consumed})
	}
}

// Holders returns which claims have a device. A device with admin access has no holder by that.
func (c *Cluster) Holders() map[structured.DeviceID][]judge.Holder {
	out := map[structured.DeviceID][]judge.Holder{}
	for _, p := range c.pools {
		maps.Copy(out, p.holders)
	}
	return out
}

// JudgeInput returns what the scheduler looks at when it tries a node for claims that have no allocation: the pools that have a device for
// the node, and what is allocated of them. It holds until the cluster is changed.
func (c *Cluster) JudgeInput(
	node *corev1.Node, claims []*resourceapi.ResourceClaim, holders map[structured.DeviceID][]judge.Holder,
) judge.Input {
	in := judge.Input{Features: c.Gates.Features(), Classes: c.Classes, State: newState(), Holders: holders, Node: node, Claims: claims}
	if i, found := slices.BinarySearchFunc(c.Nodes, node.Name, compareName); found {
		in.Slices, in.State = c.views[i].slices, c.views[i].state()
	}
	return in
}
