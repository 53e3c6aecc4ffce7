// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"regexp"
	"slices"
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
	// total says that equals is true or false on every device, also where Fettle's attribute is not there.
	total bool
	// only is the condition for the devices that have it, if the other driver gives it to fewer types of devices than Fettle.
	only string
	// vendor is the vendor of the devices that have it.
	vendor string
	// as wraps what is read, %s, so that it has the text that the other driver publishes.
	as string
	// equals gives the expression that is true where the other driver's attribute has a value. Such an attribute can only be compared
	// with constants.
	equals func(value string) (string, error)
	// flag gives the expression for an attribute that is true or false.
	flag string
	// constant is its value on every device that a claim can get, and ignored says why.
	constant any
	ignored  string
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

// wholly says that it can only be compared as a whole, with constants.
func (r rule) wholly() bool { return r.equals != nil || r.flag != "" || r.constant != nil }

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

	// BusID is the attribute with the PCI address of a card.
	BusID = "resource.kubernetes.io/pciBusID"
	// ModelID is the attribute with the PCI device id of a device, which all devices of a model share.
	ModelID = v1alpha1.DriverName + "/" + string(device.AttributePCIDeviceID)
	// SameCard says how a constraint names a card.
	SameCard = "cards of one model are equal in it: for parts of one card, or of different ones, name " + BusID
)

// forVMs and isNot compare the type of a device.
func forVMs() string {
	return fmt.Sprintf("%s == %q", rule{name: string(device.AttributeType)}.ours(), device.TypeVFIO)
}

func isNot(kind string) string {
	return fmt.Sprintf("%s != %q", rule{name: string(device.AttributeType)}.ours(), kind)
}

func vendorIs(vendor string) string {
	return fmt.Sprintf("%s == %q", rule{name: "vendor"}.ours(), vendor)
}

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

// deviceID compares a PCI device id, which the other drivers write as the kernel does, 0x740f, and Fettle without 0x. It is that of a
// model: in a constraint cards of one model are equal, as they are for the other driver.
func deviceID() rule {
	r := rule{name: string(device.AttributePCIDeviceID), constraint: ModelID}
	r.equals = func(value string) (string, error) {
		if !regexp.MustCompile(`^0x[0-9a-f]{4}$`).MatchString(value) {
			return "", fmt.Errorf("%q: the driver writes 0x and four digits, the letters small, such as 0x740f", value)
		}
		return deviceIDIs(value), nil
	}
	return r
}

// deviceIDIs compares a PCI device id, written in any way.
func deviceIDIs(value string) string {
	r := rule{name: string(device.AttributePCIDeviceID)}
	return fmt.Sprintf("%s == %q", r.ours(), strings.TrimPrefix(strings.ToLower(value), "0x"))
}

func memory() rule { return rule{name: string(device.CapacityMemory), capacity: true} }

