// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// nvidiaVendor is NVIDIA's PCI vendor id.
const nvidiaVendor = 0x10de

// The fixed minors of NVIDIA's driver (kernel-open/common/inc/nv.h, NV_CONTROL_DEVICE_MINOR and NV_MODESET...; uvm_common.h).
const (
	nvidiaControlMinor  = 255
	nvidiaModesetMinor  = 254
	nvidiaUVMMinor      = 0
	nvidiaUVMToolsMinor = 1
)

// nvidiaHost is what NVIDIA's GPUs of a machine have in common.
type nvidiaHost struct {
	driverVersion string
	// cudaVersion is the newest CUDA that the driver serves. Empty: NVML did not answer.
	cudaVersion string
	// major is that of /dev/nvidia<minor>.
	major int64
	// shared are the nodes that every GPU needs.
	shared []container.Node
	// renderNodes is Options.RenderNodes.
	renderNodes bool
	// asked says that NVML answered, devices is what it said.
	asked   bool
	devices map[pci.Address]nvml.Device
	// unanswered says that NVML is there to be asked and told of no GPU.
	unanswered bool
	// whole are the GPUs of which NVML told before that they are not in MIG mode.
	whole map[pci.Address]bool
	// unknown has the GPUs of which NVML did not say how they are divided.
	unknown map[pci.Address]bool
	// unusable has what NVML says of GPUs that cannot be used, whatever they are asked.
	unusable map[pci.Address]nvml.Fault
	// nameless is what it says of GPUs whose address it did not tell.
	nameless []nvml.Fault
}

// openNVIDIA reads the driver's majors and version and asks NVML.
func openNVIDIA(ctx context.Context, tree *sysfs.Tree, opts Options, held []pci.Function) (probe, []Problem) {
	host, err := nvidiaNodes(tree)
	if err != nil {
		return nil, []Problem{driverProblem(sysfs.ProcDevices, ReasonDriverNotLoaded,
			fmt.Errorf("%d NVIDIA GPUs are withheld: %w", len(held), err))}
	}
	var problems []Problem
	for _, node := range host.shared {
		if err := checkNode(tree, node); err != nil {
			problems = append(problems, driverProblem(node.Path, ReasonNodeMismatch, err))
		}
	}
	report, err := askNVML(ctx, opts)
	if err != nil {
		problems = append(problems, driverProblem(sysfs.ProcDriverNVIDIA, ReasonNVMLUnavailable,
			fmt.Errorf("memory, compute capability, architecture and MIG mode stay unknown: %w", err)))
	}
	problems = append(problems, host.take(report)...)
	host.renderNodes = opts.RenderNodes
	host.unanswered, host.whole = opts.NVML != nil && !host.asked, opts.Whole
	version, faults := nvidiaDriverVersion(tree, report)
	host.driverVersion, host.cudaVersion = version, report.CUDADriverVersion
	return host.describe, append(problems, faults...)
}

func driverProblem(name, reason string, err error) Problem {
	return Problem{Subject: sysfs.HostPath(name), Reason: reason, Message: err.Error()}
}

// nvidiaNodes finds the majors in /proc/devices, where the older driver calls itself nvidia-frontend. CUDA does not start
// without the memory manager, which is a module of its own.
func nvidiaNodes(tree *sysfs.Tree) (nvidiaHost, error) {
	majors, err := tree.CharMajors()
	if err != nil {
		return nvidiaHost{}, err
	}
	major, ok := majors["nvidia"]
	if !ok {
		major, ok = majors["nvidia-frontend"]
	}
	if !ok {
		return nvidiaHost{}, fmt.Errorf("%s has no nvidia: load the module nvidia", sysfs.HostPath(sysfs.ProcDevices))
	}
	uvm, ok := majors["nvidia-uvm"]
	if !ok {
		return nvidiaHost{}, fmt.Errorf("%s has no nvidia-uvm: load the module nvidia-uvm", sysfs.HostPath(sysfs.ProcDevices))
	}
	host := nvidiaHost{major: major, shared: []container.Node{
		controlNode(tree, "nvidiactl", major, nvidiaControlMinor),
		controlNode(tree, "nvidia-uvm", uvm, nvidiaUVMMinor),
		controlNode(tree, "nvidia-uvm-tools", uvm, nvidiaUVMToolsMinor),
	}}
	if tree.Exists(path.Join(sysfs.Dev, "nvidia-modeset")) {
		host.shared = append(host.shared, controlNode(tree, "nvidia-modeset", major, nvidiaModesetMinor))
	}
	return host, nil
}

