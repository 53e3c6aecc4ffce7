// SPDX-License-Identifier: Apache-2.0

package vendors

import "github.com/fettle-dev/fettle/pkg/device"

// Preset is what programs need of a node beside the nodes of some devices, and the ClusterDevicePreset that gives it. Only NVIDIA's driver
// must be there: its libraries have to match the kernel module. Those of other vendors use stable kernel interfaces, and images bring the
// libraries that their programs are linked with; the presets do not get in the way of these (docs/design/presets.md).
type Preset struct {
	// Name is what the ClusterDevicePreset is called, without the domain.
	Name string
	// Vendor and Types are the attributes of its devices, but for FPGAs, which have Backend. It is not for devices of virtual machines, which
	// have a driver of their own.
	Vendor  string
	Types   []string
	Backend string
	// Needs is a plural: "the libraries of the node's driver". FromNode says that only the node has it. An image can bring the rest.
	Needs    string
	FromNode bool
	// Driver is the name that presets have for the vendor's driver, all files of which are given. Empty: none is.
	Driver string
	// Libraries, Mounts and Tools are given if they exist.
	Libraries Files
	Mounts    []Mount
	Tools     []string
}

// Files are files of a node, by patterns of their names.
type Files struct{ Directories, Names []string }

// Mount is a directory of a node and where containers have it.
type Mount struct{ HostPath, ContainerPath string }

// Presets returns the table of presets that are shipped. The chart lists them in its order.
func Presets() []Preset {
	const gpu = string(device.KindGPU)
	return []Preset{
		{
			Name: "nvidia", Vendor: "nvidia", Types: []string{gpu, device.TypeMIG},
			Needs: "the libraries of the node's driver", FromNode: true, Driver: "NVIDIA",
		},
		{
			Name: "amd", Vendor: "amd", Types: []string{gpu, device.TypePartition, device.TypeVF}, Needs: "ROCm's libraries",
			Libraries: Files{[]string{"/opt/rocm/lib"}, []string{"librocm_smi64.so.*", "libamd_smi.so.*"}},
			Mounts:    []Mount{{"/opt/rocm", "/usr/local/fettle/rocm"}},
		},
		{
			Name: "intel", Vendor: "intel", Types: []string{gpu, device.TypeVF}, Needs: "the drivers for Level Zero and OpenCL",
			Libraries: Files{
				[]string{"/usr/lib/x86_64-linux-gnu/intel-opencl", "/usr/lib64/intel-opencl"},
				[]string{"libze_intel_gpu.so.*", "libigdrcl.so", "libigc.so.*", "libigdfcl.so.*", "libigdgmm.so.*"},
			},
		},
		{
			Name: "xrt", Backend: "xrt", Needs: "XRT's libraries",
			Libraries: Files{[]string{"/opt/xilinx/xrt/lib"}, []string{"libxrt_core.so.*", "libxrt_coreutil.so.*", "libxilinxopencl.so.*"}},
			Mounts:    []Mount{{"/opt/xilinx/xrt", "/opt/xilinx/xrt"}},
		},
		{
			Name: "opae", Backend: "dfl", Needs: "OPAE's libraries",
			Libraries: Files{
				[]string{"/usr/lib64/opae", "/usr/lib/x86_64-linux-gnu/opae"},
				[]string{"libopae-c.so.*", "libopae-v.so*", "libopae-u.so*", "libxfpga.so*"},
			},
			Tools: []string{"fpgainfo"},
		},
	}
}
