// SPDX-License-Identifier: Apache-2.0

package discover

import "cmp"

// Problem is something about the machine that a person should know: a device that is not published, or one that lacks something.
type Problem struct {
	// Subject is a PCI address or the absolute path of a host file.
	Subject string `json:"subject"`
	// Reason is one of the Reason constants.
	Reason string `json:"reason"`
	// Message says what is wrong and, where it helps, what to do next.
	Message string `json:"message"`
}

// The reasons of problems. Those in the first group withhold the device; the others cost it no more than the message says.
const (
	// ReasonDriverNotLoaded: no kernel driver holds the device, or a part of the driver is missing.
	ReasonDriverNotLoaded = "DriverNotLoaded"
	// ReasonDriverNotSupported: a driver holds the device that Fettle does not hand out.
	ReasonDriverNotSupported = "DriverNotSupported"
	// ReasonBoundToVFIO: the device is set aside for virtual machines.
	ReasonBoundToVFIO = "BoundToVFIO"
	// ReasonExcluded: the driver was told to leave the device alone.
	ReasonExcluded = "Excluded"
	// ReasonPartitioned: the device is in a partition mode, so that it cannot be used whole.
	ReasonPartitioned = "Partitioned"
	// ReasonNotResponding: the driver holds the device and cannot reach it.
	ReasonNotResponding = "NotResponding"
	// ReasonIdentityUnreadable: what the device is cannot be read.
	ReasonIdentityUnreadable = "IdentityUnreadable"
	// ReasonDeviceNumbersUnknown: the numbers of a node that the device needs cannot be read.
	ReasonDeviceNumbersUnknown = "DeviceNumbersUnknown"
	// ReasonInterfaceUnknown: the interface id of an FPGA's region is absent, means none, or cannot be read.
	ReasonInterfaceUnknown = "InterfaceUnknown"
	// ReasonRegionAmbiguous: an FPGA's port has one of several regions, and which one cannot be told.
	ReasonRegionAmbiguous = "RegionAmbiguous"
	// ReasonRegionUnknown: a programming of the region failed or was cut off, so nobody knows what it holds.
	ReasonRegionUnknown = "RegionUnknown"
	// ReasonManagerMissing: what programs an FPGA's port is not there.
	ReasonManagerMissing = "ManagerMissing"
	// ReasonNotProgrammable: the kernel lets no program load anything into an FPGA.
	ReasonNotProgrammable = "NotProgrammable"
	// ReasonProgrammingUnlocked: whoever had an FPGA's node could program it.
	ReasonProgrammingUnlocked = "ProgrammingUnlocked"
	// ReasonPortReleased: an FPGA's port was given to a virtual function that nothing on the host holds.
	ReasonPortReleased = "PortReleased"
	// ReasonProgrammingNode: the device's node could program an FPGA.
	ReasonProgrammingNode = "ProgrammingNode"
	// ReasonNodesMissing: nothing tells by which nodes pods use an FPGA.
	ReasonNodesMissing = "NodesMissing"
	// ReasonHostPathUnusable: a configured host path is not what it was said to be.
	ReasonHostPathUnusable = "HostPathUnusable"
	// ReasonDuplicateName: two devices would have the same name.
	ReasonDuplicateName = "DuplicateName"
	// ReasonDuplicateNumbers: two devices would be the same device node.
	ReasonDuplicateNumbers = "DuplicateNumbers"
	// ReasonInvalid: what was found breaks a rule of the API.
	ReasonInvalid = "Invalid"

	// ReasonAttributeUnreadable: an attribute could not be read and is left out.
	ReasonAttributeUnreadable = "AttributeUnreadable"
	// ReasonAttributeInvalid: an attribute was read, cannot be published as it is, and is left out.
	ReasonAttributeInvalid = "AttributeInvalid"
	// ReasonAcceleratorDead: an FPGA's port has no accelerator that answers.
	ReasonAcceleratorDead = "AcceleratorDead"
	// ReasonNodeMismatch: a node in the host's /dev contradicts the kernel's numbers, which are used.
	ReasonNodeMismatch = "NodeMismatch"
	// ReasonNVMLUnavailable: NVIDIA's library did not answer, so that only the kernel's attributes are known.
	ReasonNVMLUnavailable = "NVMLUnavailable"
	// ReasonListingFailed: a directory could not be listed, so that devices may be missing.
	ReasonListingFailed = "ListingFailed"
	// ReasonCancelled: discovery ended early, so that devices are missing.
	ReasonCancelled = "Cancelled"
)

func (p Problem) compare(q Problem) int {
	return cmp.Or(cmp.Compare(p.Subject, q.Subject), cmp.Compare(p.Reason, q.Reason), cmp.Compare(p.Message, q.Message))
}