// controlNode is a node whose minor no file tells. The host's own node is believed when its major is the driver's; without one,
// or with one that an earlier driver left behind, the minor is the one that the driver is known to use.
func controlNode(tree *sysfs.Tree, name string, major, minor int64) container.Node {
	ownMajor, ownMinor, err := tree.Rdev(path.Join(sysfs.Dev, name))
	if err == nil && ownMajor == major {
		minor = ownMinor
	}
	return newNode(name, major, minor)
}

// askNVML asks the library, if there is a way to.
func askNVML(ctx context.Context, opts Options) (nvml.Report, error) {
	if opts.NVML == nil {
		return nvml.Report{}, nil
	}
	return opts.NVML(ctx)
}

// take keeps what NVML says, and returns the problems of what it could not say. Those of a GPU that is withheld for it come with the GPU.
func (h *nvidiaHost) take(report nvml.Report) []Problem {
	h.asked = len(report.Devices)+len(report.Faults) > 0
	h.devices, h.unknown, h.unusable = map[pci.Address]nvml.Device{}, map[pci.Address]bool{}, map[pci.Address]nvml.Fault{}
	for _, dev := range report.Devices {
		if address, err := pci.ParseBusID(dev.PCIBusID); err == nil { // Validated by whoever decoded the report.
			h.devices[address] = dev
		}
	}
	for _, id := range report.UnknownMIG() {
		if address, err := pci.ParseBusID(id); err == nil {
			h.unknown[address] = true
		}
	}
	var problems []Problem
	for _, fault := range report.Faults {
		address, err := pci.ParseBusID(fault.Device)
		switch {
		case err != nil:
			h.nameless = append(h.nameless, fault)
		case fault.Unusable():
			if _, known := h.unusable[address]; !known {
				h.unusable[address] = fault
			}
		default:
			problems = append(problems, Problem{
				Subject: address.String(), Reason: reasonOf(fault, ReasonAttributeUnreadable),
				Message: strings.TrimPrefix(fmt.Sprintf("%s %s: %s", fault.Device, fault.Field, fault.Message), " "),
			})
		}
	}
	return problems
}

// reasonOf is the reason of what NVML could not say.
func reasonOf(fault nvml.Fault, other string) string {
	if errors.Is(fault.Err(), nvml.ErrForbidden) {
		return ReasonNotPermitted
	}
	return other
}

// silent is why NVML tells of other GPUs and not of this one.
func (h nvidiaHost) silent() (reason string, err error) {
	if len(h.nameless) == 0 {
		return ReasonNotResponding, errors.New("NVIDIA's library sees other GPUs but not this one: it fell off the bus or needs a reset")
	}
	reason = ReasonNotPermitted
	var said []string
	for _, fault := range h.nameless {
		said = append(said, fault.Message)
		if reasonOf(fault, ReasonNotResponding) != reason {
			reason = ReasonNotResponding
		}
	}
	slices.Sort(said)
	return reason, fmt.Errorf("NVIDIA's library does not tell of this GPU, and says of GPUs whose address it does not tell: %s",
		strings.Join(slices.Compact(said), "; "))
}

// NVIDIADriverVersion is the version of the driver that the kernel runs, such as "580.95.05". Empty: no file tells.
func NVIDIADriverVersion(tree *sysfs.Tree) string {
	version, _ := nvidiaDriverVersion(tree, nvml.Report{})
	return version
}

// nvidiaDriverVersion takes the first of the three places that tells; they agree on a healthy machine.
func nvidiaDriverVersion(tree *sysfs.Tree, report nvml.Report) (string, []Problem) {
	var problems []Problem
	for _, name := range []string{path.Join(sysfs.ProcDriverNVIDIA, "version"), path.Join(sysfs.Module("nvidia"), "version")} {
		text, err := tree.ReadString(name)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				problems = append(problems, driverProblem(name, ReasonAttributeUnreadable, err))
			}
			continue
		}
		if version := nvml.KernelVersion(text); version != "" {
			return version, problems
		}
		problems = append(problems, driverProblem(name, ReasonAttributeInvalid, errors.New("no version such as 580.95.05 in it")))
	}
	return report.DriverVersion, problems
}

