// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// ward is a node whose health is kept, without an API server.
type ward struct {
	*Monitor
	t    *testing.T
	root string

	mu     sync.Mutex
	holder map[string]bool
	events []string
}

// newWard keeps the health of a machine's devices, all of which taints would mark.
func newWard(t *testing.T, machine string, change func(*Config)) *ward {
	t.Helper()
	w := &ward{t: t, root: nodefixture.Expand(t, machine), holder: map[string]bool{}}
	file := nodeconfig.File{HostDevices: nodefixture.LocalSSD()}.WithDefaults()
	config := &Config{
		Node: nodefixture.Node, HostRoot: w.root, StateDir: filepath.Join(t.TempDir(), "state"), BootID: "boot-1", File: &file,
		Holder: inventory.NewHolder(), Retirement: retirement.New(),
	}
	config.observed()
	config.File.Health.Interval.Duration = 50 * time.Millisecond // how often something is done: it limits nothing
	if change != nil {
		change(config)
	}
	config.Held = func(_, name string) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.holder[name]
	}
	config.HeldBy = func(string, string, string) bool { return true }
	config.Event = func(_, kind, reason, note string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, kind+" "+reason+" "+note)
	}
	w.Monitor = New(*config)
	if w.watcher != nil {
		w.watcher.Command.State = []string{os.TempDir()} // of the program in NVIDIA's place
	}
	w.poller.Patience = time.Minute // however busy the machine is
	check.Must(t, w.ledger.SetTaintsKept(true))
	w.Holder.Set(w.look())
	return w
}

// observed gives a configuration metrics of its own.
func (c *Config) observed() {
	c.Registry = prometheus.NewRegistry()
	c.Errors = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"source"})
}

// again is the monitor of the next process, in a boot.
func (w *ward) again(bootID string, holder *inventory.Holder) *Monitor {
	config := w.Config
	config.observed()
	config.BootID, config.Holder, config.Retirement = bootID, holder, retirement.New()
	return New(config)
}

// look is what discovery finds on the machine.
func (w *ward) look() *inventory.Snapshot {
	w.t.Helper()
	tree, err := sysfs.Open(w.root)
	check.Must(w.t, err)
	defer tree.Close()
	found := discover.Discover(w.t.Context(), tree, discover.Options{})
	return &inventory.Snapshot{Devices: found.Devices, Problems: found.Problems, Withheld: map[string]string{}}
}

// start runs all parts but the one that asks the API server.
func (w *ward) start() (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var parts sync.WaitGroup
	for _, part := range []func(context.Context){w.maintain, w.poll, w.watchNVML} {
		parts.Go(func() { part(ctx) })
	}
	stop = func() {
		cancel()
		parts.Wait()
	}
	w.t.Cleanup(stop)
	return stop
}

// until waits for a view.
func (w *ward) until(what string, is func(*inventory.Snapshot) bool) *inventory.Snapshot {
	w.t.Helper()
	deadline := time.After(check.Patience)
	for {
		v, changed := w.Holder.Get()
		if v != nil && is(v) {
			return v
		}
		select {
		case <-changed:
		case <-deadline:
			w.t.Fatalf("%s never happened; health is %+v", what, v.Health)
		}
	}
}

func is(name string, state health.State, reason string) func(*inventory.Snapshot) bool {
	return func(v *inventory.Snapshot) bool {
		s, bad := v.Health.Statuses[name]
		return bad && s.State == state && s.Reason == reason || !bad && state == health.Healthy
	}
}

