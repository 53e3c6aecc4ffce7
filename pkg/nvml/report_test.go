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

func sample() nvml.Report {
	minor, mig := 3, false
	return nvml.Report{
		DriverVersion: "580.95.05", CUDADriverVersion: "13.0",
		Devices: []nvml.Device{{
			PCIBusID: "00000000:1B:00.0", UUID: "GPU-1", Name: "NVIDIA H100", Architecture: "Hopper", ComputeCapability: "9.0",
			MemoryBytes: 85520809984, Multiprocessors: 132, Minor: &minor, MIGMode: &mig,
		}},
		Faults: []nvml.Fault{{Device: "device 1", Message: "ERROR_GPU_IS_LOST"}},
	}
}

func TestDecode(t *testing.T) {
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	got, err := nvml.Decode(bytes.NewReader(text))
	if diff := cmp.Diff(sample(), got); diff != "" || err != nil {
		t.Errorf("round trip: %v\n%s", err, diff)
	}
	for name, tc := range map[string]struct{ text, want string }{
		"empty":      {"", "EOF"},
		"garbage":    {"\x00\xff", "invalid character"},
		"unknown":    {`{"driverVersion":"1","devices":[],"shoes":2}`, `unknown field "shoes"`},
		"two":        {`{"driverVersion":"1","devices":[]} {}`, "something follows"},
		"bus id":     {`{"driverVersion":"1","devices":[{"pciBusID":"x"}]}`, `devices[0].pciBusID: PCI bus id "x"`},
		"same":       {`{"devices":[{"pciBusID":"0000:1b:00.0"},{"pciBusID":"00000000:1B:00.0"}]}`, "0000:1b:00.0 appears twice"},
		"minor":      {`{"devices":[{"pciBusID":"0000:1b:00.0","minor":-1}]}`, "devices[0].minor: -1"},
		"processors": {`{"devices":[{"pciBusID":"0000:1b:00.0","multiprocessors":-1}]}`, "-1 is negative"},
		"state":      {`{"devices":[{"pciBusID":"0000:1b:00.0","fabric":{"state":"odd"}}]}`, `devices[0].fabric: state: "odd" is none`},
		"cluster": {
			`{"devices":[{"pciBusID":"0000:1b:00.0","fabric":{"state":"completed","clusterUUID":"1"}}]}`, `clusterUUID: "1" is none`,
		},
		"clique": {
			`{"devices":[{"pciBusID":"0000:1b:00.0","fabric":{"state":"completed","cliqueID":1}}]}`,
			"only a GPU in a cluster has one",
		},
		"large": {strings.Repeat(" ", 1<<20+1), "larger than 1048576 bytes"},
	} {
		if _, err := nvml.Decode(strings.NewReader(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	text, err := json.Marshal(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"devices":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		report, err := nvml.Decode(bytes.NewReader(text))
		if err != nil {
			return
		}
		if err := report.Validate(); err != nil {
			t.Errorf("decoded, but not valid: %v", err)
		}
		again, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
		second, err := nvml.Decode(bytes.NewReader(again))
		if err != nil {
			t.Fatal(err)
		}
		if last, err := json.Marshal(second); err != nil || !bytes.Equal(again, last) {
			t.Errorf("%s became %s, %v", again, last, err)
		}
	})
}
