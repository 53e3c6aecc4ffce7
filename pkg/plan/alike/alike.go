// SPDX-License-Identifier: Apache-2.0

// Package alike knows which nodes are the same to the allocator. A cluster has many nodes of few kinds, and the allocator takes
// milliseconds for each of them.
package alike

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/selector"
)

// Likeness is equal for two nodes of which the allocator says the same: their devices are the same to it, and the same of them are
// allocated. The names of nodes and of their pools differ, and so may attributes that nothing reads.
type Likeness [sha256.Size]byte

// Nodes remembers what was said of nodes for the claims of one pod. Several goroutines may use it. The devices stay as they are meanwhile.
type Nodes[V any] struct {
	mu    sync.Mutex
	known map[Likeness]V
	// texts are what matters of maps of devices: those of many nodes share them.
	texts map[mapOf]string
}

// mapOf names a map of devices of a driver by its address.
type mapOf struct {
	driver  string
	address uintptr
}

// New returns one that knows of no node.
func New[V any]() *Nodes[V] { return &Nodes[V]{known: map[Likeness]V{}, texts: map[mapOf]string{}} }

// Known returns what was said of a node that is like another one.
func (n *Nodes[V]) Known(l Likeness) (V, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, known := n.known[l]
	return v, known
}

// Remember keeps what was said of a node, for those that are like it.
func (n *Nodes[V]) Remember(l Likeness, v V) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[l] = v
}

// Seen is what the allocator sees of a node.
type Seen struct {
	Node *corev1.Node
	// Pools have the slices of each pool with devices for the node.
	Pools [][]*resourceapi.ResourceSlice
	State structured.AllocatedState
}

// Like returns what a node is like to claims that read some attributes. It is false of a node that has devices of pools for several nodes,
// or devices that several claims share.
func (n *Nodes[V]) Like(s Seen, reads selector.Reads) (l Likeness, ok bool, err error) {
	if reads.Everything() || len(s.State.AllocatedSharedDeviceIDs) > 0 || len(s.State.AggregatedCapacity) > 0 {
		return l, false, nil
	}
	w := &writer{Hash: sha256.New(), state: s.State, reads: reads, text: n.text}
	w.write(w.encode(s.Node.Status.DeclaredFeatures))
	for _, pool := range s.Pools {
		newest := int64(0)
		for _, slice := range pool {
			if ptr.Deref(slice.Spec.NodeName, "") != s.Node.Name {
				return l, false, nil
			}
			newest = max(newest, slice.Spec.Pool.Generation)
		}
		for _, slice := range pool {
			w.slice(slice, newest)
		}
		w.write("pool")
	}
	w.Sum(l[:0])
	return l, w.err == nil, w.err
}

// text returns what matters of a map, which is found out once.
func (n *Nodes[V]) text(key mapOf, encode func() string) string {
	n.mu.Lock()
	text, known := n.texts[key]
	n.mu.Unlock()
	if !known {
		text = encode()
		n.mu.Lock()
		n.texts[key] = text
		n.mu.Unlock()
	}
	return text
}

// writer writes what the allocator sees.
type writer struct {
	hash.Hash
	state structured.AllocatedState
	reads selector.Reads
	text  func(key mapOf, encode func() string) string
	// driver is that of the slice which is written.
	driver string
	err    error
}

// write writes a text after its length, so that no two texts are one. A hash takes all that it gets.
func (w *writer) write(s string) {
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(s)))
	_, _ = w.Write(length[:])
	_, _ = w.Write([]byte(s))
}

func (w *writer) encode(value any) string {
	text, err := json.Marshal(value)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("compare nodes: %w", err)
	}
	return string(text)
}

// slice writes a slice of a pool. Of its generation it matters how old it is in its pool.
func (w *writer) slice(slice *resourceapi.ResourceSlice, newest int64) {
	w.driver = slice.Spec.Driver
	rest := slice.Spec
	rest.Devices, rest.NodeName, rest.Pool.Name = nil, nil, ""
	rest.Pool.Generation = newest - rest.Pool.Generation
	w.write(w.encode(rest))
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		w.device(d, w.state.AllocatedDevices.Has(structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)))
	}
	w.write("slice")
}

func (w *writer) device(d *resourceapi.Device, allocated bool) {
	rest := *d
	rest.Name, rest.Attributes, rest.Capacity, rest.ConsumesCounters = "", nil, nil, nil
	w.write(d.Name)
	w.write(fmt.Sprint(allocated))
	w.shared(d.Attributes, func() any { return w.reads.Attributes(w.driver, d.Attributes) })
	w.shared(d.Capacity, func() any { return d.Capacity })
	for i := range d.ConsumesCounters {
		w.write(d.ConsumesCounters[i].CounterSet)
		w.shared(d.ConsumesCounters[i].Counters, func() any { return d.ConsumesCounters[i].Counters })
	}
	if !reflect.DeepEqual(rest, resourceapi.Device{}) {
		w.write(w.encode(rest))
	}
	w.write("device")
}

// shared writes what matters of a map that other devices may have, too.
func (w *writer) shared(m any, matters func() any) {
	w.write(w.text(mapOf{w.driver, reflect.ValueOf(m).Pointer()}, func() string { return w.encode(matters()) }))
}
