// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package library_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestEveryCallMayFail has each call of a report answer errors of the library, one at a time. The child does not crash, the other GPU is
// reported as without the error, the GPU of the call lacks no more than what was asked for and what hangs on it, a fault names it, and the
// next report is whole again.
func TestEveryCallMayFail(t *testing.T) {
	m := machine(t, nvmlsim.H100, nvmlsim.H100)
	check.Must(t, m.SwitchOn())
	for gpu := range 2 {
		_, err := m.Foreign(gpu, 19, 2, 1) // 1g.10gb
		check.Must(t, err)
	}
	whole := report(t, m)
	state, err := m.Look()
	check.Must(t, err)
	calls := slices.Sorted(maps.Keys(state.Calls))
	if len(calls) < 15 {
		t.Fatalf("a report makes the calls %v, which are too few", calls)
	}
	codes := returns(t)
	for _, call := range calls {
		t.Run(call, func(t *testing.T) {
			for _, ret := range codes {
				check.Must(t, m.Script(nvmlsim.Fault{Function: call, Nth: 1, Do: nvmlsim.Fail, Return: nvmlsim.Return(ret)}))
				failed(t, m, call, ret, whole)
			}
			check.Must(t, m.Script())
			if diff := cmp.Diff(whole, report(t, m)); diff != "" {
				t.Errorf("the report after the last error differs (-before +after)\n%s", diff)
			}
		})
	}
}

// returns are the errors of nvml.h that mean something to the child, and some of the others.
func returns(t *testing.T) []gonvml.Return {
	t.Helper()
	out := []gonvml.Return{
		gonvml.ERROR_UNKNOWN, gonvml.ERROR_INVALID_ARGUMENT, gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_NO_PERMISSION, gonvml.ERROR_NOT_FOUND,
		gonvml.ERROR_GPU_IS_LOST, gonvml.ERROR_TIMEOUT, gonvml.ERROR_FUNCTION_NOT_FOUND,
	}
	var others []gonvml.Return
	for ret := gonvml.ERROR_UNINITIALIZED; ret <= gonvml.ERROR_INVALID_STATE; ret++ {
		if !slices.Contains(out, ret) {
			others = append(others, ret)
		}
	}
	const some = 3
	seed.New(t).Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return append(out, others[:some]...)
}

// essential are the calls without which there is no report.
func essential(call string) bool { return call == "SystemGetDriverVersion" || call == "DeviceGetCount" }

// failed looks at a report in which one call of the first GPU, or of the library, failed.
func failed(t *testing.T, m nvmlsim.Machine, call string, ret gonvml.Return, whole nvml.Report) {
	t.Helper()
	status, out, complaint := run(m)
	if essential(call) {
		if status != statusOf(ret) || !strings.Contains(complaint, ret.Error()) || strings.Contains(complaint, "panic") {
			t.Errorf("%v: exit status %d and %q, want the error's name", ret, status, complaint)
		}
		return
	}
	if status != 0 {
		t.Errorf("%v: exit status %d: %s", ret, status, complaint)
		return
	}
	r, err := nvml.Decode(strings.NewReader(out))
	check.Must(t, err)
	if n := len(r.Devices); n == 0 || cmp.Diff(whole.Devices[1], r.Devices[n-1]) != "" {
		t.Errorf("%v: the other GPU is not reported as it was: %+v", ret, r.Devices)
		return
	}
	if len(r.Devices) == 1 {
		if call != "DeviceGetHandleByIndex" && call != "Device.GetPciInfo" {
			t.Errorf("%v: the GPU is missing", ret)
		}
		if len(r.Faults) != 1 || !means(r.Faults[0], ret) {
			t.Errorf("%v: faults %+v, want the one of the GPU that is missing", ret, r.Faults)
		}
		return
	}
	lacks := missingFields(whole.Devices[0], r.Devices[0])
	silent := slices.Contains(row(t, call).Absent, ret)
	if len(lacks) > 2 || len(r.Faults) > 1 || len(lacks) > 0 && !silent && len(r.Faults) == 0 {
		t.Errorf("%v: the GPU lacks %v, and the faults are %+v", ret, lacks, r.Faults)
	}
	for _, fault := range r.Faults {
		if fault.Field != row(t, call).Field || !means(fault, ret) {
			t.Errorf("%v: fault %+v, want one of the field %q", ret, fault, row(t, call).Field)
		}
	}
}

// row is what the child's table says of a function.
func row(t *testing.T, function string) child.Call {
	t.Helper()
	rows := child.Calls()
	at := slices.IndexFunc(rows, func(c child.Call) bool { return c.Name == function })
	if at < 0 {
		t.Fatalf("the table of calls lacks %s", function)
	}
	return rows[at]
}

// words are the errors that mean the same whatever was asked.
func words() map[gonvml.Return]error {
	return map[gonvml.Return]error{
		gonvml.ERROR_IN_USE: nvml.ErrInUse, gonvml.ERROR_GPU_IS_LOST: nvml.ErrGone, gonvml.ERROR_RESET_REQUIRED: nvml.ErrNeedsReset,
		gonvml.ERROR_NO_PERMISSION: nvml.ErrForbidden, gonvml.ERROR_INSUFFICIENT_POWER: nvml.ErrNoPower,
		gonvml.ERROR_IRQ_ISSUE: nvml.ErrInterrupts, gonvml.ERROR_LIB_RM_VERSION_MISMATCH: nvml.ErrVersions,
		gonvml.ERROR_DRIVER_NOT_LOADED: nvml.ErrNotLoaded,
	}
}

func statusOf(ret gonvml.Return) int {
	if word := words()[ret]; word != nil {
		return nvml.ExitStatus(word)
	}
	return nvml.ExitStatus(ret)
}

// means says whether a fault tells what an error means, in words and for programs.
func means(f nvml.Fault, ret gonvml.Return) bool {
	word := words()[ret]
	said := word == nil || errors.Is(f.Err(), word) && strings.Contains(f.Message, word.Error())
	return said && strings.Contains(f.Message, ret.Error())
}

// missingFields are the fields of a GPU that a report lacks, or has otherwise, beside the report before.
func missingFields(before, after nvml.Device) []string {
	fields := func(d nvml.Device) (out map[string]any) {
		data, err := json.Marshal(d)
		if err != nil || json.Unmarshal(data, &out) != nil {
			return nil
		}
		return out
	}
	had, has := fields(before), fields(after)
	var out []string
	for name := range had {
		if cmp.Diff(had[name], has[name]) != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