// write changes a file of a PCI function.
func (w *ward) write(d device.Device, name, text string) {
	w.t.Helper()
	path := filepath.Join(w.root, "sys", "bus", "pci", "devices", device.StringOf(d.Attributes[device.AttributePCIAddress]), name)
	check.Must(w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	check.Must(w.t, os.WriteFile(path+".new", []byte(text), 0o644))
	check.Must(w.t, os.Rename(path+".new", path))
}

// TestCountersOfTheKernel: a counter that grows taints its device alone, and one that begins anew takes the taint away, without a
// restart.
func TestCountersOfTheKernel(t *testing.T) {
	w := newWard(t, "8xmi300x", nil)
	v, _ := w.Holder.Get()
	first, second := v.Devices[0], v.Devices[1]
	w.write(first, "ras/umc_err_count", "ue: 3\nce: 1\n")
	w.write(second, "aer_dev_nonfatal", "CmpltTO 1\nUnsupReq 4\nTOTAL_ERR_NONFATAL 5\n")
	w.start()
	w.counted("ras/umc.ue", first.Name, 3)
	w.counted("aer/nonfatal.CmpltTO", second.Name, 1)
	w.write(first, "ras/umc_err_count", "ue: 4\nce: 9\n")
	v = w.until("an uncorrectable error", is(first.Name, health.Unhealthy, "RasUmcUe"))
	if len(v.Health.Statuses) != 1 || len(v.Withheld) != 0 {
		t.Errorf("health %+v, withheld %v", v.Health.Statuses, v.Withheld)
	}
	w.write(second, "aer_dev_nonfatal", "CmpltTO 1\nUnsupReq 9\nTOTAL_ERR_NONFATAL 10\n")
	w.write(second, "aer_dev_nonfatal", "CmpltTO 2\nUnsupReq 9\nTOTAL_ERR_NONFATAL 11\n")
	w.until("an uncorrectable bus error", is(second.Name, health.Worn, "AerNonfatalCmpltTO"))
	w.write(first, "ras/umc_err_count", "ue: 0\nce: 0\n")
	w.until("a reset", is(first.Name, health.Healthy, ""))
	_, err := w.ledger.Recover(second.Name)
	check.Must(t, err)
	w.until("forgiveness", is(second.Name, health.Healthy, ""))
	w.wantEvents([]string{"Warning DeviceUnhealthy", "Warning DeviceDegraded", "Normal DeviceHealthy", "Normal DeviceHealthy"})
}

// wantEvents waits until Events of these types and reasons were made, and no others.
func (w *ward) wantEvents(want []string) {
	w.t.Helper()
	check.Eventually(w.t, fmt.Sprintf("the Events are %v", want), func() bool {
		var got []string
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.events {
			got = append(got, strings.Join(strings.SplitN(e, " ", 3)[:2], " "))
		}
		return cmp.Equal(want, got)
	})
}

// counted waits until a baseline is on disk.
func (w *ward) counted(counter, name string, want uint64) {
	w.t.Helper()
	w.onDisk(fmt.Sprintf("%s of %s as %d", counter, name, want), func(devices map[string]entryOnDisk) bool {
		return devices[name].Counters[counter] == want
	})
}

// known waits until a device is in the ledger.
func (w *ward) known(name string) {
	w.t.Helper()
	w.onDisk(name, func(devices map[string]entryOnDisk) bool { return devices[name].Kind != "" })
}

type entryOnDisk struct {
	Kind     string
	Counters map[string]uint64
}

func (w *ward) onDisk(what string, is func(map[string]entryOnDisk) bool) {
	w.t.Helper()
	check.Eventually(w.t, what+" is on disk", func() bool {
		var file struct{ Devices map[string]entryOnDisk }
		data, err := os.ReadFile(filepath.Join(w.StateDir, "health.json"))
		check.Must(w.t, err)
		check.Must(w.t, json.Unmarshal(data, &file))
		return is(file.Devices)
	})
}

// TestUnreadableCounters make a device's health unknown and hurt nothing else.
func TestUnreadableCounters(t *testing.T) {
	w := newWard(t, "8xmi300x", nil)
	v, _ := w.Holder.Get()
	first := v.Devices[0]
	w.write(first, "aer_dev_fatal", "garbage\x00")
	polled := w.poller.Poll(w.targets(""))
	if polled[0].Err == nil || polled[1].Err != nil {
		t.Fatalf("polled %+v", polled)
	}
	past := time.Now().Add(-time.Hour)
	w.sources.expect(sourceSysfs, time.Minute, past, first.Name, v.Devices[1].Name)
	w.pollOnce(t.Context(), w.targets(""))
	w.Refresh()
	v, _ = w.Holder.Get()
	if len(v.Health.Unknown) != 1 || !strings.Contains(v.Health.Unknown[first.Name], "aer_dev_fatal") || len(v.Withheld) != 0 {
		t.Errorf("silent %v, withheld %v", v.Health.Unknown, v.Withheld)
	}
	if got := testutil.ToFloat64(w.metrics.unknown); got != 1 {
		t.Errorf("%v unknown devices are counted", got)
	}
	w.write(first, "aer_dev_fatal", "DLP 0\n")
	w.pollOnce(t.Context(), w.targets(""))
	w.Refresh()
	if v, _ := w.Holder.Get(); len(v.Health.Unknown) != 0 {
		t.Errorf("silent %v after it could be read", v.Health.Unknown)
	}
}

// TestGoneWhileHeld: a device that a claim holds and that left the view is unhealthy until it is back.
func TestGoneWhileHeld(t *testing.T) {
	w := newWard(t, "8xmi300x", nil)
	all := w.look()
	held, free := all.Devices[0].Name, all.Devices[1].Name
	w.holder[held] = true
	w.start()
	w.known(held)
	some := *all
	some.Devices = all.Devices[2:]
	w.Holder.Set(&some)
	v := w.until("news of the device that left", is(held, health.Unhealthy, "DiscoveryGone"))
	if _, bad := v.Health.Statuses[free]; bad || len(v.Withheld) != 0 {
		t.Errorf("health %+v, withheld %v", v.Health.Statuses, v.Withheld)
	}
	w.Holder.Set(all)
	w.until("its return", is(held, health.Healthy, ""))
}

// nvmlChild is a fettle-nvml of which the test writes what it prints.
type nvmlChild struct {
	t    *testing.T
	pipe string
	file *os.File
}

func newChild(t *testing.T) *nvmlChild {
	t.Helper()
	c := &nvmlChild{t: t, pipe: filepath.Join(t.TempDir(), "pipe")}
	check.Must(t, unix.Mkfifo(c.pipe, 0o600))
	t.Cleanup(func() {
		if c.file != nil {
			c.dies() // and until then it is held: a pipe that garbage collection closed before a child opened it would be empty
		}
	})
	return c
}

// command is a program that prints what is written into the pipe, and ends with the pipe.
func (c *nvmlChild) command() string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "fettle-nvml")
	check.Must(c.t, os.WriteFile(path, []byte("#!/bin/sh\nexec cat "+c.pipe+"\n"), 0o700))
	return path
}

