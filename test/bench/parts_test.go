// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/lone"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"-short", "-check", "-plugin", "x"}, os.Stderr)
	check.Must(t, err)
	if !o.check || o.plugin != "x" || o.form.top() != 1000 {
		t.Errorf("options %+v", o)
	}
	var refusal strings.Builder
	if _, err := parse([]string{"short"}, &refusal); err == nil {
		t.Error("an argument that is no flag was ignored")
	}
}

// TestForms checks what the rest relies on: a burst of all claims fits the machine.
func TestForms(t *testing.T) {
	for name, f := range map[string]form{"full": full(), "short": short()} {
		if !slices.IsSorted(f.levels) || f.levels[0] != 0 || f.parallel[0] != 1 {
			t.Errorf("%s: levels %v, parallel %v", name, f.levels, f.parallel)
		}
		for _, n := range f.parallel {
			if f.width()%n != 0 {
				t.Errorf("%s: %d claims do not make whole bursts of %d", name, f.width(), n)
			}
		}
		if free := f.gpuMachine().gpus - f.shared(); free < wide*f.width() {
			t.Errorf("%s: %d GPUs for %d claims of %d", name, free, f.width(), wide)
		}
		if !slices.Contains(f.levels, targetAnonHeld) {
			t.Errorf("%s: no level for the target of memory", name)
		}
	}
	if got := full().passesOf(64, 64); got != 8 {
		t.Errorf("%d rounds of 64 at once", got)
	}
	if got := full().passesOf(16, 64); got != 3 {
		t.Errorf("%d passes of 16 at once", got)
	}
}

// TestMachines discovers the machines: each device must be whole.
func TestMachines(t *testing.T) {
	config := []discover.HostDevice{{Name: "disk", Directories: []string{"/mnt/disks/*"}}}
	if !strings.Contains(configuration, config[0].Name) || !strings.Contains(configuration, config[0].Directories[0]) {
		t.Fatalf("the plugin is configured otherwise:\n%s", configuration)
	}
	f := form{levels: []int{0}, parallel: []int{1, 18}}
	for _, m := range []machine{f.gpuMachine(), f.diskMachine(), {name: "nothing"}} {
		dir := filepath.Join(t.TempDir(), m.name)
		check.Must(t, m.expand(dir))
		tree, err := sysfs.Open(dir)
		check.Must(t, err)
		defer tree.Close()
		found := discover.Discover(t.Context(), tree, discover.Options{HostDevices: config})
		if len(found.Devices) != m.devices() || len(found.Problems) > 0 {
			t.Errorf("%s: %d devices, want %d; problems %v", m.name, len(found.Devices), m.devices(), found.Problems)
		}
	}
}

// shareID is the form that the API wants.
var shareID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func TestShapes(t *testing.T) {
	devices := []string{"d0", "d1", "d2", "d3", "d4"}
	names := func(shapes []shape) (all [][]string) {
		for _, s := range shapes {
			all = append(all, s.devices)
		}
		return all
	}
	if diff := cmp.Diff([][]string{{"d0", "d1"}, {"d2", "d3"}}, names(cut("gpu", group{devices: 2}, "n", devices, 9))); diff != "" {
		t.Errorf("claims of two devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{"d0"}, {"d1"}}, names(cut("gpu", group{devices: 1}, "n", devices, 2))); diff != "" {
		t.Errorf("two claims of one device (-want +got):\n%s", diff)
	}
	ids := map[string]bool{}
	for _, s := range shares("n", "n", devices, 7) {
		status, err := s.status()
		check.Must(t, err)
		id := status.Allocation.Devices.Results[0].ShareID
		if id == nil || !shareID.MatchString(string(*id)) || ids[string(*id)] {
			t.Fatalf("%s: share %v", s.name, id)
		}
		ids[string(*id)] = true
	}
	for what, configs := range map[string]int{casePlain: 0, caseEffect: 1, caseOwn: 3} {
		status, err := shape{name: "c", node: "n", pool: "host", devices: devices[:2], what: what}.status()
		check.Must(t, err)
		if got := len(status.Allocation.Devices.Config); got != configs {
			t.Errorf("%s: %d configurations, want %d", what, got, configs)
		}
	}
}

func TestPools(t *testing.T) {
	slice := func(pool string, generation, count int64, devices ...string) resourceapi.ResourceSlice {
		s := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count},
		}}
		for _, name := range devices {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: name})
		}
		return s
	}
	fpga, host := slice("n/fpga", 1, 1), slice("n/host", 1, 1)
	for _, tt := range []struct {
		name   string
		slices []resourceapi.ResourceSlice
		gpus   []string
		whole  bool
	}{
		{"none", nil, nil, false},
		{"half a pool", []resourceapi.ResourceSlice{fpga, host, slice("n/gpu", 1, 2, "b")}, []string{"b"}, false},
		{
			"whole",
			[]resourceapi.ResourceSlice{fpga, host, slice("n/gpu", 1, 2, "b"), slice("n/gpu", 1, 2, "a")},
			[]string{"a", "b"},
			true,
		},
		{
			"older generation",
			[]resourceapi.ResourceSlice{fpga, slice("n/gpu", 1, 1, "old"), host, slice("n/gpu", 2, 1, "a")},
			[]string{"a"},
			true,
		},
	} {
		found, whole := poolsOf(tt.slices)
		if diff := cmp.Diff(tt.gpus, found.of("gpu")); diff != "" || whole != tt.whole {
			t.Errorf("%s: whole %t (-want +got):\n%s", tt.name, whole, diff)
		}
	}
}

