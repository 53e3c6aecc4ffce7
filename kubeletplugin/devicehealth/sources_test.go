// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSources(t *testing.T) {
	p := newSources()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	silent := func(s int, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, p.overdue(at(s))); diff != "" {
			t.Errorf("after %d s (-want +got):\n%s", s, diff)
		}
	}
	none := map[string]string{}
	silent(1000, none) // nothing is expected
	p.expect("nvml", 30*time.Second, at(0), "a", "b")
	p.expect("sysfs", 60*time.Second, at(0), "a", "c")
	silent(30, none)
	p.reported("nvml", "b", at(30), nil)
	p.reported("nvml", "unknown", at(30), nil)
	p.reported("nvml", "a", at(30), errors.New("GPU is confused"))
	silent(31, map[string]string{"a": "no report on the device from nvml since 2026-01-02T03:04:05Z: GPU is confused"})
	p.expect("nvml", 30*time.Second, at(35), "a", "b", "d") // expected again is not a report
	silent(36, map[string]string{"a": "no report on the device from nvml since 2026-01-02T03:04:05Z: GPU is confused"})
	p.reported("nvml", "a", at(40), nil)
	silent(60, none)
	p.reported("nvml", "b", at(60), nil)
	p.expect("sysfs", 60*time.Second, at(61))
	silent(66, map[string]string{"d": "no report on the device from nvml since 2026-01-02T03:04:40Z"})
	p.expect("nvml", 30*time.Second, at(66))
	silent(1000, none)
}
