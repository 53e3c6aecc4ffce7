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

// models is the table of the models: of H100 and H200 what cards said (docs/design/hardware.md), of the others NVIDIA's MIG user guide,
// "Supported MIG Profiles", with memory sizes that are near.
func models() map[string]Model {
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
			Profiles: ampereProfiles(4864),
		},
		A100x80: {
			Name: "NVIDIA A100-SXM4-80GB", Architecture: ampere, Major: 8, MemoryMiB: 81920, Cores: 108 * 64, NeedsReset: true,
			Profiles: ampereProfiles(9728),
		},
		H100: {
			Name: "NVIDIA H100 80GB HBM3", Architecture: hopper, Major: 9, MemoryMiB: 81559, Cores: 132 * 128,
			Profiles: hopperProfiles(9984, 20096, 40448, 81152),
		},
		H100x94: {
			Name: "NVIDIA H100 NVL", Architecture: hopper, Major: 9, MemoryMiB: 95830, Cores: 132 * 128,
			Profiles: hopperProfiles(11264, 22528, 45056, 90112),
		},
		H200: {
			Name: "NVIDIA H200", Architecture: hopper, Major: 9, MemoryMiB: 143771, Cores: 132 * 128,
			Profiles: hopperProfiles(16384, 33280, 71424, 143360),
		},
		Undivided: {Name: "NVIDIA L4", Architecture: 8, Major: 8, Minor: 9, MemoryMiB: 23034, Cores: 58 * 128},
	}
}

// starts are the places of one and of two memory slices on a GPU with seven compute slices and eight memory slices.
func starts() (each, even []uint32) { return []uint32{0, 1, 2, 3, 4, 5, 6}, []uint32{0, 2, 4, 6} }

// ampereProfiles are those of an A100 with memory slices of some size.
func ampereProfiles(slice uint64) []Profile {
	each, even := starts()
	return []Profile{
		{Number: slice1, ID: 19, Slices: 1, Size: 1, Starts: each, Most: 7, SMs: 14, Copy: 1, MemoryMiB: slice},
		{Number: slice2, ID: 14, Slices: 2, Size: 2, Starts: even[:3], Most: 3, SMs: 28, Copy: 2, Decoders: 1, MemoryMiB: 2 * slice},
		{Number: slice3, ID: 9, Slices: 3, Size: 4, Starts: []uint32{0, 4}, Most: 2, SMs: 42, Copy: 3, Decoders: 2, MemoryMiB: 4 * slice},
		{Number: slice4, ID: 5, Slices: 4, Size: 4, Starts: []uint32{0}, Most: 1, SMs: 56, Copy: 4, Decoders: 2, MemoryMiB: 4 * slice},
		{
			Number: slice7, ID: 0, Slices: 7, Size: 8, Starts: []uint32{0}, Most: 1, SMs: 98, Copy: 7, Decoders: 5, JPEG: 1, OFA: 1,
			MemoryMiB: 8 * slice,
		},
		{
			Number: slice1REV1, ID: 20, Slices: 1, Size: 1, Starts: each, Most: 1, SMs: 14, Copy: 1, Decoders: 1, JPEG: 1, OFA: 1,
			MemoryMiB: slice,
		},
		{Number: slice1REV2, ID: 15, Slices: 1, Size: 2, Starts: even, Most: 4, SMs: 14, Copy: 1, Decoders: 1, MemoryMiB: 2 * slice},
	}
}

// hopperProfiles are those of an H100 or H200, whose one, two, four and eight memory slices have so many MiB. Each compute slice has its
// decoder and its JPEG engine.
func hopperProfiles(one, two, four, eight uint64) []Profile {
	each, even := starts()
	return []Profile{
		{Number: slice1, ID: 19, Slices: 1, Size: 1, Starts: each, Most: 7, SMs: 16, Copy: 1, Decoders: 1, JPEG: 1, MemoryMiB: one},
		{Number: slice2, ID: 14, Slices: 2, Size: 2, Starts: even[:3], Most: 3, SMs: 32, Copy: 2, Decoders: 2, JPEG: 2, MemoryMiB: two},
		{
			Number: slice3, ID: 9, Slices: 3, Size: 4, Starts: []uint32{0, 4}, Most: 2, SMs: 60, Copy: 3, Decoders: 3, JPEG: 3,
			MemoryMiB: four,
		},
		{
			Number: slice4, ID: 5, Slices: 4, Size: 4, Starts: []uint32{0}, Most: 1, SMs: 64, Copy: 4, Decoders: 4, JPEG: 4,
			MemoryMiB: four,
		},
		{
			Number: slice7, ID: 0, Slices: 7, Size: 8, Starts: []uint32{0}, Most: 1, SMs: 132, Copy: 8, Decoders: 7, JPEG: 7, OFA: 1,
			MemoryMiB: eight,
		},
		{
			Number: slice1REV1, ID: 20, Slices: 1, Size: 1, Starts: each, Most: 1, SMs: 16, Copy: 1, Decoders: 1, JPEG: 1, OFA: 1,
			MemoryMiB: one,
		},
		{Number: slice1REV2, ID: 15, Slices: 1, Size: 2, Starts: even, Most: 4, SMs: 26, Copy: 1, Decoders: 1, JPEG: 1, MemoryMiB: two},
	}
}