// says prints a message, in the child that runs now or in the next.
func (c *nvmlChild) says(m nvml.Message) {
	c.t.Helper()
	if c.file == nil {
		file, err := os.OpenFile(c.pipe, os.O_RDWR, 0) // for reading too, so that opening does not wait
		check.Must(c.t, err)
		c.file = file
	}
	check.Must(c.t, json.NewEncoder(c.file).Encode(m))
}

// dies ends the child.
func (c *nvmlChild) dies() {
	c.t.Helper()
	check.Must(c.t, c.file.Close())
	c.file = nil
}

func withChild(c *nvmlChild) func(*Config) {
	return func(config *Config) {
		config.NVMLCommand = c.command()
	}
}

func stateOf(devices []device.Device, change func(i int, s *nvml.DeviceState)) nvml.Message {
	s := &nvml.State{Devices: []nvml.DeviceState{}}
	for i, d := range devices {
		one := nvml.DeviceState{PCIBusID: "0000" + device.StringOf(d.Attributes[device.AttributePCIAddress]), RecoveryAction: nvml.RecoveryNone}
		if change != nil {
			change(i, &one)
		}
		s.Devices = append(s.Devices, one)
	}
	return nvml.Message{State: s}
}

func xidOf(d device.Device, xid uint64) nvml.Message {
	return nvml.Message{Event: &nvml.Event{PCIBusID: "0000" + device.StringOf(d.Attributes[device.AttributePCIAddress]), Xid: xid}}
}