// inMIGMode is why a GPU is not published whole.
const inMIGMode = "the GPU is in MIG mode, where programs can use its partitions only: switch MIG mode off"

// unknownMIG is why a GPU is not published whole that may be in MIG mode.
const unknownMIG = "NVIDIA's library did not say how the GPU is divided, and in MIG mode programs cannot use it whole: it is asked again"

// describe merges what NVML and the kernel say of one GPU.
func (h nvidiaHost) describe(d *draft, f pci.Function) {
	info := readNVIDIAInformation(d, f)
	said, answered := h.devices[f.Address]
	switch {
	case h.asked && !answered:
		d.withhold(h.silent())
		return
	case h.unusable[f.Address].Message != "":
		d.withhold(ReasonNotResponding, fmt.Errorf("NVIDIA's library: %s", h.unusable[f.Address].Message))
		return
	case said.MIG == nil && said.MIGMode != nil && *said.MIGMode && !h.unknown[f.Address]:
		d.withhold(ReasonPartitioned, errors.New(inMIGMode))
		return
	case strings.EqualFold(info["GPU Excluded"], "yes"):
		d.withhold(ReasonExcluded, errors.New("the driver was loaded with this GPU excluded (NVreg_ExcludedGpus)"))
		return
	}
	minor, err := nvidiaMinor(info, said)
	if err != nil {
		d.withhold(ReasonDeviceNumbersUnknown, err)
		return
	}
	h.divided(d, f, said, minor)
	d.node(newNode("nvidia"+strconv.FormatInt(minor, 10), h.major, minor))
	d.device.Edits.Nodes = append(d.device.Edits.Nodes, h.shared...)
	if h.renderNodes {
		d.optionalRenderNode(f)
	}
	h.attributes(d, said, info)
}

// divided records how a GPU is divided. NVML tells. Without its answer the kernel tells of a GPU that has instances, and of no GPU that MIG
// mode is off. Where NVML is never asked, a GPU without instances counts as whole.
func (h nvidiaHost) divided(d *draft, f pci.Function, said nvml.Device, minor int64) {
	d.physical.MIG, d.physical.MIGUnknown = said.MIG, h.unknown[f.Address] || h.unanswered && !h.whole[f.Address]
	var instances []uint32
	if !h.asked {
		var err error
		instances, err = d.tree.MIGInstances(int(minor))
		d.noteUnreadable(err)
		d.physical.MIGUnknown = d.physical.MIGUnknown || err != nil || len(instances) > 0
	}
	switch {
	case len(instances) > 0, said.MIG != nil && said.MIG.Current:
		d.divide(errors.New(inMIGMode))
	case d.physical.MIGUnknown && (said.MIGMode == nil || *said.MIGMode):
		d.divide(errors.New(unknownMIG))
	}
}

// attributes adds what NVML says of a GPU, and the kernel where NVML says nothing.
func (h nvidiaHost) attributes(d *draft, said nvml.Device, info map[string]string) {
	d.text(device.AttributeProductName, cmp.Or(said.Name, info["Model"]))
	d.text(device.AttributeUUID, cmp.Or(said.UUID, info["GPU UUID"]))
	d.text(device.AttributeSerial, said.Serial)
	d.text(device.AttributeArchitecture, said.Architecture)
	d.text(device.AttributeBrand, said.Brand)
	d.text(device.AttributeFirmwareVersion, cmp.Or(said.VBIOSVersion, info["Video BIOS"]))
	d.version(device.AttributeComputeCapability, said.ComputeCapability)
	d.setDriverVersion(h.driverVersion)
	d.version(device.AttributeCUDADriverVersion, h.cudaVersion)
	d.text(device.AttributeAddressingMode, said.AddressingMode)
	if said.Fabric != nil {
		d.text(device.AttributeFabricState, said.Fabric.State)
		d.text(device.AttributeFabricClusterUUID, said.Fabric.ClusterUUID)
		d.text(device.AttributeFabricClique, said.Fabric.Clique())
	}
	d.bytes(device.CapacityMemory, said.MemoryBytes)
	d.count(device.CapacityMultiprocessors, uint64(max(said.Multiprocessors, 0)))
}

