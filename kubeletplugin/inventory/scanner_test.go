// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

func newScanner(t *testing.T, root string) *Scanner {
	t.Helper()
	file := nodeconfig.File{HostDevices: localSSD()}.WithDefaults()
	errs := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"source"})
	return NewScanner(Config{
		Node: testNode, HostRoot: root, File: &file, Holder: NewHolder(), Rescan: notify.New(), Review: notify.New(),
		Recovering: func() map[[2]string]string { return nil }, HeldByDeleted: func() map[[2]string]*record.Record { return nil },
		Metrics: NewMetrics(prometheus.NewRegistry(), errs, []float64{1}),
	})
}

func (s *Scanner) mustSee(t *testing.T) *Snapshot {
	t.Helper()
	s.Scan(t.Context())
	v, _ := s.Holder.Get()
	if v == nil {
		t.Fatal("no snapshot")
	}
	return v
}

func TestLookSeesChanges(t *testing.T) {
	root := expand(t, "8xh100-sxm")
	s := newScanner(t, root)
	if v := s.mustSee(t); len(v.Devices) != 8 {
		t.Errorf("%d devices, want 8", len(v.Devices))
	}
	check.Must(t, os.RemoveAll(root))
	s.Scan(t.Context())
	if v, _ := s.Holder.Get(); len(v.Devices) != 8 {
		t.Error("a host tree that cannot be opened took the last view")
	}
	if got := testutil.ToFloat64(s.Metrics.Errors.WithLabelValues("discovery")); got != 1 {
		t.Errorf("counted %v errors, want 1", got)
	}
	expandInto(t, "empty", root)
	if v := s.mustSee(t); len(v.Devices) != 0 {
		t.Errorf("%d devices, want none", len(v.Devices))
	}
}

// TestNVMLIsAskedOnce: the library initialises every GPU, so it is asked again only where the kernel's story changed or it failed.
func TestNVMLIsAskedOnce(t *testing.T) {
	root := expand(t, "8xh100-sxm")
	s := newScanner(t, root)
	asked, answer := 0, errors.New("driver not ready")
	report := nvml.Report{DriverVersion: "570.86.15", Devices: []nvml.Device{{PCIBusID: "00000000:18:00.0"}}}
	s.Query = func(context.Context) (nvml.Report, error) {
		asked++
		return report, answer
	}
	steps := []struct {
		name   string
		before func()
		want   int
	}{
		{"first look", func() {}, 1},
		{"after a failure", func() { answer = nil }, 2},
		{"no change", func() {}, 2},
		{"no change again", func() {}, 2},
		{"another machine", func() {
			check.Must(t, os.RemoveAll(root))
			expandInto(t, "2xa100-2xn6000", root)
		}, 3},
		{"no NVIDIA GPU", func() {
			check.Must(t, os.RemoveAll(root))
			expandInto(t, "empty", root)
		}, 3},
		{"still none", func() {}, 3},
		{"a GPU was disturbed", func() {
			report.Faults = []nvml.Fault{{Device: "00000000:18:00.0", Field: nvml.FieldMIG, Message: "Invalid Argument"}}
			check.Must(t, os.RemoveAll(root))
			expandInto(t, "8xh100-sxm", root)
		}, 4},
		{"it is not any more", func() { report.Faults = nil }, 5},
		{"no change since", func() {}, 5},
		{"something else is not known", func() {
			report.Faults = []nvml.Fault{{Device: "00000000:18:00.0", Field: "serial", Message: "Unknown Error"}}
			check.Must(t, os.RemoveAll(root))
			expandInto(t, "2xa100-2xn6000", root)
		}, 6},
		{"it stays unknown", func() {}, 7},
		{"a GPU is on its way into its fabric", func() {
			report.Faults, report.Devices[0].Fabric = nil, &nvml.Fabric{State: nvml.FabricInProgress}
		}, 8},
		{"it has arrived", func() { report.Devices[0].Fabric = &nvml.Fabric{State: nvml.FabricCompleted} }, 9},
		{"it stays there", func() {}, 9},
		{"nothing is known of another machine", func() {
			report.Faults = []nvml.Fault{{Device: "00000000:18:00.0", Field: "serial", Message: "Unknown Error"}}
			check.Must(t, os.RemoveAll(root))
			expandInto(t, "8xh100-sxm", root)
		}, 10},
		{"it sees no GPU, and says no more", func() { report.Faults, report.Devices = nil, nil }, 11},
		{"it still sees none", func() {}, 12},
	}
	for _, step := range steps {
		step.before()
		s.mustSee(t)
		if asked != step.want {
			t.Errorf("%s: asked %d times, want %d", step.name, asked, step.want)
		}
	}
}

