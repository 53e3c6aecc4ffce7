// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// amdHost is what AMD's GPUs of a machine have in common.
type amdHost struct {
	// kfd is the node of the compute driver, one for all GPUs. Its major is given out when the driver loads.
	kfd container.Node
	// topology is what the compute driver knows of each GPU.
	topology []kfdNode
	// read reads an attribute that the driver shows late while it switches the mode.
	read func(name string) (string, error)
}

// openAMD reads the compute driver's node and topology (drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
func openAMD(ctx context.Context, tree *sysfs.Tree, opts Options, held []pci.Function) (probe, []Problem) {
	dev := path.Join(sysfs.ClassKFD, "dev")
	major, minor, err := tree.ReadDev(dev)
	if err != nil {
		reason := ReasonDeviceNumbersUnknown
		if errors.Is(err, fs.ErrNotExist) {
			reason = ReasonDriverNotLoaded
		}
		return nil, []Problem{driverProblem(dev, reason,
			fmt.Errorf("%d AMD GPUs are withheld, the compute driver (kfd, part of amdgpu) is not usable: %w", len(held), err))}
	}
	host := amdHost{kfd: newNode("kfd", major, minor), read: func(name string) (string, error) {
		if opts.Locked == nil {
			return tree.ReadString(name)
		}
		return opts.Locked.Read(ctx, name, func() (string, error) { return tree.ReadString(name) })
	}}
	topology, problems := readKFDTopology(tree)
	host.topology = topology
	if err := checkNode(tree, host.kfd); err != nil {
		problems = append(problems, driverProblem(host.kfd.Path, ReasonNodeMismatch, err))
	}
	return host.describe, problems
}

// describe adds amdgpu's attributes (Documentation/gpu/amdgpu/driver-misc.rst) and the topology's.
func (h amdHost) describe(d *draft, f pci.Function) {
	render, ok := d.renderNode(f)
	if !ok {
		return
	}
	file := func(name string) string { return path.Join(f.Dir(), name) }
	mode, err := h.read(file(amdComputeMode))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // The driver refuses while it resets the GPU.
		d.withhold(ReasonIdentityUnreadable, err)
		return
	}
	parts := h.partitions(f.Address)
	switch {
	case mode != "" && mode != amdWhole:
		d.divide(fmt.Errorf("the GPU is in compute partition mode %q, "+
			"where its render node is only a part of it: write SPX to %s", mode, sysfs.HostPath(file(amdComputeMode))))
	case len(parts) > 1:
		d.divide(fmt.Errorf("the compute driver has %d partitions of the GPU, and its mode is %q: "+
			"write SPX to %s", len(parts), mode, sysfs.HostPath(file(amdComputeMode))))
	}
	if mode != "" {
		d.physical.AMD = d.amdModes(f, mode, parts)
	}
	d.device.Edits.Nodes = append(d.device.Edits.Nodes, h.kfd)
	d.text(device.AttributeProductName, d.read(file("product_name")))
	d.text(device.AttributeSerial, d.read(file("serial_number")))
	d.text(device.AttributeFirmwareVersion, d.read(file("vbios_version")))
	d.driverVersion(f.Driver)
	vram := d.readBytes(file("mem_info_vram_total"))
	unique := d.read(file("unique_id"))
	if node, ok := h.find(f.Address, render.name); ok {
		memory, units := shares(parts)
		vram = cmp.Or(vram, memory)
		unique = cmp.Or(unique, hexText(node.properties["unique_id"]))
		d.text(device.AttributeArchitecture, gfxName(node.properties["gfx_target_version"]))
		d.count(device.CapacityComputeUnits, units)
	}
	d.bytes(device.CapacityMemory, vram)
	d.uniqueID(unique)
}

// uniqueID publishes the identity as AMD's tools print it: GPU- and 16 hexadecimal digits.
func (d *draft) uniqueID(text string) {
	if text == "" {
		return
	}
	id, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
	if err != nil {
		d.note(ReasonAttributeInvalid, fmt.Errorf("attribute %s is left out: unique_id %.40q, want 16 hexadecimal digits",
			device.AttributeUUID, text))
		return
	}
	d.text(device.AttributeUUID, fmt.Sprintf("GPU-%016x", id))
}

// The attribute of a GPU with its compute partition mode, and the mode in which it is whole (amdgpu_gfx.c).
const (
	amdComputeMode = "current_compute_partition"
	amdWhole       = "SPX"
)

// amdModes reads how the GPU is divided and how it could be.
func (d *draft) amdModes(f pci.Function, compute string, parts []kfdNode) *partition.AMDModes {
	list := func(name string) []string {
		return strings.FieldsFunc(d.read(path.Join(f.Dir(), name)), func(r rune) bool { return r == ',' || r == ' ' })
	}
	m := &partition.AMDModes{
		Compute: compute, AvailableCompute: list("available_compute_partition"),
		Memory: d.read(path.Join(f.Dir(), "current_memory_partition")), AvailableMemory: list("available_memory_partition"),
	}
	for _, node := range parts {
		m.XCCs += int(min(node.properties["num_xcc"], 64))
	}
	return m
}

// shares adds up what the parts of a GPU have.
func shares(parts []kfdNode) (memory, units uint64) {
	for _, node := range parts {
		memory, units = memory+node.memory, units+computeUnits(node.properties)
	}
	return memory, units
}

// partitions returns the topology's nodes of a GPU.
func (h amdHost) partitions(address pci.Address) []kfdNode {
	var found []kfdNode
	for _, node := range h.topology {
		if _, ok := partitionAt(node.properties, address); ok {
			found = append(found, node)
		}
	}
	return found
}

// find is the topology's node of a GPU. A partitioned GPU has several at one address, told apart by the number in the render
// node's name, which the topology calls its minor.
func (h amdHost) find(address pci.Address, render string) (kfdNode, bool) {
	for _, node := range h.topology {
		p := node.properties
		here := p["domain"] == uint64(address.Domain) && p["location_id"] == uint64(address.LocationID())
		if here && drmRender+strconv.FormatUint(p["drm_render_minor"], 10) == render {
			return node, true
		}
	}
	return kfdNode{}, false
}

func computeUnits(properties map[string]uint64) uint64 {
	per := properties["simd_per_cu"]
	if per == 0 {
		return 0
	}
	return properties["simd_count"] / per
}

// gfxName is the name that compilers use for a gfx_target_version: 90402 is gfx942 and 90010 is gfx90a, for minor and stepping
// are decimal in the number and hexadecimal in the name. Empty for 0.
func gfxName(version uint64) string {
	if version == 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", version/10000, version/100%100, version%100)
}

func hexText(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 16)
}

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