// readNVIDIAInformation reads /proc/driver/nvidia/gpus/<address>/information: a key, a colon and a value a line. The driver
// prints question marks for what it does not know before the GPU's first use; these are left out.
func readNVIDIAInformation(d *draft, f pci.Function) map[string]string {
	return nvidiaInformation(d.read(path.Join(sysfs.ProcDriverNVIDIA, "gpus", f.Address.String(), "information")))
}

func nvidiaInformation(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if ok && value != "" && !strings.Contains(value, "??") {
			info[strings.TrimSpace(key)] = value
		}
	}
	return info
}

// nvidiaMinor is the minor of the GPU's node. The kernel is asked first; the order of the GPUs is no substitute.
func nvidiaMinor(info map[string]string, said nvml.Device) (int64, error) {
	text, ok := info["Device Minor"]
	switch {
	case ok:
		minor, err := strconv.ParseUint(text, 10, 20)
		if err != nil || minor >= nvidiaModesetMinor {
			return 0, fmt.Errorf("device minor %q: want 0 to %d", text, nvidiaModesetMinor-1)
		}
		if said.Minor != nil && int64(*said.Minor) != int64(minor) {
			return 0, fmt.Errorf("the kernel says device minor %d and NVIDIA's library %d", minor, *said.Minor)
		}
		return int64(minor), nil
	case said.Minor != nil:
		return int64(*said.Minor), nil
	}
	return 0, errors.New("neither the kernel's information file nor NVIDIA's library tells the minor of the GPU's device node")
}

// NVIDIANode returns the node of an NVIDIA GPU as the kernel numbers it now. A change of the MIG mode or a new binding of the driver may
// change the minor.
func NVIDIANode(tree *sysfs.Tree, address pci.Address) (container.Node, error) {
	host, err := nvidiaNodes(tree)
	if err != nil {
		return container.Node{}, err
	}
	text, err := tree.ReadString(path.Join(sysfs.ProcDriverNVIDIA, "gpus", address.String(), "information"))
	if err != nil {
		return container.Node{}, err
	}
	minor, err := nvidiaMinor(nvidiaInformation(text), nvml.Device{})
	if err != nil {
		return container.Node{}, fmt.Errorf("GPU %s: %w", address, err)
	}
	return newNode("nvidia"+strconv.FormatInt(minor, 10), host.major, minor), nil
}

// SharedNVIDIANode says whether a node is one that all NVIDIA GPUs of a machine have in common.
func SharedNVIDIANode(n container.Node) bool {
	name := strings.TrimPrefix(n.Path, "/dev/")
	return strings.HasPrefix(name, "nvidia") && !isNumbered(name, "nvidia")
}

// SharedNode says whether a node is one that all GPUs of a driver have in common. A program that has it open need not use each of them.
func SharedNode(n container.Node) bool {
	name := strings.TrimPrefix(n.Path, "/dev/")
	return name == "kfd" || name == dxg || SharedNVIDIANode(n)
}

// dxg is the device node by which programs reach GPUs in the Windows Subsystem for Linux, all of them by the same (drivers/hv/dxgkrnl in
// Microsoft's kernel).
const dxg = "dxg"

