// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
)

// Options are what a ledger needs.
type Options struct {
	// FS is the file system. Nil is the operating system's.
	FS disk.FS
	// Dir is the directory of the file, health.json.
	Dir string
	// BootID is of this boot.
	BootID string
	Table  Table
	// Disabled are sources of which nothing is believed any more.
	Disabled []string
	// Now is the clock.
	Now func() time.Time
	// Seen is called for every event and every increase, ignored events too. It may be nil.
	Seen func(source, code string, severity Severity)
}

// Ledger is the one source of health on a node. Two processes may have one each on the same directory. It is safe for concurrent
// use. Where its file cannot be written it goes on in memory and says so.
type Ledger struct {
	options Options
	file    file
	changed chan struct{}

	// writing is held through a change of the content and its way to the disk.
	writing sync.Mutex
	content *content

	// mu guards what readers see.
	mu       sync.Mutex
	statuses map[string]Status
	taints   bool
	trouble  string
}

// Open reads the ledger of a directory. A file that cannot be understood is set aside, the ledger starts empty, and Trouble says so.
func Open(o Options) *Ledger {
	if o.Seen == nil {
		o.Seen = func(string, string, Severity) {}
	}
	if o.FS == nil {
		o.FS = disk.OS{}
	}
	l := &Ledger{options: o, file: file{fs: o.FS, dir: o.Dir}, changed: make(chan struct{}, 1), content: newContent(o.BootID)}
	_ = l.change(func(c *content) {
		for _, e := range c.Devices {
			e.Faults = slices.DeleteFunc(e.Faults, func(f fault) bool { return slices.Contains(o.Disabled, f.Source) })
		}
	})
	return l
}

// Changed carries a value after statuses changed.
func (l *Ledger) Changed() <-chan struct{} { return l.changed }

// Statuses are the devices that are not healthy, by name.
func (l *Ledger) Statuses() map[string]Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.statuses)
}

// Trouble says what is wrong with the ledger itself, empty if nothing is.
func (l *Ledger) Trouble() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// Check is the status of one device, with what another process wrote a moment ago; ok is false for a healthy device. It costs a
// look at the file's name.
func (l *Ledger) Check(name string) (s Status, ok bool) {
	if l.file.stale() {
		_ = l.change(func(*content) {})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok = l.statuses[name]
	return s, ok
}

// Quarantine takes a device out of use for a cause, until Clear is called with the same reason and owner. The device stays out of use
// while another cause is left. Once Quarantine returned nil, that is durable; with an error it holds for as long as this process lives.
func (l *Ledger) Quarantine(kind device.Kind, name string, cause Cause) error {
	return l.change(func(c *content) {
		e := c.device(name)
		e.Kind = kind
		if q := e.quarantine(cause.Reason, cause.Owner); q != nil {
			q.Message, q.Claim = cut(cause.Message), cut(cause.Claim)
			return
		}
		e.Quarantines = append(e.Quarantines, quarantine{
			Reason: cause.Reason, Owner: cause.Owner, Message: cut(cause.Message), Claim: cut(cause.Claim), Since: l.now(),
		})
	})
}

// Clear ends an owner's quarantine of a device, and one that an older release wrote without its owner. There being none is no error.
// With an error it is over for as long as this process lives, and may be back in the next one: see EndStale.
func (l *Ledger) Clear(name, reason, owner string) error {
	return l.change(func(c *content) {
		if e := c.Devices[name]; e != nil {
			e.Quarantines = slices.DeleteFunc(e.Quarantines, func(q quarantine) bool {
				return q.Reason == reason && (q.Owner == owner || q.Owner == "")
			})
		}
	})
}

// EndStale ends the quarantines for a reason whose owner has no part in the device any more: their Clear was not written. A quarantine
// without an owner stays. Owns is called while the ledger is locked, so that no owner can come between its answer and the change.
func (l *Ledger) EndStale(reason string, owns func(kind device.Kind, name, owner string) bool) error {
	return l.change(func(c *content) {
		for name, e := range c.Devices {
			e.Quarantines = slices.DeleteFunc(e.Quarantines, func(q quarantine) bool {
				return q.Reason == reason && q.Owner != "" && !owns(e.Kind, name, q.Owner)
			})
		}
	})
}

// Recover carries out a person's request that devices be forgiven everything: their names, separated by commas, or "*". The same
// request is carried out once, also when it is seen again by another process; an empty one makes way for it to be made again. It returns
// the devices that had something to be forgiven and are in the request by name.
func (l *Ledger) Recover(request string) (forgiven []string, err error) {
	err = l.change(func(c *content) {
		if c.Recovered == request {
			return
		}
		c.Recovered = request
		names := strings.FieldsFunc(request, func(r rune) bool { return r == ',' || r == ' ' })
		for name, e := range c.Devices {
			if slices.Contains(names, name) || slices.Contains(names, "*") {
				e.Faults, e.Quarantines = nil, nil
				if slices.Contains(names, name) {
					forgiven = append(forgiven, name)
				}
			}
		}
	})
	slices.Sort(forgiven)
	return forgiven, err
}

// Happened takes in events.
func (l *Ledger) Happened(events ...Event) error {
	return l.change(func(c *content) {
		for _, ev := range events {
			severity := l.options.Table.Find(ev.Source, ev.Code).Severity
			l.options.Seen(ev.Source, ev.Code, severity)
			if severity != Ignored {
				c.device(ev.Device).add(l.now(), ev.Source, ev.Code, ev.Message, 1)
			}
		}
	})
}

// Report takes in what sources read.
func (l *Ledger) Report(reports ...Report) error {
	return l.change(func(c *content) {
		for _, r := range reports {
			c.device(r.Device).report(l.now(), r, l.options.Table, func(code string) {
				l.options.Seen(r.Source, code, l.options.Table.Find(r.Source, code).Severity)
			})
		}
	})
}

// Instances notes which instance of a driver each device is bound to. Another one than before begins anew.
func (l *Ledger) Instances(instances map[string]string) error {
	return l.change(func(c *content) {
		for name, instance := range instances {
			switch e := c.device(name); e.Instance {
			case instance:
			case "":
				e.Instance = instance
			default:
				e.renew(instance)
			}
		}
	})
}

// Present notes which devices are there, by name. One that is not, and that a claim holds, is unhealthy. Whoever looks after devices needs
// what is known of them on disk, also after Destroy.
func (l *Ledger) Present(there map[string]device.Kind, held func(device.Kind, string) bool) error {
	return l.change(func(c *content) {
		l.file.needed()
		now := l.now()
		for name, kind := range there {
			e := c.device(name)
			e.Kind, e.Absent = kind, nil
		}
		for name, e := range c.Devices {
			if _, ok := there[name]; !ok && e.Absent == nil {
				e.Absent = &now
			}
			gone := Reading{Code: GoneCode, Kind: Level}
			if e.Absent != nil && held(e.Kind, name) {
				gone.Value = 1
			}
			e.level(now, GoneSource, gone)
			if e.Absent != nil && gone.Value == 0 && len(e.Quarantines) == 0 && now.Sub(*e.Absent) > forgetAbsent {
				delete(c.Devices, name)
			}
		}
	})
}

// Expire forgets what the table gives a time and what did not come again, and takes in what another process wrote.
func (l *Ledger) Expire() error {
	return l.change(func(c *content) {
		for _, e := range c.Devices {
			e.expire(l.now(), l.options.Table)
		}
	})
}

// TaintsKept says whether the API server keeps taints of devices, as far as was last seen.
func (l *Ledger) TaintsKept() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taints
}

