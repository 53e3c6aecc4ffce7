// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// kfdNode is one GPU in the topology of AMD's compute driver: its directory nodes/<number>.
type kfdNode struct {
	// gpuID is the file gpu_id; 0 if it is not there.
	gpuID uint64
	// properties is the file of that name, numbers by name.
	properties map[string]uint64
	// memory is the sum of mem_banks/*/properties of the GPU's own memory, in bytes.
	memory uint64
}

// The heap types of a memory bank that are the GPU's own (include/uapi/linux/kfd_sysfs.h, HSA_MEM_HEAP_TYPE_FB_*).
const (
	heapFBPublic  = 1
	heapFBPrivate = 2
)

// readKFDTopology reads the GPUs of the topology in the order of their directories. A node that cannot be read costs its GPU
// what only the topology knows, and is a problem.
func readKFDTopology(tree *sysfs.Tree) ([]kfdNode, []Problem) {
	names, err := tree.ReadDir(sysfs.KFDTopology)
	if err != nil {
		return nil, []Problem{driverProblem(sysfs.KFDTopology, ReasonAttributeUnreadable, err)}
	}
	var nodes []kfdNode
	var problems []Problem
	for _, name := range names {
		dir := path.Join(sysfs.KFDTopology, name)
		properties, err := readProperties(tree, dir)
		if err != nil {
			problems = append(problems, driverProblem(path.Join(dir, "properties"), ReasonAttributeUnreadable, err))
			continue
		}
		if properties["simd_count"] == 0 { // A processor.
			continue
		}
		memory, err := readMemoryBanks(tree, path.Join(dir, "mem_banks"))
		if err != nil {
			problems = append(problems, driverProblem(path.Join(dir, "mem_banks"), ReasonAttributeUnreadable, err))
		}
		id, err := tree.ReadInt(path.Join(dir, "gpu_id"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, driverProblem(path.Join(dir, "gpu_id"), ReasonAttributeUnreadable, err))
		}
		nodes = append(nodes, kfdNode{gpuID: uint64(id), properties: properties, memory: memory})
	}
	return nodes, problems
}

// readMemoryBanks adds up the GPU's own memory.
func readMemoryBanks(tree *sysfs.Tree, dir string) (uint64, error) {
	names, err := tree.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, name := range names {
		bank, err := readProperties(tree, path.Join(dir, name))
		if err != nil {
			return 0, err
		}
		if heap := bank["heap_type"]; heap == heapFBPublic || heap == heapFBPrivate {
			sum += bank["size_in_bytes"]
		}
	}
	return sum, nil
}

// readProperties reads the file properties of a directory of the topology.
func readProperties(tree *sysfs.Tree, dir string) (map[string]uint64, error) {
	name := path.Join(dir, "properties")
	text, err := tree.ReadString(name)
	if err != nil {
		return nil, err
	}
	properties, err := parseProperties(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", sysfs.HostPath(name), err)
	}
	return properties, nil
}

// parseProperties reads lines of a name and an unsigned decimal number.
func parseProperties(text string) (map[string]uint64, error) {
	properties := map[string]uint64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name, number, _ := strings.Cut(line, " ")
		value, err := strconv.ParseUint(number, 10, 64)
		if line == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: line %.40q, want a name and a number", sysfs.ErrMalformed, line)
		}
		properties[name] = value
	}
	return properties, nil
}
