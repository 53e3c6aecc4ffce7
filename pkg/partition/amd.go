// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/device"
)

// AMDModes are how an AMD GPU is divided, and how it could be (drivers/gpu/drm/amd/amdgpu: amdgpu_gfx.c, amdgpu_gmc.c).
type AMDModes struct {
	// Compute is current_compute_partition, AvailableCompute what available_compute_partition lists: SPX, DPX, TPX, QPX, CPX.
	Compute          string
	AvailableCompute []string
	// Memory is current_memory_partition, AvailableMemory what available_memory_partition lists: NPS1, NPS4.
	Memory          string
	AvailableMemory []string
	// XCCs are the GPU's compute dies (num_xcc of the compute driver's topology). 0: not known.
	XCCs int
}

// partitions is how many partitions a compute mode has. CPX has one a die: as many as are known, and no fewer than the modes that the GPU
// offers tell (aqua_vanjaram.c: 8 dies have QPX, 6 have TPX), since the topology may show a part of them. 0: there is no such mode.
func (m *AMDModes) partitions(mode string) int {
	switch mode {
	case "SPX":
		return 1
	case "DPX":
		return 2
	case "TPX":
		return 3
	case "QPX":
		return 4
	case "CPX":
	default:
		return 0
	}
	switch {
	case slices.Contains(m.AvailableCompute, "QPX"):
		return max(m.XCCs, 8)
	case slices.Contains(m.AvailableCompute, "TPX"):
		return max(m.XCCs, 6)
	}
	return cmp.Or(m.XCCs, 4)
}

// memoryModes are those that go with a compute mode. Others are refused by the kernel, or leave partitions without memory of their own.
func memoryModes(compute string) []string {
	switch compute {
	case "SPX":
		return []string{"NPS1"}
	case "DPX":
		return []string{"NPS1", "NPS2"}
	}
	return []string{"NPS1", "NPS4"}
}

// maxAMDPartitions is more than the partitions of any GPU: amdgpu makes at most 8 nodes.
const maxAMDPartitions = 8

// amd adds the partitions of an AMD GPU in its one configured mode. Counters cannot say that a GPU has one mode at a time, so that there is
// no choice between modes (KEP-5963). While a claim has a partition, the GPU keeps that partition's mode.
func (d *division) amd() {
	want, m := d.settings.AMD, d.physical.AMD
	if m == nil {
		if want != nil {
			d.reason(ReasonNotDivisible, 0, "the kernel offers no partition modes: the GPU has none, or amdgpu is too old")
		}
		return
	}
	mode, chosen := amdMode{m.Compute, m.Memory}, false
	if want != nil {
		mode, chosen = amdMode{cmp.Or(want.Compute, m.Compute), cmp.Or(want.Memory, m.Memory)}, want.Compute != ""
	}
	if held, ok := d.heldMode(m); ok && held != mode {
		if want != nil {
			d.reason(ReasonModePending, 0, "claims have partitions in mode %s: the GPU changes to %s after them", held, mode)
		}
		d.partitions(m, held, 0)
		return
	}
	if err := m.check(mode); err != nil {
		if want != nil {
			d.reason(ReasonNotDivisible, 0, "%v", err)
		}
		d.wholeInMode(m)
		return
	}
	d.partitions(m, mode, d.offered(m, mode, chosen))
}

// heldMode is the mode of the partitions that claims have.
func (d *division) heldMode(m *AMDModes) (amdMode, bool) {
	for _, mode := range partitionedModes() {
		for i := range m.partitions(mode.compute) {
			if d.held(AMDName(d.physical.Device.Name, mode.String(), i)) {
				return mode, true
			}
		}
	}
	return amdMode{}, false
}

// partitionedModes are the modes in which a GPU has parts.
func partitionedModes() []amdMode {
	var modes []amdMode
	for _, compute := range []string{"DPX", "TPX", "QPX", "CPX"} {
		for _, memory := range append(memoryModes(compute), "") {
			modes = append(modes, amdMode{compute, memory})
		}
	}
	return modes
}

