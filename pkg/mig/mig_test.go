// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package mig_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// TestLife: an instance is made, given to a container and destroyed; each may be asked for twice.
func TestLife(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	wants(t, n.verify(w), "has no instance")
	for range 2 {
		check.Must(t, n.apply(w))
		n.has([]string{"19@4"}, w.Device)
		check.Must(t, n.verify(w))
	}
	got, err := n.process().Edits(w.Device)
	check.Must(t, err)
	gi := int64(nvmlsim.CapabilityMinor(0, 1))
	want := container.Edits{
		Nodes: []container.Node{
			{Path: "/dev/nvidia0", Major: 195, Minor: 0, Permissions: "rw"},
			{Path: "/dev/nvidia-caps/nvidia-cap12", Major: 237, Minor: gi, Permissions: "rw"},
			{Path: "/dev/nvidia-caps/nvidia-cap13", Major: 237, Minor: gi + 1, Permissions: "rw"},
		},
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void", "FETTLE_MIG_UUID_NVIDIA_0000_41_00_0_MIG_1G_10GB_S4=" + n.uuid(w)},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got.Validate()) > 0 || !strings.HasPrefix(n.uuid(w), "MIG-") {
		t.Errorf("%v (-want +got):\n%s", got.Validate(), diff)
	}
	for range 2 {
		check.Must(t, n.undo(w))
		n.has([]string{})
	}
	_, err = n.process().Edits(w.Device)
	wants(t, err, "has no MIG instance in this boot")
}

// TestUnknownNames: no name leads out of the directory.
func TestUnknownNames(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	w.Device = "../x"
	wants(t, n.apply(w), `device name "../x"`)
	_, err := n.process().Edits("../x")
	wants(t, err, `device name "../x"`)
	n.has([]string{})
}

// TestNewUUID: what was said of an earlier instance in the place is not said of the next (Project-HAMi/HAMi#1903).
func TestNewUUID(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.apply(w))
	first := n.uuid(w)
	check.Must(t, n.undo(w))
	check.Must(t, n.apply(w))
	edits, err := n.process().Edits(w.Device)
	check.Must(t, err)
	if text := strings.Join(edits.Env, " "); strings.Contains(text, first) || !strings.Contains(text, n.uuid(w)) {
		t.Errorf("%s, and the instance is %s after %s", text, n.uuid(w), first)
	}
}

// TestForeignInTheWay: what somebody else made is named and not touched, and nothing is begun.
func TestForeignInTheWay(t *testing.T) {
	for name, tc := range map[string]struct {
		profile, start uint32
		compute        []uint32
	}{
		"the same":                     {profile: 19, start: 4, compute: []uint32{1}},
		"the same, without compute":    {profile: 19, start: 4},
		"larger":                       {profile: 9, start: 4, compute: []uint32{3}},
		"divided into small computers": {profile: 9, start: 4, compute: []uint32{1, 1}},
		"without compute":              {profile: 9, start: 4},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, nvmlsim.H100)
			w := small()
			_, err := n.Foreign(0, tc.profile, tc.start, tc.compute...)
			check.Must(t, err)
			before := n.instances()
			err = n.apply(w)
			wants(t, err, "was not made for this claim", "GPU instance 1")
			if !errors.Is(err, nvml.ErrOccupied) {
				t.Errorf("%v is not ErrOccupied", err)
			}
			n.has(before)
			check.Must(t, n.undo(w))
			n.has(before)
		})
	}
}

// TestForeignComesFirst: somebody else takes the place between the look and the creation. The file is taken back.
func TestForeignComesFirst(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.Script(nvmlsim.Fault{
		Function: "Device.CreateGpuInstanceWithPlacement", Do: nvmlsim.Fail, Return: nvmlsim.InsufficientResources,
	}))
	if err := n.apply(w); !errors.Is(err, nvml.ErrOccupied) {
		t.Errorf("got %v", err)
	}
	n.has([]string{})
}