func TestMemory(t *testing.T) {
	got, err := parseMemory("Name:\tx\nVmHWM:\t  4096 kB\nVmRSS:\t    2048 kB\nRssAnon:\t  512 kB\nThreads:\t7\n")
	check.Must(t, err)
	if want := (memory{resident: 2, anon: 0.5, peak: 4}); got != want {
		t.Errorf("memory %+v, want %+v", got, want)
	}
	if _, err := parseMemory("VmHWM:\t4096 kB\nVmRSS:\t2048 kB\n"); err == nil || !strings.Contains(err.Error(), "RssAnon") {
		t.Errorf("without RssAnon: %v", err)
	}
	if _, err := readMemory(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestFloor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "floor")
	f, err := newFloor(dir)
	check.Must(t, err)
	name, took, err := f.create()
	check.Must(t, err)
	if info, err := os.Stat(name); err != nil || info.Size() != recordSize || took <= 0 {
		t.Errorf("created %v, %v in %s", info, err, took)
	}
	for range 2 {
		_, err = f.add()
		check.Must(t, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "log")); err != nil || info.Size() != 2*lineSize {
		t.Errorf("the log is %v, %v", info, err)
	}
	_, err = f.remove(name)
	check.Must(t, err)
	check.Must(t, f.close())
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestCheckDisk(t *testing.T) {
	dir := memoryDir()
	if dir == os.TempDir() {
		t.Skip("there is no file system in memory here")
	}
	if err := checkDisk(dir); err == nil || !strings.Contains(err.Error(), "-state-dir") {
		t.Errorf("a file system in memory: %v", err)
	}
}

func TestTogether(t *testing.T) {
	claims := make([]claim, 8)
	for i := range claims {
		claims[i].Claim = &drapb.Claim{}
	}
	// Each waits for all others: who runs them one after another never ends.
	arrived, all := make(chan struct{}, len(claims)), make(chan struct{})
	go func() {
		for range claims {
			<-arrived
		}
		close(all)
	}()
	each, wall, err := together(t.Context(), claims, func(ctx context.Context, _ claim) (time.Duration, error) {
		arrived <- struct{}{}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-all:
			return time.Microsecond, nil
		}
	})
	if err != nil || len(each) != len(claims) || wall <= 0 {
		t.Errorf("%v, %s, %v", each, wall, err)
	}
	failing := errors.New("no")
	fail := func(context.Context, claim) (time.Duration, error) { return 0, failing }
	if _, _, err := together(t.Context(), claims, fail); !errors.Is(err, failing) {
		t.Errorf("error %v", err)
	}
}

func TestPasses(t *testing.T) {
	node := node{lone.Node{Fast: t.TempDir()}}
	check.Must(t, os.Mkdir(node.CDI(), 0o700))
	c := cell{point: point{Parallel: 1}, plugin: &plugin{node: node}, claims: make([]claim, 40)}
	count := func(f form) (n int) {
		w := &stopwatch{form: f}
		check.Must(t, w.passes(t.Context(), c, func(int, int) (int, error) { n++; return 1, nil }))
		return n
	}
	if got := count(form{passes: 3, limit: time.Hour}); got != 120 {
		t.Errorf("%d calls in three passes over 40 claims", got)
	}
	if got := count(form{passes: 3}); got != leastSamples {
		t.Errorf("%d calls when there is no time, want %d", got, leastSamples)
	}
}
