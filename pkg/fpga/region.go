// SPDX-License-Identifier: Apache-2.0

package fpga

// Region says where the parts of an FPGA's region lie on the host. All names are relative to the host's tree. They hold only until the
// device changes its place, so a caller looks the region up each time before it acts.
type Region struct {
	// Backend is one of the Backend constants. It says which of the members below is set.
	Backend string `json:"backend"`
	// Card is equal for all regions that one engine programs, one at a time: its PCI address, or the name of its platform device.
	Card string `json:"card"`
	// InterfaceID says which bitstreams fit: 32 hexadecimal digits.
	InterfaceID string `json:"interfaceID"`
	// Requester is the directory of the PCI function in whose name the region's logic reads and writes the machine's memory. It is empty for
	// a chip that is part of the machine: its logic reaches memory by ports that belong to no device.
	Requester string         `json:"requester,omitempty"`
	DFL       *DFLRegion     `json:"dfl,omitempty"`
	Manager   *ManagerRegion `json:"manager,omitempty"`
	XRT       *XRTRegion     `json:"xrt,omitempty"`
}

// NoReadback reports that the region never shows what it holds.
func (r *Region) NoReadback() bool { return r.Manager != nil }

// The ways of programming a region, the values of Region.Backend.
const (
	BackendDFL = "dfl"
	// BackendFPGAManager uses the attributes of AMD's kernel.
	BackendFPGAManager = "fpga_manager"
	BackendXRT         = "xrt"
)

// ManagerRegion is a chip that the kernel's fpga_manager programs.
type ManagerRegion struct {
	// Platform is the name of the manager's platform device.
	Platform string `json:"platform"`
	// Partial says that images are for a part of the chip whose other parts keep running.
	Partial bool `json:"partial,omitempty"`
}

// XRTRegion is a card with XRT's drivers. Management is the PCI address of the function that programs, User that of the function that pods
// use.
type XRTRegion struct {
	Management string `json:"management"`
	User       string `json:"user"`
}

// DFLRegion is a port of a card with a device feature list, see Documentation/fpga/dfl.rst.
type DFLRegion struct {
	// Port is the kernel's name, "dfl-port.0". PortID is the number of the port on its engine.
	Port   string `json:"port"`
	PortID uint32 `json:"portID"`
	// Node and EngineNode are the device nodes of the port and of the engine (FME) that programs it.
	Node       string `json:"node"`
	EngineNode string `json:"engineNode"`
	// Attributes is the port's directory, Compat that of its region's compat_id, Manager that of the engine's fpga_manager.
	Attributes string `json:"attributes"`
	Compat     string `json:"compat"`
	Manager    string `json:"manager"`
}
