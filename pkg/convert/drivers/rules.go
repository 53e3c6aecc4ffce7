// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// rule is what an attribute or a capacity of another driver is for Fettle.
type rule struct {
	// name is Fettle's name for it; with domain, one of that domain.
	name   string
	domain string
	// capacity says that Fettle has it among the capacities.
	capacity bool
	// always says that every GPU of the vendor has it, so that nothing need test whether it is there.
	always bool
	// as wraps what is read, %s, so that it has the text that the other driver publishes.
	as string
	// equals gives the expression that is true where the other driver's attribute has a value. Such an attribute can only be compared
	// with constants.
	equals func(value string) (string, error)
	// flag gives the expression for an attribute that is true or false.
	flag string
	// ignored says why a condition on it is left out, and counts as true.
	ignored string
	// refused says why it cannot be converted.
	refused string
	// constraint is the qualified name to match in a claim's constraints. Empty: that of the attribute.
	constraint string
}

func renamed(name string) rule { return rule{name: name} }

func standard(name string) rule { return rule{name: name, domain: "resource.kubernetes.io"} }

func refused(reason string) rule { return rule{refused: reason} }

// path is the expression of Fettle's attributes or capacities that the rule's name is in.
func (r rule) path() string {
	collection, domain := "attributes", v1alpha1.DriverName
	if r.capacity {
		collection = "capacity"
	}
	if r.domain != "" {
		domain = r.domain
	}
	return fmt.Sprintf("device.%s[%q]", collection, domain)
}

// ours is the expression that reads it.
func (r rule) ours() string { return r.path() + "." + r.name }

// qualified is the name that a claim's constraints use. Empty: there is none.
func (r rule) qualified() string {
	switch {
	case r.constraint != "":
		return r.constraint
	case r.name == "" || r.capacity || r.as != "" || r.equals != nil:
		return ""
	case r.domain != "":
		return r.domain + "/" + r.name
	}
	return v1alpha1.DriverName + "/" + r.name
}

const (
	noNumber = "it has no stable meaning: ask for a count, name a constraint, or select by pciAddress"
	noShares = "a claim has one share of a GPU, and the scheduler counts them: leave it out"
	busID    = "resource.kubernetes.io/pciBusID"
)

// typed compares the type of a device, in the words of its driver.
func typed(types map[string]string) rule {
	r := rule{name: string(device.AttributeType), always: true}
	r.equals = func(value string) (string, error) {
		ours, ok := types[value]
		if !ok {
			return "", fmt.Errorf("type %q is none that Fettle has", value)
		}
		return fmt.Sprintf("%s == %q", r.ours(), ours), nil
	}
	return r
}

// deviceID compares a PCI device id, which Fettle writes without 0x.
func deviceID() rule {
	r := rule{name: string(device.AttributePCIDeviceID), constraint: busID}
	r.equals = func(value string) (string, error) {
		return fmt.Sprintf("%s == %q", r.ours(), strings.TrimPrefix(strings.ToLower(value), "0x")), nil
	}
	return r
}

func memory() rule { return rule{name: string(device.CapacityMemory), capacity: true} }

func nvidia() *Driver {
	types := map[string]string{"gpu": string(device.KindGPU), "mig": device.TypeMIG, "vfio": device.TypeVFIO}
	multiprocessors := renamed(string(device.CapacityMultiprocessors))
	multiprocessors.capacity = true
	d := &Driver{Name: NVIDIA, Vendor: "nvidia", types: types, attributes: map[string]rule{
		"type": typed(types), "uuid": renamed("uuid"), "productName": renamed("productName"), "brand": renamed("brand"),
		"architecture": renamed("architecture"), "cudaComputeCapability": renamed("computeCapability"),
		"driverVersion": renamed("driverVersion"), "cudaDriverVersion": renamed("cudaDriverVersion"), "profile": renamed("profile"),
		"parentUUID": renamed("parentUUID"), "deviceID": deviceID(), "numaNode": standard("numaNode"),
		"addressingMode": refused("Fettle does not publish it"), "vendorID": {ignored: "the class has only GPUs of NVIDIA"},
		"iommuFDEnabled": refused("Fettle gives virtual machines the group's node, never iommufd"),
		"gpuModuleID":    refused("it is for Fabric Manager, which Fettle does not drive"),
	}, capacities: map[string]rule{
		"memory": memory(), "multiprocessors": multiprocessors, "addressableMemory": memory(), "shares": refused(noShares),
	}}
	for _, name := range []string{"index", "minor"} {
		d.attributes[name] = refused(noNumber)
	}
	for _, name := range []string{"partition1", "partition2", "partition4", "partition8"} {
		d.attributes[name] = refused("it is a partition of Fabric Manager, which Fettle does not drive")
	}
	for _, name := range []string{"copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"} {
		d.capacities[name] = refused("Fettle does not publish it")
	}
	return d
}

