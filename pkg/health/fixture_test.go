// SPDX-License-Identifier: Apache-2.0

package health

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/device"
)

// machine is a directory with a clock, in which ledgers are opened as processes would.
type machine struct {
	*testing.T
	dir  string
	boot string
	time time.Time
	seen map[string]int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	return &machine{
		T: t, dir: filepath.Join(t.TempDir(), "state"), boot: "boot-1", seen: map[string]int{},
		time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("somewhere", 3600)),
	}
}

func (m *machine) open(rules ...Rule) *Ledger {
	return Open(Options{
		Dir: m.dir, BootID: m.boot, Table: append(rules, DefaultTable()...), Now: func() time.Time { return m.time },
		Seen: func(source, code string, severity Severity) { m.seen[source+"/"+code+"/"+string(severity)]++ },
	})
}

func (m *machine) file() string { return filepath.Join(m.dir, fileName) }

// is wants a device to be in a state for a reason; "" is healthy.
func (m *machine) is(l *Ledger, name string, state State, reason string) {
	m.Helper()
	s, bad := l.Statuses()[name]
	if state == "" || state == Healthy {
		if bad {
			m.Errorf("%s is %s: %s", name, s.State, s.Message)
		}
		return
	}
	if s.State != state || s.Reason != reason {
		m.Errorf("%s is %q for %q (%s), want %s for %s", name, s.State, s.Reason, s.Message, state, reason)
	}
}

func xid(name, code string) Event { return Event{Device: name, Source: SourceXid, Code: code} }

// aer is a report of some PCI Express counters.
func aer(name string, values map[string]uint64) Report {
	r := Report{Device: name, Source: SourceAER}
	for _, code := range sorted(values) {
		r.Readings = append(r.Readings, Reading{Code: code, Kind: Counter, Value: values[code]})
	}
	return r
}

func there(names ...string) map[string]device.Kind {
	m := map[string]device.Kind{}
	for _, name := range names {
		m[name] = device.KindGPU
	}
	return m
}

func heldBy(names ...string) func(device.Kind, string) bool {
	return func(kind device.Kind, name string) bool {
		for _, held := range names {
			if held == name && kind == device.KindGPU {
				return true
			}
		}
		return false
	}
}
