// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	mockserver "github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// driver is the mock server with two GPUs whose health can be changed while it is watched.
type driver struct {
	*mockserver.Server
	events chan gonvml.EventData

	mu       sync.Mutex
	waiting  gonvml.Return // what a wait returns without an event
	ecc      [2]uint64
	answer   gonvml.Return // to every question about the first GPU
	failure  bool
	recovery uint32
	register []gonvml.Return
}

func newDriver() *driver {
	d := &driver{Server: newServer(), events: make(chan gonvml.EventData), waiting: gonvml.ERROR_TIMEOUT}
	d.Devices = d.Devices[:2]
	d.DeviceGetCountFunc = func() (int, gonvml.Return) { return len(d.Devices), gonvml.SUCCESS }
	d.register = make([]gonvml.Return, len(d.Devices))
	for i, dev := range d.Devices {
		d.mock(dev.(*mockserver.Device), i)
	}
	d.EventSetCreateFunc = func() (gonvml.EventSet, gonvml.Return) {
		return &mock.EventSet{WaitFunc: d.wait, FreeFunc: func() gonvml.Return { return gonvml.SUCCESS }}, gonvml.SUCCESS
	}
	return d
}

func (d *driver) mock(gpu *mockserver.Device, i int) {
	locked := func() (*driver, gonvml.Return) {
		if i == 0 {
			return d, d.answer
		}
		return d, gonvml.SUCCESS
	}
	gpu.GetSupportedEventTypesFunc = func() (uint64, gonvml.Return) { return gonvml.EventTypeAll, gonvml.SUCCESS }
	gpu.RegisterEventsFunc = func(mask uint64, _ gonvml.EventSet) gonvml.Return {
		if mask != gonvml.EventTypeXidCriticalError {
			return gonvml.ERROR_INVALID_ARGUMENT
		}
		return d.register[i]
	}
	gpu.GetTotalEccErrorsFunc = func(kind gonvml.MemoryErrorType, since gonvml.EccCounterType) (uint64, gonvml.Return) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d, ret := locked()
		if since != gonvml.VOLATILE_ECC {
			ret = gonvml.ERROR_INVALID_ARGUMENT
		}
		return d.ecc[kind], ret
	}
	gpu.GetRemappedRowsFunc = func() (int, int, bool, bool, gonvml.Return) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d, ret := locked()
		return 0, 0, false, d.failure, ret
	}
	gpu.GetFieldValuesFunc = func(values []gonvml.FieldValue) gonvml.Return {
		d.mu.Lock()
		defer d.mu.Unlock()
		d, ret := locked()
		binary.NativeEndian.PutUint32(values[0].Value[:], d.recovery)
		if i > 0 {
			values[0].NvmlReturn = uint32(gonvml.ERROR_NOT_SUPPORTED)
		}
		return ret
	}
}

func (d *driver) wait(milliseconds uint32) (gonvml.EventData, gonvml.Return) {
	d.mu.Lock()
	ret := d.waiting
	d.mu.Unlock()
	if ret != gonvml.ERROR_TIMEOUT {
		return gonvml.EventData{}, ret
	}
	select {
	case event := <-d.events:
		return event, gonvml.SUCCESS
	case <-time.After(time.Duration(milliseconds) * time.Millisecond):
		return gonvml.EventData{}, ret
	}
}

func (d *driver) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// startWatch starts to watch and returns what is printed, and a function that ends it and returns why it ended.
func startWatch(t *testing.T, d *driver, interval time.Duration) (next func() nvml.Message, end func() error) {
	t.Helper()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := watch(d, interval, w)
		_ = w.CloseWithError(err)
		ended <- err
	}()
	lines := bufio.NewScanner(r)
	next = func() nvml.Message {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("nothing more: %v", lines.Err())
		}
		m, err := nvml.DecodeMessage(lines.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	end = func() error {
		_ = r.Close()
		return <-ended
	}
	t.Cleanup(func() { _ = r.Close() })
	return next, end
}

