// SPDX-License-Identifier: Apache-2.0

package fpga

// Region is where what programs an FPGA's region lies on the host. All names are relative to the host's tree, and good for as long as
// the device stays where it is: whoever acts on one looks it up anew.
type Region struct {
	// Backend says which of the members below is there: one of the Backend constants.
	Backend string `json:"backend"`
	// Card is the same for all regions that are programmed through one engine, one at a time: its PCI address, or the name of its platform
	// device.
	Card string `json:"card"`
	// InterfaceID says which bitstreams fit: 32 hexadecimal digits.
	InterfaceID string         `json:"interfaceID"`
	DFL         *DFLRegion     `json:"dfl,omitempty"`
	Manager     *ManagerRegion `json:"manager,omitempty"`
	XRT         *XRTRegion     `json:"xrt,omitempty"`
}

// Mute says that the region never tells what it holds.
func (r *Region) Mute() bool { return r.Manager != nil }

// The ways of programming a region, the values of Region.Backend.
const (
	BackendDFL = "dfl"
	// BackendFPGAManager is AMD's kernel with its attributes.
	BackendFPGAManager = "fpga_manager"
	BackendXRT         = "xrt"
)

// ManagerRegion is a chip that the kernel's fpga_manager programs.
type ManagerRegion struct {
	// Platform is the name of the manager's platform device.
	Platform string `json:"platform"`
	// Partial: images are for a part of the chip, and the rest goes on.
	Partial bool `json:"partial,omitempty"`
}

// XRTRegion is a card with XRT's drivers: the PCI addresses of the function that programs and of the one that pods use.
type XRTRegion struct {
	Management string `json:"management"`
	User       string `json:"user"`
}

// DFLRegion is a port of a card with a device feature list, see Documentation/fpga/dfl.rst.
type DFLRegion struct {
	// Port is the kernel's name, "dfl-port.0", and PortID the port's number on its engine.
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
