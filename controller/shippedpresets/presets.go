// SPDX-License-Identifier: Apache-2.0

// Package shippedpresets keeps the ClusterDevicePresets of vendors that Fettle ships.
package shippedpresets

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Annotation on a ClusterDevicePreset that the controller made has the hash of the shipped spec. If the spec has another hash, an
// administrator changed it.
const Annotation = v1alpha1.GroupName + "/shipped-spec"

// priority is lower than that of administrators' presets, which start at 0, so that those win.
const priority = -1000

// Vendors returns the vendors whose presets can be shipped, sorted.
func Vendors() []string { return slices.Sorted(maps.Keys(vendorSpecs())) }

// Presets returns the ClusterDevicePresets of vendors, each named VENDOR.fettle.dev. It leaves out unknown vendors.
func Presets(vendors []string) []*v1alpha1.ClusterDevicePreset {
	specs := vendorSpecs()
	var out []*v1alpha1.ClusterDevicePreset
	for _, vendor := range slices.Compact(slices.Sorted(slices.Values(vendors))) {
		spec, ok := specs[vendor]
		if !ok {
			continue
		}
		spec.Priority = priority
		out = append(out, &v1alpha1.ClusterDevicePreset{
			ObjectMeta: metav1.ObjectMeta{
				Name:        vendor + "." + v1alpha1.DriverName,
				Labels:      map[string]string{names.ManagedByLabel: names.Controller},
				Annotations: map[string]string{Annotation: SpecHash(&spec)},
			},
			Spec: spec,
		})
	}
	return out
}

// vendorSpecs returns the files of a node that the devices of each vendor need. Only NVIDIA's driver must be there: its libraries have to
// match the kernel module. Those of other vendors use stable kernel interfaces, and images bring the libraries that their programs are
// linked with; the presets do not get in the way of these (docs/design/presets.md).
func vendorSpecs() map[string]v1alpha1.ClusterDevicePresetSpec {
	nvidia := selectingGPUs("nvidia", device.TypeMIG)
	nvidia.Driver = &v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA}

	amd := selectingGPUs("amd", device.TypePartition, device.TypeVF)
	amd.Libraries = optional([]string{"/opt/rocm/lib"}, "librocm_smi64.so.*", "libamd_smi.so.*")
	amd.Mounts = []v1alpha1.PresetMount{{HostPath: "/opt/rocm", ContainerPath: "/usr/local/fettle/rocm", Optional: true}}

	intel := selectingGPUs("intel", device.TypeVF)
	intel.Libraries = optional(
		[]string{"/usr/lib/x86_64-linux-gnu/intel-opencl", "/usr/lib64/intel-opencl"},
		"libze_intel_gpu.so.*", "libigdrcl.so", "libigc.so.*", "libigdfcl.so.*", "libigdgmm.so.*")

	xrt := selecting("type", "fpga", "backend", "xrt")
	xrt.Libraries = optional([]string{"/opt/xilinx/xrt/lib"}, "libxrt_core.so.*", "libxrt_coreutil.so.*", "libxilinxopencl.so.*")
	xrt.Mounts = []v1alpha1.PresetMount{{HostPath: "/opt/xilinx/xrt", ContainerPath: "/opt/xilinx/xrt", Optional: true}}

	opae := selecting("type", "fpga", "backend", "dfl")
	opae.Libraries = optional([]string{"/usr/lib64/opae", "/usr/lib/x86_64-linux-gnu/opae"},
		"libopae-c.so.*", "libopae-v.so*", "libopae-u.so*", "libxfpga.so*")
	opae.Tools = optional(nil, "fpgainfo")

	return map[string]v1alpha1.ClusterDevicePresetSpec{"nvidia": nvidia, "amd": amd, "intel": intel, "xrt": xrt, "opae": opae}
}

// selectingGPUs returns a selector of a vendor's GPUs and of their parts of these types. It does not select devices of the type vfio, since
// a virtual machine has its own driver.
func selectingGPUs(vendor string, parts ...string) v1alpha1.ClusterDevicePresetSpec {
	types := make([]string, 0, len(parts)+1)
	for _, name := range append([]string{string(device.KindGPU)}, parts...) {
		types = append(types, strconv.Quote(name))
	}
	return where(fmt.Sprintf("%s == %q", attribute("vendor"), vendor),
		fmt.Sprintf("%s in [%s]", attribute("type"), strings.Join(types, ", ")))
}

// selecting returns a selector of devices of this driver by attributes, given as name and value in turn.
func selecting(attributes ...string) v1alpha1.ClusterDevicePresetSpec {
	var conditions []string
	for pair := range slices.Chunk(attributes, 2) {
		conditions = append(conditions, fmt.Sprintf("%s == %q", attribute(pair[0]), pair[1]))
	}
	return where(conditions...)
}

// attribute is a CEL expression for an attribute, empty if a device has none.
func attribute(name string) string {
	return fmt.Sprintf("device.attributes[%q].?%s.orValue(\"\")", v1alpha1.DriverName, name)
}

func where(conditions ...string) (spec v1alpha1.ClusterDevicePresetSpec) {
	spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{CEL: strings.Join(conditions, " && ")}
	return spec
}

// optional returns files that are given if they exist.
func optional(directories []string, names ...string) []v1alpha1.PresetFiles {
	return []v1alpha1.PresetFiles{{Names: names, Directories: directories, Optional: true}}
}

// SpecHash returns a hash of the spec.
func SpecHash(spec *v1alpha1.ClusterDevicePresetSpec) string {
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Sprintf("unknown: %v", err) // it is made of strings, numbers and lists of them
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// AsShipped says whether the controller made a preset and its spec is unchanged.
func AsShipped(live *v1alpha1.ClusterDevicePreset) bool {
	return live.Labels[names.ManagedByLabel] == names.Controller && live.Annotations[Annotation] == SpecHash(&live.Spec)
}
