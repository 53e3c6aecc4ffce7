// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"testing"
	"time"
)

func TestAbsence(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	tests := []struct {
		name  string
		looks []time.Duration // after start
		want  time.Duration   // after the last look
	}{
		{"first look", []time.Duration{0}, pruneGrace},
		{"second look too early", []time.Duration{0, 20 * time.Second}, 40 * time.Second},
		{"second look in time", []time.Duration{0, pruneGrace}, 0},
		{"many early looks", []time.Duration{0, 1, 2, 3, 59*time.Second + 500*time.Millisecond}, time.Second},
		{"second look late", []time.Duration{0, time.Hour}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var a absence
			var got time.Duration
			for _, after := range tt.looks {
				a = a.observe(start.Add(after))
				got = a.wait(start.Add(after))
			}
			if got != tt.want {
				t.Errorf("wait = %v, want %v", got, tt.want)
			}
		})
	}
}
