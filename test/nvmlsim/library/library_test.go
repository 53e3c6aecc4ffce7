// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package library_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/gpu/seen"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/nvmlsim/library"
)

func machine(t *testing.T, models ...string) nvmlsim.Machine {
	t.Helper()
	m, err := nvmlsim.New(filepath.Join(t.TempDir(), "machine"), "", models...)
	check.Must(t, err)
	return m
}

// run plays fettle-nvml.
func run(m nvmlsim.Machine, args ...string) (status int, stdout, stderr string) {
	var out, complaint bytes.Buffer
	status = child.Run(append([]string{"-library", m.File}, args...), &out, &complaint, library.Open)
	return status, out.String(), complaint.String()
}

func report(t *testing.T, m nvmlsim.Machine) nvml.Report {
	t.Helper()
	status, out, complaint := run(m)
	if status != 0 {
		t.Fatalf("exit %d: %s", status, complaint)
	}
	r, err := nvml.Decode(strings.NewReader(out))
	check.Must(t, err)
	if len(r.Faults) > 0 {
		t.Errorf("faults %+v", r.Faults)
	}
	return r
}

// profilesOf writes a card's profiles as "name id starts:size xMost".
func profilesOf(m *nvml.MIG) []string {
	var out []string
	for _, p := range m.Profiles {
		var starts []string
		for _, at := range p.Placements {
			starts = append(starts, fmt.Sprint(at.Start))
		}
		out = append(out, fmt.Sprintf("%s %d %s:%d x%d", p.Name, p.ID, strings.Join(starts, ","), p.Placements[0].Size, p.MaxInstances))
	}
	slices.Sort(out)
	return out
}

// TestSeen: the simulator answers about a GPU as the card did that test/gpu looked at.
func TestSeen(t *testing.T) {
	for file, model := range map[string]string{"h100": nvmlsim.H100, "h200": nvmlsim.H200} {
		t.Run(file, func(t *testing.T) {
			var facts struct{ Report nvml.Report }
			seen.Discovery(t, file, &facts)
			card, simulated := facts.Report.Devices[0], report(t, machine(t, model)).Devices[0]
			// What tells a card from another.
			for _, d := range []*nvml.Device{&card, &simulated} {
				d.PCIBusID, d.UUID, d.Serial, d.VBIOSVersion, d.MIG.Instances = "", "", "", "", nil
			}
			if diff := cmp.Diff(card, simulated); diff != "" {
				t.Errorf("the simulator differs from the card (-card +simulator)\n%s", diff)
			}
		})
	}
}

// TestProfiles: the report names the profiles as NVIDIA does, with the id that is not the number they are asked by, with MIG on and off.
func TestProfiles(t *testing.T) {
	eight := func(small, double, two, half, whole string) []string {
		out := []string{
			"1g." + small + " 19 0,1,2,3,4,5,6:1 x7", "1g." + small + "+me 20 0,1,2,3,4,5,6:1 x1", "1g." + double + " 15 0,2,4,6:2 x4",
			"2g." + two + " 14 0,2,4:2 x3", "3g." + half + " 9 0,4:4 x2", "4g." + half + " 5 0:4 x1", "7g." + whole + " 0 0:8 x1",
		}
		slices.Sort(out)
		return out
	}
	for model, want := range map[string][]string{
		nvmlsim.A30: {
			"1g.6gb 14 0,1,2,3:1 x4", "1g.6gb+me 21 0,1,2,3:1 x1", "2g.12gb 5 0,2:2 x2", "2g.12gb+me 6 0,2:2 x1", "4g.24gb 0 0:4 x1",
		},
		nvmlsim.A100x40: eight("5gb", "10gb", "10gb", "20gb", "40gb"),
		nvmlsim.A100x80: eight("10gb", "20gb", "20gb", "40gb", "80gb"),
		nvmlsim.H100:    eight("10gb", "20gb", "20gb", "40gb", "80gb"),
		nvmlsim.H100x94: eight("12gb", "24gb", "24gb", "47gb", "94gb"),
		nvmlsim.H200:    eight("18gb", "35gb", "35gb", "71gb", "141gb"),
	} {
		t.Run(model, func(t *testing.T) {
			m := machine(t, model)
			for _, on := range []bool{false, true} {
				gpu := report(t, m).Devices[0]
				if gpu.MIG == nil || gpu.MIG.Current != on || *gpu.MIGMode != on || len(gpu.MIG.Instances) > 0 {
					t.Fatalf("%+v", gpu)
				}
				if diff := cmp.Diff(want, profilesOf(gpu.MIG)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				check.Must(t, m.SwitchOn())
			}
		})
	}
}

// TestCost counts the calls of a report: a GPU that cannot be divided costs none for MIG beside the one question for its mode.
func TestCost(t *testing.T) {
	for name, tc := range map[string]struct {
		models []string
		on     bool
		fill   bool
		most   int // calls for a GPU, beside those that a GPU without MIG costs
	}{
		"undivided":  {models: []string{nvmlsim.Undivided}},
		"off":        {models: []string{nvmlsim.H100}, most: 25},
		"on, empty":  {models: []string{nvmlsim.H100}, on: true, most: 32},
		"seven of 1": {models: []string{nvmlsim.H100}, on: true, fill: true, most: 32 + 1 + 7*5},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(t, tc.models...)
			if tc.on {
				check.Must(t, m.SwitchOn())
			}
			for start := range uint32(7) {
				if tc.fill {
					_, err := m.Foreign(0, 19, start, 1)
					check.Must(t, err)
				}
			}
			check.Must(t, m.Script())
			report(t, m)
			s, err := m.Look()
			check.Must(t, err)
			const plain = 3 + 15 // for the driver, and for a GPU with the question for its mode
			if extra := s.Total - plain; extra != tc.most {
				t.Errorf("%d calls, %d of them for MIG, want %d: %v", s.Total, extra, tc.most, s.Calls)
			}
		})
	}
}

