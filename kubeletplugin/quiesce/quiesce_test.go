// SPDX-License-Identifier: Apache-2.0

package quiesce

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// open opens the state of a directory, with a /proc in which this process has number 7.
func open(t *testing.T, dir string) *State {
	t.Helper()
	proc := filepath.Join(dir, "proc")
	check.Must(t, os.MkdirAll(filepath.Join(proc, "7", "fd"), 0o750))
	if _, err := os.Lstat(filepath.Join(proc, "self")); err != nil {
		check.Must(t, os.Symlink("7", filepath.Join(proc, "self")))
	}
	s, err := Open(Config{Dir: dir, NVMLCommand: "/usr/bin/fettle-nvml", Review: notify.New(), Requery: notify.New(), Proc: proc})
	check.Must(t, err)
	return s
}

func (s *State) opened(t *testing.T, number, target string) {
	t.Helper()
	check.Must(t, os.Symlink(target, filepath.Join(s.config.Proc, "7", "fd", number)))
}

func (s *State) started(t *testing.T, number, stat string) {
	t.Helper()
	check.Must(t, os.MkdirAll(filepath.Join(s.config.Proc, number), 0o750))
	check.Must(t, os.WriteFile(filepath.Join(s.config.Proc, number, "stat"), []byte(stat), 0o600))
}

func gpu(vendor, name, parent string) device.Device {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{device.AttributeVendor: {StringValue: &vendor}}
	return device.Device{Kind: device.KindGPU, Name: name, Parent: parent, Attributes: attributes}
}

// machine has GPUs of two vendors, and a part of one.
func machine() *inventory.Snapshot {
	return &inventory.Snapshot{Withheld: map[string]string{}, Devices: []device.Device{
		gpu("nvidia", "nvidia-0", ""), gpu("nvidia", "nvidia-0-mig", "nvidia-0"), gpu("amd", "amd-0", ""),
	}}
}

func received(s notify.Signal) bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}

// TestFullDisk: what cannot be written counts, the next process finds what was written last, and the next look at the annotation writes it.
func TestFullDisk(t *testing.T) {
	in := fault.New()
	c := Config{Dir: t.TempDir(), Review: notify.New(), Requery: notify.New(), FS: in.FS(disk.OS{})}
	s, err := Open(c)
	check.Must(t, err)
	s.Set(t.Context(), "nvidia")
	s.SetUpgrade(t.Context(), "580 waits")
	in.Set(fault.Full(1))
	s.Set(t.Context(), "nvidia,amd")
	s.SetUpgrade(t.Context(), "590 waits")
	if !s.Holds("amd") || s.upgrade != "590 waits" {
		t.Errorf("quiesced %q, upgrade %q", s.value, s.upgrade)
	}
	next, err := Open(c)
	check.Must(t, err)
	if next.value != "nvidia" || next.upgrade != "580 waits" {
		t.Errorf("the next process finds quiesced %q, upgrade %q, want what was written last", next.value, next.upgrade)
	}
	in.Set()
	s.Set(t.Context(), "nvidia,amd")
	s.SetUpgrade(t.Context(), "590 waits")
	next, err = Open(c)
	check.Must(t, err)
	if next.value != "nvidia,amd" || next.upgrade != "590 waits" {
		t.Errorf("with space again the next process finds quiesced %q, upgrade %q", next.value, next.upgrade)
	}
}

// TestSet: the vendors of the annotation hold, over a restart too, until the annotation is gone.
func TestSet(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if !s.Idle() || s.Holds("nvidia") || s.Report(Input{}) != nil {
		t.Error("it lets go of devices without being asked to")
	}
	quiesced := false
	for _, c := range []struct {
		value         string
		known, others []string
	}{
		{"nvidia", []string{"nvidia"}, nil},
		{" nvidia, amd,nvidia,", []string{"amd", "nvidia"}, nil},
		{"*", []string{"amd", "habana", "intel", "nvidia", "qualcomm"}, nil},
		{"nvidia,tpu", []string{"nvidia"}, []string{"tpu"}},
		{strings.Repeat("x", 1000), nil, []string{strings.Repeat("x", maxValue)}},
		{"amd", []string{"amd"}, nil},
	} {
		changed := s.Changed()
		s.Set(t.Context(), c.value)
		for _, state := range []*State{s, open(t, dir)} {
			if known, unknown := state.vendors(); !slices.Equal(known, c.known) || !slices.Equal(unknown, c.others) || state.Idle() {
				t.Errorf("%.20q: %q, unknown %q", c.value, known, unknown)
			}
		}
		select {
		case <-changed:
		default:
			t.Errorf("%.20q: nobody was told", c.value)
		}
		now := slices.Contains(c.known, "nvidia")
		if review, requery := received(s.config.Review), received(s.config.Requery); requery != (quiesced && !now) || review == requery {
			t.Errorf("%.20q: the devices are reviewed: %v, NVIDIA's library is asked: %v", c.value, review, requery)
		}
		quiesced = now
	}
	changed := s.Changed()
	s.Set(t.Context(), " amd ")
	select {
	case <-changed:
		t.Error("the same value again is no change")
	default:
	}
	s.Set(t.Context(), "")
	if !s.Idle() || !open(t, dir).Idle() || !received(s.config.Review) {
		t.Error("it did not end")
	}
	if _, err := os.Stat(s.path(fileName)); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	check.Must(t, s.Destroy())
}

