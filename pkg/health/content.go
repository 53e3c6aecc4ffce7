// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/message"
)

const (
	// formatVersion is raised only by a change that an older release would misread. It ignores fields that it does not know.
	formatVersion = 1
	// maxFaults bounds what is kept of one device: a list of 64 says as much as a longer one.
	maxFaults = 64
	// maxText bounds a message that came from outside.
	maxText = 512
	// quiet is how often a fault that goes on is written down again.
	quiet = time.Minute
	// forgetAbsent is when a device that left and is held by nobody is forgotten.
	forgetAbsent = 7 * 24 * time.Hour
)

// content is what the ledger's file holds.
type content struct {
	Version int `json:"version"`
	// BootID is of the boot that events and counters belong to.
	BootID string `json:"bootID"`
	// TaintsKept: the API server keeps taints of devices, as far as was last seen.
	TaintsKept bool `json:"taintsKept"`
	// Recovered is the last request for a recovery that was carried out.
	Recovered string            `json:"recovered,omitempty"`
	Devices   map[string]*entry `json:"devices"`
}

// entry is one device.
type entry struct {
	Kind device.Kind `json:"kind,omitempty"`
	// Instance changes when a driver is bound anew.
	Instance string `json:"instance,omitempty"`
	// Absent is since when the device is not there.
	Absent      *time.Time   `json:"absent,omitempty"`
	Faults      []fault      `json:"faults,omitempty"`
	Quarantines []quarantine `json:"quarantines,omitempty"`
	// Counters are the baselines, by source and code: "aer/fatal.DLP".
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// fault is one thing that a source said.
type fault struct {
	Source  string    `json:"source"`
	Code    string    `json:"code"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
	// Last is when it was last seen, with a coarseness of a minute. Level: it lasts as long as its source says so.
	Last  time.Time `json:"last"`
	Count uint64    `json:"count,omitempty"`
	Level bool      `json:"level,omitempty"`
}

// quarantine is one cause for which a device is out of use. A device has one for each reason and owner.
type quarantine struct {
	Reason string `json:"reason"`
	// Owner is empty in what releases wrote that did not know owners. They drop it from what they write again.
	Owner   string    `json:"owner,omitempty"`
	Message string    `json:"message"`
	Claim   string    `json:"claim,omitempty"`
	Since   time.Time `json:"since"`
}

func newContent(bootID string) *content {
	return &content{Version: formatVersion, BootID: bootID, Devices: map[string]*entry{}}
}

// decode reads a file's bytes.
func decode(data []byte) (*content, error) {
	var c content
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	if c.Version != formatVersion {
		return nil, fmt.Errorf("is of version %d, want %d", c.Version, formatVersion)
	}
	if c.Devices == nil {
		c.Devices = map[string]*entry{}
	}
	for name, e := range c.Devices {
		if e == nil || name == "" {
			return nil, fmt.Errorf("device %q has no entry", name)
		}
		for i := range e.Faults {
			if e.Faults[i].Source == "" {
				return nil, fmt.Errorf("device %q has a fault without a source", name)
			}
		}
	}
	return &c, nil
}

// encode is the same for the same content.
func (c *content) encode() []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", " ")
	_ = encoder.Encode(c) // maps, texts, times and numbers only
	return b.Bytes()
}

// device is a device's entry, made where there is none.
func (c *content) device(name string) *entry {
	e := c.Devices[name]
	if e == nil {
		e = &entry{}
		c.Devices[name] = e
	}
	return e
}

// boot forgets what a reboot repairs. A level stays until its source says otherwise, and so does quarantine.
func (c *content) boot(id string) {
	if c.BootID == id {
		return
	}
	c.BootID = id
	for _, e := range c.Devices {
		e.renew("")
	}
}

// merge enters what came since base, which both come from, into another content that was written meanwhile. What the other ended stays
// ended. What this one ended and the other did not comes back: the other may have seen it again.
func (c *content) merge(base, into *content) {
	if c.TaintsKept != base.TaintsKept {
		into.TaintsKept = c.TaintsKept
	}
	for name, e := range c.Devices {
		was, to := base.device(name), into.device(name)
		to.Kind = cmp.Or(to.Kind, e.Kind)
		to.Quarantines = merged(was.Quarantines, e.Quarantines, to.Quarantines)
		to.Faults = merged(was.Faults, e.Faults, to.Faults)
	}
}

// lasting is something that a device has once at a time.
type lasting interface {
	key() [2]string
	since() time.Time
}

func (q quarantine) key() [2]string   { return [2]string{q.Reason, q.Owner} }
func (q quarantine) since() time.Time { return q.Since }
func (f fault) key() [2]string        { return [2]string{f.Source, f.Code} }
func (f fault) since() time.Time      { return f.Since }

// merged adds to theirs what ours has and base has not.
func merged[T lasting](base, ours, theirs []T) []T {
	for _, one := range ours {
		known := slices.ContainsFunc(theirs, func(other T) bool { return other.key() == one.key() })
		old := slices.ContainsFunc(base, func(other T) bool { return other.key() == one.key() && other.since().Equal(one.since()) })
		if !known && !old {
			theirs = append(theirs, one)
		}
	}
	return theirs
}

// renew forgets events, increases and baselines of a driver that is another now.
func (e *entry) renew(instance string) {
	e.Instance, e.Counters = instance, nil
	e.Faults = slices.DeleteFunc(e.Faults, func(f fault) bool { return !f.Level })
}

func (e *entry) find(source, code string) *fault {
	for i := range e.Faults {
		if e.Faults[i].Source == source && e.Faults[i].Code == code {
			return &e.Faults[i]
		}
	}
	return nil
}

func (e *entry) quarantine(reason, owner string) *quarantine {
	for i := range e.Quarantines {
		if e.Quarantines[i].Reason == reason && e.Quarantines[i].Owner == owner {
			return &e.Quarantines[i]
		}
	}
	return nil
}

// add notes that something was seen n times more, and says whether it was news. What goes on is noted once a minute.
func (e *entry) add(now time.Time, source, code, message string, n uint64) bool {
	if f := e.find(source, code); f != nil {
		if now.Sub(f.Last) < quiet && !now.Before(f.Last) {
			return false
		}
		f.Last = now
		f.Count += n
		return true
	}
	if len(e.Faults) >= maxFaults {
		return false
	}
	e.Faults = append(e.Faults, fault{
		Source: source, Code: cut(code), Message: cut(message), Since: now, Last: now, Count: n,
	})
	return true
}

// level switches a level and says whether that ended it.
func (e *entry) level(now time.Time, source string, r Reading) (ended bool) {
	f := e.find(source, r.Code)
	switch {
	case r.Value == 0 && f != nil:
		e.remove(source, r.Code)
		return true
	case r.Value != 0 && f == nil && len(e.Faults) < maxFaults:
		e.Faults = append(e.Faults, fault{
			Source: source, Code: cut(r.Code), Message: cut(r.Message), Since: now, Last: now, Level: true,
		})
	}
	return false
}

func (e *entry) remove(source, code string) {
	e.Faults = slices.DeleteFunc(e.Faults, func(f fault) bool { return f.Source == source && f.Code == code })
}

// report takes in what a source read. It calls grew for every counter that did.
func (e *entry) report(now time.Time, r Report, table Table, grew func(code string)) {
	reset := false
	for _, reading := range r.Readings {
		switch {
		case table.Find(r.Source, reading.Code).Severity == Ignored:
			e.remove(r.Source, reading.Code)
		case reading.Kind == Level:
			if e.level(now, r.Source, reading) && strings.HasPrefix(reading.Code, RecoveryPrefix) {
				reset = true
			}
		default:
			old, known := e.Counters[r.Source+"/"+reading.Code]
			reset = reset || known && reading.Value < old
		}
	}
	if reset {
		e.reset(r)
	}
	for _, reading := range r.Readings {
		if reading.Kind == Counter && table.Find(r.Source, reading.Code).Severity != Ignored {
			e.count(now, r.Source, reading, grew)
		}
	}
}

// reset forgets what a source, and those that it covers, said before the device was reset.
func (e *entry) reset(r Report) {
	e.Faults = slices.DeleteFunc(e.Faults, func(f fault) bool {
		return !f.Level && (f.Source == r.Source || slices.Contains(r.Covers, f.Source))
	})
	maps.DeleteFunc(e.Counters, func(key string, _ uint64) bool { return strings.HasPrefix(key, r.Source+"/") })
}

// count compares a counter with its baseline and moves that.
func (e *entry) count(now time.Time, source string, r Reading, grew func(code string)) {
	key := source + "/" + r.Code
	old, known := e.Counters[key]
	if known && r.Value > old {
		if !e.add(now, source, r.Code, r.Message, r.Value-old) {
			return // the baseline waits too, so that nothing is lost
		}
		grew(r.Code)
	}
	if e.Counters == nil {
		e.Counters = map[string]uint64{}
	}
	e.Counters[key] = r.Value
}

// expire forgets events and increases that did not come again. One of the future is of a clock that was set back since: it counts from now.
func (e *entry) expire(now time.Time, table Table) {
	for i := range e.Faults {
		if f := &e.Faults[i]; f.Last.After(now) {
			f.Last = now
		}
	}
	e.Faults = slices.DeleteFunc(e.Faults, func(f fault) bool {
		after := table.Find(f.Source, f.Code).RecoverAfter.Duration
		return !f.Level && after > 0 && now.Sub(f.Last) >= after
	})
}

// status is what the entry amounts to under a table; ok is false for a healthy device.
func (e *entry) status(table Table) (s Status, ok bool) {
	s = Status{Kind: e.Kind, Gone: e.find(GoneSource, GoneCode) != nil}
	if len(e.Quarantines) > 0 {
		q := slices.MinFunc(e.Quarantines, func(a, b quarantine) int { return a.Since.Compare(b.Since) })
		s.State, s.Reason, s.Message, s.Claim, s.Since = Quarantined, Reason(q.Reason, ""), q.Message, q.Claim, q.Since
		return s, true
	}
	var worst *fault
	var rule Rule
	for i := range e.Faults {
		f, r := &e.Faults[i], table.Find(e.Faults[i].Source, e.Faults[i].Code)
		if r.Severity == Ignored || worst != nil && !graver(f, r, worst, rule) {
			continue
		}
		worst, rule = f, r
	}
	if worst == nil {
		return Status{}, false
	}
	s.State = Worn
	if rule.Severity == Fatal {
		s.State = Unhealthy
	}
	s.Reason, s.Since, s.Message = Reason(worst.Source, worst.Code), worst.Since, describe(worst, rule)
	return s, true
}

// graver prefers the severe and then the oldest, so that a status does not change with each further fault. Of two that came at once
// an Xid says more than the state that follows it.
func graver(f *fault, r Rule, than *fault, thanRule Rule) bool {
	if r.Severity != thanRule.Severity {
		return r.Severity == Fatal
	}
	return cmp.Or(f.Since.Compare(than.Since), cmp.Compare(than.Source, f.Source), cmp.Compare(f.Code, than.Code)) < 0
}

func describe(f *fault, r Rule) string {
	text := f.Source + " " + f.Code
	for _, more := range []string{r.Message, f.Message} {
		if more != "" {
			text += ": " + more
		}
	}
	return text
}

// cut bounds a text from outside.
func cut(text string) string { return message.Clip(text, maxText) }

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