// TestXid: what the child says reaches the view, also of a child that was started after a crash.
func TestXid(t *testing.T) {
	child := newChild(t)
	w := newWard(t, "8xh100-sxm", withChild(child))
	w.watcher.FirstPause = time.Millisecond
	v, _ := w.Holder.Get()
	gpus := v.Devices
	w.start()
	child.says(stateOf(gpus, nil))
	child.says(xidOf(gpus[0], 13))
	child.says(xidOf(gpus[1], 94))
	child.says(xidOf(gpus[2], 95))
	child.says(nvml.Message{Event: &nvml.Event{Xid: 79}})
	child.says(nvml.Message{Event: &nvml.Event{PCIBusID: "00000000:FF:00.0", Xid: 79}})
	child.says(stateOf(gpus, func(i int, s *nvml.DeviceState) {
		if i == 2 {
			s.RecoveryAction = "gpu-reset"
		}
	}))
	v = w.until("an uncontained error", is(gpus[2].Name, health.Unhealthy, "Xid95"))
	if !is(gpus[1].Name, health.Worn, "Xid94")(v) || len(v.Health.Statuses) != 2 {
		t.Errorf("health %+v", v.Health.Statuses)
	}
	if got := testutil.ToFloat64(w.metrics.events.WithLabelValues("xid", "13", "ignored")); got != 1 {
		t.Errorf("the ignored Xid is counted %v times", got)
	}
	child.dies()
	check.Eventually(t, "the child is started again", func() bool { return testutil.ToFloat64(w.metrics.restarts) > 0 })
	child.says(stateOf(gpus, nil))
	w.until("the reset GPU's recovery", is(gpus[2].Name, health.Healthy, ""))
	child.says(xidOf(gpus[3], 79))
	w.until("an Xid after the crash", is(gpus[3].Name, health.Unhealthy, "Xid79"))
}

// TestSilentChild: a child that hangs makes the health of its GPUs unknown; nothing is withheld, bad news stays, and when a child
// speaks again all is as before.
func TestSilentChild(t *testing.T) {
	child := newChild(t)
	w := newWard(t, "8xh100-sxm", withChild(child))
	w.watcher.FirstPause = time.Millisecond
	v, _ := w.Holder.Get()
	gpus := v.Devices
	w.start()
	child.says(xidOf(gpus[0], 79))
	w.until("an Xid", is(gpus[0].Name, health.Unhealthy, "Xid79"))
	// The limits are for kubelet's time; the test has less.
	w.sources.expect(health.SourceNVML, 0, time.Now().Add(-time.Hour))
	// fragile: the source is silent, so that no limit is too short
	w.sources.expect(health.SourceNVML, time.Millisecond, time.Now().Add(-time.Hour), names(gpus)...)
	v = w.until("silence", func(v *inventory.Snapshot) bool { return len(v.Health.Unknown) == len(gpus) })
	if len(v.Withheld) != 0 || len(v.Health.Statuses) != 1 {
		t.Errorf("withheld %v, health %+v", v.Withheld, v.Health.Statuses)
	}
	reported := map[string]int{}
	now := time.Now()
	for _, d := range healthReport(nodefixture.Node, v, w.sources.overdue(now), map[kubeletplugin.DeviceHealth]bool{}, now).Devices {
		reported[string(d.Health)]++
	}
	if want := map[string]int{"Unhealthy": 1, "Unknown": 7}; !cmp.Equal(want, reported) {
		t.Errorf("reported %v, want %v", reported, want)
	}
	child.says(stateOf(gpus, nil))
	w.until("a heartbeat", func(v *inventory.Snapshot) bool { return len(v.Health.Unknown) == 0 })
}

func names(devices []device.Device) []string {
	out := make([]string, 0, len(devices))
	for i := range devices {
		out = append(out, devices[i].Name)
	}
	return out
}

// TestNoLibrary: where NVIDIA's library is missing nobody waits for it.
func TestNoLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fettle-nvml")
	check.Must(t, os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\nexit %d\n", nvml.ExitNoLibrary), 0o700))
	w := newWard(t, "8xh100-sxm", func(c *Config) { c.NVMLCommand = path })
	w.watcher.FirstPause = time.Millisecond
	w.start()
	check.Eventually(t, "the child is started again", func() bool { return testutil.ToFloat64(w.metrics.restarts) >= 2 })
	for key := range w.sources.overdue(time.Now().Add(time.Hour)) {
		if !strings.Contains(w.sources.overdue(time.Now().Add(time.Hour))[key], sourceSysfs) {
			t.Errorf("%s is waited for: %v", key, w.sources.overdue(time.Now().Add(time.Hour)))
		}
	}
}

