// SPDX-License-Identifier: Apache-2.0

// Package hardware says which devices the machines of test/machines have. It is written down by hand from the texts of the machines, and
// imports nothing of the product, so that a test which compares what Fettle does with it does not take discovery's word for it.
package hardware

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Device is one device that a pod can get.
type Device struct {
	// Kind is "accelerator", "fpga", "gpu" or "host".
	Kind string
	// Name is what the device is called in ResourceSlices: nvidia-0000-18-00-0.
	Name   string
	Vendor string
	// Address is the PCI address, and Root the root complex that it is below: pci0000:15.
	Address, Root string
	// node is the path of the device's node where the text names it. GPUs have theirs in the tree, see Nodes.
	node string
}

// Problem is what is wrong with a machine, as an AcceleratorNode names it.
type Problem struct {
	Subject, Reason string
}

// Machine has the devices and problems of a machine, sorted by kind and name, and by subject and reason.
type Machine struct {
	Devices  []Device
	Problems []Problem
}

// Of returns what a host has that is made of the named machines.
func Of(names ...string) (Machine, error) {
	var m Machine
	var errs []error
	for _, name := range names {
		one, known := machines()[name]
		if !known {
			errs = append(errs, fmt.Errorf("package hardware does not say what machine %s has: add it to its table", name))
		}
		m.Devices, m.Problems = append(m.Devices, one.Devices...), append(m.Problems, one.Problems...)
	}
	slices.SortFunc(m.Devices, func(a, b Device) int { return strings.Compare(a.Kind+"/"+a.Name, b.Kind+"/"+b.Name) })
	slices.SortFunc(m.Problems, func(a, b Problem) int { return strings.Compare(a.Subject+" "+a.Reason, b.Subject+" "+b.Reason) })
	return m, errors.Join(errs...)
}

// machines is the table. A device is its address and its root. 4xlocalssd has no device: the plugin's configuration makes some of its
// disks.
func machines() map[string]Machine {
	h100 := gpus(
		"nvidia", "0000:18:00.0 15", "0000:19:00.0 15", "0000:3a:00.0 37", "0000:3b:00.0 37",
		"0000:9a:00.0 97", "0000:9b:00.0 97", "0000:ba:00.0 b7", "0000:bb:00.0 b7",
	)
	mi210 := []string{"0000:23:00.0 20", "0000:43:00.0 20", "0000:63:00.0 20"}
	return map[string]Machine{
		"8xh100-sxm":   {Devices: h100},
		"8xh100-iommu": {Devices: h100},
		"1xh100-vm":    {Devices: gpus("nvidia", "0000:00:06.0 00")},
		"1xh200-vm":    {Devices: gpus("nvidia", "0000:00:06.0 00")},
		"8xmi300x": {Devices: gpus(
			"amd", "0000:05:00.0 00", "0000:26:00.0 20", "0000:46:00.0 40", "0000:65:00.0 60",
			"0000:85:00.0 80", "0000:a6:00.0 a0", "0000:c6:00.0 c0", "0000:e5:00.0 e0",
		)},
		"2xintel-gpu": {Devices: gpus("intel", "0000:4d:00.0 49", "0000:b9:00.0 b7")},
		"2xa100-2xn6000": {Devices: slices.Concat(
			gpus("nvidia", "0000:39:00.0 36", "0000:b5:00.0 b2"),
			ports("0000:3a:00.0 36 port0 /dev/dfl-port.0", "0000:b6:00.0 b2 port0 /dev/dfl-port.1"),
		)},
		"2xrtx-vfio":  {Devices: gpus("nvidia", "0000:16:00.0 15", "0000:38:00.0 37")},
		"2xb60-sriov": {Devices: gpus("intel", "0000:4b:00.0 49", "0000:99:00.0 97")},
		"4xfpga": {Devices: ports(
			"0000:3b:00.0 3a port0 /dev/dfl-port.0", "0000:3d:00.0 3a port0 /dev/dfl-port.1", "0000:3d:00.0 3a port1 /dev/dfl-port.2",
			"0000:5e:00.1 5d port0 /dev/dfl-port.3", "0000:60:00.1 5d port0 /dev/dfl-port.4",
		)},
		"2xalveo": {Devices: []Device{
			{
				Kind: "fpga", Name: named("amd", "0000:3b:00.1"), Vendor: "amd", Address: "0000:3b:00.1", Root: "pci0000:3a",
				node: "/dev/dri/renderD128",
			},
			{
				Kind: "fpga", Name: named("amd", "0000:c3:00.1"), Vendor: "amd", Address: "0000:c3:00.1", Root: "pci0000:c2",
				node: "/dev/dri/renderD129",
			},
		}},
		"2xaccel": {Devices: accelerators(
			"qualcomm 0000:81:00.0 80 /dev/accel/accel0", "habana 0000:c1:00.0 c0 /dev/accel/accel1",
		)},
		"broken-accel": {
			Devices: slices.Concat(accelerators("habana 0000:61:00.0 60 /dev/accel/accel3"), gpus("intel", "0000:71:00.0 70")),
			Problems: []Problem{
				{"0000:11:00.0", "DriverNotLoaded"},
				{"0000:21:00.0", "NotResponding"},
				{"0000:41:00.0", "NotResponding"},
				{"0000:51:00.0", "DeviceNumbersUnknown"},
			},
		},
		// Without the plugin's configuration it has no interface and no node.
		"zynqmp":      {Devices: []Device{{Kind: "fpga", Name: "amd-firmware-zynqmp-firmware-pcap", Vendor: "amd", node: "/dev/dpu"}}},
		"4xlocalssd":  {},
		"200-devices": {Devices: twoHundred()},
		"empty":       {},
		"broken-attribute": {
			Devices:  gpus("amd", mi210[:2]...),
			Problems: []Problem{{"0000:43:00.0", "AttributeUnreadable"}, {"0000:63:00.0", "IdentityUnreadable"}},
		},
		"broken-dangling-link": {Devices: gpus("amd", mi210...), Problems: []Problem{{"0000:83:00.0", "IdentityUnreadable"}}},
		"broken-garbage": {
			Devices: gpus("amd", mi210[:2]...),
			Problems: []Problem{
				{"0000:43:00.0", "AttributeUnreadable"}, {"0000:43:00.0", "AttributeUnreadable"}, {"0000:63:00.0", "IdentityUnreadable"},
			},
		},
		"broken-no-driver": {Problems: []Problem{
			{"0000:17:00.0", "DriverNotLoaded"}, {"0000:27:00.0", "BoundToVFIO"}, {"0000:37:00.0", "DriverNotLoaded"},
		}},
	}
}