// unlinkedNVIDIA finds the GPUs that NVIDIA's library tells of and that NVIDIA's driver does not hold, for all that the kernel says: where
// a library was brought in from another system, as in WSL and in some sandboxes. Nothing but the library says what they are, so they are
// published only where the admin says so. The library is asked only where there is a device node that it could use.
func unlinkedNVIDIA(ctx context.Context, tree *sysfs.Tree, opts Options, functions []pci.Function) (Inventory, map[pci.Address]bool) {
	if opts.NVML == nil || !slices.ContainsFunc([]string{"nvidiactl", dxg}, func(name string) bool {
		return tree.Exists(path.Join(sysfs.Dev, name))
	}) {
		return Inventory{}, nil
	}
	report, err := opts.NVML(ctx)
	if err != nil {
		return Inventory{}, nil // where the driver holds a GPU this is told there, and elsewhere the node is a left-over
	}
	var host nvidiaHost
	host.take(report)
	host.driverVersion, host.cudaVersion = report.DriverVersion, report.CUDADriverVersion
	var apart []pci.Function
	for address := range host.devices {
		f := pci.Function{Address: address, Vendor: nvidiaVendor}
		if at := slices.IndexFunc(functions, func(f pci.Function) bool { return f.Address == address }); at >= 0 {
			f = functions[at]
		}
		if f.Driver == "" && f.PhysicalFunction == nil {
			apart = append(apart, f)
		}
	}
	var found Inventory
	addresses := map[pci.Address]bool{}
	for _, f := range apart {
		d := newPCI(tree, device.KindGPU, "nvidia", f, "nvidia-"+f.Address.Label())
		host.describeUnlinked(d, f, opts.PublishUnlinked, len(apart))
		found.add(d.finish())
		addresses[f.Address] = true
	}
	return found, addresses
}

// describeUnlinked merges what NVML and the device nodes say of one GPU of several.
func (h nvidiaHost) describeUnlinked(d *draft, f pci.Function, publish bool, gpus int) {
	said := h.devices[f.Address]
	switch {
	case !publish:
		d.withhold(ReasonNoDriverLink, fmt.Errorf(
			"NVIDIA's library tells of this GPU, and %s/driver does not lead to NVIDIA's driver, so that its numbers cannot be compared with the "+
				"kernel's: if the library was brought in on purpose (WSL, a sandbox), set nvidia.publishUnlinked",
			sysfs.HostPath(path.Join(sysfs.PCIDevices, f.Address.String()))))
		return
	case h.unusable[f.Address].Message != "":
		d.withhold(ReasonNotResponding, fmt.Errorf("NVIDIA's library: %s", h.unusable[f.Address].Message))
		return
	case h.unknown[f.Address], said.MIGMode != nil && *said.MIGMode:
		d.withhold(ReasonPartitioned, errors.New("it is divided, or may be, and a GPU without a link to its driver is published whole only"))
		return
	}
	nodes, err := unlinkedNodes(d.tree, said, gpus)
	if err != nil {
		d.withhold(ReasonDeviceNumbersUnknown, err)
		return
	}
	for _, node := range nodes {
		d.node(node)
	}
	h.attributes(d, said, nil)
}

// unlinkedNodes are the nodes of the host that reach a GPU, with the numbers that the host gave them.
func unlinkedNodes(tree *sysfs.Tree, said nvml.Device, gpus int) ([]container.Node, error) {
	if tree.Exists(path.Join(sysfs.Dev, dxg)) {
		if gpus > 1 {
			return nil, fmt.Errorf("%d GPUs are reached by one node, /dev/%s: a claim for one of them would get them all", gpus, dxg)
		}
		return hostNodes(tree, dxg)
	}
	if said.Minor == nil {
		return nil, errors.New("NVIDIA's library does not tell the minor of the GPU's device node, and there is no other way to find it")
	}
	nodes, err := hostNodes(tree, "nvidia"+strconv.Itoa(*said.Minor), "nvidiactl")
	if err != nil {
		return nil, err
	}
	if own := nodes[0]; own.Minor != int64(*said.Minor) {
		return nil, fmt.Errorf("NVIDIA's library says minor %d, and %s has minor %d", *said.Minor, own.Path, own.Minor)
	}
	for _, name := range []string{"nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"} {
		if more, err := hostNodes(tree, name); err == nil {
			nodes = append(nodes, more...)
		}
	}
	return nodes, nil
}

// hostNodes are nodes as the host has them.
func hostNodes(tree *sysfs.Tree, names ...string) ([]container.Node, error) {
	var out []container.Node
	for _, name := range names {
		major, minor, err := tree.Rdev(path.Join(sysfs.Dev, name))
		if err != nil {
			return nil, fmt.Errorf("the device node of the GPU: %w", err)
		}
		out = append(out, newNode(name, major, minor))
	}
	return out, nil
}
