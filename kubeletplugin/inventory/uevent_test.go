// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"strings"
	"testing"
	"time"
)

func event(fields ...string) []byte { return []byte(strings.Join(fields, "\x00") + "\x00") }

func TestRelevant(t *testing.T) {
	tests := []struct {
		name    string
		message []byte
		want    bool
	}{
		{"GPU appears", event("add@/devices/pci0000:00/0000:17:00.0", "ACTION=add", "SUBSYSTEM=pci", "SEQNUM=1"), true},
		{"driver loads", event("add@/module/nvidia", "ACTION=add", "SUBSYSTEM=module"), true},
		{"disk appears", event("add@/devices/nvme0n1", "SUBSYSTEM=block"), true},
		{"network", event("add@/devices/eth0", "ACTION=add", "SUBSYSTEM=net"), false},
		{"name only", event("add@/devices/SUBSYSTEM=pci"), false},
		{"longer name", event("add@/x", "SUBSYSTEM=pci_express"), false},
		{"another key", event("add@/x", "MYSUBSYSTEM=pci"), false},
		{"udev's own form", append([]byte("libudev\x00\xfe\xed\xca\xfe"), event("SUBSYSTEM=net")...), false},
		{"cut off", []byte("add@/x\x00SUBSYSTEM=pc"), false},
		{"empty", nil, false},
	}
	for _, tt := range tests {
		if got := relevant(tt.message); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func FuzzRelevant(f *testing.F) {
	f.Add(event("add@/devices/pci0000:00/0000:17:00.0", "ACTION=add", "SUBSYSTEM=pci"))
	f.Add([]byte("SUBSYSTEM=\x00\x00SUBSYSTEM=kfd"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if relevant(message) && !strings.Contains(string(message), "SUBSYSTEM=") {
			t.Errorf("%q has no subsystem", message)
		}
	})
}

// TestDebounce: a burst of events is one look, which comes when it is over.
func TestDebounce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, out := make(chan struct{}), make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() { debounce(ctx, in, out); close(ended) }()
	start := time.Now()
	for range 100 {
		in <- struct{}{}
	}
	receive(t, out)
	if took := time.Since(start); took < debounceInterval {
		t.Errorf("came after %s, want at least %s", took, debounceInterval)
	}
	if closed(out) {
		t.Error("a burst gave two signals")
	}
	cancel()
	receive(t, ended)
}

// TestWatchUevents ends with its context, where the kernel allows to listen at all.
func TestWatchUevents(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := WatchUevents(ctx); err != nil {
		t.Skipf("the kernel's events are not to be had here: %v", err)
	}
}