func nvidia() *Driver {
	types := map[string]string{"gpu": string(device.KindGPU), "mig": device.TypeMIG, "vfio": device.TypeVFIO}
	multiprocessors := renamed(string(device.CapacityMultiprocessors))
	multiprocessors.capacity = true
	// Their VFIO devices have addressableMemory and no memory, and only they have ids.
	id, plain, addressable := deviceID(), memory(), memory()
	id.always, id.only, plain.only, addressable.only = true, forVMs(), isNot(device.TypeVFIO), forVMs()
	d := &Driver{Name: NVIDIA, Vendor: "nvidia", types: types, attributes: map[string]rule{
		"type": typed(types), "uuid": renamed("uuid"), "productName": renamed("productName"), "brand": renamed("brand"),
		"architecture": renamed("architecture"), "cudaComputeCapability": renamed("computeCapability"),
		"driverVersion": renamed("driverVersion"), "cudaDriverVersion": renamed("cudaDriverVersion"), "profile": renamed("profile"),
		"parentUUID": renamed("parentUUID"), "deviceID": id, "numaNode": standard("numaNode"),
		"addressingMode": renamed("addressingMode"),
		"vendorID":       {constant: "0x10de", only: forVMs(), ignored: "only VFIO devices have it, and all have the same"},
		"iommuFDEnabled": refused("Fettle gives virtual machines the group's node, never iommufd"),
		"gpuModuleID":    refused("it is for Fabric Manager, which Fettle does not drive"),
	}, capacities: map[string]rule{
		"memory": plain, "multiprocessors": multiprocessors, "addressableMemory": addressable, "shares": refused(noShares),
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
	// Their whole GPUs have a profile too, spx_nps1.
	profile := rule{name: string(device.AttributeProfile), total: true, only: isNot(device.TypeVFIO)}
	profile.equals = func(value string) (string, error) {
		if !regexp.MustCompile(`^[a-z]+_nps[0-9]+$`).MatchString(value) {
			return "", fmt.Errorf("%q: the driver writes the compute and the memory mode, such as cpx_nps4", value)
		}
		if strings.HasPrefix(value, "spx_") {
			return "", fmt.Errorf("%q is that of a whole GPU, which has no profile in Fettle: compare type with amdgpu", value)
		}
		return fmt.Sprintf("%q in %s && %s == %q", profile.name, profile.path(), profile.ours(), strings.ReplaceAll(value, "_", "-")), nil
	}
	units := renamed(string(device.CapacityComputeUnits))
	units.capacity, units.only = true, isNot(device.TypeVFIO)
	plain := memory()
	plain.only = isNot(device.TypeVFIO)
	address := rule{name: string(device.AttributePCIAddress), always: true}
	d := &Driver{Name: AMD, Vendor: "amd", types: types, attributes: map[string]rule{
		"type": typed(types), "driverVersion": renamed("driverVersion"), "deviceID": deviceID(), "numaNode": standard("numaNode"),
		// AMD's driver writes blanks as _ and leaves parentheses out.
		"productName":       {name: "productName", as: `%s.replace(" ", "_").replace("(", "").replace(")", "")`},
		"pciAddr":           address,
		"parentPciAddr":     {refused: "compare it in a constraint, where it is the address of the card", constraint: BusID},
		"parentDeviceID":    refused("Fettle publishes the id of a model, pciDeviceID; for parts of one card name " + BusID + " in a constraint"),
		"partitionProfile":  profile,
		"vendorID":          {constant: "0x1002", only: forVMs(), ignored: "only VFIO devices have it, and all have the same"},
		"driverVersionFull": refused("Fettle publishes driverVersion, a semantic version"),
		"driverSrcVersion":  refused("Fettle does not publish it"), "family": refused("Fettle publishes the architecture, such as gfx942"),
		"computePartition": refused("Fettle publishes the profile of a part, such as cpx-nps4"),
		"memoryPartition":  refused("Fettle publishes the profile of a part, such as cpx-nps4"),
		"iommuGroup":       refused("Fettle does not publish it"), "isVF": refused("use the class vf.gpu.fettle.dev"),
	}, capacities: map[string]rule{
		"memory": plain, "computeUnits": units, "simdUnits": refused("Fettle does not publish it"),
		"partitions": refused("Fettle publishes each part as a device of its own"),
	}}
	for _, name := range []string{"cardIndex", "renderIndex", "gpuIndex"} {
		d.attributes[name] = refused(noNumber)
	}
	return d
}

func intel() *Driver {
	types := map[string]string{"gpu": string(device.KindGPU), "vf": device.TypeVF}
	root := rule{name: "pcieRoot", domain: "resource.kubernetes.io", constraint: "resource.kubernetes.io/pcieRoot"}
	root.equals = func(value string) (string, error) {
		if !regexp.MustCompile(`^[0-9a-f]{2}$`).MatchString(value) {
			return "", fmt.Errorf("%q: the driver writes the number of the bus, two hexadecimal digits", value)
		}
		return fmt.Sprintf("%s.endsWith(%q)", root.ours(), ":"+value), nil
	}
	const tainted = "an unhealthy device has the taint fettle.dev/unhealthy, so no claim gets it"
	address := rule{name: string(device.AttributePCIAddress), always: true}
	return &Driver{Name: Intel, Vendor: "intel", types: types, attributes: map[string]rule{
		"type": typed(types), "model": intelModel(), "family": intelFamily(), "pciId": deviceID(), "pciAddress": address, "pciRoot": root,
		"driver": {name: string(device.AttributeDriver), always: true},
		"health": {constant: "Healthy", ignored: tainted}, "healthy": {constant: true, ignored: tainted},
		"sriov": {flag: `"virtualFunctions" in device.capacity["` + v1alpha1.DriverName + `"]`},
	}, capacities: map[string]rule{
		"memory": memory(), "millicores": refused("a claim has the whole GPU: leave it out"),
	}}
}

// intelModel compares the model, which is the end of Fettle's product name. A GPU without a product name is of another model.
func intelModel() rule {
	r := rule{name: string(device.AttributeProductName), total: true}
	r.equals = func(value string) (string, error) {
		if !regexp.MustCompile(`^(Flex (140|170)|Max (1100|1350|1550)|(Arc )?(A770|A750|A580|A380|A310|B580|B570)|(Arc Pro )?(B60|B50))$`).
			MatchString(value) {
			return "", fmt.Errorf("model %q: Fettle has no product name for it: select it by pciId", value)
		}
		return fmt.Sprintf("%q in %s && %s.endsWith(%q)", r.name, r.path(), r.ours(), " "+value), nil
	}
	return r
}

// intelFamily compares the family, which is a word of Fettle's product name.
func intelFamily() rule {
	r := rule{name: string(device.AttributeProductName), total: true}
	r.equals = func(value string) (string, error) {
		family := strings.TrimPrefix(value, "Data Center ")
		if !slices.Contains([]string{"Flex", "Max", "Arc"}, family) || value == "Data Center Arc" {
			return "", fmt.Errorf("family %q: expected Flex, Max or Arc", value)
		}
		return fmt.Sprintf("%q in %s && %s.contains(%q)", r.name, r.path(), r.ours(), " "+family+" "), nil
	}
	return r
}

func example() *Driver {
	return &Driver{Name: Example, attributes: map[string]rule{
		"uuid": renamed("uuid"), "model": renamed("productName"), "driverVersion": renamed("driverVersion"), "index": refused(noNumber),
		"partition": refused("Fettle publishes parts as devices of classes of their own"),
	}, capacities: map[string]rule{"memory": memory(), "compute": refused("Fettle does not publish it")}}
}