// TestComputeFails: the GPU instance is destroyed again where its compute instance cannot be made, and where that fails as well, Undo finds
// it (kubernetes-sigs/dra-driver-nvidia-gpu#1452).
func TestComputeFails(t *testing.T) {
	no := nvmlsim.Fault{Function: "GpuInstance.CreateComputeInstance", Do: nvmlsim.Fail, Return: nvmlsim.InsufficientResources}
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.Script(no))
	wants(t, n.apply(w), "create a compute instance")
	n.has([]string{}, w.Device)
	check.Must(t, n.undo(w))
	n.has([]string{})

	check.Must(t, n.Script(no, nvmlsim.Fault{Function: "GpuInstance.Destroy", Do: nvmlsim.Fail, Return: nvmlsim.Unknown}))
	wants(t, n.apply(w), "create a compute instance", "destroy the GPU instance again")
	n.has([]string{"19@4/0"}, w.Device)
	check.Must(t, n.Script())
	check.Must(t, n.apply(w)) // completes it
	n.has([]string{"19@4"}, w.Device)
	check.Must(t, n.undo(w))
	n.has([]string{})
}

// TestInUse: while something has the instance open, Undo fails and keeps the file; the place is not given to another claim. The next Undo
// after the process ended succeeds (NVIDIA/DCGM#276).
func TestInUse(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.apply(w))
	check.Must(t, n.Hold(n.uuid(w), 1))
	for range 2 {
		err := n.undo(w)
		wants(t, err, "DCGM", w.Device, "the plugin tries again")
		if !errors.Is(err, nvml.ErrInUse) {
			t.Errorf("%v is not ErrInUse", err)
		}
		n.has([]string{"19@4"}, w.Device)
	}
	other := large()
	if err := n.apply(other); !errors.Is(err, nvml.ErrOccupied) {
		t.Errorf("the place was given to another: %v", err)
	}
	check.Must(t, n.Hold(n.uuid(w), -1))
	check.Must(t, n.undo(w))
	n.has([]string{})
	check.Must(t, n.apply(other))
	n.has([]string{"9@4"}, other.Device)
}

// TestReset: after a reset of the GPU the instance is gone, whatever its minor is now, and what somebody makes in its place is theirs.
func TestReset(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.apply(w))
	check.Must(t, n.Reset(0, 3))
	wants(t, n.verify(w), "is gone", "delete the pod")
	_, err := n.Foreign(0, 19, 4, 1)
	check.Must(t, err)
	wants(t, n.verify(w), "is gone")
	check.Must(t, n.undo(w))
	n.has([]string{"19@4"})
}

// TestResetBeforeApplyIsKnown: an instance that was lost before its claim knew of it is made again.
func TestResetBeforeApplyIsKnown(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.apply(w))
	first := n.uuid(w)
	check.Must(t, n.Reset(0, 3))
	check.Must(t, n.apply(w))
	edits, err := n.process().Edits(w.Device)
	check.Must(t, err)
	if n.uuid(w) == first || edits.Nodes[0].Path != "/dev/nvidia3" {
		t.Errorf("%s again, edits %+v", first, edits)
	}
	check.Must(t, n.verify(w))
}

// TestReboot: files of another boot own nothing.
func TestReboot(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		n := start(t, nvmlsim.A100x40)
		w := small()
		w.Profile = "1g.5gb"
		check.Must(t, n.apply(w))
		check.Must(t, n.Reboot())
		n.boot = otherBoot
		want := []string{}
		if foreign {
			_, err := n.Foreign(0, 19, 4, 1)
			check.Must(t, err)
			want = []string{"19@4"}
		}
		if held, err := n.process().Held(); err != nil || len(held) > 0 {
			t.Errorf("%+v, %v", held, err)
		}
		_, err := n.process().Edits(w.Device)
		wants(t, err, "in this boot")
		wants(t, n.verify(w), "has no instance")
		check.Must(t, n.undo(w))
		n.has(want)
		if !foreign {
			check.Must(t, n.apply(w))
			n.has([]string{"19@4"}, w.Device)
		}
	}
}