// TestNVMLFails: GPUs of which the library told that they are not in MIG mode stay whole while it does not answer. Others may be in it.
func TestNVMLFails(t *testing.T) {
	s := newScanner(t, expand(t, "2xa100-2xn6000"))
	var report nvml.Report
	for i, gpu := range s.mustSee(t).Published(device.KindGPU) {
		if address := gpu.Attributes[device.AttributePCIAddress].StringValue; *gpu.Attributes[device.AttributeVendor].StringValue == "nvidia" {
			report.Devices = append(report.Devices, nvml.Device{PCIBusID: "0000" + *address})
			if i == 0 {
				report.Faults = []nvml.Fault{{Device: report.Devices[0].PCIBusID, Field: "memoryBytes", Message: "unknown error"}}
			}
		}
	}
	answer := errors.New("driver not ready")
	s.Query = func(context.Context) (nvml.Report, error) { return report, answer }
	published := func() int { return len(s.mustSee(t).Published(device.KindGPU)) }
	if got := published(); got != 0 {
		t.Errorf("%d GPUs are published before the library answered, want none", got)
	}
	answer = nil
	if got, want := published(), len(report.Devices); got != want || want < 2 {
		t.Errorf("%d GPUs are published with its answer, want %d", got, want)
	}
	s.report, s.queried, answer = nil, nil, errors.New("driver not ready")
	if got, want := published(), len(report.Devices)-1; got != want {
		t.Errorf("%d GPUs are published while it fails, want the %d that answered everything", got, want)
	}
}

func TestRunLooksAtTheInterval(t *testing.T) {
	root := expand(t, "empty")
	s := newScanner(t, root)
	s.File.DiscoveryInterval.Duration = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx, nil); close(ended) }()
	for v, changed := s.Holder.Get(); v == nil; v, changed = s.Holder.Get() {
		receive(t, changed)
	}
	_, changed := s.Holder.Get()
	check.Must(t, os.MkdirAll(filepath.Join(root, "mnt", "disks", "ssd0"), 0o755))
	receive(t, changed)
	cancel()
	receive(t, ended)
}

// TestRecoveringIsWithheld: a device whose last claim was left halfway is not published before that is undone.
func TestRecoveringIsWithheld(t *testing.T) {
	s := newScanner(t, expand(t, "8xh100-sxm"))
	all := s.mustSee(t)
	first := all.Devices[0]
	s.Recovering = func() map[[2]string]string {
		return map[[2]string]string{{device.PoolName(testNode, first.Kind), first.Name}: "u1"}
	}
	if got, want := len(s.mustSee(t).Published(first.Kind)), len(all.Published(first.Kind))-1; got != want {
		t.Errorf("%d devices are published, want %d", got, want)
	}
	s.Recovering = func() map[[2]string]string { return nil }
	if got, want := len(s.mustSee(t).Published(first.Kind)), len(all.Published(first.Kind)); got != want {
		t.Errorf("%d devices are published after the recovery, want %d", got, want)
	}
}

// TestDeletedHolder: a device that looks free because its claim was deleted is marked, and the node's problems name the claim.
func TestDeletedHolder(t *testing.T) {
	s := newScanner(t, expand(t, "8xh100-sxm"))
	s.Holder.SetHealth(Health{TaintsKept: true})
	before := s.mustSee(t)
	name := before.Devices[3].Name
	held := map[[2]string]*record.Record{
		{testNode + "/gpu", name}: {Namespace: "b", Name: "hold", UID: "u1"}, {testNode + "/host", name}: {}, {testNode + "/gpu", "left"}: {},
	}
	s.HeldByDeleted = func() map[[2]string]*record.Record { return held }
	v := s.mustSee(t)
	if len(v.HeldByDeleted) != 1 || !v.HeldByDeleted[name] || len(v.Withheld) > 0 {
		t.Errorf("marked %v, withheld %v", v.HeldByDeleted, v.Withheld)
	}
	problem := v.Problems[len(v.Problems)-1]
	if problem.Subject != name || problem.Reason != "ClaimDeleted" || !strings.Contains(problem.Message, "claim b/hold (UID u1)") {
		t.Errorf("problem %+v", problem)
	}
	held = nil
	if v := s.mustSee(t); !reflect.DeepEqual(v, before) {
		t.Errorf("afterwards %+v, before %+v", v, before)
	}
}

// TestScanAgain: a scan that was under way when somebody asked is not the one that was asked for, and one that fails is none.
func TestScanAgain(t *testing.T) {
	root := expand(t, "8xh100-sxm")
	s := newScanner(t, root)
	asked := func() <-chan error {
		t.Helper()
		answer := make(chan error, 1)
		go func() { answer <- s.Again(t.Context()) }()
		<-s.Rescan
		return answer
	}
	waits := func(answer <-chan error) {
		t.Helper()
		select {
		case err := <-answer:
			t.Fatalf("it did not wait: %v", err)
		case <-s.Rescan: // asked for again, since no scan counted
		}
	}
	underWay := s.begin()
	answer := asked()
	s.end(underWay)
	waits(answer)
	s.Scan(t.Context())
	check.Must(t, <-answer)

	answer = asked()
	hidden := root + "-hidden"
	check.Must(t, os.Rename(root, hidden))
	s.Scan(t.Context())
	check.Must(t, os.Rename(hidden, root))
	s.Scan(t.Context())
	check.Must(t, <-answer)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Again(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
