// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

func heartbeat() nvml.Message {
	errors, pending, failure := uint64(2), true, false
	return nvml.Message{State: &nvml.State{
		Devices: []nvml.DeviceState{
			{PCIBusID: "00000000:1B:00.0", UncorrectedECC: &errors, RemapPending: &pending, RemapFailure: &failure, RecoveryAction: "gpu-reset"},
			{PCIBusID: "00000000:43:00.0", Lost: true},
		},
		Faults: []nvml.Fault{{Device: "00000000:43:00.0", Field: "correctedECC", Message: "ERROR_UNKNOWN"}},
	}}
}

func event(busID string, xid uint64) nvml.Message {
	return nvml.Message{Event: &nvml.Event{PCIBusID: busID, Xid: xid}}
}

func TestDecodeMessage(t *testing.T) {
	for _, want := range []nvml.Message{heartbeat(), event("00000000:1B:00.0", 79), event("", 79), {State: &nvml.State{}}} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := nvml.DecodeMessage(append(text, '\n'))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
	for name, tc := range map[string]struct{ text, want string }{
		"empty":     {"", "EOF"},
		"garbage":   {"\x00\xff", "invalid character"},
		"null":      {"null", "exactly one"},
		"neither":   {"{}", "exactly one"},
		"both":      {`{"state":{"devices":[]},"event":{"xid":1}}`, "exactly one"},
		"unknown":   {`{"event":{"xid":1,"shoe":2}}`, `unknown field "shoe"`},
		"two":       {`{"event":{"xid":1}}{"event":{"xid":1}}`, "something follows"},
		"no xid":    {`{"event":{}}`, "event.xid: 0"},
		"large xid": {`{"event":{"xid":65537}}`, "event.xid: 65537"},
		"negative":  {`{"event":{"xid":-1}}`, "cannot unmarshal"},
		"bus id":    {`{"event":{"xid":1,"pciBusID":"x"}}`, `event.pciBusID: PCI bus id "x"`},
		"state":     {`{"state":{"devices":[{"pciBusID":"../x"}]}}`, "state.devices[0].pciBusID"},
		"same":      {`{"state":{"devices":[{"pciBusID":"0000:1b:00.0"},{"pciBusID":"00000000:1B:00.0"}]}}`, "0000:1b:00.0 appears twice"},
		"action":    {`{"state":{"devices":[{"pciBusID":"0000:1b:00.0","recoveryAction":"rm -rf /"}]}}`, "want a word"},
		"count":     {`{"state":{"devices":[{"pciBusID":"0000:1b:00.0","uncorrectedECC":1e30}]}}`, "cannot unmarshal"},
	} {
		if _, err := nvml.DecodeMessage([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

func FuzzDecodeMessage(f *testing.F) {
	for _, m := range []nvml.Message{heartbeat(), event("00000000:1B:00.0", 79)} {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"state":null,"event":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := nvml.DecodeMessage(line)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Errorf("decoded, but not valid: %v", err)
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		second, err := nvml.DecodeMessage(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if last, err := json.Marshal(second); err != nil || !bytes.Equal(again, last) {
			t.Errorf("%s became %s, %v", again, last, err)
		}
	})
}
