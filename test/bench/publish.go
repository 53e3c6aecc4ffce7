// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// The figures of publishing divided GPUs.
const (
	slicesPublish       = "slices.publish"
	slicesPublishWrites = "slices.publish.writes"
	slicesBytes         = "slices.bytes"
	slicesChange        = "slices.change"
	slicesChangeWrites  = "slices.change.writes"
)

// The changes of one card.
const (
	// caseDevice is a change of one device, as its taint.
	caseDevice = "device"
	// caseWithheld is a place that is not published any more.
	caseWithheld = "withheld"
	// caseCard is a card that is published whole and no longer in parts.
	caseCard = "card"
)

// measurePublishing publishes divided GPUs as the plugin does: its slices, by kubelet's helper. What is new in each round is the node.
func (b *bench) measurePublishing(ctx context.Context) error {
	b.say("publishing divided GPUs")
	s := samples{}
	changes := map[string]samples{}
	var last life
	for i := range b.form.publications {
		r, err := b.publishNode(ctx, i)
		if err != nil {
			return fmt.Errorf("publish divided GPUs: %w", err)
		}
		s.add(slicesPublish, r.published)
		for name, c := range r.changes {
			if changes[name] == nil {
				changes[name] = samples{}
			}
			changes[name].add(slicesChange, c.took)
		}
		last = r
	}
	at := point{Machine: dividedMachine, Devices: last.devices}
	err := errors.Join(b.report.series(at, s), b.report.value(slicesPublishWrites, &at, b.form.publications, float64(last.writes)),
		b.report.value(slicesBytes, &at, 1, float64(last.bytes)))
	for _, name := range []string{caseDevice, caseWithheld, caseCard} {
		at.Case = name
		err = errors.Join(err, b.report.series(at, changes[name]),
			b.report.value(slicesChangeWrites, &at, b.form.publications, float64(last.changes[name].writes)))
	}
	return err
}

// life is what the slices of one node took.
type life struct {
	devices, writes, bytes int
	published              time.Duration
	changes                map[string]change
}

type change struct {
	took   time.Duration
	writes int
}

// publishNode publishes one node, changes it in each way and removes it.
func (b *bench) publishNode(ctx context.Context, number int) (r life, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n, err := newDividedNode(number, true)
	if err != nil {
		return r, err
	}
	p := &publication{node: fmt.Sprintf("divided-%d", number), bench: b}
	snapshot := &inventory.Snapshot{Devices: n.devices, Cards: n.cards, Counters: partition.FormSeparate}
	if err := p.start(ctx, snapshot); err != nil {
		return r, err
	}
	defer func() {
		p.controller.Stop()
		kube, own := b.cluster.kube.ResourceV1().ResourceSlices(), metav1.ListOptions{FieldSelector: p.selector()}
		err = errors.Join(err, kube.DeleteCollection(context.WithoutCancel(ctx), metav1.DeleteOptions{}, own))
	}()
	r.devices = len(n.devices)
	if r.published, r.bytes, err = p.await(ctx, snapshot); err != nil {
		return r, err
	}
	r.writes = p.writes
	r.changes = map[string]change{}
	for _, one := range []struct {
		name  string
		apply func(dividedNode) *inventory.Snapshot
	}{{caseDevice, oneDeviceChanged}, {caseWithheld, onePlaceWithheld}, {caseCard, oneCardWhole}} {
		next := one.apply(n)
		p.update(next)
		took, _, err := p.await(ctx, next)
		if err != nil {
			return r, fmt.Errorf("change %s: %w", one.name, err)
		}
		r.changes[one.name] = change{took: took, writes: p.writes}
		// The next change is one of the first state again.
		p.update(snapshot)
		if _, _, err := p.await(ctx, snapshot); err != nil {
			return r, fmt.Errorf("undo change %s: %w", one.name, err)
		}
	}
	return r, nil
}

// oneDeviceChanged has another attribute on an instance of the fourth GPU.
func oneDeviceChanged(n dividedNode) *inventory.Snapshot {
	devices := make([]device.Device, len(n.devices))
	copy(devices, n.devices)
	changed := &devices[len(devices)/2]
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range changed.Attributes {
		attributes[name] = value
	}
	attributes[device.AttributeUUID] = resourceapi.DeviceAttribute{StringValue: new("MIG-00000000-0000-4000-8000-000000000000")}
	changed.Attributes = attributes
	return &inventory.Snapshot{Devices: devices, Cards: n.cards, Counters: partition.FormSeparate}
}

// onePlaceWithheld is as if somebody else had made an instance.
func onePlaceWithheld(n dividedNode) *inventory.Snapshot {
	return &inventory.Snapshot{
		Devices: n.devices, Cards: n.cards, Counters: partition.FormSeparate,
		Withheld: map[string]string{n.devices[len(n.devices)/2].Name: "somebody else's instance"},
	}
}