// gpus makes the GPUs of a vendor. Each is an address and the bus of its root.
func gpus(vendor string, places ...string) []Device {
	var out []Device
	for _, place := range places {
		address, bus, _ := strings.Cut(place, " ")
		domain, _, _ := strings.Cut(address, ":")
		out = append(out, Device{Kind: "gpu", Name: named(vendor, address), Vendor: vendor, Address: address, Root: "pci" + domain + ":" + bus})
	}
	return out
}

// ports makes the regions of Intel's cards. Each is an address, the bus of its root, the port of the card, and its node.
func ports(places ...string) []Device {
	var out []Device
	for _, place := range places {
		words := strings.Fields(place)
		out = append(out, Device{
			Kind: "fpga", Name: named("intel", words[0]) + "-" + words[2], Vendor: "intel", Address: words[0], Root: "pci0000:" + words[1],
			node: words[3],
		})
	}
	return out
}

// accelerators makes devices of the kernel's class. Each is a vendor, an address, the bus of its root, and its node.
func accelerators(places ...string) []Device {
	var out []Device
	for _, place := range places {
		words := strings.Fields(place)
		out = append(out, Device{
			Kind: "accelerator", Name: named(words[0], words[1]), Vendor: words[0], Address: words[1], Root: "pci0000:" + words[2],
			node: words[3],
		})
	}
	return out
}

// twoHundred has eight GPUs in each of 25 PCI domains.
func twoHundred() []Device {
	const domains, each = 25, 8
	var places []string
	for i := range domains * each {
		places = append(places, fmt.Sprintf("%04x:%02x:00.0 00", i/each, 1+i%each))
	}
	return gpus("nvidia", places...)
}

// named is the name of a device by its address: nvidia-0000-18-00-0.
func named(vendor, address string) string {
	return vendor + "-" + strings.NewReplacer(":", "-", ".", "-").Replace(address)
}
