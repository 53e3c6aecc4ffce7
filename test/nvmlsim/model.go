// SPDX-License-Identifier: Apache-2.0

package nvmlsim

// Model is a kind of GPU. A model without profiles cannot be divided.
type Model struct {
	Name string
	// Architecture is NVML_DEVICE_ARCH_*, Major and Minor the compute capability.
	Architecture uint32
	Major, Minor int
	MemoryMiB    uint64
	Cores        int
	// NeedsReset: a change of the MIG mode holds after the next reset of the GPU (Ampere), and lasts over reboots. Otherwise it holds at
	// once, and as long as the driver is loaded (Hopper).
	NeedsReset bool
	Profiles   []Profile
}

// Profile is one sort of GPU instance.
type Profile struct {
	// Number is NVML_GPU_INSTANCE_PROFILE_*, by which the library is asked; ID is the profile's id.
	Number int
	ID     uint32
	// Slices are compute slices, Size memory slices from each of Starts.
	Slices, Size uint32
	Starts       []uint32
	// Most is how many instances of the profile there can be.
	Most                           uint32
	SMs, Copy, Decoders, JPEG, OFA uint32
	MemoryMiB                      uint64
}

// The numbers of NVML_GPU_INSTANCE_PROFILE_* in nvml.h.
const (
	slice1     = 0
	slice2     = 1
	slice3     = 2
	slice4     = 3
	slice7     = 4
	slice1REV1 = 7
	slice2REV1 = 8
	slice1REV2 = 9
)

const (
	ampere = 7
	hopper = 9
)

// The models that the simulator has, by name.
const (
	A30       = "A30"
	A100x40   = "A100-40"
	A100x80   = "A100-80"
	H100      = "H100-80"
	H100x94   = "H100-94"
	H200      = "H200-141"
	Undivided = "L4"
)

// models is the table of the models (NVIDIA's MIG user guide, "Supported MIG Profiles").
func models() map[string]Model {
	a100SMs, h100SMs := [6]uint32{14, 14, 28, 42, 56, 98}, [6]uint32{16, 26, 32, 60, 64, 132}
	return map[string]Model{
		A30: {
			Name: "NVIDIA A30", Architecture: ampere, Major: 8, MemoryMiB: 24576, Cores: 56 * 64, NeedsReset: true, Profiles: []Profile{
				{Number: slice1, ID: 14, Slices: 1, Size: 1, Starts: []uint32{0, 1, 2, 3}, Most: 4, SMs: 14, Copy: 1, MemoryMiB: 5836},
				{
					Number: slice1REV1, ID: 21, Slices: 1, Size: 1, Starts: []uint32{0, 1, 2, 3}, Most: 1, SMs: 14, Copy: 1, Decoders: 1,
					JPEG: 1, OFA: 1, MemoryMiB: 5836,
				},
				{
					Number: slice2, ID: 5, Slices: 2, Size: 2, Starts: []uint32{0, 2}, Most: 2, SMs: 28, Copy: 2, Decoders: 2,
					MemoryMiB: 11672,
				},
				{
					Number: slice2REV1, ID: 6, Slices: 2, Size: 2, Starts: []uint32{0, 2}, Most: 1, SMs: 28, Copy: 2, Decoders: 2, JPEG: 1,
					OFA: 1, MemoryMiB: 11672,
				},
				{
					Number: slice4, ID: 0, Slices: 4, Size: 4, Starts: []uint32{0}, Most: 1, SMs: 56, Copy: 4, Decoders: 4, JPEG: 1, OFA: 1,
					MemoryMiB: 23344,
				},
			},
		},
		A100x40: {
			Name: "NVIDIA A100-SXM4-40GB", Architecture: ampere, Major: 8, MemoryMiB: 40960, Cores: 108 * 64, NeedsReset: true,
			Profiles: eight(4864, a100SMs),
		},
		A100x80: {
			Name: "NVIDIA A100-SXM4-80GB", Architecture: ampere, Major: 8, MemoryMiB: 81920, Cores: 108 * 64, NeedsReset: true,
			Profiles: eight(9728, a100SMs),
		},
		H100: {
			Name: "NVIDIA H100 80GB HBM3", Architecture: hopper, Major: 9, MemoryMiB: 81559, Cores: 132 * 128, Profiles: eight(9984, h100SMs),
		},
		H100x94:   {Name: "NVIDIA H100 NVL", Architecture: hopper, Major: 9, MemoryMiB: 95830, Cores: 132 * 128, Profiles: eight(11264, h100SMs)},
		H200:      {Name: "NVIDIA H200", Architecture: hopper, Major: 9, MemoryMiB: 143771, Cores: 132 * 128, Profiles: eight(16896, h100SMs)},
		Undivided: {Name: "NVIDIA L4", Architecture: 8, Major: 8, Minor: 9, MemoryMiB: 23034, Cores: 58 * 128},
	}
}

// eight are the profiles of a GPU with eight memory slices of some size and seven compute slices. The multiprocessors are those of 1g, 1g
// with twice the memory, 2g, 3g, 4g and 7g.
func eight(slice uint64, sms [6]uint32) []Profile {
	each, even := []uint32{0, 1, 2, 3, 4, 5, 6}, []uint32{0, 2, 4, 6}
	return []Profile{
		{Number: slice1, ID: 19, Slices: 1, Size: 1, Starts: each, Most: 7, SMs: sms[0], Copy: 1, MemoryMiB: slice},
		{Number: slice2, ID: 14, Slices: 2, Size: 2, Starts: even[:3], Most: 3, SMs: sms[2], Copy: 2, Decoders: 1, MemoryMiB: 2 * slice},
		{Number: slice3, ID: 9, Slices: 3, Size: 4, Starts: []uint32{0, 4}, Most: 2, SMs: sms[3], Copy: 3, Decoders: 2, MemoryMiB: 4 * slice},
		{Number: slice4, ID: 5, Slices: 4, Size: 4, Starts: []uint32{0}, Most: 1, SMs: sms[4], Copy: 4, Decoders: 2, MemoryMiB: 4 * slice},
		{
			Number: slice7, ID: 0, Slices: 7, Size: 8, Starts: []uint32{0}, Most: 1, SMs: sms[5], Copy: 7, Decoders: 5, JPEG: 1, OFA: 1,
			MemoryMiB: 8 * slice,
		},
		{
			Number: slice1REV1, ID: 20, Slices: 1, Size: 1, Starts: each, Most: 1, SMs: sms[0], Copy: 1, Decoders: 1, JPEG: 1, OFA: 1,
			MemoryMiB: slice,
		},
		{Number: slice1REV2, ID: 15, Slices: 1, Size: 2, Starts: even, Most: 4, SMs: sms[1], Copy: 1, Decoders: 1, MemoryMiB: 2 * slice},
	}
}
