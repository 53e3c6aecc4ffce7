// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// pulse remembers when each source of health last spoke of each device. It has a lock of its own that is held for a moment only,
// so that it tells of a source's silence whatever else hangs.
type pulse struct {
	mu sync.Mutex
	// limits are how long a source may be silent.
	limits map[string]time.Duration
	beats  map[pulseKey]*beat
}

type pulseKey struct{ source, device string }

type beat struct {
	last time.Time
	// why is what the source said instead, if anything.
	why string
}

func newPulse() *pulse {
	return &pulse{limits: map[string]time.Duration{}, beats: map[pulseKey]*beat{}}
}

// expect sets the devices that a source is to speak of, and how long it may be silent. A device that is new gets as long to be
// spoken of first.
func (p *pulse) expect(source string, limit time.Duration, now time.Time, devices ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limits[source] = limit
	maps.DeleteFunc(p.beats, func(key pulseKey, _ *beat) bool {
		return key.source == source && !slices.Contains(devices, key.device)
	})
	for _, device := range devices {
		if key := (pulseKey{source, device}); p.beats[key] == nil {
			p.beats[key] = &beat{last: now}
		}
	}
}

// heard notes that a source spoke of a device; err says that it could not tell all.
func (p *pulse) heard(source, device string, now time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.beats[pulseKey{source, device}]
	switch {
	case b == nil:
	case err != nil:
		b.why = err.Error()
	default:
		b.last, b.why = now, ""
	}
}

// silent are the devices of which a source has not spoken for too long, with the reason.
func (p *pulse) silent(now time.Time) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	silent := map[string]string{}
	for _, key := range slices.SortedFunc(maps.Keys(p.beats), comparePulse) {
		b := p.beats[key]
		if now.Sub(b.last) <= p.limits[key.source] || silent[key.device] != "" {
			continue
		}
		silent[key.device] = fmt.Sprintf("%s says nothing of the device since %s", key.source, b.last.UTC().Format(time.RFC3339))
		if b.why != "" {
			silent[key.device] += ": " + b.why
		}
	}
	return silent
}

func comparePulse(a, b pulseKey) int {
	return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.source, b.source))
}