// TestNoInstances: on a GPU that is gone, lost, another one or not in MIG mode there is nothing to destroy, and nothing is begun.
func TestNoInstances(t *testing.T) {
	for name, change := range map[string]func(*nvmlsim.Card){
		"absent":  func(c *nvmlsim.Card) { c.Absent = true },
		"lost":    func(c *nvmlsim.Card) { c.Lost = true },
		"another": func(c *nvmlsim.Card) { c.UUID, c.Instances = "GPU-another", nil },
		"off":     func(c *nvmlsim.Card) { c.MIG, c.Instances = false, nil },
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, nvmlsim.H100)
			w := small()
			check.Must(t, n.apply(w))
			check.Must(t, n.Change(func(s *nvmlsim.State) error {
				change(s.Cards[0])
				return nil
			}))
			before := n.instances()
			if err := n.verify(w); err == nil {
				t.Error("verified")
			}
			check.Must(t, n.undo(w))
			n.has(before)
			if err := n.apply(w); !errors.Is(err, nvml.ErrGone) && !errors.Is(err, nvml.ErrMIGOff) {
				t.Errorf("got %v", err)
			}
			n.has(before)
		})
	}
}

// TestDriverGone: where the driver has let go of the GPU, a claim is given back without the library. Where it has not, a library that fails
// proves nothing, and the file stays. An administrator who unloads the driver waits for claims, so that they must not wait for the driver
// (NVIDIA/k8s-driver-manager#213).
func TestDriverGone(t *testing.T) {
	const address = "0000:41:00.0"
	for name, test := range map[string]struct {
		driver  string // "": no link
		absent  bool   // there is no such PCI function in sysfs
		none    bool   // nor any other
		undoes  bool
		missing bool // the library itself is gone
	}{
		"no driver":                 {undoes: true},
		"no driver, and no library": {missing: true, undoes: true},
		"the driver for machines":   {driver: "vfio-pci", undoes: true},
		"the driver is there":       {driver: "nvidia"},
		"the GPU is gone":           {absent: true, undoes: true},
		"sysfs is not there":        {absent: true, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, nvmlsim.H100)
			w := small()
			check.Must(t, n.apply(w))
			dir := filepath.Join(n.root, "sys/bus/pci/devices", address)
			if !test.none {
				check.Must(t, os.MkdirAll(filepath.Dir(dir), 0o755))
			}
			if !test.absent {
				check.Must(t, os.MkdirAll(dir, 0o755))
			}
			if test.driver != "" {
				check.Must(t, os.Symlink("../../drivers/"+test.driver, filepath.Join(dir, "driver")))
			}
			check.Must(t, n.Script(nvmlsim.Fault{Do: nvmlsim.Fail, Return: nvmlsim.DriverNotLoaded}))
			machine := n.Machine
			if test.missing {
				n.File += ".gone"
			}
			err := n.undo(w)
			n.Machine = machine
			check.Must(t, n.Script())
			if test.undoes {
				check.Must(t, err)
				n.has([]string{"19@4"}) // the simulated card keeps it, as a stranger's
				return
			}
			wants(t, err, "destroy its instance")
			n.has([]string{"19@4"}, w.Device)
			check.Must(t, n.undo(w))
			n.has([]string{})
		})
	}
}

// TestVersions: where the library is of another driver than the kernel's, as after an upgrade, only a reboot ends that, and the instance
// with it. The node is drained before the reboot, so a claim ends meanwhile. Its file stays, so that the instance is nobody else's if the
// library answers again before.
func TestVersions(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.apply(w))
	check.Must(t, n.Script(nvmlsim.Fault{Do: nvmlsim.Fail, Return: nvmlsim.LibRMVersionMismatch}))
	for range 2 {
		check.Must(t, n.undo(w))
		n.has([]string{"19@4"}, w.Device)
	}
	wants(t, n.apply(w), "of different versions")
	check.Must(t, n.Script())
	check.Must(t, n.undo(w))
	n.has([]string{})
}