// oneCardWhole is a card that a policy does not divide any more.
func oneCardWhole(n dividedNode) *inventory.Snapshot {
	card := n.cards[len(n.cards)/2].Name
	s := &inventory.Snapshot{Counters: partition.FormSeparate}
	for _, c := range n.cards {
		if c.Name != card {
			s.Cards = append(s.Cards, c)
		}
	}
	for _, d := range n.devices {
		switch {
		case d.Card != card:
		case d.Name == card:
			d.Card, d.Consumes = "", nil
		default:
			continue
		}
		s.Devices = append(s.Devices, d)
	}
	return s
}

// publication is one node's slices, and a watch of them.
type publication struct {
	*bench
	node       string
	controller *resourceslice.Controller
	begin      time.Time
	seen       map[string]*resourceapi.ResourceSlice
	events     chan sliceEvent
	// writes are what the API server said of the slices since begin, last when it said the last of it.
	writes int
	last   time.Time

	mutex sync.Mutex
	fault error
}

type sliceEvent struct {
	slice   *resourceapi.ResourceSlice
	deleted bool
}

func (p *publication) selector() string {
	return resourceapi.ResourceSliceSelectorNodeName + "=" + p.node
}

// start watches the node's slices and has the helper write them.
func (p *publication) start(ctx context.Context, v *inventory.Snapshot) (err error) {
	p.seen, p.events = map[string]*resourceapi.ResourceSlice{}, make(chan sliceEvent, 1024)
	watcher, err := p.cluster.kube.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: p.selector()})
	if err != nil {
		return fmt.Errorf("watch the node's slices: %w", err)
	}
	go func() {
		defer close(p.events)
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			if s, ok := event.Object.(*resourceapi.ResourceSlice); ok {
				p.events <- sliceEvent{s, event.Type == "DELETED"}
			}
		}
	}()
	resources := publish.Resources(p.node, v)
	p.controller, err = resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: v1alpha1.DriverName, KubeClient: p.cluster.kube, Resources: &resources,
		Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: p.node, UID: "5ea5e000-0000-4000-8000-000000000000"},
		ErrorHandler: func(_ context.Context, err error, msg string) {
			p.mutex.Lock()
			defer p.mutex.Unlock()
			p.fault = errors.Join(p.fault, fmt.Errorf("%s: %w", msg, err))
		},
	})
	p.begin = time.Now() // The helper has listed what is there, for which it looks once a second, and begins to write.
	return err
}

func (p *publication) update(v *inventory.Snapshot) {
	resources := publish.Resources(p.node, v)
	p.begin, p.writes = time.Now(), 0
	p.controller.Update(&resources)
}

// await waits until the API server has what a snapshot publishes, whole and of one generation, and returns the time since the last update
// and the size of the slices.
func (p *publication) await(ctx context.Context, v *inventory.Snapshot) (time.Duration, int, error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		if bytes, ok := p.has(v); ok {
			return p.last.Sub(p.begin), bytes, nil
		}
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-timeout.C:
			p.mutex.Lock()
			defer p.mutex.Unlock()
			return 0, 0, errors.Join(fmt.Errorf("the API server has not got the slices within %s", patience), p.fault)
		case event, ok := <-p.events:
			if !ok {
				return 0, 0, errors.New("the watch of the slices ended")
			}
			p.last = time.Now()
			p.writes++
			if event.deleted {
				delete(p.seen, event.slice.Name)
			} else {
				p.seen[event.slice.Name] = event.slice
			}
		}
	}
}

// has says whether what was seen is what is to be published, and gives its size.
func (p *publication) has(v *inventory.Snapshot) (bytes int, ok bool) {
	var all []resourceapi.ResourceSlice
	have, want := 0, 0
	for _, s := range p.seen {
		all = append(all, *s)
		bytes += s.Size()
		have += counters(s.Spec.SharedCounters, s.Spec.Devices)
	}
	if _, whole := poolsOf(all); !whole {
		return 0, false
	}
	for _, pool := range publish.Resources(p.node, v).Pools {
		for _, s := range pool.Slices {
			want += counters(s.SharedCounters, s.Devices)
		}
	}
	return bytes, have == want && publish.UpToDate(p.node, v, all)
}

// counters are all that sets have and devices consume.
func counters(sets []resourceapi.CounterSet, devices []resourceapi.Device) int {
	n := 0
	for i := range sets {
		n += len(sets[i].Counters)
	}
	for i := range devices {
		for _, c := range devices[i].ConsumesCounters {
			n += len(c.Counters)
		}
	}
	return n
}

// measurePartitions measures divided GPUs on the way to a claim: from the plugin to the API server, and from there to an allocation.
func (b *bench) measurePartitions(ctx context.Context) error {
	if err := b.measureMIG(ctx); err != nil {
		return err
	}
	if err := b.measureShares(ctx); err != nil {
		return err
	}
	if err := b.measurePublishing(ctx); err != nil {
		return err
	}
	return b.measureAllocation(ctx)
}