// TestReportOfInstances: also those without a compute instance, which the list of MIG devices hides, and with the UUID of the instance: the
// device that a compute instance names is the GPU.
func TestReportOfInstances(t *testing.T) {
	m := machine(t, nvmlsim.Undivided, nvmlsim.A100x40)
	check.Must(t, m.Change(func(s *nvmlsim.State) error {
		s.Cards[1].MIG = true
		return nil
	}))
	for _, one := range []struct {
		profile, start uint32
		compute        []uint32
	}{{profile: 9, start: 4, compute: []uint32{1, 2}}, {profile: 19, start: 0}, {profile: 20, start: 3, compute: []uint32{1}}} {
		_, err := m.Foreign(1, one.profile, one.start, one.compute...)
		check.Must(t, err)
	}
	r := report(t, m)
	if r.Devices[0].MIG != nil || r.Devices[0].MIGMode != nil {
		t.Errorf("%+v", r.Devices[0])
	}
	s, err := m.Look()
	check.Must(t, err)
	var want []nvml.MIGInstance
	for _, one := range s.Cards[1].Instances {
		instance := nvml.MIGInstance{ID: one.ID, ProfileID: one.Profile, Placement: nvml.MIGPlacement{Start: one.Start, Size: one.Size}}
		for _, c := range one.Compute {
			instance.Compute = append(instance.Compute, nvml.MIGCompute{ID: c.ID, UUID: c.UUID})
		}
		want = append(want, instance)
	}
	if diff := cmp.Diff(want, r.Devices[1].MIG.Instances); diff != "" || !strings.HasPrefix(want[0].Compute[0].UUID, "MIG-") {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestUnreadable: a GPU whose instances cannot be read is reported without MIG, and with a fault.
func TestUnreadable(t *testing.T) {
	for _, function := range []string{
		"GetGpuInstanceProfileInfo", "GetGpuInstancePossiblePlacements", "GetGpuInstances", "GetMaxMigDeviceCount", "GetMigDeviceHandleByIndex",
	} {
		m := machine(t, nvmlsim.H100)
		check.Must(t, m.SwitchOn())
		_, err := m.Foreign(0, 19, 0, 1)
		check.Must(t, err)
		check.Must(t, m.Script(nvmlsim.Fault{Function: "Device." + function, Nth: 1, Do: nvmlsim.Fail, Return: nvmlsim.Unknown}))
		status, out, complaint := run(m)
		r, err := nvml.Decode(strings.NewReader(out))
		if status != 0 || err != nil || r.Devices[0].MIG != nil || len(r.Faults) != 1 || r.Faults[0].Field != "mig" {
			t.Errorf("%s: exit %d, %+v, %v, %s", function, status, r, err, complaint)
		}
	}
}

// TestMode: both results of a change count. Success of the call says nothing about whether the mode is active
// (kubernetes-sigs/dra-driver-nvidia-gpu#883 and #1018).
func TestMode(t *testing.T) {
	inUse, reset, off, gone := nvml.ExitStatus(nvml.ErrInUse), nvml.ExitStatus(nvml.ErrNeedsReset), nvml.ExitStatus(nvml.ErrMIGOff),
		nvml.ExitStatus(nvml.ErrGone)
	for name, tc := range map[string]struct {
		model   string
		change  func(*nvmlsim.Card)
		flags   string
		want    int
		current bool
		pending bool
		// untouched: the library was not asked to change anything.
		untouched bool
	}{
		"Hopper":             {model: nvmlsim.H100, flags: "-on", current: true, pending: true},
		"H200":               {model: nvmlsim.H200, flags: "-on", current: true, pending: true},
		"again":              {model: nvmlsim.H100, change: on, flags: "-on", current: true, pending: true},
		"off":                {model: nvmlsim.H100, change: on, flags: "-off"},
		"Ampere":             {model: nvmlsim.A100x80, flags: "-on -pending", want: reset, pending: true},
		"A30":                {model: nvmlsim.A30, flags: "-on -pending", want: reset, pending: true},
		"Ampere off":         {model: nvmlsim.A100x40, change: on, flags: "-off -pending", want: reset, current: true},
		"Ampere takes back":  {model: nvmlsim.A100x40, change: func(c *nvmlsim.Card) { c.Pending = true }, flags: "-off"},
		"Ampere, at once":    {model: nvmlsim.A100x80, flags: "-on", want: reset, untouched: true},
		"Ampere off at once": {model: nvmlsim.A30, change: on, flags: "-off", want: reset, current: true, pending: true, untouched: true},
		"with a client":      {model: nvmlsim.H100, change: used, flags: "-on -pending", want: inUse, pending: true},
		"client, at once":    {model: nvmlsim.H100, change: used, flags: "-on", want: inUse},
		"Ampere, client":     {model: nvmlsim.A100x80, change: used, flags: "-on -pending", want: inUse, pending: true},
		"in a machine":       {model: nvmlsim.H100, change: passthrough, flags: "-on -pending", want: reset, pending: true},
		"machine, at once":   {model: nvmlsim.H100, change: passthrough, flags: "-on", want: reset},
		"cannot be divided":  {model: nvmlsim.Undivided, flags: "-on", want: off},
		"fell off":           {model: nvmlsim.H100, change: func(c *nvmlsim.Card) { c.Lost = true }, flags: "-on", want: gone},
		"off with instances": {
			model: nvmlsim.H100, flags: "-off", want: inUse, current: true, pending: true,
			change: func(c *nvmlsim.Card) {
				on(c)
				c.Create(19, 0, 1)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(t, tc.model)
			check.Must(t, m.Change(func(s *nvmlsim.State) error {
				if tc.change != nil {
					tc.change(s.Cards[0])
				}
				return nil
			}))
			status, out, complaint := run(m, append([]string{"mig", "mode", "-device", "0000:41:00.0"}, strings.Fields(tc.flags)...)...)
			if status != tc.want {
				t.Fatalf("exit %d, want %d: %s", status, tc.want, complaint)
			}
			if tc.want == gone {
				return
			}
			answer, err := nvml.DecodeMIGAnswer(strings.NewReader(out))
			if err != nil || answer.Current != tc.current || answer.Pending != tc.pending {
				t.Errorf("%s, %v", out, err)
			}
			s, err := m.Look()
			check.Must(t, err)
			if c := s.Cards[0]; c.MIG != tc.current || c.Pending != tc.pending || tc.untouched && len(s.Changes) > 0 {
				t.Errorf("the card is %+v after %v", c, s.Changes)
			}
		})
	}
}

func used(c *nvmlsim.Card) { c.Clients = 1 }

func on(c *nvmlsim.Card) { c.MIG, c.Pending = true, true }

func passthrough(c *nvmlsim.Card) { c.Passthrough = true }

// TestHandlesChange: after a change of the mode the GPU has another minor, and old handles are invalid.
func TestHandlesChange(t *testing.T) {
	m := machine(t, nvmlsim.H100)
	lib := library.New(m)
	gpu, ret := lib.DeviceGetHandleByPciBusId("0000:41:00.0")
	if ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	check.Must(t, m.Reset(0, 7))
	if _, ret := gpu.GetUUID(); ret != gonvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("got %v", ret)
	}
	status, out, complaint := run(m, "mig", "mode", "-device", "00000000:41:00.0", "-on")
	if answer, err := nvml.DecodeMIGAnswer(strings.NewReader(out)); status != 0 || err != nil || *answer.Minor != 7 {
		t.Errorf("exit %d, %s%s, %v", status, out, complaint, err)
	}
}

// TestVerbs: create and destroy answer with what is there.
func TestVerbs(t *testing.T) {
	occupied, off, gone := nvml.ExitStatus(nvml.ErrOccupied), nvml.ExitStatus(nvml.ErrMIGOff), nvml.ExitStatus(nvml.ErrGone)
	m := machine(t, nvmlsim.H100)
	at := func(verb string, profile, start int, more ...string) []string {
		return append([]string{"mig", verb, "-device", "0000:41:00.0", "-profile", fmt.Sprint(profile), "-start", fmt.Sprint(start)}, more...)
	}
	for i, tc := range []struct {
		args []string
		want int
		says string
	}{
		{args: at("create", 19, 0), want: off, says: "not in MIG mode"},
		{args: at("destroy", 19, 0), want: off},
		{args: []string{"mig", "mode", "-device", "0000:41:00.0", "-on"}},
		{args: at("create", 19, 0), says: `"instance":{"id":1,"profileID":19,"placement":{"start":0,"size":1},"compute":[{"id":0,"uuid":"MIG-`},
		{args: at("create", 19, 0), want: occupied},
		{args: at("create", 19, 0, "-finish"), says: `"id":1`},
		{args: at("create", 0, 0), want: occupied},
		{args: at("create", 20, 1), says: `"id":2`},
		{args: at("create", 20, 2), want: occupied, says: "ERROR_INSUFFICIENT_RESOURCES"}, // there is one set of media engines
		{args: at("create", 14, 1), want: 1, says: "can start at memory slice 1"},
		{args: at("create", 99, 0), want: 1, says: "no GPU instance profile with id 99"},
		{args: at("destroy", 19, 0, "-id", "2"), says: `"other":true`},
		{args: at("destroy", 19, 0, "-id", "1", "-uuid", "MIG-another"), says: `"other":true`},
		{args: at("destroy", 19, 0, "-id", "1"), says: `{"minor":0,"current":true,"pending":true}`},
		{args: at("destroy", 19, 0)},
		{args: at("create", 9, 4), says: `"id":1`}, // ids are used again
		{args: at("create", 19, 5, "-finish"), want: occupied},
		{args: append(at("create", 19, 2), "-parent", "GPU-another"), want: gone, says: "it is GPU-00000001"},
		{args: []string{"mig", "list", "-device", "0000:99:00.0"}, want: gone},
		{args: []string{"mig", "list", "-device", "0000:41:00.0"}, says: `"instances":[{"id":1,`},
		{args: []string{"mig"}, want: 2},
		{args: []string{"mig", "sow"}, want: 2},
		{args: []string{"mig", "list"}, want: 2},
		{args: []string{"mig", "list", "-device", "0000:41:00.0", "-on"}, want: 2},
		{args: []string{"mig", "create", "-device", "0000:41:00.0", "-profile", "19"}, want: 2},
		{args: []string{"mig", "mode", "-device", "0000:41:00.0", "-on", "-off"}, want: 2},
		{args: []string{"mig", "list", "-device", "0000:41:00.0", "extra"}, want: 2},
	} {
		status, out, complaint := run(m, tc.args...)
		if status != tc.want || !strings.Contains(out+complaint, tc.says) {
			t.Errorf("%d: %v: exit %d, want %d, and %q in %s%s", i, tc.args, status, tc.want, tc.says, out, complaint)
		}
	}
}

// TestNothingElse: what fettle-nvml does not call is answered and does not end the process.
func TestNothingElse(t *testing.T) {
	m := machine(t, nvmlsim.H100)
	lib := library.New(m)
	gpu, _ := lib.DeviceGetHandleByIndex(0)
	if _, ret := gpu.GetTemperature(gonvml.TEMPERATURE_GPU); ret != gonvml.ERROR_NOT_SUPPORTED {
		t.Errorf("got %v", ret)
	}
	if ret := gpu.ResetNvLinkErrorCounters(0); ret != gonvml.ERROR_NOT_SUPPORTED {
		t.Errorf("got %v", ret)
	}
	if _, ret := lib.SystemGetNVMLVersion(); ret != gonvml.ERROR_NOT_SUPPORTED {
		t.Errorf("got %v", ret)
	}
	if _, ret := lib.DeviceGetHandleByIndex(1); ret != gonvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("got %v", ret)
	}
	if status, _, complaint := run(nvmlsim.Machine{File: filepath.Join(t.TempDir(), "none")}); status != 1 || complaint == "" {
		t.Errorf("without a machine: exit %d, %q", status, complaint)
	}
}

// TestXid: a process that waits is told of each critical error since it began, of the card's, and of none before.
func TestXid(t *testing.T) {
	m := machine(t, nvmlsim.H100, nvmlsim.H100)
	check.Must(t, m.Report(0, 13))
	set, ret := library.New(m).EventSetCreate()
	if ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	if _, ret := set.Wait(1); ret != gonvml.ERROR_TIMEOUT {
		t.Errorf("told of an error from before: %v", ret)
	}
	check.Must(t, m.Report(1, 79))
	check.Must(t, m.Report(0, 48))
	s, err := m.Look()
	check.Must(t, err)
	for i, want := range []uint64{79, 48} {
		data, ret := set.Wait(60_000)
		if ret != gonvml.SUCCESS || data.EventType != gonvml.EventTypeXidCriticalError || data.EventData != want {
			t.Fatalf("event %d: %+v, %v, want Xid %d", i, data, ret, want)
		}
		if uuid, ret := data.Device.GetUUID(); ret != gonvml.SUCCESS || uuid != s.Cards[1-i].UUID {
			t.Errorf("Xid %d is of %q (%v), want %s", want, uuid, ret, s.Cards[1-i].UUID)
		}
	}
}
