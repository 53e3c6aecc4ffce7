// SPDX-License-Identifier: Apache-2.0

package device

import resourceapi "k8s.io/api/resource/v1"

// The driver's own attributes. They are published without a domain, so that a selector finds them under the driver's name:
// device.attributes["fettle.dev"].vendor.
const (
	// AttributeType is the kind of a whole device, "gpu", "fpga", "accelerator" or "host", or of a part: "mig", "partition", "vf" or
	// "vfio". Each device has it.
	AttributeType resourceapi.QualifiedName = "type"
	// AttributeVendor is who made the device or the card: "nvidia", "amd", "intel", "habana", "qualcomm", "silicom", "advantech", "amazon" or
	// "arista" (package vendors). Of others it is "pci" and the vendor's PCI identifier, "pci1de5"; of an accelerator that is a part of the
	// machine "platform", of a host device "host". Each device has it.
	AttributeVendor resourceapi.QualifiedName = "vendor"
	// AttributeProductName is the vendor's marketing name; of an FPGA of "xrt" the platform, of "fpga_manager" the board; of a host device
	// its name in the configuration.
	AttributeProductName resourceapi.QualifiedName = "productName"
	// AttributeUUID is the identity that the vendor's own tools print.
	AttributeUUID resourceapi.QualifiedName = "uuid"
	// AttributeSerial is the board's serial number.
	AttributeSerial resourceapi.QualifiedName = "serial"
	// AttributeArchitecture is the vendor's name of the generation: "Hopper", "gfx942", "xe-hpc".
	AttributeArchitecture resourceapi.QualifiedName = "architecture"
	// AttributeComputeCapability is NVIDIA's, as a version: 9.0.0.
	AttributeComputeCapability resourceapi.QualifiedName = "computeCapability"
	// AttributeDriver is the name of the kernel driver.
	AttributeDriver resourceapi.QualifiedName = "driver"
	// AttributeDriverVersion is the kernel driver's version; for one that came with the kernel, the kernel's.
	AttributeDriverVersion resourceapi.QualifiedName = "driverVersion"
	// AttributeDriverVersionText is the version as the driver prints it, where AttributeDriverVersion does not tell all of it.
	AttributeDriverVersionText resourceapi.QualifiedName = "driverVersionText"
	// AttributePCIAddress is the address in the kernel's form.
	AttributePCIAddress resourceapi.QualifiedName = "pciAddress"
	// AttributeFirmwareVersion is free text.
	AttributeFirmwareVersion resourceapi.QualifiedName = "firmwareVersion"
	// AttributeBrand is NVIDIA's name of a family of products: "Nvidia", "Tesla", "GeForceRTX".
	AttributeBrand resourceapi.QualifiedName = "brand"
	// AttributeCUDADriverVersion is the newest CUDA that NVIDIA's driver serves, as a version: 13.0.0.
	AttributeCUDADriverVersion resourceapi.QualifiedName = "cudaDriverVersion"
	// AttributeAddressingMode says how programs on an NVIDIA GPU use the machine's memory: "HMM", "ATS" or "None".
	AttributeAddressingMode resourceapi.QualifiedName = "addressingMode"
	// AttributeFabricState is how far an NVIDIA GPU is in its fabric of NVLink switches: "completed", "inProgress",
	// "notStarted" or "failed". A GPU without a fabric has none.
	AttributeFabricState resourceapi.QualifiedName = "fabricState"
	// AttributeFabricClusterUUID is the same for all GPUs that NVLink connects across machines, and AttributeFabricClique for those of them
	// that reach each other's memory: the UUID, a dot and the number of the clique.
	AttributeFabricClusterUUID resourceapi.QualifiedName = "fabricClusterUUID"
	AttributeFabricClique      resourceapi.QualifiedName = "fabricClique"
	// AttributePCIVendorID and AttributePCIDeviceID are four hexadecimal digits each.
	AttributePCIVendorID resourceapi.QualifiedName = "pciVendorID"
	AttributePCIDeviceID resourceapi.QualifiedName = "pciDeviceID"
)

// The attributes of FPGAs alone.
const (
	// AttributeBackend is the way in which an FPGA is programmed: "dfl", "fpga_manager" or "xrt". Each has it.
	AttributeBackend resourceapi.QualifiedName = "backend"
	// AttributeCard is the PCI address of the function that programs the card, the same for all its regions; for a chip that is part of
	// the machine, the name of its manager's platform device, "firmware:zynqmp-firmware:pcap". Each has it.
	AttributeCard resourceapi.QualifiedName = "card"
	// AttributeRegionIndex is the number of the region, or port, on its card: 0 but with "dfl". Each has it.
	AttributeRegionIndex resourceapi.QualifiedName = "regionIndex"
	// AttributeInterfaceID says which bitstreams fit: 32 hexadecimal digits. Each has it.
	AttributeInterfaceID resourceapi.QualifiedName = "interfaceID"
	// AttributeAFUID is the accelerator that is programmed now, 32 hexadecimal digits, with "dfl" unless the port is disabled; with "xrt"
	// the uuid of the xclbin. It changes with each programming.
	AttributeAFUID resourceapi.QualifiedName = "afuID"
	// AttributeBitstreamDigest is the SHA-256, in 64 hexadecimal digits, of the file that Fettle programmed, where the region still shows
	// its accelerator.
	AttributeBitstreamDigest resourceapi.QualifiedName = "bitstreamDigest"
	// AttributeShellID and AttributeShellVersion are those of the card's static part, "0x202000200000237" and "0x1910174" with "dfl"; with
	// "xrt" the shell's uuid, or a time of older shells.
	AttributeShellID      resourceapi.QualifiedName = "shellID"
	AttributeShellVersion resourceapi.QualifiedName = "shellVersion"
	// AttributeProgrammingLocked says that who has the node of a card of "xrt" cannot program or reset it. A card without that is not
	// published.
	AttributeProgrammingLocked resourceapi.QualifiedName = "programmingLocked"
	// AttributeDMAIsolated says that an IOMMU translates what the region's logic reads and writes in the machine's memory. Each has it; of
	// "fpga_manager" the kernel does not tell, which is false.
	AttributeDMAIsolated resourceapi.QualifiedName = "dmaIsolated"
	// AttributeMemoryTenant stands for the tenant whose data the card's memory may hold, "*" for several: 32 hexadecimal digits that name
	// nobody, the same on all of the node. It is absent if there is none.
	AttributeMemoryTenant resourceapi.QualifiedName = "memoryTenant"
	// AttributeSRIOVVF says whether the region of a PCI device is reached through a virtual function.
	AttributeSRIOVVF resourceapi.QualifiedName = "sriovVF"
)

// The capacities.
const (
	// CapacityMemory is the device's own memory in bytes.
	CapacityMemory resourceapi.QualifiedName = "memory"
	// CapacityMultiprocessors counts NVIDIA's streaming multiprocessors.
	CapacityMultiprocessors resourceapi.QualifiedName = "multiprocessors"
	// CapacityComputeUnits counts AMD's compute units.
	CapacityComputeUnits resourceapi.QualifiedName = "computeUnits"
	// CapacityVirtualFunctions is how many SR-IOV functions the device can have.
	CapacityVirtualFunctions resourceapi.QualifiedName = "virtualFunctions"
	// CapacityShares is by how many claims the device can be shared. Each takes one. A device without it is one claim's alone.
	CapacityShares resourceapi.QualifiedName = "shares"
	// CapacityStorage is the size in bytes of the file system that a host directory is on.
	CapacityStorage resourceapi.QualifiedName = "storage"
)
