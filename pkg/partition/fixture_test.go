// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/test/check"
)

// row is a profile as nvidia-smi mig -lgip and -lgipp print it: the memory in MiB, then multiprocessors, copy engines, decoders, JPEG and
// OFA engines.
type row struct {
	id             uint32
	name           string
	slices, size   uint32
	starts         []uint32
	memory         uint64
	sm, ce         uint32
	dec, jpeg, ofa uint32
}

// model is a GPU with its profiles (NVIDIA, MIG User Guide).
type model struct {
	name, architecture string
	memory             int64
	sm                 int64
	rows               []row
}

func starts(from, to, step uint32) []uint32 {
	var out []uint32
	for s := from; s <= to; s += step {
		out = append(out, s)
	}
	return out
}

func h100() model {
	return model{"NVIDIA H100 80GB HBM3", "Hopper", 81559 << 20, 132, []row{
		{19, "1g.10gb", 1, 1, starts(0, 6, 1), 9984, 16, 1, 1, 1, 0},
		{20, "1g.10gb+me", 1, 1, starts(0, 6, 1), 9984, 16, 1, 1, 1, 1},
		{15, "1g.20gb", 1, 2, starts(0, 6, 2), 20096, 26, 1, 1, 1, 0},
		{14, "2g.20gb", 2, 2, starts(0, 4, 2), 20096, 32, 2, 2, 2, 0},
		{9, "3g.40gb", 3, 4, starts(0, 4, 4), 40448, 60, 3, 3, 3, 0},
		{5, "4g.40gb", 4, 4, starts(0, 0, 1), 40448, 64, 4, 4, 4, 0},
		{0, "7g.80gb", 7, 8, starts(0, 0, 1), 81153, 132, 8, 7, 7, 1},
	}}
}

func h200() model {
	return model{"NVIDIA H200", "Hopper", 143771 << 20, 132, []row{
		{19, "1g.18gb", 1, 1, starts(0, 6, 1), 16384, 16, 1, 1, 1, 0},
		{20, "1g.18gb+me", 1, 1, starts(0, 6, 1), 16384, 16, 1, 1, 1, 1},
		{15, "1g.35gb", 1, 2, starts(0, 6, 2), 33280, 26, 1, 1, 1, 0},
		{14, "2g.35gb", 2, 2, starts(0, 4, 2), 33280, 32, 2, 2, 2, 0},
		{9, "3g.71gb", 3, 4, starts(0, 4, 4), 71296, 60, 3, 3, 3, 0},
		{5, "4g.71gb", 4, 4, starts(0, 0, 1), 71296, 64, 4, 4, 4, 0},
		{0, "7g.141gb", 7, 8, starts(0, 0, 1), 143360, 132, 8, 7, 7, 1},
	}}
}

func a100() model {
	return model{"NVIDIA A100-SXM4-40GB", "Ampere", 40960 << 20, 108, []row{
		{19, "1g.5gb", 1, 1, starts(0, 6, 1), 4864, 14, 1, 0, 0, 0},
		{20, "1g.5gb+me", 1, 1, starts(0, 6, 1), 4864, 14, 1, 1, 1, 1},
		{15, "1g.10gb", 1, 2, starts(0, 6, 2), 9856, 14, 1, 1, 0, 0},
		{14, "2g.10gb", 2, 2, starts(0, 4, 2), 9856, 28, 2, 1, 0, 0},
		{9, "3g.20gb", 3, 4, starts(0, 4, 4), 19968, 42, 3, 2, 0, 0},
		{5, "4g.20gb", 4, 4, starts(0, 0, 1), 19968, 56, 4, 2, 0, 0},
		{0, "7g.40gb", 7, 8, starts(0, 0, 1), 40192, 98, 7, 5, 1, 1},
	}}
}

func a30() model {
	return model{"NVIDIA A30", "Ampere", 24576 << 20, 56, []row{
		{14, "1g.6gb", 1, 1, starts(0, 3, 1), 5952, 14, 1, 0, 0, 0},
		{21, "1g.6gb+me", 1, 1, starts(0, 3, 1), 5952, 14, 1, 1, 1, 1},
		{5, "2g.12gb", 2, 2, starts(0, 2, 2), 11968, 28, 2, 2, 0, 0},
		{6, "2g.12gb+me", 2, 2, starts(0, 2, 2), 11968, 28, 2, 2, 1, 1},
		{0, "4g.24gb", 4, 4, starts(0, 0, 1), 24000, 56, 4, 4, 1, 1},
	}}
}

func models() []model { return []model{a30(), a100(), h100(), h200()} }

func (m model) mig(current bool) *nvml.MIG {
	out := &nvml.MIG{Current: current, Pending: current}
	for _, r := range m.rows {
		p := nvml.MIGProfile{
			ID: r.id, Name: r.name, Slices: r.slices, MemoryMB: r.memory, Multiprocessors: r.sm, CopyEngines: r.ce, Decoders: r.dec,
			JPEGEngines: r.jpeg, OFAEngines: r.ofa,
		}
		for _, start := range r.starts {
			p.Placements = append(p.Placements, nvml.MIGPlacement{Start: start, Size: r.size})
		}
		p.MaxInstances = uint32(len(r.starts))
		if r.ofa > 0 {
			p.MaxInstances = 1
		}
		out.Profiles = append(out.Profiles, p)
	}
	return out
}

func text(t testing.TB, value string) resourceapi.DeviceAttribute {
	t.Helper()
	a, err := device.String(value)
	check.Must(t, err)
	return a
}

// whole is the GPU at bus 0x1b + i.
func (m model) whole(t testing.TB, i int) device.Device {
	t.Helper()
	address := fmt.Sprintf("0000:%02x:00.0", 0x1b+i)
	parsed, err := pci.Parse(address)
	check.Must(t, err)
	return device.Device{
		Kind: device.KindGPU, Name: "nvidia-" + parsed.Label(),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			device.AttributeType: text(t, "gpu"), device.AttributeVendor: text(t, "nvidia"), device.AttributeProductName: text(t, m.name),
			device.AttributeArchitecture: text(t, m.architecture), device.AttributeUUID: text(t, fmt.Sprintf("GPU-%d", i)),
			device.AttributeDriver: text(t, "nvidia"), device.AttributePCIAddress: text(t, address),
			"resource.kubernetes.io/pciBusID": text(t, address), "resource.kubernetes.io/pcieRoot": text(t, "pci0000:1a"),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			device.CapacityMemory: device.Bytes(m.memory), device.CapacityMultiprocessors: device.Count(m.sm),
		},
	}
}

func dynamic(profiles ...string) partition.Settings {
	return partition.Settings{MIG: &partition.MIG{Mode: partition.MIGDynamic, Profiles: profiles}}
}

func static(layout ...partition.Instances) partition.Settings {
	return partition.Settings{MIG: &partition.MIG{Mode: partition.MIGStatic, Layout: layout}}
}

func names(devices []device.Device) []string {
	var out []string
	for _, d := range devices {
		out = append(out, d.Name)
	}
	return slices.Sorted(slices.Values(out))
}

// reasons writes them as "REASON DEVICES".
func reasons(d partition.Division) []string {
	var out []string
	for _, r := range d.Reasons {
		out = append(out, fmt.Sprintf("%s %d", r.Reason, r.Devices))
	}
	return out
}

// valid wants devices that the API would take.
func valid(t *testing.T, d partition.Division) {
	t.Helper()
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
}

// gateOn is an API server that keeps counters, and no shares.
func gateOn() partition.Kept { return partition.Kept{Counters: true} }