// check says whether the GPU has a mode.
func (m *AMDModes) check(mode amdMode) error {
	n := m.partitions(mode.compute)
	switch {
	case n == 0 || n > maxAMDPartitions || mode.compute != m.Compute && !slices.Contains(m.AvailableCompute, mode.compute):
		return fmt.Errorf("compute mode %.16s: this GPU has %s", mode.compute, strings.Join(m.AvailableCompute, ", "))
	case mode.memory != m.Memory && !slices.Contains(m.AvailableMemory, mode.memory):
		return fmt.Errorf("memory mode %.16s: this GPU has %s", mode.memory, strings.Join(m.AvailableMemory, ", "))
	case mode.memory != "" && !slices.Contains(memoryModes(mode.compute), mode.memory):
		return fmt.Errorf("memory mode %.16s does not go with compute mode %s: use %s", mode.memory, mode.compute,
			strings.Join(memoryModes(mode.compute), " or "))
	}
	return nil
}

// wholeInMode withholds the whole GPU while its node is only a part of it.
func (d *division) wholeInMode(m *AMDModes) {
	if m.Compute != "" && m.Compute != "SPX" {
		d.withholdWhole(ReasonModePending, "the GPU is in compute mode %s, where its node is only a part of it", m.Compute)
	}
}

// offered is how many partitions of a mode are published. With counters the whole GPU takes as much as all of them, and the compute mode
// follows the claim. Without, the policy decides: the GPU is given in parts once it is in the mode, and never whole.
func (d *division) offered(m *AMDModes, mode amdMode, chosen bool) int {
	n := m.partitions(mode.compute)
	switch {
	case !chosen || n == 1:
		// The mode of a GPU that nobody configured is not changed; it is given whole only in the mode where that is so.
		if !chosen || !d.counters {
			d.wholeInMode(m)
		}
		return 0
	case mode.memory != m.Memory:
		d.reason(ReasonModePending, n, "%s", memoryChange(m.Memory, mode.memory))
		return 0
	case d.counters:
		return n
	}
	d.withholdWhole(ReasonNoCounters, "compute mode %s divides the GPU, and nothing keeps its partitions and the whole apart but "+
		"counters; %s", mode.compute, d.countersLack())
	if m.Compute != mode.compute {
		d.reason(ReasonModePending, n, "the compute mode is %s, not %s: the node changes it while nothing uses the GPU", m.Compute, mode.compute)
		return 0
	}
	return n
}

// memoryChange says what a change of the memory mode takes. It is an administrator's work: the driver keeps a request for all GPUs of a
// hive, and obeys when it is loaded the next time (amdgpu_gmc.c, current_memory_partition).
func memoryChange(from, to string) string {
	return fmt.Sprintf("the memory mode is %s, not %s, and Fettle does not change it. Taint the node with NoExecute, so that no pod uses any "+
		"of its GPUs. Write %s to current_memory_partition of one GPU of each hive. Unload amdgpu and load it again, or restart the node: it "+
		"takes minutes. Then GPUs and their nodes are numbered anew, and Fettle finds them", from, to, to)
}

// partitions adds the first partitions of a mode, and those that claims have.
func (d *division) partitions(m *AMDModes, mode amdMode, offered int) {
	n := m.partitions(mode.compute)
	for i := range n {
		if i < offered || d.held(AMDName(d.physical.Device.Name, mode.String(), i)) {
			d.amdPartition(mode.String(), i, n)
		}
	}
}

// amdMode is a pair of modes.
type amdMode struct{ compute, memory string }

// String is the name of the pair, as names of devices have it: cpx-nps4.
func (m amdMode) String() string {
	return strings.ToLower(strings.TrimSuffix(m.compute+"-"+m.memory, "-"))
}

// amdPartition adds one of n partitions. Each has an equal share of the GPU (amdgpu_amdkfd.h, KFD_XCP_MEMORY_SIZE).
func (d *division) amdPartition(profile string, index, n int) {
	whole := d.physical.Device
	out := derived(whole, AMDName(whole.Name, profile, index), device.TypePartition)
	setText(out.Attributes, device.AttributeProfile, profile)
	if c, ok := whole.Capacity[device.CapacityMemory]; ok {
		out.Capacity[device.CapacityMemory] = device.Bytes(c.Value.Value() / int64(n))
	}
	if c, ok := whole.Capacity[device.CapacityComputeUnits]; ok {
		out.Capacity[device.CapacityComputeUnits] = device.Count(c.Value.Value() / int64(n))
	}
	d.total[counterPartitions] = int64(n)
	d.parts = append(d.parts, part{
		Part:   Part{Parent: whole.Name, Type: device.TypePartition, Profile: profile, Index: index},
		device: out, takes: amounts{counterPartitions: 1},
	})
}
