// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/seed"
)

// owners is a node whose claims share devices, with a health ledger on a disk that fails, and the records of the claims.
type owners struct {
	*ward
	disk    *fault.Injector
	records string
	store   *record.Store
	names   []string
	time    time.Time
}

func newOwners(t *testing.T) *owners {
	t.Helper()
	o := &owners{ward: newWard(t, "8xh100-sxm", nil), time: time.Unix(0, 0)}
	v, _ := o.Holder.Get()
	o.names = []string{v.Devices[0].Name, v.Devices[1].Name, "gone"}
	o.begin()
	return o
}

// begin makes the node as new.
func (o *owners) begin() {
	o.t.Helper()
	dir := o.t.TempDir()
	records := fault.New()
	o.disk, o.records, o.StateDir = fault.New(), filepath.Join(dir, "records"), filepath.Join(dir, "state")
	o.disk.Quick, records.Quick = true, true
	var err error
	o.store, err = record.Open(records.FS(disk.OS{}), o.records)
	check.Must(o.t, err)
	o.HeldBy = o.store.HeldBy
}

// process is the next plugin, whose ledger is on the disk that fails.
func (o *owners) process() *Monitor {
	m := o.again("boot-1", inventory.NewHolder())
	m.ledger = health.Open(health.Options{
		FS: o.disk.FS(disk.OS{}), Dir: m.StateDir, BootID: m.BootID, Table: health.DefaultTable(),
		Now: func() time.Time {
			o.time = o.time.Add(time.Second)
			return o.time
		},
	})
	return m
}

// prepared makes the record of a claim that shares devices.
func (o *owners) prepared(uid string, names ...string) *record.Record {
	o.t.Helper()
	r := &record.Record{Namespace: "team-a", Name: "claim-" + uid, UID: uid, BootID: "boot-1", Phase: record.Intended}
	for _, name := range names {
		d := recorded(device.KindGPU, name, false)
		d.Request, d.ShareID, d.CDIDevice = "gpu", "share-"+uid, "fettle.dev/common=0"
		r.Devices = append(r.Devices, d)
	}
	check.Must(o.t, o.store.Create(r))
	return r
}

// released does what the engine does when nothing is left to undo.
func (o *owners) released(m *Monitor, r *record.Record) {
	o.t.Helper()
	m.Clear(r)
	check.Must(o.t, o.store.ForgetDamaged(r.UID), o.store.Remove(r))
}

func (o *owners) full(full bool) {
	if full {
		o.disk.Set(fault.Full(1))
	} else {
		o.disk.Set()
	}
}

func (o *owners) pass(m *Monitor) {
	o.t.Helper()
	v, _ := o.Holder.Get()
	if err := m.updateLedger(v); err != nil {
		o.t.Errorf("the ledger is not written: %v", err)
	}
}

// TestSharersEnd: the device of a claim that cannot be released stays out of use, whoever else gives a share of it back.
func TestSharersEnd(t *testing.T) {
	o := newOwners(t)
	m, name := o.process(), o.names[0]
	stuck, other := o.prepared("u1", name), o.prepared("u2", name)
	m.Quarantine(stuck, syscall.EBUSY)
	o.released(m, other)
	if _, bad := m.ledger.Check(name); !bad {
		t.Error("the end of another claim ended the quarantine")
	}
	m.Quarantine(other, syscall.EBUSY)
	o.released(m, stuck)
	if s, bad := m.ledger.Check(name); !bad {
		t.Errorf("the end of the first claim ended the second's quarantine: %+v", s)
	}
	m.Clear(other)
	if s, bad := m.ledger.Check(name); bad {
		t.Errorf("still in quarantine: %+v", s)
	}
}

