// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// step is one thing that happens.
func (m *model) step() {
	actions := []struct {
		weight int
		do     func()
	}{
		{30, m.prepareAny},
		{22, m.unprepareAny},
		{14, m.wait},
		{8, m.passes},
		{4, m.changeMachine},
		{4, m.changeDisk},
		{4, m.changeSteps},
		{3, m.restartProcess},
		{3, m.update},
		{3, m.changeAPI},
		{3, m.loseClaim},
		{2, m.damageRecord},
		{2, m.makeDirty},
		{3, m.job},
		{1, m.rebootNode},
	}
	sum := 0
	for _, a := range actions {
		sum += a.weight
	}
	at := m.random.IntN(sum)
	for _, a := range actions {
		if at -= a.weight; at < 0 {
			a.do()
			break
		}
	}
	m.checkData()
	m.takeBack()
}

// takeBack has kubelet ask again about the claims that it could not give back.
func (m *model) takeBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.again {
		m.claims[string(c.UID)] = c
	}
	m.again = nil
}

// any returns one of the claims that kubelet may ask for, or an empty UID.
func (m *model) any() string {
	uids := slices.Sorted(maps.Keys(m.claims))
	if len(uids) == 0 {
		return ""
	}
	return uids[m.random.IntN(len(uids))]
}

func (m *model) prepareAny() {
	uid := m.any()
	if uid == "" || len(m.claims) < 6 && m.random.IntN(2) == 0 {
		uid = m.newClaim()
	}
	c := m.claims[uid]
	m.call(uid, false, func(node *site, n int) {
		m.story.note("kubelet prepares %s (%d)", uid, n)
		arrived := node.now()
		r, err := node.insist(func() (*record.Record, error) { return node.Prepare(m.t.Context(), c, arrived) })
		m.answered(uid, n, r, err)
	})
}

// call is a call of kubelet's for a claim. Kubelet waits for its calls of one process before it calls another about the same claim: then
// call does nothing and returns false.
func (m *model) call(uid string, unprepares bool, do func(node *site, n int)) bool {
	node := m.node()
	synctest.Wait() // so that earlier calls for the claim have come
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := m.open[uid]; at != nil && at.node != node {
		return false
	}
	m.calls[uid]++
	n := m.calls[uid]
	if unprepares {
		m.unprepared[uid] = n
		delete(m.given, uid)
	}
	if m.open[uid] == nil {
		m.open[uid] = &calling{node: node}
	}
	m.open[uid].calls++
	go func() {
		do(node, n)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.open[uid].calls--; m.open[uid].calls == 0 {
			delete(m.open, uid)
		}
	}()
	return true
}

// calling are the calls for a claim that are not answered.
type calling struct {
	node  *site
	calls int
}

// newClaim is a claim that the scheduler gave one or two devices, which another claim may hold by another name, or not have given back.
func (m *model) newClaim() string {
	m.next++
	uid := fmt.Sprintf("u%03d", m.next)
	all := m.seen().All()
	var results []apiResult
	for _, i := range m.random.Perm(len(all))[:1+m.random.IntN(2)] {
		results = append(results, result(all[i].Name, all[i].Kind, all[i].Name))
	}
	c := allocated(uid, results...)
	if m.random.IntN(3) == 0 {
		ofClaim(c, atScratch)
	}
	m.claims[uid] = c
	m.put(c)
	return uid
}

func (m *model) unprepareAny() {
	if uid := m.any(); uid != "" {
		m.unprepareClaim(uid, m.random.IntN(2) == 0)
	}
}

// unprepareClaim gives a claim back. If it is the last time, nobody asks for it again.
func (m *model) unprepareClaim(uid string, last bool) (called bool) {
	c := m.claims[uid]
	called = m.call(uid, true, func(node *site, n int) {
		m.story.note("kubelet unprepares %s (%d), for good: %v", uid, n, last)
		_, err := node.Unprepare(m.t.Context(), uid, node.now())
		m.story.note("answer %d to the Unprepare of %s: %v", n, uid, err)
		switch {
		case !last:
		case err == nil:
			m.drop(c)
		default:
			m.mu.Lock()
			defer m.mu.Unlock()
			m.again = append(m.again, c)
		}
	})
	if called && last {
		delete(m.claims, uid)
	}
	return called
}

func (m *model) wait() {
	d := time.Millisecond << m.random.IntN(16)
	m.story.note("%v pass", d)
	time.Sleep(d) // of the bubble's clock
}

func (m *model) passes() {
	m.story.note("a pass")
	node := m.node()
	node.kubeletHolds(slices.Sorted(maps.Keys(m.claims))...)
	node.collect(m.t.Context())
	node.collection.pass(m.t.Context(), nil)
}

// changeMachine has a device move, go, come back, or get another name or directory.
func (m *model) changeMachine() {
	now := modelMachine()
	for i := range now {
		switch d := &now[i]; {
		case m.random.IntN(3) > 0, d.Kind == device.KindHost && m.damaged:
		case d.Name == "gpu0":
			*d = gpu("gpu0", int64(20+m.random.IntN(3)))
		case d.Name == "ssd0":
			*d = hostDevice("disk0", "/mnt/disks/ssd0")
		case d.Name == "ssd1":
			*d = hostDevice("ssd1", "/mnt/disks/other")
		}
	}
	if m.random.IntN(3) == 0 {
		now = slices.DeleteFunc(now, func(d device.Device) bool { return d.Name == "gpu1" || d.Name == "card-half1" })
	}
	var all []string
	for _, d := range now {
		all = append(all, fmt.Sprint(d.Name, " ", things(d), d.Edits.Nodes))
	}
	m.story.note("the machine is %v", all)
	m.setMachine(now)
}

