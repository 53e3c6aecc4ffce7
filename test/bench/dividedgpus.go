// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

const (
	// dividedMachine has eight H100, each with all 25 placements of MIG instances and the whole GPU: 208 devices. wholeMachine has the same
	// GPUs, of which none is divided.
	dividedMachine = "8xh100-mig"
	wholeMachine   = "8xh100"
	gpusPerNode    = 8
)

// dividedNode is what one node of either machine publishes.
type dividedNode struct {
	cards   []device.Card
	devices []device.Device
	// parts are the instances by name.
	parts map[string]partition.Part
}

// newDividedNode divides the GPUs as the plugin does, for a policy that allows all profiles, or for none.
func newDividedNode(number int, divided bool) (dividedNode, error) {
	n := dividedNode{parts: map[string]partition.Part{}}
	settings := partition.Settings{}
	if divided {
		settings.MIG = &partition.MIG{Mode: partition.MIGDynamic}
	}
	for i := range gpusPerNode {
		whole, err := wholeGPU(number, i)
		if err != nil {
			return n, err
		}
		d := partition.Divide(partition.Physical{Device: whole, MIG: migOf(nvmlsim.H100)}, settings, partition.Kept{Counters: true})
		if err := d.Validate(); err != nil || len(d.Reasons) > 0 {
			return n, errors.Join(err, fmt.Errorf("a simulated GPU is not divided: %v", d.Reasons))
		}
		if d.Card != nil {
			n.cards = append(n.cards, *d.Card)
		}
		n.devices = append(n.devices, d.Devices...)
		for name, part := range d.Parts {
			n.parts[name] = part
		}
	}
	return n, nil
}

// wholeGPU has the attributes that discovery finds with NVIDIA's library.
func wholeGPU(node, i int) (device.Device, error) {
	model := (&nvmlsim.Card{Model: nvmlsim.H100}).Kind()
	address, err := pci.Parse(fmt.Sprintf("0000:%02x:00.0", 0x10*i+0x0b))
	out := device.Device{
		Kind: device.KindGPU, Name: "nvidia-" + address.Label(),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			deviceattribute.StandardDeviceAttributeNUMANode: device.Int(int64(i / 4)),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			device.CapacityMemory: device.Bytes(int64(model.MemoryMiB) << 20), device.CapacityMultiprocessors: device.Count(132),
		},
	}
	for name, value := range map[resourceapi.QualifiedName]string{
		device.AttributeType: "gpu", device.AttributeVendor: "nvidia", device.AttributeDriver: "nvidia",
		device.AttributeProductName: model.Name, device.AttributeArchitecture: "Hopper",
		device.AttributeUUID:                            fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", node, i),
		device.AttributePCIAddress:                      address.String(),
		deviceattribute.StandardDeviceAttributePCIBusID: address.String(),
		deviceattribute.StandardDeviceAttributePCIeRoot: fmt.Sprintf("pci0000:%02x", 0x10*(i/2)+0x0a),
	} {
		attribute, bad := device.String(value)
		out.Attributes[name], err = attribute, errors.Join(err, bad)
	}
	for name, value := range map[resourceapi.QualifiedName]string{
		device.AttributeDriverVersion: "580.95.05", device.AttributeComputeCapability: fmt.Sprintf("%d.%d", model.Major, model.Minor),
	} {
		attribute, bad := device.Version(value)
		out.Attributes[name], err = attribute, errors.Join(err, bad)
	}
	return out, err
}

// profileNames are NVIDIA's names of the profiles of a GPU with 80 GB, by id.
func profileNames() map[uint32]string {
	return map[uint32]string{
		0: "7g.80gb", 5: "4g.40gb", 9: "3g.40gb", 14: "2g.20gb", 15: "1g.20gb", 19: "1g.10gb", 20: "1g.10gb+me",
	}
}

// migOf is what NVML says of a simulated GPU on which no instance was made.
func migOf(model string) *nvml.MIG {
	out := &nvml.MIG{}
	for _, p := range (&nvmlsim.Card{Model: model}).Kind().Profiles {
		profile := nvml.MIGProfile{
			ID: p.ID, Name: profileNames()[p.ID], Slices: p.Slices, MemoryMB: p.MemoryMiB, MaxInstances: p.Most, Multiprocessors: p.SMs,
			CopyEngines: p.Copy, Decoders: p.Decoders, JPEGEngines: p.JPEG, OFAEngines: p.OFA,
		}
		for _, start := range p.Starts {
			profile.Placements = append(profile.Placements, nvml.MIGPlacement{Start: start, Size: p.Size})
		}
		out.Profiles = append(out.Profiles, profile)
	}
	return out
}
