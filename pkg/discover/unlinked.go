// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

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
	if _, minor, err := tree.Rdev(path.Join(sysfs.Dev, path.Base(nodes[0].Path))); err != nil || minor != int64(*said.Minor) {
		return nil, fmt.Errorf("NVIDIA's library says minor %d, and %s has minor %d", *said.Minor, nodes[0].Path, minor)
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
