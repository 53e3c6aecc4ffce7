// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

const (
	defaultInterval = 10 * time.Second
	minInterval     = 10 * time.Millisecond
	// longestWait is how long one call into the library waits for an event, so that a heartbeat is never late by more.
	longestWait = time.Second
)

// watcher prints what happens to a fixed set of GPUs.
type watcher struct {
	lib gonvml.Interface
	set gonvml.EventSet
	out *json.Encoder
	// gpus are in the library's order.
	gpus []watched
}

// watched is one GPU.
type watched struct {
	// gpu is nil until the library gave it.
	gpu gonvml.Device
	// busID is asked for once: a GPU that fell off the bus does not answer any more.
	busID string
	// registered says that its events come, or that it has none. unheard is why they do not come.
	registered bool
	unheard    *nvml.Fault
}

// watch prints a state at once and then at the interval, and every critical error in between followed by a state. It returns only
// with an error, such as that nobody reads any more.
func watch(lib gonvml.Interface, interval time.Duration, out io.Writer) error {
	count, ret := lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("count GPUs: %w", said(ret))
	}
	set, ret := lib.EventSetCreate()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("make an event set: %w", said(ret))
	}
	defer func() { _ = set.Free() }()
	w := &watcher{lib: lib, set: set, out: json.NewEncoder(out), gpus: make([]watched, count)}
	for {
		if err := w.beat(); err != nil {
			return err
		}
		next := time.Now().Add(interval)
		for left := interval; left > 0; left = time.Until(next) {
			if err := w.wait(min(left, longestWait)); err != nil {
				return err
			}
		}
	}
}

// find looks for the GPUs that the library did not give yet. Discovery says which ones are missing.
func (w *watcher) find() {
	for i := range w.gpus {
		if w.gpus[i].gpu != nil {
			continue
		}
		gpu, ret := w.lib.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			continue
		}
		if info, ret := gpu.GetPciInfo(); ret == gonvml.SUCCESS {
			w.gpus[i].gpu, w.gpus[i].busID = gpu, text(info.BusId[:])
		}
	}
}

// register asks for the critical errors of a GPU. One without any is watched by its state alone.
func (w *watcher) register(one *watched) {
	function := "Device.GetSupportedEventTypes"
	supported, ret := one.gpu.GetSupportedEventTypes()
	if ret == gonvml.SUCCESS && supported&gonvml.EventTypeXidCriticalError != 0 {
		function, ret = "Device.RegisterEvents", one.gpu.RegisterEvents(gonvml.EventTypeXidCriticalError, w.set)
	}
	one.registered, one.unheard = ret == gonvml.SUCCESS || absent(function, ret), nil
	if !one.registered {
		one.unheard = new(faultOf(one.busID, callOf(function).Field, ret))
	}
}

// wait prints at most one event.
func (w *watcher) wait(limit time.Duration) error {
	begin := time.Now()
	data, ret := w.set.Wait(uint32(max(limit.Milliseconds(), 1)))
	switch ret {
	case gonvml.SUCCESS:
		if data.EventType&gonvml.EventTypeXidCriticalError == 0 || data.EventData == 0 {
			return nil
		}
		if err := w.out.Encode(nvml.Message{Event: &nvml.Event{PCIBusID: w.busID(data.Device), Xid: data.EventData}}); err != nil {
			return err
		}
		return w.beat() // what the driver wants done about it is news too
	case gonvml.ERROR_TIMEOUT:
		return nil
	case gonvml.ERROR_GPU_IS_LOST:
		// Waiting is over for good, and returns at once. The state says which GPU it is.
		<-time.After(limit - time.Since(begin))
		return nil
	default:
		return fmt.Errorf("wait for events: %w", said(ret))
	}
}

// busID names the GPU of an event, empty where it cannot be told.
func (w *watcher) busID(gpu gonvml.Device) string {
	for _, one := range w.gpus {
		if one.gpu == gpu {
			return one.busID
		}
	}
	if gpu == nil {
		return ""
	}
	if info, ret := gpu.GetPciInfo(); ret == gonvml.SUCCESS {
		return text(info.BusId[:])
	}
	return ""
}

// beat prints the state of all GPUs. What failed before is tried again.
func (w *watcher) beat() error {
	w.find()
	state := &nvml.State{Devices: []nvml.DeviceState{}}
	var counters []nvml.Fault
	for i := range w.gpus {
		one := &w.gpus[i]
		if one.gpu == nil {
			continue
		}
		if !one.registered {
			w.register(one)
		}
		if one.unheard != nil {
			state.Faults = append(state.Faults, *one.unheard)
		}
		c := checkup{lib: w.lib, gpu: one.gpu, state: nvml.DeviceState{PCIBusID: one.busID}}
		c.ask()
		state.Devices = append(state.Devices, c.state)
		counters = append(counters, c.faults...)
	}
	state.Faults = append(state.Faults, counters...)
	return w.out.Encode(nvml.Message{State: state})
}

// checkup fills in the state of one GPU.
type checkup struct {
	lib    gonvml.Interface
	gpu    gonvml.Device
	state  nvml.DeviceState
	faults []nvml.Fault
}

func (c *checkup) ask() {
	const counters = "Device.GetTotalEccErrors"
	n, ret := c.gpu.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_CORRECTED, gonvml.VOLATILE_ECC)
	if c.answered(counters, "correctedECC", ret) {
		c.state.CorrectedECC = &n
	}
	uncorrected, ret := c.gpu.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.VOLATILE_ECC)
	if c.answered(counters, "uncorrectedECC", ret) {
		c.state.UncorrectedECC = &uncorrected
	}
	if rows := "Device.GetRemappedRows"; there(c.lib, rows) {
		if _, _, pending, failure, ret := c.gpu.GetRemappedRows(); c.answered(rows, "remapPending", ret) {
			c.state.RemapPending, c.state.RemapFailure = &pending, &failure
		}
	}
	if there(c.lib, "Device.GetFieldValues") {
		c.recoveryAction()
	}
}

// recoveryAction asks what the driver wants done to the GPU.
func (c *checkup) recoveryAction() {
	values := []gonvml.FieldValue{{FieldId: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := c.gpu.GetFieldValues(values)
	if ret == gonvml.SUCCESS {
		ret = gonvml.Return(values[0].NvmlReturn)
	}
	if c.answered("Device.GetFieldValues", "recoveryAction", ret) {
		c.state.RecoveryAction = recoveryName(gonvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])))
	}
}

// answered is questions.answered for a state, where a lost GPU is an answer too.
func (c *checkup) answered(function, field string, ret gonvml.Return) bool {
	if ret == gonvml.ERROR_GPU_IS_LOST {
		c.state.Lost = true
		return false
	}
	return answered(function, c.state.PCIBusID, field, ret, &c.faults)
}

// recoveryName is the action as the word that health rules use.
func recoveryName(action gonvml.DeviceGpuRecoveryAction) string {
	name, ok := map[gonvml.DeviceGpuRecoveryAction]string{
		gonvml.GPU_RECOVERY_ACTION_NONE:                nvml.RecoveryNone,
		gonvml.GPU_RECOVERY_ACTION_GPU_RESET:           "gpu-reset",
		gonvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         "node-reboot",
		gonvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           "drain-p2p",
		gonvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     "drain-and-reset",
		gonvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover-imex-domain",
		gonvml.GPU_RECOVERY_ACTION_BUS_RESET:           "bus-reset",
		gonvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       "system-reboot",
	}[action]
	if !ok {
		return fmt.Sprintf("unknown-%d", uint32(action))
	}
	return name
}
