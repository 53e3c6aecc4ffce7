// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"

	"github.com/fettle-dev/fettle/pkg/pci"
)

// Message is one line of a watching child: a heartbeat with the state of all GPUs, or one event.
type Message struct {
	State *State `json:"state,omitempty"`
	Event *Event `json:"event,omitempty"`
}

// State is the health of the GPUs at one moment.
type State struct {
	Devices []DeviceState `json:"devices"`
	// Faults are the questions that the library answered with an error.
	Faults []Fault `json:"faults,omitempty"`
}

// DeviceState is what counts against one GPU. What the library does not support on it is absent.
type DeviceState struct {
	PCIBusID string `json:"pciBusID"`
	// Lost says that the library answers ERROR_GPU_IS_LOST.
	Lost bool `json:"lost,omitempty"`
	// CorrectedECC and UncorrectedECC are nvmlDeviceGetTotalEccErrors since the driver was loaded.
	CorrectedECC   *uint64 `json:"correctedECC,omitempty"`
	UncorrectedECC *uint64 `json:"uncorrectedECC,omitempty"`
	// RemapPending and RemapFailure are nvmlDeviceGetRemappedRows.
	RemapPending *bool `json:"remapPending,omitempty"`
	RemapFailure *bool `json:"remapFailure,omitempty"`
	// RecoveryAction is NVML_FI_DEV_GET_GPU_RECOVERY_ACTION as a word, "none" where nothing needs to be done.
	RecoveryAction string `json:"recoveryAction,omitempty"`
}

// Event is a critical error that the driver reported.
type Event struct {
	// PCIBusID is empty where the library did not say which GPU it was.
	PCIBusID string `json:"pciBusID,omitempty"`
	// Xid is the error's number in NVIDIA's catalogue.
	Xid uint64 `json:"xid"`
}

// RecoveryNone is the recovery action of a GPU that needs none.
const RecoveryNone = "none"

// maxXid is far above any number in NVIDIA's catalogue, which ends below 200.
const maxXid = 1 << 16

// recoveryWord keeps an action that a newer child may know fit for a code and a message.
var recoveryWord = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// DecodeMessage reads one line of a watching child: strict JSON with exactly one of state and event.
func DecodeMessage(line []byte) (Message, error) {
	return decode[Message](bytes.NewReader(line), "message")
}

// Validate checks what a reader relies on.
func (m Message) Validate() error {
	switch {
	case m.State != nil && m.Event == nil:
		return m.State.validate()
	case m.Event != nil && m.State == nil:
		return m.Event.validate()
	default:
		return errors.New("want exactly one of state and event")
	}
}

func (s *State) validate() error {
	var faults []error
	seen := map[pci.Address]bool{}
	for i, dev := range s.Devices {
		address, err := pci.ParseBusID(dev.PCIBusID)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("state.devices[%d].pciBusID: %w", i, err))
		case seen[address]:
			faults = append(faults, fmt.Errorf("state.devices[%d].pciBusID: %s appears twice", i, address))
		}
		seen[address] = true
		if dev.RecoveryAction != "" && !recoveryWord.MatchString(dev.RecoveryAction) {
			faults = append(faults, fmt.Errorf("state.devices[%d].recoveryAction: %.40q, want a word", i, dev.RecoveryAction))
		}
	}
	return errors.Join(faults...)
}

func (e *Event) validate() error {
	if e.Xid == 0 || e.Xid > maxXid {
		return fmt.Errorf("event.xid: %d, want 1 to %d", e.Xid, maxXid)
	}
	if e.PCIBusID == "" {
		return nil
	}
	if _, err := pci.ParseBusID(e.PCIBusID); err != nil {
		return fmt.Errorf("event.pciBusID: %w", err)
	}
	return nil
}
