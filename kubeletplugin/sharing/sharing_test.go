// SPDX-License-Identifier: Apache-2.0

package sharing_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/sharing"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// machine has the devices of the tests by name.
func machine(t *testing.T) map[string]device.Device {
	t.Helper()
	all := map[string]device.Device{}
	add := func(name, vendor, kind, uuid, capability string, bus int) {
		d := device.Device{
			Kind: device.KindGPU, Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{device.CapacityMemory: device.Bytes(80 << 30)},
		}
		for key, value := range map[resourceapi.QualifiedName]string{
			device.AttributeVendor: vendor, device.AttributeType: kind, device.AttributePCIAddress: fmt.Sprintf("0000:%02x:00.0", bus),
			device.AttributeUUID: uuid,
		} {
			if value != "" {
				attribute, err := device.String(value)
				check.Must(t, err)
				d.Attributes[key] = attribute
			}
		}
		version, err := device.Version(capability)
		check.Must(t, err)
		d.Attributes[device.AttributeComputeCapability] = version
		all[name] = d
	}
	add("h100", "nvidia", "gpu", "GPU-00000000-0000-4000-8000-000000000001", "9.0", 1)
	add("other", "nvidia", "gpu", "GPU-00000000-0000-4000-8000-000000000002", "9.0", 2)
	add("p4", "nvidia", "gpu", "GPU-00000000-0000-4000-8000-000000000003", "6.1", 3)
	add("unread", "nvidia", "gpu", "", "9.0", 4)
	add("free", "nvidia", "gpu", "GPU-00000000-0000-4000-8000-000000000005", "9.0", 5)
	add("instance", "nvidia", device.TypeMIG, "MIG-00000000-0000-4000-8000-000000000006", "9.0", 1)
	add("second-instance", "nvidia", device.TypeMIG, "MIG-00000000-0000-4000-8000-000000000007", "9.0", 1)
	add("function", "nvidia", device.TypeVF, "GPU-00000000-0000-4000-8000-000000000008", "9.0", 8)
	add("mi300", "amd", "gpu", "x", "9.0", 9)
	return all
}

// feature allows everything on all devices but one.
func feature(t *testing.T, supervisor string) *sharing.Feature {
	t.Helper()
	f, err := sharing.New(sharing.Config{
		HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Enabled: supervisor != "off", Supervisor: supervisor,
		HostDriverRoot: "/", DriverRoot: "/",
		Library: nvml.NewProber(nvml.Command{Path: "/does/not/exist"}),
		Allowed: func(name string) ([]string, string) {
			if name == "free" {
				return nil, ""
			}
			return []string{"TimeSlicing", "MPS"}, ""
		},
	})
	check.Must(t, err)
	return f
}

func sliced(interval v1alpha1.TimeSliceInterval) claim.GPUEffective {
	return claim.GPUEffective{Strategy: v1alpha1.SharingTimeSlicing, Interval: interval}
}

func served(percentage int32, limit int64) claim.GPUEffective {
	return claim.GPUEffective{
		Strategy: v1alpha1.SharingMPS, MPS: &claim.MPSEffective{ActiveThreadPercentage: percentage, PinnedMemoryLimit: limit},
	}
}

// holding is one device of a claim with its configuration.
type holding struct {
	device string
	config claim.GPUEffective
}

func plan(t *testing.T, f *sharing.Feature, holdings ...holding) (prepare.Contribution, error) {
	t.Helper()
	devices := machine(t)
	r := prepare.Request{
		Claim: nodefixture.Allocated("uid-1"),
		Find:  func(r *claim.Result) (device.Device, bool) { d, ok := devices[r.Device]; return d, ok },
	}
	for i, h := range holdings {
		name := fmt.Sprint("r", i)
		r.Allocation.Results = append(r.Allocation.Results, claim.Result{
			Request: name, BaseRequest: name, Kind: device.KindGPU, Device: h.device, Config: claim.Effective{
				GPU: &h.config, Sources: map[string]claim.Source{claim.FieldStrategy: {Origin: claim.OriginClaim}},
			},
		})
	}
	return f.Plan(t.Context(), r)
}