// TestUpgrade: every device has the taint of an upgrade as long as the annotation is there, over a restart of the plugin, too.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for value, want := range map[string]resourceapi.DeviceTaintEffect{
		"s 2026-11-25T00:00:00Z": resourceapi.DeviceTaintEffectNoSchedule, "s": resourceapi.DeviceTaintEffectNoSchedule,
		"s 2026-11-25T00:00:00Z drain": resourceapi.DeviceTaintEffectNoSchedule,
		"s 2026-11-25T00:00:00Z force": resourceapi.DeviceTaintEffectNoExecute, "force": resourceapi.DeviceTaintEffectNoSchedule,
	} {
		s.SetUpgrade(t.Context(), value)
		if !received(s.config.Review) {
			t.Errorf("%q: the devices are not reviewed", value)
		}
		for _, state := range []*State{s, open(t, dir)} {
			v := machine()
			if state.Review(t.Context(), v); v.Upgrade != want || v.Draining != (len(value) > len("s 2026-11-25T00:00:00Z")) ||
				len(v.Withheld) > 0 {
				t.Errorf("%q: effect %q, draining: %t, withheld %v", value, v.Upgrade, v.Draining, v.Withheld)
			}
		}
		if s.SetUpgrade(t.Context(), value); received(s.config.Review) {
			t.Errorf("%q: the same again is reviewed", value)
		}
	}
	s.SetUpgrade(t.Context(), "")
	v := machine()
	if open(t, dir).Review(t.Context(), v); v.Upgrade != "" {
		t.Errorf("effect %q after the end", v.Upgrade)
	}
	s.SetUpgrade(t.Context(), "s")
	check.Must(t, s.Destroy())
	if _, err := os.Stat(s.path(upgradeFile)); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}

// TestUnreadable: a state that cannot be read is no state without vendors.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	check.Must(t, os.Mkdir(filepath.Join(dir, fileName), 0o750))
	if _, err := Open(Config{Dir: dir}); err == nil {
		t.Error("a state that cannot be read was taken for none")
	}
}

// TestNil: code that has no state lets go of nothing.
func TestNil(t *testing.T) {
	var s *State
	if s.Holds("nvidia") || !s.Idle() || s.Changed() != nil {
		t.Error("nil lets go of devices")
	}
}

// TestReviewAndCheck: only devices of the vendors are withheld and refused, parts too, and those that have vanished with their driver.
func TestReviewAndCheck(t *testing.T) {
	s := open(t, t.TempDir())
	s.Set(t.Context(), "nvidia")
	v := machine()
	s.Review(t.Context(), v)
	if len(v.Withheld) != 2 || v.Withheld["nvidia-0"] == "" || v.Withheld["nvidia-0-mig"] == "" {
		t.Errorf("withheld %v", v.Withheld)
	}
	for name, want := range map[string]bool{
		"nvidia-0": true, "nvidia-0-mig": true, "nvidia-0000-17-00-0": true, "amd-0": false, "ssd": false,
	} {
		for _, admin := range []bool{false, true} {
			err := s.Check(v, &claim.Result{Kind: device.KindGPU, Pool: "n/gpu", Device: name, AdminAccess: admin})
			if reason, _ := s.Reason(err); errors.Is(err, ErrQuiesced) != want || (reason == "DriverQuiesced") != want {
				t.Errorf("%s, admin access %v: %v", name, admin, err)
			}
		}
	}
}

