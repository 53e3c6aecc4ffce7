// SPDX-License-Identifier: Apache-2.0

package nodeconfig

// Partitions is how GPUs may be divided, as far as the node decides it. PartitionPolicies decide the rest.
type Partitions struct {
	// PCI lets PartitionPolicies have attributes of PCI devices written: to bind a GPU to a VFIO driver, to make virtual functions, to switch
	// the modes of AMD's GPUs. MIG needs none of it. The process needs SYS_PTRACE, DAC_READ_SEARCH, a writable sys and the host's proc for it,
	// by which whoever takes it over can take over the node.
	PCI bool `json:"pci,omitempty"`
	// Strategies lets claims choose the strategies that policies list: the plugin sets compute modes and time slices of NVIDIA's GPUs. The
	// driver asks for SYS_ADMIN then.
	Strategies bool `json:"strategies,omitempty"`
	// MPSSupervisor is the directory in which the program fettle-mps answers. Empty: claims cannot choose the strategy MPS.
	MPSSupervisor string `json:"mpsSupervisor,omitempty"`
}

// Metadata says whether containers get files with the attributes of their devices (KEP-5304). A virtual machine's monitor such as KubeVirt
// finds the address of a VFIO device only there.
func (c *File) Metadata() bool { return c.DeviceMetadata || c.Partitions.PCI }
