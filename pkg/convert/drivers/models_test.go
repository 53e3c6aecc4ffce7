// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"math/rand/v2"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

// The forms of values.
const (
	formText     = "text"
	formVersion  = "version"
	formQuantity = "quantity"
	formNumber   = "number"
	formFlag     = "flag"
)

// fact is what a driver publishes of its devices, and what Fettle publishes of the same devices.
type fact struct {
	name string
	form string
	// kinds are the types of devices that have it. Unless it is sure, some lack it with both drivers.
	kinds []string
	sure  bool
	// exact: it can only be compared as a whole.
	exact bool
	// theirs are the other driver's values, and ours Fettle's; empty: the same values, and "" among them: Fettle has none.
	theirs, ours []string
	// capacity: it is a capacity.
	capacity bool
	// fettle is Fettle's name for it, "" for none. always: its devices of all types have it.
	fettle string
	always bool
}

// literal is a constant to compare with.
func (f fact) literal(r *rand.Rand) string {
	value := f.theirs[r.IntN(len(f.theirs))]
	switch f.form {
	case formVersion:
		return fmt.Sprintf("semver(%q)", value)
	case formQuantity:
		return fmt.Sprintf("quantity(%q)", value)
	case formNumber, formFlag:
		return value
	}
	return fmt.Sprintf("%q", value)
}

// foreignModel is what a driver publishes of its types of devices.
type foreignModel struct {
	driver, vendor string
	kinds          []string
	facts          []fact
}

// devicePair is one device as another driver and as Fettle publish it.
type devicePair struct{ theirs, ours cel.Device }