// TestReport: it is done when nothing is published, no claim holds anything, and neither a child nor an open file is left.
func TestReport(t *testing.T) {
	held := func(name string, admin bool) *record.Record {
		return &record.Record{Devices: []record.Device{{Pool: "n/gpu", Name: name, AdminAccess: admin}}}
	}
	for name, c := range map[string]struct {
		value  string
		change func(*State, *Input)
		want   string
	}{
		"done":             {"nvidia", func(*State, *Input) {}, ReasonQuiesced},
		"all vendors":      {"*", func(*State, *Input) {}, ReasonQuiesced},
		"unknown":          {"nvidia,tpu", func(*State, *Input) {}, ReasonVendorUnknown},
		"slices are old":   {"nvidia", func(_ *State, in *Input) { in.Published = false }, ReasonPending},
		"not reviewed yet": {"nvidia", func(_ *State, in *Input) { in.Snapshot = machine() }, ReasonPending},
		"a claim":          {"nvidia", func(_ *State, in *Input) { in.Records = append(in.Records, held("nvidia-0-mig", false)) }, ReasonClaims},
		"admin access":     {"nvidia", func(_ *State, in *Input) { in.Records = append(in.Records, held("nvidia-0", true)) }, ReasonClaims},
		"a claim of a device that vanished": {"nvidia", func(_ *State, in *Input) {
			in.Records = append(in.Records, held("nvidia-0000-17-00-0", false))
		}, ReasonClaims},
		"another vendor's claim": {"nvidia", func(_ *State, in *Input) { in.Records = append(in.Records, held("amd-0", false)) }, ReasonQuiesced},
		"an unreadable record":   {"nvidia", func(_ *State, in *Input) { in.Damaged = 1 }, ReasonClaims},
		"a child": {"nvidia", func(s *State, _ *Input) {
			s.started(t, "12", "12 (fettle-nvml) S 7 12 7 0 -1")
		}, ReasonInUse},
		"a child of another process": {"nvidia", func(s *State, _ *Input) {
			s.started(t, "12", "12 (fettle-nvml) S 8 12 7 0 -1")
		}, ReasonQuiesced},
		"a child that has ended": {"nvidia", func(s *State, _ *Input) { s.started(t, "12", "12 (fettle-nvml) Z 7 12 7") }, ReasonQuiesced},
		"another program":        {"nvidia", func(s *State, _ *Input) { s.started(t, "12", "12 (fettle) nvml) S 7 12 7") }, ReasonQuiesced},
		"NVIDIA's child":         {"amd", func(s *State, _ *Input) { s.started(t, "12", "12 (fettle-nvml) S 7 12 7 0 -1") }, ReasonQuiesced},
		"an open file":           {"nvidia", func(s *State, _ *Input) { s.opened(t, "3", "/run/nvidia/driver/dev/nvidia-uvm") }, ReasonInUse},
		"another open file":      {"nvidia", func(s *State, _ *Input) { s.opened(t, "3", "/dev/kfd") }, ReasonQuiesced},
		"AMD's open file":        {"amd", func(s *State, _ *Input) { s.opened(t, "3", "/dev/kfd") }, ReasonInUse},
		"no /proc":               {"nvidia", func(s *State, _ *Input) { check.Must(t, os.RemoveAll(s.config.Proc)) }, ReasonInUse},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			s.Set(t.Context(), c.value)
			in := Input{Snapshot: machine(), Published: true}
			s.Review(t.Context(), in.Snapshot)
			c.change(s, &in)
			got := s.Report(in)
			if got == nil || got.Reason != c.want || got.Done != (c.want == ReasonQuiesced) || got.Message == "" {
				t.Fatalf("report %+v, want %s", got, c.want)
			}
			if soon := c.want == ReasonPending || c.want == ReasonInUse; got.Soon() != soon {
				t.Errorf("soon %v", got.Soon())
			}
		})
	}
}