// changeDisk fills the state disk, or makes room.
func (m *model) changeDisk() {
	full := m.random.IntN(2) == 0
	m.story.note("the disk is full: %v", full)
	if full {
		m.files.Set(fault.Full(0))
	} else {
		m.files.Set()
	}
}

// changeSteps has the steps of a device fail or hang, or all go on.
func (m *model) changeSteps() {
	all := m.seen().All()
	name := all[m.random.IntN(len(all))].Name
	how := m.random.IntN(4)
	m.story.note("steps on %s: %d", name, how)
	m.hw.mu.Lock()
	defer m.hw.mu.Unlock()
	switch {
	case how == 0:
		m.hw.stuck[name] = true
	case how == 1 && m.hw.hung[name] == nil:
		m.hw.hung[name] = make(chan struct{})
	case how > 1:
		m.hw.mend()
	}
}

func (hw *hardware) mend() {
	clear(hw.stuck)
	for _, hung := range hw.hung {
		close(hung)
	}
	clear(hw.hung)
}

// repair ends all faults.
func (m *model) repair() {
	m.hw.mu.Lock()
	m.hw.mend()
	m.hw.mu.Unlock()
	m.files.Set()
	m.breakAPI(nil)
	m.setMachine(modelMachine())
}

// restartProcess ends the process that kubelet calls and starts the next. The disk may be full then: the plugin waits for room.
func (m *model) restartProcess() {
	m.story.note("the process restarts")
	m.files.Set()
	node := m.node()
	node.Stop()
	m.replace(node, m.start())
}

// start is a process that starts.
func (m *model) start() *site {
	next := m.newEngine()
	m.begin(next)
	check.Must(m.t, next.Index(m.t.Context()))
	return next
}

func (m *model) replace(old, next *site) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.second == old {
		m.second = next
	} else {
		m.first = next
	}
}

// update starts a second process beside the first, or ends the first.
func (m *model) update() {
	m.files.Set()
	if m.second == nil {
		m.story.note("a second process starts")
		next := m.start()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.second = next
		return
	}
	m.story.note("the first process ends")
	m.first.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first, m.second = m.second, nil
}

// rebootNode restarts the machine: its hardware forgets, its containers are gone, and kubelet asks again for what its pods need.
func (m *model) rebootNode() {
	m.story.note("the node reboots")
	m.files.Set()
	if m.second != nil {
		m.second.Stop()
	}
	m.first.Stop()
	m.mu.Lock()
	for uid := range m.calls {
		m.forget(uid)
	}
	m.mu.Unlock()
	m.hw.mu.Lock()
	m.hw.mend()
	clear(m.hw.users)
	clear(m.hw.dirty)
	m.hw.mu.Unlock()
	check.Must(m.t, os.RemoveAll(m.cdiDir()))
	m.clock.Reboot(time.Minute)
	next := m.start()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first, m.second = next, nil
}

func (m *model) changeAPI() {
	broken := m.random.IntN(2) == 0
	m.story.note("the API server answers: %v", !broken)
	if broken {
		m.breakAPI(errInjected)
	} else {
		m.breakAPI(nil)
	}
}

// loseClaim has kubelet and the API server forget a claim.
func (m *model) loseClaim() {
	uid := m.any()
	if uid == "" {
		return
	}
	m.story.note("everybody forgets %s", uid)
	m.drop(m.claims[uid])
	delete(m.claims, uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(uid)
}

// forget has no answer to an earlier call count, and no claim be given.
func (m *model) forget(uid string) {
	m.calls[uid]++
	m.unprepared[uid] = m.calls[uid]
	delete(m.given, uid)
}

// damageRecord damages the record of a claim. What such a claim holds is known by its devices' names alone, so from then on the host
// devices keep theirs.
func (m *model) damageRecord() {
	uid := m.any()
	if uid == "" {
		return
	}
	r, err := m.node().Store.Load(uid)
	if err != nil {
		return
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		now, known := modelMachine().Find(d.Kind(), d.Name)
		if !known || !conflict.SameThing(d, &record.Device{Edits: now.Edits, Place: now.Place}) && d.Kind() == device.KindHost {
			return
		}
	}
	if !m.damaged {
		m.damaged = true
		m.setMachine(modelMachine())
	}
	m.story.note("the record of %s is damaged", uid)
	m.damage(uid)
}

// makeDirty leaves something on a device that nobody uses, as a lost claim does.
func (m *model) makeDirty() {
	m.hw.mu.Lock()
	defer m.hw.mu.Unlock()
	if m.hw.users["gpu1"] == "" {
		m.story.note("gpu1 is dirty")
		m.hw.dirty["gpu1"] = true
	}
}

// job is work on a device that no claim holds, under the device's lock, such as that of a PartitionPolicy.
func (m *model) job() {
	d := gpu([]string{"gpu0", "gpu1"}[m.random.IntN(2)], 0)
	node := m.node()
	pool := device.PoolName(node.Node, d.Kind)
	m.story.note("a job on %s", d.Name)
	go func() {
		ctx, cancel := context.WithTimeout(m.t.Context(), time.Second)
		defer cancel()
		hold, err := node.Store.LockClaim(ctx, "job")
		if err != nil {
			return
		}
		defer hold.Release()
		if hold.Devices(ctx, []string{pool + "/" + d.Name}) != nil {
			return
		}
		if uids, err := node.Store.Holders(pool, d.Name); err != nil || len(uids) > 0 {
			return
		}
		u := use{Device: d.Name, UID: "job", Things: things(d)}
		if m.hw.act(node, "apply", u, m.hw.apply) == nil {
			time.Sleep(time.Millisecond) // of the bubble's clock
			m.hw.mu.Lock()
			defer m.hw.mu.Unlock()
			check.Must(m.t, m.hw.undo(u))
		}
	}()
}