// TestSlowLibrary: a library that does not answer costs the time that the caller has, and leaves nothing that the next call does not find
// (NVIDIA/gpu-operator#2155).
func TestSlowLibrary(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	gate := filepath.Join(t.TempDir(), "gate") // which never opens
	check.Must(t, n.Script(nvmlsim.Fault{Function: "GpuInstance.CreateComputeInstance", Do: nvmlsim.Wait, File: gate}))
	s, err := w.Step()
	check.Must(t, err)
	ctx, pass := check.Deadline(t)
	ended := make(chan error, 1)
	go func() { ended <- n.process().Kinds().Apply(ctx, s) }()
	check.Eventually(t, "the library hangs", func() bool {
		_, err := os.Stat(gate + ".waiting")
		return err == nil
	})
	pass()
	wants(t, <-ended, "did not answer in time")
	check.Must(t, n.Script())
	check.Must(t, n.undo(w))
	n.has([]string{})
}

// TestFiles: a file that cannot be understood is left to a person, with its instance, and hurts no other device.
func TestFiles(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w, other := small(), h100("nvidia-0000-41-00-0-mig-1g-10gb-s0", 19, "1g.10gb", 0, 1)
	check.Must(t, n.apply(w))
	check.Must(t, n.apply(other))
	file := filepath.Join(n.state, w.Device+".json")
	good, err := os.ReadFile(file)
	check.Must(t, err)
	for name, text := range map[string]string{
		"cut":     string(good[:len(good)/2]),
		"empty":   "",
		"newer":   strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		"another": strings.Replace(string(good), w.Device, other.Device, 1),
	} {
		check.Must(t, os.WriteFile(file, []byte(text), 0o600))
		for verb, err := range map[string]error{"apply": n.apply(w), "undo": n.undo(w), "verify": n.verify(w)} {
			if err == nil || !strings.Contains(err.Error(), "remove the file") {
				t.Errorf("%s, %s: %v", name, verb, err)
			}
		}
		held, err := n.process().Held()
		wants(t, err, w.Device)
		if len(held) != 1 || held[0].Device != other.Device {
			t.Errorf("%s: %+v", name, held)
		}
	}
	n.has([]string{"19@4", "19@0"}, other.Device, w.Device)
	check.Must(t, os.WriteFile(file, []byte(strings.Replace(string(good), `"start":4`, `"start":5`, 1)), 0o600))
	wants(t, n.undo(w), "is about another place")
	wants(t, n.apply(w), "is about another place")
	// A field of a later version of the same format is no hindrance.
	check.Must(t, os.WriteFile(file, []byte(strings.Replace(string(good), `{`, `{"later":1,`, 1)), 0o600))
	check.Must(t, n.undo(w))
	check.Must(t, n.undo(other))
	n.has([]string{})
}

// TestFileLacksFields: a file that another version of Fettle wrote without a field gives no container the wrong node. The instance stays
// the claim's: Apply keeps it and completes the file, and Undo destroys it. Elsewhere an upgrade met checkpoints without a field (nv#1080).
func TestFileLacksFields(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w := small()
	check.Must(t, n.apply(w))
	file := filepath.Join(n.state, w.Device+".json")
	good, err := os.ReadFile(file)
	check.Must(t, err)
	want, err := n.process().Edits(w.Device)
	check.Must(t, err)
	for _, field := range []string{"uuid", "gpuCapability", "computeCapability"} {
		cut := regexp.MustCompile(`,?"`+field+`":("[^"]*"|\d+)`).ReplaceAllString(string(good), "")
		if cut == string(good) {
			t.Fatalf("the file has no field %s: %s", field, good)
		}
		check.Must(t, os.WriteFile(file, []byte(cut), 0o600))
		if edits, err := n.process().Edits(w.Device); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without %s a container gets %v, %v", field, edits.Nodes, err)
		}
		check.Must(t, n.apply(w))
		got, err := n.process().Edits(w.Device)
		check.Must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("without %s (-before +after Apply):\n%s", field, diff)
		}
	}
	check.Must(t, os.WriteFile(file, []byte(strings.Replace(string(good), `"uuid"`, `"formerly"`, 1)), 0o600))
	check.Must(t, n.undo(w))
	n.has([]string{})
}