func newDevice(driver string) cel.Device {
	return cel.Device{
		Driver: driver, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
}

// device makes a device of any type.
func (m foreignModel) device(r *rand.Rand) devicePair {
	p := devicePair{theirs: newDevice(m.driver), ours: newDevice("fettle.dev")}
	kind := m.kinds[r.IntN(len(m.kinds))]
	p.ours.Attributes["vendor"] = resourceapi.DeviceAttribute{StringValue: &m.vendor}
	model := r.IntN(12)
	for _, f := range m.facts {
		has := slices.Contains(f.kinds, kind) && (f.sure || r.IntN(5) > 0)
		at := model % len(f.theirs)
		if f.name == "type" {
			at = slices.Index(f.theirs, kind)
		}
		if f.name == "partitionProfile" && (kind == "amdgpu") != (f.ours[at] == "") {
			at = (at + 1) % len(f.theirs)
		}
		if has {
			set(p.theirs, f.name, f.theirs[at], f)
		}
		value := f.theirs[at]
		if f.ours != nil {
			value = f.ours[at]
		}
		if f.fettle != "" && value != "" && (has || f.always) {
			set(p.ours, f.fettle, value, f)
		}
	}
	return p
}

func set(d cel.Device, name, value string, f fact) {
	key := resourceapi.QualifiedName(name)
	if f.form == formQuantity || name == "virtualFunctions" {
		d.Capacity[key] = resourceapi.DeviceCapacity{Value: resource.MustParse(value)}
		return
	}
	a := resourceapi.DeviceAttribute{}
	switch f.form {
	case formVersion:
		a.VersionValue = &value
	case formNumber:
		number := int64(value[0] - '0')
		a.IntValue = &number
	case formFlag:
		flag := value == isYes
		a.BoolValue = &flag
	default:
		a.StringValue = &value
	}
	d.Attributes[key] = a
}

func foreignModels() []foreignModel {
	return []foreignModel{publishedByNVIDIA(), publishedByAMD(), publishedByIntel(), publishedByExample()}
}

func publishedByExample() foreignModel {
	gpu := []string{"gpu"}
	text := func(name, fettle string, values ...string) fact {
		return fact{name: name, form: formText, kinds: gpu, fettle: fettle, theirs: values}
	}
	return foreignModel{driver: Example, vendor: "amd", kinds: gpu, facts: []fact{
		text("uuid", "uuid", "GPU-1", "GPU-2"), text("model", "productName", "LATEST-GPU-MODEL", "AMD MI300X"),
		{name: "driverVersion", form: formVersion, kinds: gpu, fettle: "driverVersion", theirs: []string{"1.0.0", "2.0.0"}},
		{
			name: "memory", form: formQuantity, kinds: gpu, capacity: true, fettle: "memory", theirs: []string{"24Gi", "80Gi"},
		},
	}}
}

func publishedByNVIDIA() foreignModel {
	all, vfio, mig, known := []string{"gpu", "mig", "vfio"}, []string{"vfio"}, []string{"mig"}, []string{"gpu", "mig"}
	text := func(name, ours string, kinds []string, values ...string) fact {
		return fact{name: name, form: formText, kinds: kinds, fettle: ours, theirs: values}
	}
	version := func(name, ours string) fact {
		return fact{name: name, form: formVersion, kinds: known, fettle: ours, theirs: []string{"8.0.0", "9.0.0", "10.0.0"}}
	}
	size := func(name string, kinds []string) fact {
		return fact{
			name: name, form: formQuantity, kinds: kinds, sure: true, capacity: true, fettle: "memory", always: true,
			theirs: []string{"10Gi", "40Gi", "80Gi"},
		}
	}
	id := fact{
		name: "deviceID", form: formText, kinds: vfio, exact: true, sure: true, fettle: "pciDeviceID", always: true,
		theirs: []string{"0x2330", "0x20b0"}, ours: []string{"2330", "20b0"},
	}
	return foreignModel{driver: NVIDIA, vendor: "nvidia", kinds: all, facts: []fact{
		{name: "type", form: formText, kinds: all, sure: true, exact: true, fettle: "type", theirs: all},
		text("uuid", "uuid", all, "GPU-1", "GPU-2"), text("productName", "productName", all, "NVIDIA H100", "NVIDIA A100"),
		text("brand", "brand", known, "Tesla", "Nvidia"), text("architecture", "architecture", known, "Hopper", "Ampere"),
		text("addressingMode", "addressingMode", known, "HMM", "ATS"),
		text("profile", "profile", mig, "1g.10gb", "3g.20gb"), text("parentUUID", "parentUUID", mig, "GPU-1", "GPU-2"),
		version("cudaComputeCapability", "computeCapability"), version("driverVersion", "driverVersion"), id,
		{name: "vendorID", form: formText, kinds: vfio, sure: true, theirs: []string{"0x10de"}},
		{
			name: "numaNode", form: formNumber, kinds: all, fettle: "resource.kubernetes.io/numaNode", theirs: []string{"0", "1"},
		},
		size("memory", known), size("addressableMemory", vfio),
	}}
}

func publishedByAMD() foreignModel {
	all, vfio, plain := []string{"amdgpu", "amdgpu-partition", "vfio"}, []string{"vfio"}, []string{"amdgpu", "amdgpu-partition"}
	return foreignModel{driver: AMD, vendor: "amd", kinds: all, facts: []fact{
		{
			name: "type", form: formText, kinds: all, sure: true, exact: true, fettle: "type", theirs: all,
			ours: []string{"gpu", "partition", "vfio"},
		},
		{
			name: "productName", form: formText, kinds: all, fettle: "productName", theirs: []string{"AMD_MI300X_OAM", "AMD_MI210_x"},
			ours: []string{"AMD MI300X OAM", "AMD MI210 (x)"},
		},
		{
			name: "partitionProfile", form: formText, kinds: plain, sure: true, exact: true, fettle: "profile",
			theirs: []string{"spx_nps1", "cpx_nps4"}, ours: []string{"", "cpx-nps4"},
		},
		{name: "numaNode", form: formNumber, kinds: all, fettle: "resource.kubernetes.io/numaNode", theirs: []string{"0", "1"}},
		{
			name: "deviceID", form: formText, kinds: all, exact: true, fettle: "pciDeviceID", theirs: []string{"0x74a1", "0x740f"},
			ours: []string{"74a1", "740f"},
		},
		{name: "vendorID", form: formText, kinds: vfio, sure: true, theirs: []string{"0x1002"}},
		{name: "pciAddr", form: formText, kinds: all, sure: true, fettle: "pciAddress", theirs: []string{"0000:18:00.0", "0000:19:00.0"}},
		{name: "driverVersion", form: formVersion, kinds: plain, fettle: "driverVersion", theirs: []string{"6.10.5", "6.12.0"}},
		{
			name: "memory", form: formQuantity, kinds: plain, sure: true, capacity: true, fettle: "memory", always: true,
			theirs: []string{"24Gi", "192Gi"},
		},
	}}
}

func publishedByIntel() foreignModel {
	all, gpu := []string{"gpu", "vf"}, []string{"gpu"}
	text := func(name, fettle string, values ...string) fact {
		return fact{name: name, form: formText, kinds: all, sure: true, fettle: fettle, theirs: values}
	}
	model := text("model", "productName", "Flex 170", "Max 1550", "A770", "B70")
	family := text("family", "", "Data Center Flex", "Data Center Max", "Arc A-Series", "Arc Pro B-Series")
	model.exact, model.ours = true, []string{"Intel Data Center GPU Flex 170", "Intel Data Center GPU Max 1550", "Intel Arc A770", ""}
	family.exact = true
	root := fact{
		name: "pciRoot", form: formText, kinds: all, exact: true, fettle: "resource.kubernetes.io/pcieRoot", theirs: []string{"15", "4a"},
		ours: []string{"pci0000:15", "pci0000:4a"},
	}
	id := fact{
		name: "pciId", form: formText, kinds: all, exact: true, fettle: "pciDeviceID", theirs: []string{"0x56c0", "0x0bd5"},
		ours: []string{"56c0", "0bd5"},
	}
	return foreignModel{driver: Intel, vendor: "intel", kinds: all, facts: []fact{
		{name: "type", form: formText, kinds: all, sure: true, exact: true, fettle: "type", theirs: all},
		model, family, root, id, text("pciAddress", "pciAddress", "0000:18:00.0", "0000:19:00.0"), text("driver", "driver", "i915", "xe"),
		text("health", "", "Healthy"),
		{name: "healthy", form: formFlag, kinds: all, sure: true, theirs: []string{isYes}},
		{
			name: "sriov", form: formFlag, kinds: all, sure: true, fettle: "virtualFunctions", theirs: []string{isYes, isNo},
			ours: []string{"7", ""},
		},
		{
			name: "memory", form: formQuantity, kinds: gpu, capacity: true, fettle: "memory", theirs: []string{"16Gi", "48Gi"},
		},
	}}
}