// TestOthers: a report names the processes of other programs that have a device of the vendor open, each once, and says where the plugin
// cannot look. It is done all the same: the plugin has let go.
func TestOthers(t *testing.T) {
	const address = "0000:17:00.0"
	for name, c := range map[string]struct {
		value        string
		sees         bool
		change       func(t *testing.T, root string)
		reason, want string
	}{
		"two processes": {
			"nvidia", true, func(*testing.T, string) {}, ReasonOthers,
			"other programs keep them from being unloaded: process 20 (dcgm), process 30 (python3)",
		},
		"many": {"nvidia", true, func(t *testing.T, root string) {
			for pid := range 10 {
				running(t, root, fmt.Sprint(40+pid), "worker", os.DevNull)
			}
		}, ReasonOthers, "process 42 (worker), and 7 more"},
		"another vendor":       {"amd", true, func(*testing.T, string) {}, ReasonQuiesced, "no other program does"},
		"processes are hidden": {"nvidia", false, func(*testing.T, string) {}, ReasonQuiesced, "may not look (partitions.pci)"},
		"no processes": {"nvidia", true, func(t *testing.T, root string) {
			check.Must(t, os.RemoveAll(filepath.Join(root, "proc")))
		}, ReasonQuiesced, "is not known: find the users of a device"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			check.Must(t, os.MkdirAll(filepath.Join(root, "sys/bus/pci/devices", address), 0o750))
			running(t, root, "10", "bash", os.TempDir())
			running(t, root, "20", "dcgm", os.DevNull, os.DevNull)
			running(t, root, "30", "python3", os.DevNull)
			c.change(t, root)
			s := open(t, t.TempDir())
			s.config.HostRoot, s.config.SeesProcesses = root, c.sees
			s.Set(t.Context(), c.value)
			v := machine()
			at := address
			v.Devices[0].Attributes[device.AttributePCIAddress] = resourceapi.DeviceAttribute{StringValue: &at}
			v.Devices[0].Edits.Nodes = []container.Node{{Path: "/dev/nvidia0", Major: 1, Minor: 3}} // those of /dev/null
			s.Review(t.Context(), v)
			got := s.Report(Input{Snapshot: v, Published: true})
			if got == nil || !got.Done || got.Reason != c.reason || !strings.Contains(got.Message, c.want) {
				t.Errorf("report %+v, want %s with %q", got, c.reason, c.want)
			}
		})
	}
}

// running adds a process to a host tree, with open files.
func running(t *testing.T, root, pid, name string, files ...string) {
	t.Helper()
	dir := filepath.Join(root, "proc", pid)
	check.Must(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o750))
	check.Must(t, os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o600))
	check.Must(t, os.WriteFile(filepath.Join(dir, "mountinfo"), nil, 0o600))
	for i, file := range files {
		check.Must(t, os.Symlink(file, filepath.Join(dir, "fd", fmt.Sprint(i))))
	}
}

// TestServesAgain: what an emptied node removed is there for the next process if the node serves again, and not before.
func TestServesAgain(t *testing.T) {
	dir := t.TempDir()
	retired := false
	c := Config{Dir: dir, Review: notify.New(), Requery: notify.New(), Retired: func() bool { return retired }}
	s, err := Open(c)
	check.Must(t, err)
	look := func() {
		s.SetUpgrade(t.Context(), "580 waits")
		s.Set(t.Context(), "nvidia")
	}
	look()
	retired = true
	check.Must(t, s.Destroy())
	look()
	left, err := os.ReadDir(dir)
	check.Must(t, err)
	if len(left) > 0 {
		t.Errorf("an emptied node has %v", left)
	}
	retired = false
	look()
	next, err := Open(c)
	check.Must(t, err)
	if effect, _ := next.upgradeEffect(); !next.Holds("nvidia") || effect == "" {
		t.Error("the next process opens the devices of a driver that is being changed, and publishes them without a taint")
	}
}

// TestChangedOnEmptiedNode: annotations that change after the node was emptied leave no file, and are kept once the node serves again.
func TestChangedOnEmptiedNode(t *testing.T) {
	dir := t.TempDir()
	retired := true
	c := Config{Dir: dir, Review: notify.New(), Requery: notify.New(), Retired: func() bool { return retired }}
	s, err := Open(c)
	check.Must(t, err)
	check.Must(t, s.Destroy())
	look := func() {
		s.SetUpgrade(t.Context(), "580 waits drain")
		s.Set(t.Context(), "nvidia")
	}
	look()
	left, err := os.ReadDir(dir)
	check.Must(t, err)
	if len(left) > 0 {
		t.Errorf("an emptied node has %v", left)
	}
	if _, drains := s.upgradeEffect(); !drains || !s.Holds("nvidia") {
		t.Error("the process does not follow the annotations")
	}
	retired = false
	look()
	next, err := Open(c)
	check.Must(t, err)
	if _, drains := next.upgradeEffect(); !drains || !next.Holds("nvidia") {
		t.Error("the next process does not know of the change of the driver")
	}
}