// TestParallel: of claims whose places overlap one gets its instance, whichever; the others are told, and leave nothing.
func TestParallel(t *testing.T) {
	n := start(t, nvmlsim.H100)
	conflicting := []*mig.Partition{
		small(), large(), whole(), h100("nvidia-0000-41-00-0-mig-2g-20gb-s4", 14, "2g.20gb", 4, 2),
		h100("nvidia-0000-41-00-0-mig-1g-20gb-s4", 15, "1g.20gb", 4, 2),
	}
	for range 3 {
		errs := make([]error, len(conflicting))
		var done sync.WaitGroup
		for i, w := range conflicting {
			done.Go(func() { errs[i] = n.apply(w) })
		}
		done.Wait()
		var winners []string
		for i, err := range errs {
			switch {
			case err == nil:
				winners = append(winners, conflicting[i].Device)
			case !errors.Is(err, nvml.ErrOccupied):
				t.Errorf("%s: %v", conflicting[i], err)
			}
		}
		if len(winners) != 1 || len(n.instances()) != 1 {
			t.Fatalf("winners %v, instances %v", winners, n.instances())
		}
		n.has(n.instances(), winners[0])
		for _, w := range conflicting {
			check.Must(t, n.undo(w))
		}
		n.has([]string{})
	}
}

// TestForeign: what no file owns is somebody else's.
func TestForeign(t *testing.T) {
	n := start(t, nvmlsim.H100, nvmlsim.H100)
	w := small()
	check.Must(t, n.apply(w))
	id, err := n.Foreign(0, 14, 0, 1, 1)
	check.Must(t, err)
	_, err = n.Foreign(1, 19, 4) // where the claim's is, on another GPU
	check.Must(t, err)
	report, err := n.prober().Query(t.Context())
	check.Must(t, err)
	held, err := n.process().Held()
	check.Must(t, err)
	found := mig.Foreign(report, held)
	if len(found) != 2 || found[0].Instance.ID != id || len(found[0].Instance.Compute) != 2 || found[1].PCIAddress.Bus != 0x42 {
		t.Errorf("found %+v", found)
	}
	left := h100("x", 9, "3g.40gb", 0, 4)
	if found[0].Overlaps(w) || !found[0].Overlaps(left) || !found[0].Overlaps(whole()) || found[1].Overlaps(w) {
		t.Errorf("%+v overlaps the wrong ones", found)
	}
	if all := mig.Foreign(report, nil); len(all) != 3 {
		t.Errorf("without files: %+v", all)
	}
	// The claim's instance was destroyed by hand, and another made in its place.
	check.Must(t, n.Change(func(s *nvmlsim.State) error {
		s.Cards[0].Instances[0].Compute[0].UUID = "MIG-another"
		return nil
	}))
	report, err = n.prober().Query(t.Context())
	check.Must(t, err)
	if found := mig.Foreign(report, held); len(found) != 3 {
		t.Errorf("found %+v", found)
	}
	check.Must(t, n.undo(w))
	n.has([]string{"19@4", "14@0/2"})
}

// TestHeldDuring: an instance that is made and destroyed while somebody looks, and that the look has seen, was not somebody else's.
func TestHeldDuring(t *testing.T) {
	n := start(t, nvmlsim.H100)
	w, p := small(), n.process()
	s, err := w.Step()
	check.Must(t, err)
	var report nvml.Report
	held := p.HeldDuring(func() {
		check.Must(t, p.Kinds().Apply(t.Context(), s))
		var err error
		report, err = n.prober().Query(t.Context())
		check.Must(t, err)
		check.Must(t, p.Kinds().Undo(t.Context(), s))
	})
	if len(report.Devices[0].MIG.Instances) != 1 {
		t.Fatalf("%+v has no instance", report.Devices[0].MIG)
	}
	if found := mig.Foreign(report, held); len(found) > 0 {
		t.Errorf("%+v is somebody else's, held were %+v", found, held)
	}
	if later := p.HeldDuring(func() {}); len(later) > 0 {
		t.Errorf("held later: %+v", later)
	}
}