// TestNVMLOff: nothing is started where the library is switched off, or where no GPU is NVIDIA's.
func TestNVMLOff(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no command": func(c *Config) { c.NVMLCommand = "" },
		"disabled":   func(c *Config) { c.NVMLCommand, c.File.NVML.Disabled = "/nowhere", true },
		"source off": func(c *Config) { c.NVMLCommand, c.File.Health.DisabledSources = "/nowhere", []string{"nvml"} },
	} {
		if w := newWard(t, "empty", change); w.watcher != nil {
			t.Errorf("%s: a watcher is there", name)
		}
	}
	w := newWard(t, "8xmi300x", func(c *Config) { c.NVMLCommand = "/nowhere" })
	w.watcher.FirstPause = time.Millisecond
	stop := w.start()
	v, _ := w.Holder.Get()
	w.known(v.Devices[0].Name)
	stop()
	if got := testutil.ToFloat64(w.metrics.restarts); got != 0 {
		t.Errorf("a child was started %v times without an NVIDIA GPU", got)
	}
}

// TestRetiredIsLetGo: a retired node's GPUs are not watched, so that they can be reset, and its files stay away.
func TestRetiredIsLetGo(t *testing.T) {
	child := newChild(t)
	w := newWard(t, "8xh100-sxm", withChild(child))
	w.watcher.FirstPause = time.Millisecond
	v, _ := w.Holder.Get()
	w.start()
	child.says(xidOf(v.Devices[0], 79))
	w.until("an Xid", is(v.Devices[0].Name, health.Unhealthy, "Xid79"))
	w.Retirement.Set(v1alpha1.RetireByAdmin)
	check.Eventually(t, "the devices of a retired node are not watched", func() bool {
		return len(w.sources.overdue(time.Now().Add(time.Hour))) == 0
	})
	check.Must(t, w.ledger.Destroy())
	w.Refresh()
	check.Must(t, w.ledger.SetTaintsKept(true))
	if left, err := os.ReadDir(w.StateDir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	w.Retirement.Set("")
	child.says(xidOf(v.Devices[1], 79))
	w.until("an Xid after it was taken back", is(v.Devices[1].Name, health.Unhealthy, "Xid79"))
}

// TestBeforeTheFirstLook: what the ledger knew before the plugin started is known before the first look, so that a device in
// quarantine is not published for a moment.
func TestBeforeTheFirstLook(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	name := v.Devices[0].Name
	check.Must(t, w.ledger.Quarantine(device.KindGPU, name, health.Cause{Reason: "UndoFailed", Message: "undoing failed"}))
	check.Must(t, w.ledger.SetTaintsKept(false))
	again := w.again("boot-1", inventory.NewHolder())
	again.Holder.Set(w.look())
	v, _ = again.Holder.Get()
	if v.Withheld[name] != "undoing failed" || len(v.Withheld) != 1 {
		t.Errorf("withheld %v", v.Withheld)
	}
}

func TestMayPrepare(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	healthy, degraded, failed, quarantined := v.Devices[0].Name, v.Devices[1].Name, v.Devices[2].Name, v.Devices[3].Name
	check.Must(t, w.ledger.Happened(health.Xid(degraded, nvml.Event{Xid: 94}), health.Xid(failed, nvml.Event{Xid: 79})))
	check.Must(t, w.ledger.Quarantine(device.KindGPU, quarantined, health.Cause{Reason: "UndoFailed", Message: "undoing failed"}))
	tolerate := []resourceapi.DeviceToleration{{Key: inventory.TaintUnhealthy, Operator: resourceapi.DeviceTolerationOpExists}}
	tests := []struct {
		name, device string
		look         bool
		tolerations  []resourceapi.DeviceToleration
		want         string // part of the error; empty: may
	}{
		{"healthy", healthy, false, nil, ""},
		{"degraded", degraded, false, nil, ""},
		{"failed", failed, false, nil, "fell off the bus"},
		{"failed and tolerated", failed, false, tolerate, ""},
		{"failed and looked at", failed, true, nil, ""},
		{"failed, another taint is tolerated", failed, false, []resourceapi.DeviceToleration{{Key: "other", Operator: "Exists"}}, "fell off"},
		{
			"failed, another reason is tolerated", failed, false,
			[]resourceapi.DeviceToleration{{Key: inventory.TaintUnhealthy, Value: "Xid95"}},
			"fell off",
		},
		{"quarantined", quarantined, false, nil, "undoing failed"},
		{"quarantined and tolerated", quarantined, false, tolerate, "undoing failed"},
		{"quarantined and looked at", quarantined, true, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := nodefixture.Result("gpu", device.KindGPU, tt.device)
			r.Tolerations = tt.tolerations
			err := w.Check(nodefixture.Allocated("u1", nodefixture.Result("other", device.KindGPU, tt.device), r),
				&claim.Result{Request: "gpu", Pool: r.Pool, Device: tt.device, AdminAccess: tt.look})
			switch {
			case tt.want == "":
				check.Must(t, err)
			case !errors.Is(err, ErrUnhealthy) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.device):
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestForVirtualMachine: NVML does not see a GPU that a virtual machine has, so it is not waited for. The kernel still counts its errors.
func TestForVirtualMachine(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v := *w.look()
	given := v.Devices[0].Name
	v.ForVMs = map[string]bool{given: true}
	w.Holder.Set(&v)
	has := func(vendor string) bool {
		return slices.ContainsFunc(w.targets(vendor), func(t health.Target) bool { return t.Name == given })
	}
	if has("nvidia") || !has("") || len(w.targets("nvidia")) != 7 {
		t.Errorf("NVML must report it: %t, the kernel: %t; NVML reports %d GPUs, want 7", has("nvidia"), has(""), len(w.targets("nvidia")))
	}
	// While a GPU is about to leave its driver, no child may have it open. The library opens all.
	leaving := *w.look()
	leaving.Unbinding = map[string]bool{"nvidia": true}
	w.Holder.Set(&leaving)
	if has("nvidia") || len(w.targets("nvidia")) > 0 || !has("") {
		t.Errorf("NVML reports %d GPUs while one leaves its driver, want none; the kernel: %t", len(w.targets("nvidia")), has(""))
	}
}

// TestDaemonsOfBefore: what a daemon's supervisor said of a device holds as long as the node has one. Without, nobody would take it back.
func TestDaemonsOfBefore(t *testing.T) {
	w := newWard(t, "8xh100-iommu", func(c *Config) { c.File.Partitions.MPSSupervisor = "/run/fettle-mps" })
	const gpu = "nvidia-0000-18-00-0"
	w.ReportLevel(t.Context(), health.SourceMPS, health.MPSDaemon, gpu, "the daemon does not answer")
	ill := func(m *Monitor) bool {
		s, _ := m.ledger.Check(gpu)
		return s.State == health.Worn
	}
	if !ill(w.Monitor) || !ill(w.again("boot-1", inventory.NewHolder())) {
		t.Error("the device counts as healthy while its daemon hangs")
	}
	w.File.Partitions.MPSSupervisor = ""
	if ill(w.again("boot-2", inventory.NewHolder())) {
		t.Error("without a supervisor the device never recovers")
	}
}

// TestLibraryIsSwitchedOff: what NVIDIA's library said of a GPU ends when the library is not asked any more. What happened stays.
func TestLibraryIsSwitchedOff(t *testing.T) {
	const lost, fallen = "nvidia-0000-18-00-0", "nvidia-0000-2a-00-0"
	for name, off := range map[string]func(*Config){
		"disabled":   func(c *Config) { c.File.NVML.Disabled = true },
		"no command": func(c *Config) { c.NVMLCommand = "" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, "8xh100-iommu", func(c *Config) { c.NVMLCommand = "/nowhere" })
			w.ReportLevel(t.Context(), health.SourceNVML, "lost", lost, "the library does not find it")
			check.Must(t, w.ledger.Happened(health.Event{Device: fallen, Source: health.SourceXid, Code: "79"}))
			state := func(device string) health.State {
				s, _ := w.again("boot-1", inventory.NewHolder()).ledger.Check(device)
				return s.State
			}
			if got := state(lost); got != health.Unhealthy {
				t.Errorf("while the library is asked: %q", got)
			}
			off(&w.Config)
			if got := state(lost); got != "" {
				t.Errorf("without the library the GPU never recovers: %q", got)
			}
			if got := state(fallen); got != health.Unhealthy {
				t.Errorf("a GPU that fell off the bus: %q", got)
			}
		})
	}
}