// TestFullDiskAndRestart: the end of a quarantine that could not be written is found by the next process, by the records.
func TestFullDiskAndRestart(t *testing.T) {
	spoil := map[string]func(o *owners, path string){
		"released": func(*owners, string) {},
		"damaged": func(o *owners, path string) {
			o.prepared("u1", o.names[0])
			check.Must(o.t, os.WriteFile(path, []byte("x"), 0o600))
		},
		"set aside": func(o *owners, path string) {
			o.prepared("u1", o.names[0])
			check.Must(o.t, os.WriteFile(path, []byte("x"), 0o600), o.store.SetAside("u1"))
		},
		"of another release": func(o *owners, path string) {
			check.Must(o.t, os.WriteFile(path, []byte(`{"version":99,"uid":"u1"}`+"\n"), 0o600))
		},
		"unreadable":          func(o *owners, path string) { check.Must(o.t, os.Mkdir(path, 0o700)) },
		"of other devices":    func(o *owners, _ string) { o.prepared("u1", o.names[1]) },
		"of the same devices": func(o *owners, _ string) { o.prepared("u1", o.names[0]) },
	}
	o := newOwners(t)
	for name, after := range spoil {
		t.Run(name, func(t *testing.T) {
			o.begin()
			m := o.process()
			r := o.prepared("u1", o.names[0])
			m.Quarantine(r, syscall.EBUSY)
			o.full(true)
			o.released(m, r)
			if s, bad := m.ledger.Check(o.names[0]); bad {
				t.Errorf("still in quarantine: %+v", s)
			}
			o.full(false)
			after(o, filepath.Join(o.records, "claims", "u1.json"))
			m = o.process()
			o.pass(m)
			want := name != "released" && name != "of other devices"
			if s, bad := m.ledger.Check(o.names[0]); bad != want {
				t.Errorf("in quarantine: %t, want %t: %+v", bad, want, s)
			}
		})
	}
}

// ownersModel plays two plugins at once and says what the ledger may say.
type ownersModel struct {
	*owners
	random  *rand.Rand
	plugins [2]*Monitor
	claims  map[string]*record.Record
	// damaged are the claims whose records do not say which devices they hold.
	damaged map[string]bool
	isFull  bool
	// sure are the quarantines that are on the disk, by device and UID, and noted those that only a plugin's memory has. Open are those
	// whose end was not written.
	sure, open map[[2]string]bool
	noted      [2]map[[2]string]bool
	in, out    int
}

// TestOwners has claims share devices, fail and end at random, while the ledger's disk is full at times and plugins restart. A device is
// in quarantine for as long as a claim that could not be released holds it, and no longer.
func TestOwners(t *testing.T) {
	random := seed.New(t)
	o := newOwners(t)
	var in, out int
	for range 30 {
		o.begin()
		m := &ownersModel{
			owners: o, random: random, claims: map[string]*record.Record{},
			damaged: map[string]bool{}, sure: map[[2]string]bool{}, open: map[[2]string]bool{},
		}
		for p := range m.plugins {
			m.restart(p)
		}
		for range 60 {
			m.step()
			if t.Failed() {
				return
			}
		}
		in, out = in+m.in, out+m.out
	}
	if t.Logf("devices in quarantine: %d, free: %d", in, out); in == 0 || out == 0 {
		t.Error("the test looked at too little")
	}
}

func (m *ownersModel) restart(p int) {
	for k := range m.noted[p] { // it may be on the disk by now
		m.open[k] = true
	}
	m.plugins[p], m.noted[p] = m.process(), map[[2]string]bool{}
}

