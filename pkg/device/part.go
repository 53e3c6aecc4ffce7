// SPDX-License-Identifier: Apache-2.0

package device

import resourceapi "k8s.io/api/resource/v1"

// The values of AttributeType of devices that are a part of a physical device, or the whole of it in another form. They differ from those
// of whole devices, so that a class for whole GPUs never gives out a part of one.
const (
	// TypeMIG is an instance of an NVIDIA GPU (Multi-Instance GPU).
	TypeMIG = "mig"
	// TypePartition is a compute partition of an AMD GPU.
	TypePartition = "partition"
	// TypeVF is a virtual function (SR-IOV).
	TypeVF = "vf"
	// TypeVFIO is a whole device that is bound to a VFIO driver while a claim has it, for a virtual machine.
	TypeVFIO = "vfio"
)

// The attributes of parts of a physical device.
const (
	// AttributeParentUUID is the uuid of the physical device.
	AttributeParentUUID resourceapi.QualifiedName = "parentUUID"
	// AttributeProfile is the sort of the part: "1g.10gb" of an NVIDIA GPU, "cpx-nps4" of an AMD GPU.
	AttributeProfile resourceapi.QualifiedName = "profile"
)
