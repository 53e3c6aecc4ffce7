// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package library_test

import (
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// TestFabricOfCards: a report has how far each card is in its fabric, and which clique it is in. One that has none, or whose library is
// older than the question, is reported without; where the question fails, the fault says so and nothing else is missing.
func TestFabricOfCards(t *testing.T) {
	m := machine(t, nvmlsim.H100, nvmlsim.H100, nvmlsim.H100, nvmlsim.H100)
	mode := uint32(gonvml.DEVICE_ADDRESSING_MODE_ATS)
	cluster := [16]byte{0x5e, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	check.Must(t, m.Change(func(s *nvmlsim.State) error {
		s.Cards[0].Addressing = &mode
		s.Cards[0].Fabric = &nvmlsim.Fabric{State: gonvml.GPU_FABRIC_STATE_COMPLETED, Cluster: cluster, Clique: 3}
		s.Cards[1].Fabric = &nvmlsim.Fabric{State: gonvml.GPU_FABRIC_STATE_IN_PROGRESS}
		s.Cards[2].Fabric = &nvmlsim.Fabric{State: gonvml.GPU_FABRIC_STATE_COMPLETED, Cluster: cluster, Status: nvmlsim.Unknown}
		return nil
	}))
	whole := report(t, m)
	want := []*nvml.Fabric{
		{State: nvml.FabricCompleted, ClusterUUID: "5e010203-0405-0607-0809-0a0b0c0d0e0f", CliqueID: 3},
		{State: nvml.FabricInProgress},
		{State: nvml.FabricFailed},
		nil,
	}
	for i, gpu := range whole.Devices {
		if diff := cmp.Diff(want[i], gpu.Fabric); diff != "" {
			t.Errorf("card %d (-want +got)\n%s", i, diff)
		}
	}
	if a, b := whole.Devices[0].AddressingMode, whole.Devices[1].AddressingMode; a != "ATS" || b != "" {
		t.Errorf("addressing modes %q and %q, want ATS and none", a, b)
	}
	for ret, faults := range map[nvmlsim.Return]int{
		nvmlsim.NotSupported: 0, nvmlsim.Return(gonvml.ERROR_FUNCTION_NOT_FOUND): 0, nvmlsim.Unknown: 1,
	} {
		check.Must(t, m.Script(nvmlsim.Fault{Function: "Device.GetGpuFabricInfo", Nth: 1, Do: nvmlsim.Fail, Return: ret}))
		status, out, complaint := run(m)
		if status != 0 {
			t.Fatalf("%v: exit %d: %s", ret, status, complaint)
		}
		got, err := nvml.Decode(strings.NewReader(out))
		check.Must(t, err)
		if len(got.Faults) != faults || faults == 1 && got.Faults[0].Field != "fabric" {
			t.Errorf("%v: faults %+v, want %d", ret, got.Faults, faults)
		}
		if missing := missingFields(whole.Devices[0], got.Devices[0]); cmp.Diff([]string{"fabric"}, missing) != "" {
			t.Errorf("%v: the card lacks %v, want its fabric alone", ret, missing)
		}
	}
}