// SetTaintsKept remembers it.
func (l *Ledger) SetTaintsKept(kept bool) error {
	return l.change(func(c *content) { c.TaintsKept = kept })
}

// Destroy removes the ledger's files. What is in memory stays, and is written again with the next change and by Present.
func (l *Ledger) Destroy() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.file.destroy(); err != nil {
		return fmt.Errorf("remove the health ledger: %w", err)
	}
	return nil
}

// now has no more than the file holds, so that a time is equal to itself after it was read again.
func (l *Ledger) now() time.Time { return l.options.Now().UTC().Round(0).Truncate(time.Second) }

// change adopts what another process wrote, applies f, and writes the result if it differs.
func (l *Ledger) change(f func(*content)) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	unlock, err := l.file.lock()
	if err == nil {
		defer unlock()
		err = l.adopt()
	}
	l.content.boot(l.options.BootID)
	f(l.content)
	if err == nil || errors.Is(err, errSetAside) {
		err = errors.Join(err, l.file.write(l.content.encode()))
	} else {
		l.file.dirty = true
	}
	l.publish(err)
	return err
}

// adopt reads the file if it is not the one that this process knows. What could not be written before is not lost.
func (l *Ledger) adopt() error {
	if !l.file.swept {
		l.file.swept = true
		_ = l.file.sweep() // a leftover does no harm but take space
	}
	written := l.file.written
	data, err := l.file.read()
	if err != nil || data == nil {
		return err
	}
	theirs, err := decode(data)
	if err != nil {
		return l.file.setAside(err)
	}
	if l.file.dirty {
		base, err := decode(written)
		if err != nil { // there was no file
			base = newContent(l.options.BootID)
		}
		l.content.merge(base, theirs)
	}
	l.content = theirs
	return nil
}

// publish shows readers the new state.
func (l *Ledger) publish(err error) {
	statuses := map[string]Status{}
	for name, e := range l.content.Devices {
		if s, ok := e.status(l.options.Table); ok && (e.Absent == nil || s.Gone || s.State == Quarantined) {
			statuses[name] = s
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.file.shown.Store(l.file.known)
	switch {
	case errors.Is(err, errSetAside): // stays said: what was in the file is lost
		l.trouble = err.Error()
	case err != nil:
		l.trouble = fmt.Sprintf("%s: %v", inMemoryOnly, err)
	case strings.HasPrefix(l.trouble, inMemoryOnly):
		l.trouble = ""
	}
	if maps.Equal(statuses, l.statuses) && l.taints == l.content.TaintsKept {
		return
	}
	l.statuses, l.taints = statuses, l.content.TaintsKept
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// inMemoryOnly begins a trouble that ends with the next write.
const inMemoryOnly = "the health ledger is in memory only"