// TestPlan: the steps of each strategy, and what containers get.
func TestPlan(t *testing.T) {
	for _, tc := range []struct {
		name     string
		holdings []holding
		steps    []string
		edited   int
	}{
		{"nothing chosen", []holding{{"h100", claim.GPUEffective{Strategy: v1alpha1.SharingExclusive}}, {"mi300", claim.GPUEffective{
			Strategy: v1alpha1.SharingExclusive,
		}}}, nil, 0},
		{"a long slice", []holding{{"h100", sliced(v1alpha1.IntervalLong)}}, []string{
			"gpu.compute-mode 0000:01:00.0 mode=Default", "gpu.time-slice 0000:01:00.0 interval=3",
		}, 0},
		{"MPS on two GPUs", []holding{{"other", served(50, 0)}, {"h100", served(50, 10<<30)}}, []string{
			"gpu.compute-mode 0000:02:00.0 mode=ExclusiveProcess", "gpu.compute-mode 0000:01:00.0 mode=ExclusiveProcess",
			"gpu.mps uid-1 devices=[GPU-00000000-0000-4000-8000-000000000001 GPU-00000000-0000-4000-8000-000000000002] " +
				"activeThreadPercentage=50 pinnedMemoryMiB=map[GPU-00000000-0000-4000-8000-000000000001:10240] memory=true",
		}, 2},
		{"MPS on an instance", []holding{{"instance", served(100, 0)}}, []string{
			"gpu.mps uid-1 devices=[MIG-00000000-0000-4000-8000-000000000006] activeThreadPercentage=100 memory=true",
		}, 1},
		{"one with MPS and one with slices", []holding{{"h100", served(100, 0)}, {"other", sliced(v1alpha1.IntervalDefault)}}, []string{
			"gpu.compute-mode 0000:02:00.0 mode=Default", "gpu.time-slice 0000:02:00.0 interval=0",
			"gpu.compute-mode 0000:01:00.0 mode=ExclusiveProcess",
			"gpu.mps uid-1 devices=[GPU-00000000-0000-4000-8000-000000000001] activeThreadPercentage=100 memory=true",
		}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := plan(t, feature(t, supervised(t, &supervisor{memory: true})), tc.holdings...)
			check.Must(t, err)
			if diff := cmp.Diff(tc.steps, texts(t, got)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if len(got.Edits) != tc.edited {
				t.Errorf("edits of %d requests, want %d: %+v", len(got.Edits), tc.edited, got.Edits)
			}
			for request, edits := range got.Edits {
				if len(edits.Own.Env) != 1 || !strings.HasPrefix(edits.Own.Env[0], mps.PipeDirectory+"=") || len(edits.Own.Mounts) != 1 ||
					!edits.Shared.Empty() {
					t.Errorf("request %s: %+v, want the variable and the directory of the claim's own", request, edits)
				}
				for _, m := range edits.Own.Mounts {
					if m.ContainerPath == "/dev/shm" {
						t.Errorf("request %s: %+v replaces /dev/shm", request, edits)
					}
				}
			}
		})
	}
}

// supervisor is one of a version that may know memory.
type supervisor struct {
	mps.Supervisor

	daemons []mps.Status
	memory  bool
}

func (s *supervisor) List() []mps.Status { return s.daemons }
func (s *supervisor) Memory() bool       { return s.memory }

// supervised has a supervisor answer, and returns the directory of its socket.
func supervised(t *testing.T, s *supervisor) string {
	t.Helper()
	dir := t.TempDir()
	listener, err := mps.Listen(t.Context(), filepath.Join(dir, mps.SocketName))
	check.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mps.Serve(ctx, listener, uint32(os.Getuid()), s) }()
	t.Cleanup(func() {
		cancel()
		check.Must(t, <-ended)
	})
	return dir
}

