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

// sources records when each source of health last reported each device. Its lock is its own and held for a moment only, so that an overdue
// report shows even if everything else hangs.
type sources struct {
	mu sync.Mutex
	// limits has the longest time between reports, by source.
	limits  map[string]time.Duration
	reports map[sourceKey]*lastReport
}

type sourceKey struct{ source, device string }

type lastReport struct {
	at time.Time
	// problem is the error that the source reported since, if any.
	problem string
}

func newSources() *sources {
	return &sources{limits: map[string]time.Duration{}, reports: map[sourceKey]*lastReport{}}
}

// expect sets the devices that a source must report, and the longest time between reports. The first report of a new device may take as
// long.
func (s *sources) expect(source string, limit time.Duration, now time.Time, devices ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits[source] = limit
	maps.DeleteFunc(s.reports, func(key sourceKey, _ *lastReport) bool {
		return key.source == source && !slices.Contains(devices, key.device)
	})
	for _, device := range devices {
		if key := (sourceKey{source, device}); s.reports[key] == nil {
			s.reports[key] = &lastReport{at: now}
		}
	}
}

// reported records that a source reported a device. err means that the report is incomplete.
func (s *sources) reported(source, device string, now time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.reports[sourceKey{source, device}]
	switch {
	case last == nil:
	case err != nil:
		last.problem = err.Error()
	default:
		last.at, last.problem = now, ""
	}
}

// overdue returns the devices that a source has not reported for too long, with the reason.
func (s *sources) overdue(now time.Time) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	overdue := map[string]string{}
	for _, key := range slices.SortedFunc(maps.Keys(s.reports), compareKeys) {
		last := s.reports[key]
		if now.Sub(last.at) <= s.limits[key.source] || overdue[key.device] != "" {
			continue
		}
		overdue[key.device] = fmt.Sprintf("no report on the device from %s since %s", key.source, last.at.UTC().Format(time.RFC3339))
		if last.problem != "" {
			overdue[key.device] += ": " + last.problem
		}
	}
	return overdue
}

func compareKeys(a, b sourceKey) int {
	return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.source, b.source))
}