func amd() *Driver {
	types := map[string]string{"amdgpu": string(device.KindGPU), "amdgpu-partition": device.TypePartition, "vfio": device.TypeVFIO}
	profile := rule{name: string(device.AttributeProfile)}
	profile.equals = func(value string) (string, error) {
		return fmt.Sprintf("%s == %q", profile.ours(), strings.ReplaceAll(value, "_", "-")), nil
	}
	units := renamed(string(device.CapacityComputeUnits))
	units.capacity = true
	address := rule{name: string(device.AttributePCIAddress), always: true}
	d := &Driver{Name: AMD, Vendor: "amd", types: types, attributes: map[string]rule{
		"type": typed(types), "driverVersion": renamed("driverVersion"), "deviceID": deviceID(), "numaNode": standard("numaNode"),
		// AMD's driver writes blanks as _ and leaves parentheses out.
		"productName":      {name: "productName", as: `%s.replace(" ", "_").replace("(", "").replace(")", "")`},
		"pciAddr":          address,
		"parentPciAddr":    {refused: "compare it in a constraint, where it is the address of the card", constraint: busID},
		"parentDeviceID":   {refused: "compare it in a constraint, where it is the address of the card", constraint: busID},
		"partitionProfile": profile, "vendorID": {ignored: "the class has only GPUs of AMD"},
		"driverVersionFull": refused("Fettle publishes driverVersion, a semantic version"),
		"driverSrcVersion":  refused("Fettle does not publish it"), "family": refused("Fettle publishes the architecture, such as gfx942"),
		"computePartition": refused("Fettle publishes the profile of a part, such as cpx-nps4"),
		"memoryPartition":  refused("Fettle publishes the profile of a part, such as cpx-nps4"),
		"iommuGroup":       refused("Fettle does not publish it"), "isVF": refused("use the class vf.gpu.fettle.dev"),
	}, capacities: map[string]rule{
		"memory": memory(), "computeUnits": units, "simdUnits": refused("Fettle does not publish it"),
		"partitions": refused("Fettle publishes each part as a device of its own"),
	}}
	for _, name := range []string{"cardIndex", "renderIndex", "gpuIndex"} {
		d.attributes[name] = refused(noNumber)
	}
	return d
}

func intel() *Driver {
	types := map[string]string{"gpu": string(device.KindGPU), "vf": device.TypeVF}
	model := rule{name: string(device.AttributeProductName)}
	model.equals = func(value string) (string, error) {
		return fmt.Sprintf("%s.endsWith(%q)", model.ours(), " "+value), nil
	}
	family := rule{name: string(device.AttributeProductName)}
	family.equals = func(value string) (string, error) {
		for _, known := range []string{"Flex", "Max", "Arc"} {
			if strings.HasSuffix(value, known) {
				return fmt.Sprintf("%s.contains(%q)", family.ours(), " "+known+" "), nil
			}
		}
		return "", fmt.Errorf("family %q: expected Flex, Max or Arc", value)
	}
	root := rule{name: "pcieRoot", domain: "resource.kubernetes.io", constraint: "resource.kubernetes.io/pcieRoot"}
	root.equals = func(value string) (string, error) { return fmt.Sprintf("%s.endsWith(%q)", root.ours(), ":"+value), nil }
	healthy := rule{ignored: "an unhealthy device has the taint fettle.dev/unhealthy, so no claim gets it"}
	address := rule{name: string(device.AttributePCIAddress), always: true}
	return &Driver{Name: Intel, Vendor: "intel", types: types, attributes: map[string]rule{
		"type": typed(types), "model": model, "family": family, "pciId": deviceID(), "pciAddress": address, "pciRoot": root,
		"driver": {name: string(device.AttributeDriver), always: true}, "health": healthy, "healthy": healthy,
		"sriov": {flag: `"virtualFunctions" in device.capacity["` + v1alpha1.DriverName + `"]`},
	}, capacities: map[string]rule{
		"memory": memory(), "millicores": refused("a claim has the whole GPU: leave it out"),
	}}
}

func example() *Driver {
	return &Driver{Name: Example, attributes: map[string]rule{
		"uuid": renamed("uuid"), "model": renamed("productName"), "driverVersion": renamed("driverVersion"), "index": refused(noNumber),
		"partition": refused("Fettle publishes parts as devices of classes of their own"),
	}, capacities: map[string]rule{"memory": memory(), "compute": refused("Fettle does not publish it")}}
}