// TestDirectories: containers get the directory of the claim's own mount, but for a supervisor of an earlier version, and for a daemon that
// runs already without.
func TestDirectories(t *testing.T) {
	const plain, memory = "/run/fettle/mps/uid-1/pipe", "/run/fettle/mps-memory/uid-1/pipe"
	for name, tc := range map[string]struct {
		supervisor
		want string
	}{
		"a supervisor of this version":       {supervisor{memory: true}, memory},
		"a supervisor of an earlier version": {supervisor{}, plain},
		"a daemon runs":                      {supervisor{memory: true, daemons: []mps.Status{{ID: "uid-1", Memory: true}}}, memory},
		"a daemon runs without":              {supervisor{memory: true, daemons: []mps.Status{{ID: "uid-1"}}}, plain},
		"another's runs without":             {supervisor{memory: true, daemons: []mps.Status{{ID: "uid-2"}}}, memory},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := plan(t, feature(t, supervised(t, &tc.supervisor)), holding{"instance", served(100, 0)})
			check.Must(t, err)
			if at := got.Edits["r0"].Own.Mounts[0].HostPath; at != tc.want {
				t.Errorf("containers get %s, want %s", at, tc.want)
			}
			if text := texts(t, got)[0]; strings.Contains(text, "memory=true") != (tc.want == memory) {
				t.Errorf("the step is %s", text)
			}
		})
	}
	if _, err := plan(t, feature(t, t.TempDir()), holding{"instance", served(100, 0)}); !errors.Is(err, mps.ErrNoSupervisor) {
		t.Errorf("without a supervisor: %v", err)
	}
}

// texts writes steps with those parameters that matter.
func texts(t *testing.T, c prepare.Contribution) (out []string) {
	t.Helper()
	for _, s := range c.Steps {
		var params map[string]any
		check.Must(t, json.Unmarshal(s.Params, &params))
		text := s.Kind + " " + s.Target
		for _, key := range []string{"mode", "interval", "devices", "activeThreadPercentage", "pinnedMemoryMiB", "memory"} {
			if value, ok := params[key]; ok {
				text += fmt.Sprintf(" %s=%v", key, value)
			}
		}
		out = append(out, text)
	}
	return out
}

// TestRefused: what a GPU cannot have, or nobody allowed, with the next step.
func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		name, supervisor string
		holdings         []holding
		want             string
	}{
		{"another vendor", "x", []holding{{"mi300", sliced(v1alpha1.IntervalLong)}}, "only NVIDIA's GPUs have strategies"},
		{"not enabled", "off", []holding{{"h100", sliced(v1alpha1.IntervalLong)}}, "an administrator sets partitions.strategies"},
		{"no library", "x", []holding{{"unread", sliced(v1alpha1.IntervalLong)}}, "set nvidia.enabled"},
		{"no policy", "x", []holding{{"free", sliced(v1alpha1.IntervalLong)}}, "no PartitionPolicy allows TimeSlicing on it"},
		{"slices of an instance", "x", []holding{{"instance", sliced(v1alpha1.IntervalLong)}}, "time slices are set for a whole GPU"},
		{"no supervisor", "", []holding{{"h100", served(50, 0)}}, "an administrator sets mps.enabled"},
		{"a virtual function", "x", []holding{{"function", served(50, 0)}}, "MPS is for whole GPUs"},
		{"before Volta", "x", []holding{{"p4", served(50, 0)}}, "MPS needs compute capability 7.0 or later, and the GPU has 6.1.0"},
		{"more memory than there is", "x", []holding{{"h100", served(50, 90<<30)}}, "mps.pinnedMemoryLimit is 96636764160 bytes"},
		{"two percentages", "x", []holding{{"h100", served(50, 0)}, {"other", served(40, 0)}}, "request r0 has another activeThreadPercentage"},
		{"two instances", "x", []holding{{"instance", served(50, 0)}, {"second-instance", served(50, 0)}}, "ask for one instance in a claim"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := plan(t, feature(t, tc.supervisor), tc.holdings...)
			refused, ok := errors.AsType[*claim.RefusedError](err)
			if !ok || refused.Reason != claim.ReasonSharingUnsupported || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s: %s", err, claim.ReasonSharingUnsupported, tc.want)
			}
		})
	}
}

// TestLook: a look sets nothing.
func TestLook(t *testing.T) {
	config := sliced(v1alpha1.IntervalLong)
	share := types.UID("s")
	r := prepare.Request{
		Claim: nodefixture.Allocated("uid-1"), Find: func(*claim.Result) (device.Device, bool) { return machine(t)["h100"], true },
	}
	r.Allocation.Results = []claim.Result{{
		Request: "r", Kind: device.KindGPU, Device: "h100", AdminAccess: true, ShareID: &share, Config: claim.Effective{GPU: &config},
	}}
	if c, err := feature(t, "").Plan(t.Context(), r); err != nil || len(c.Steps) > 0 {
		t.Errorf("got %+v, %v", c, err)
	}
}