func TestWatch(t *testing.T) {
	d := newDriver()
	next, end := startWatch(t, d, time.Hour)
	no, zero := false, uint64(0)
	well := func(i string) nvml.DeviceState {
		return nvml.DeviceState{
			PCIBusID: "00000000:0" + i + ":00.0", CorrectedECC: &zero, UncorrectedECC: &zero, RemapPending: &no, RemapFailure: &no,
		}
	}
	first, second := well("0"), well("1")
	first.RecoveryAction = nvml.RecoveryNone
	steps := []struct {
		name   string
		change func()
		event  gonvml.EventData
		want   []nvml.Message
	}{
		{name: "at once", want: []nvml.Message{{State: &nvml.State{Devices: []nvml.DeviceState{first, second}}}}},
		{
			name: "an uncontained error", change: func() { d.recovery, d.ecc, d.failure = 1, [2]uint64{7, 3}, true },
			event: gonvml.EventData{Device: d.Devices[0], EventType: gonvml.EventTypeXidCriticalError, EventData: 95},
		},
		{
			name: "off the bus", change: func() { d.answer = gonvml.ERROR_GPU_IS_LOST },
			event: gonvml.EventData{Device: d.Devices[0], EventType: gonvml.EventTypeXidCriticalError, EventData: 79},
		},
		{
			name: "of an unknown GPU", change: func() { d.answer = gonvml.ERROR_UNKNOWN },
			event: gonvml.EventData{EventType: gonvml.EventTypeXidCriticalError, EventData: 62},
		},
	}
	three, seven, yes := uint64(3), uint64(7), true
	second.CorrectedECC, second.UncorrectedECC, second.RemapFailure = &seven, &three, &yes
	spoilt := second
	spoilt.PCIBusID, spoilt.RecoveryAction = first.PCIBusID, "gpu-reset"
	silent := nvml.DeviceState{PCIBusID: first.PCIBusID}
	lost := silent
	lost.Lost = true
	var faults []nvml.Fault
	for _, field := range []string{"correctedECC", "uncorrectedECC", "remapPending", "recoveryAction"} {
		faults = append(faults, nvml.Fault{Device: first.PCIBusID, Field: field, Message: "ERROR_UNKNOWN"})
	}
	steps[1].want = []nvml.Message{
		{Event: &nvml.Event{PCIBusID: first.PCIBusID, Xid: 95}}, {State: &nvml.State{Devices: []nvml.DeviceState{spoilt, second}}},
	}
	steps[2].want = []nvml.Message{
		{Event: &nvml.Event{PCIBusID: first.PCIBusID, Xid: 79}}, {State: &nvml.State{Devices: []nvml.DeviceState{lost, second}}},
	}
	steps[3].want = []nvml.Message{
		{Event: &nvml.Event{Xid: 62}}, {State: &nvml.State{Devices: []nvml.DeviceState{silent, second}, Faults: faults}},
	}
	for _, step := range steps {
		if step.change != nil {
			d.change(step.change)
			d.events <- step.event
		}
		for _, want := range step.want {
			if diff := cmp.Diff(want, next()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.name, diff)
			}
		}
	}
	// What is no Xid is not printed.
	d.events <- gonvml.EventData{Device: d.Devices[1], EventType: gonvml.EventTypePState, EventData: 8}
	d.events <- gonvml.EventData{Device: d.Devices[1], EventType: gonvml.EventTypeXidCriticalError, EventData: 48}
	if got := next(); got.Event == nil || got.Event.Xid != 48 || got.Event.PCIBusID != second.PCIBusID {
		t.Errorf("got %+v", got)
	}
	next()
	go func() {
		d.events <- gonvml.EventData{Device: d.Devices[1], EventType: gonvml.EventTypeXidCriticalError, EventData: 48}
	}()
	if err := end(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("ended with %v after nobody read any more", err)
	}
}

// TestWatchHeartbeat: states come by themselves, also while every wait fails because a GPU is lost.
func TestWatchHeartbeat(t *testing.T) {
	d := newDriver()
	next, end := startWatch(t, d, 20*time.Millisecond)
	for range 3 {
		if m := next(); m.State == nil {
			t.Errorf("got %+v", m)
		}
	}
	d.change(func() { d.waiting = gonvml.ERROR_GPU_IS_LOST })
	for range 3 {
		next()
	}
	d.change(func() { d.waiting = gonvml.ERROR_UNKNOWN })
	go func() { _ = end() }()
}

func TestWatchFails(t *testing.T) {
	d := newDriver()
	d.waiting = gonvml.ERROR_UNKNOWN
	if err := watch(d, time.Hour, io.Discard); !errors.Is(err, gonvml.ERROR_UNKNOWN) || !strings.Contains(err.Error(), "wait for events") {
		t.Errorf("got %v", err)
	}
	d.EventSetCreateFunc = func() (gonvml.EventSet, gonvml.Return) { return nil, gonvml.ERROR_UNINITIALIZED }
	if err := watch(d, time.Hour, io.Discard); !errors.Is(err, gonvml.ERROR_UNINITIALIZED) {
		t.Errorf("got %v", err)
	}
}

// TestWatchRegistration: a GPU without events is watched by its state, and one that should have them is a fault.
func TestWatchRegistration(t *testing.T) {
	d := newDriver()
	d.register = []gonvml.Return{gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_UNKNOWN}
	next, end := startWatch(t, d, time.Hour)
	want := []nvml.Fault{{Device: "00000000:01:00.0", Field: "events", Message: "ERROR_UNKNOWN"}}
	if diff := cmp.Diff(want, next().State.Faults); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	go func() { _ = end() }()
}

// TestWatchOldLibrary has a library without the newer functions: they must not be called, for that would end the process.
func TestWatchOldLibrary(t *testing.T) {
	d := newDriver()
	d.ExtensionsFunc = func() gonvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return errors.New("undefined symbol") }}
	}
	for _, dev := range d.Devices {
		gpu := dev.(*mockserver.Device)
		gpu.GetRemappedRowsFunc, gpu.GetFieldValuesFunc = nil, nil // The mock panics when they are called.
	}
	next, end := startWatch(t, d, time.Hour)
	if got := next().State.Devices[0]; got.RemapFailure != nil || got.RecoveryAction != "" || got.UncorrectedECC == nil {
		t.Errorf("got %+v", got)
	}
	go func() { _ = end() }()
}

func TestRecoveryNames(t *testing.T) {
	for action, want := range map[gonvml.DeviceGpuRecoveryAction]string{
		gonvml.GPU_RECOVERY_ACTION_NONE: "none", gonvml.GPU_RECOVERY_ACTION_NODE_REBOOT: "node-reboot", 99: "unknown-99",
	} {
		if got := recoveryName(action); got != want {
			t.Errorf("action %d is %q, want %q", action, got, want)
		}
	}
}