func (m *ownersModel) step() {
	m.t.Helper()
	p, uid := m.random.IntN(2), fmt.Sprint("u", m.random.IntN(4))
	r := m.claims[uid]
	switch n := m.random.IntN(12); {
	case n < 2:
		m.isFull = m.isFull != (n == 0)
		m.full(m.isFull)
	case n == 2:
		m.t.Logf("plugin %d starts again", p)
		m.restart(p)
	case n == 3:
		m.settle()
	case r == nil:
		m.prepare(p, uid)
	case n < 8:
		m.fail(p, r)
	case n == 8:
		m.t.Logf("the record of %s is damaged", uid)
		m.damaged[uid] = true
		check.Must(m.t, os.WriteFile(filepath.Join(m.records, "claims", uid+".json"), []byte("x"), 0o600))
	default:
		m.end(p, r)
	}
	for k := range m.sure {
		for p := range m.plugins {
			if _, bad := m.plugins[p].ledger.Check(k[0]); !bad {
				m.t.Errorf("plugin %d says that %s is free, which %s has in quarantine", p, k[0], k[1])
			}
		}
	}
}

// prepare gives a claim those devices that a plugin would let it have.
func (m *ownersModel) prepare(p int, uid string) {
	m.t.Helper()
	var names []string
	for _, name := range m.names {
		if _, bad := m.plugins[p].ledger.Check(name); !bad && m.random.IntN(2) == 0 {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		m.t.Logf("plugin %d prepares %s with %v", p, uid, names)
		m.claims[uid] = m.prepared(uid, names...)
	}
}

func (m *ownersModel) fail(p int, r *record.Record) {
	m.t.Helper()
	m.t.Logf("plugin %d cannot release %s; disk full: %t", p, r.UID, m.isFull)
	m.plugins[p].Quarantine(r, syscall.EBUSY)
	for i := range r.Devices {
		k := [2]string{r.Devices[i].Name, r.UID}
		m.noted[p][k] = true
		if s, _ := m.plugins[p].ledger.Check(k[0]); s.State != health.Quarantined {
			m.t.Errorf("plugin %d says of %s: %+v", p, k[0], s)
		}
	}
	m.written(p)
}

// written is after a change of a plugin's ledger, which writes what was only in memory if it can.
func (m *ownersModel) written(p int) {
	if m.isFull {
		return
	}
	for k := range m.noted[p] {
		// Of an earlier life whose end another plugin could not write, that end may be written later, and the next try notes it again.
		if m.holds(k) && !m.open[k] {
			m.sure[k] = true
		}
	}
	clear(m.noted[p])
}

func (m *ownersModel) holds(k [2]string) bool {
	r := m.claims[k[1]]
	return r != nil && slices.ContainsFunc(r.Devices, func(d record.Device) bool { return d.Name == k[0] })
}

func (m *ownersModel) end(p int, r *record.Record) {
	m.t.Helper()
	m.t.Logf("plugin %d releases %s; disk full: %t", p, r.UID, m.isFull)
	m.released(m.plugins[p], r)
	for i := range r.Devices {
		k := [2]string{r.Devices[i].Name, r.UID}
		if m.noted[1-p][k] || m.isFull { // the other plugin may write it again
			m.open[k] = true
		}
		delete(m.sure, k)
		delete(m.noted[0], k)
		delete(m.noted[1], k)
	}
	delete(m.claims, r.UID)
	delete(m.damaged, r.UID)
}

// settle has the disk well and both plugins look at the records, so that all is certain but what a new life of a claim may have inherited.
func (m *ownersModel) settle() {
	m.t.Helper()
	m.t.Log("all settles")
	m.full(false)
	m.isFull = false
	for p := range m.plugins {
		m.pass(m.plugins[p])
		m.written(p)
	}
	for k := range m.open {
		if !m.holds(k) && !m.damaged[k[1]] {
			delete(m.open, k)
		}
	}
	for _, name := range m.names {
		of := func(keys map[[2]string]bool) bool {
			for k := range keys {
				if k[0] == name {
					return true
				}
			}
			return false
		}
		for p := range m.plugins {
			s, bad := m.plugins[p].ledger.Check(name)
			switch {
			case of(m.sure):
				m.in++
			case of(m.open):
			case bad:
				m.t.Errorf("plugin %d says that %s is in quarantine, and no claim has a reason: %+v", p, name, s)
			default:
				m.out++
			}
		}
	}
}
