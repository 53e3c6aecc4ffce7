// SPDX-License-Identifier: Apache-2.0

package amdmode

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/pci"
)

// MemoryChange says what it takes to change the memory partition mode of a node's GPUs. Only the node's administrator, or what acts for it,
// can do that: the driver stores a request for all GPUs of a hive and obeys when it is loaded the next time.
type MemoryChange struct {
	// From and To are the modes.
	From, To string
	// Functions are the GPUs that change together, sorted.
	Functions []pci.Address
	// Compute is the compute mode that the GPUs are in afterwards, as the driver chooses it. The wanted one is set after it.
	Compute string
	// Needs are what has to be done, in this order, in words.
	Needs []string
}

// PlanMemory returns what a change of the memory mode takes for a GPU and those of its hive. It changes nothing. The result is nil if the
// GPUs are in the mode.
func PlanMemory(modes Modes, hive []pci.Address, to string) (*MemoryChange, error) {
	if modes.Memory == to {
		return nil, nil //nolint:nilnil // documented above
	}
	if !slices.Contains(modes.Memories, to) {
		return nil, fmt.Errorf("memory mode %q %w: want %s", to, ErrInvalid, strings.Join(modes.Memories, ", "))
	}
	sorted := slices.SortedFunc(slices.Values(hive), pci.Address.Compare)
	return &MemoryChange{
		From: modes.Memory, To: to, Functions: sorted, Compute: autoCompute(modes, to),
		Needs: []string{
			"taint the node with NoExecute, so that no pod uses any of its GPUs",
			fmt.Sprintf("write %s to %s of one GPU of the hive", to, currentMemory),
			"unload amdgpu and load it again, or reboot the node: it takes minutes",
			"look again: GPUs, render nodes and compute nodes are numbered anew",
		},
	}, nil
}

// autoCompute is the mode that the driver begins in: as many compute partitions as memory partitions, as far as the GPU has that
// (aqua_vanjaram.c, __aqua_vanjaram_get_auto_mode).
func autoCompute(modes Modes, memory string) string {
	for _, mode := range map[string][]string{"NPS1": {"SPX"}, "NPS2": {"DPX"}, "NPS4": {"QPX", "CPX"}, "NPS8": {"CPX"}}[memory] {
		if slices.Contains(modes.Computes, mode) {
			return mode
		}
	}
	return ""
}
