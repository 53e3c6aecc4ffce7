// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"encoding/binary"
	"encoding/json"
	"errors"
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
	lib  gonvml.Interface
	gpus []watched
	out  *json.Encoder
}

// watched is one GPU. Its bus id is asked for once: a GPU that fell off the bus does not answer any more.
type watched struct {
	gpu   gonvml.Device
	busID string
}

// watch prints a state at once and then at the interval, and every critical error in between followed by a state. It returns only
// with an error, such as that nobody reads any more.
func watch(lib gonvml.Interface, interval time.Duration, out io.Writer) error {
	w := &watcher{lib: lib, out: json.NewEncoder(out)}
	if err := w.find(); err != nil {
		return err
	}
	set, ret := lib.EventSetCreate()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("make an event set: %w", ret)
	}
	defer func() { _ = set.Free() }()
	faults := w.register(set)
	if err := w.beat(faults); err != nil {
		return err
	}
	next := time.Now().Add(interval)
	for {
		if left := time.Until(next); left <= 0 {
			if err := w.beat(faults); err != nil {
				return err
			}
			next = time.Now().Add(interval)
		}
		if err := w.wait(set, max(min(time.Until(next), longestWait), time.Millisecond), faults); err != nil {
			return err
		}
	}
}

// find lists the GPUs.
func (w *watcher) find() error {
	count, ret := w.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("count GPUs: %w", ret)
	}
	for i := range count {
		gpu, ret := w.lib.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			continue // discovery says which one is missing
		}
		if info, ret := gpu.GetPciInfo(); ret == gonvml.SUCCESS {
			w.gpus = append(w.gpus, watched{gpu: gpu, busID: text(info.BusId[:])})
		}
	}
	return nil
}

// register asks for the critical errors of every GPU. A GPU without any is watched by its state alone.
func (w *watcher) register(set gonvml.EventSet) []nvml.Fault {
	var faults []nvml.Fault
	for _, one := range w.gpus {
		supported, ret := one.gpu.GetSupportedEventTypes()
		if ret == gonvml.SUCCESS && supported&gonvml.EventTypeXidCriticalError == 0 {
			continue
		}
		if ret == gonvml.SUCCESS {
			ret = one.gpu.RegisterEvents(gonvml.EventTypeXidCriticalError, set)
		}
		if ret != gonvml.SUCCESS && ret != gonvml.ERROR_NOT_SUPPORTED {
			faults = append(faults, nvml.Fault{Device: one.busID, Field: "events", Message: ret.Error()})
		}
	}
	return faults
}

// wait prints at most one event.
func (w *watcher) wait(set gonvml.EventSet, limit time.Duration, faults []nvml.Fault) error {
	begin := time.Now()
	data, ret := set.Wait(uint32(max(limit.Milliseconds(), 1)))
	switch ret {
	case gonvml.SUCCESS:
		if data.EventType&gonvml.EventTypeXidCriticalError == 0 || data.EventData == 0 {
			return nil
		}
		if err := w.out.Encode(nvml.Message{Event: &nvml.Event{PCIBusID: w.busID(data.Device), Xid: data.EventData}}); err != nil {
			return err
		}
		return w.beat(faults) // what the driver wants done about it is news too
	case gonvml.ERROR_TIMEOUT:
		return nil
	case gonvml.ERROR_GPU_IS_LOST:
		// Waiting is over for good, and returns at once. The state says which GPU it is.
		<-time.After(limit - time.Since(begin))
		return nil
	default:
		return fmt.Errorf("wait for events: %w", ret)
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

// beat prints the state of all GPUs.
func (w *watcher) beat(faults []nvml.Fault) error {
	state := &nvml.State{Devices: []nvml.DeviceState{}, Faults: append([]nvml.Fault(nil), faults...)}
	for _, one := range w.gpus {
		c := checkup{lib: w.lib, gpu: one.gpu, state: nvml.DeviceState{PCIBusID: one.busID}}
		c.ask()
		state.Devices = append(state.Devices, c.state)
		state.Faults = append(state.Faults, c.faults...)
	}
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
	if n, ret := c.gpu.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_CORRECTED, gonvml.VOLATILE_ECC); c.answered("correctedECC", ret) {
		c.state.CorrectedECC = &n
	}
	if n, ret := c.gpu.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.VOLATILE_ECC); c.answered("uncorrectedECC", ret) {
		c.state.UncorrectedECC = &n
	}
	if c.has("nvmlDeviceGetRemappedRows") {
		if _, _, pending, failure, ret := c.gpu.GetRemappedRows(); c.answered("remapPending", ret) {
			c.state.RemapPending, c.state.RemapFailure = &pending, &failure
		}
	}
	if c.has("nvmlDeviceGetFieldValues") {
		c.recoveryAction()
	}
}

// has says whether the library has a function that older drivers lack: calling one that is missing ends the process.
func (c *checkup) has(symbol string) bool { return c.lib.Extensions().LookupSymbol(symbol) == nil }

// recoveryAction asks what the driver wants done to the GPU. Drivers that are too old do not know the field.
func (c *checkup) recoveryAction() {
	values := []gonvml.FieldValue{{FieldId: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := c.gpu.GetFieldValues(values)
	if ret == gonvml.SUCCESS {
		ret = gonvml.Return(values[0].NvmlReturn)
	}
	if errors.Is(ret, gonvml.ERROR_INVALID_ARGUMENT) || !c.answered("recoveryAction", ret) {
		return
	}
	c.state.RecoveryAction = recoveryName(gonvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])))
}

// answered is questions.answered for a state, where a lost GPU is an answer too.
func (c *checkup) answered(field string, ret gonvml.Return) bool {
	switch ret {
	case gonvml.SUCCESS:
		return true
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
	case gonvml.ERROR_GPU_IS_LOST:
		c.state.Lost = true
	default:
		c.faults = append(c.faults, nvml.Fault{Device: c.state.PCIBusID, Field: field, Message: ret.Error()})
	}
	return false
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
