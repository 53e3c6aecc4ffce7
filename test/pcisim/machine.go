// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"fmt"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sim"
)

// Machine is the sys of a host tree.
type Machine struct {
	// Files are the files below sys by name. Content that begins with "-> " is a link, a name that ends in a slash an empty directory.
	Files map[string]string `json:"files"`
	// Dev is a directory for the character devices that VFIO makes; empty for none.
	Dev string `json:"dev,omitempty"`
	// VFIOMajor is the major of VFIO's nodes, 511 where it is 0. VFIOMinor is the first minor.
	VFIOMajor uint32 `json:"vfioMajor,omitempty"`
	VFIOMinor uint32 `json:"vfioMinor,omitempty"`
	// DRMMajor is the major of the graphics nodes of new virtual functions, and DRMMinor the first minor. Where it is 0, they have those that
	// the kernel would give.
	DRMMajor uint32 `json:"drmMajor,omitempty"`
	DRMMinor uint32 `json:"drmMinor,omitempty"`
	// FunctionBits says that the topology of AMD's compute driver has the number of a partition in the bits of the PCI function, as on older
	// kernels.
	FunctionBits bool `json:"functionBits,omitempty"`
}

// FromTree is the machine of a host tree, to be served over the sys of the same tree.
func FromTree(host *sim.Machine) (Machine, error) {
	m := Machine{Files: map[string]string{}}
	for _, e := range host.Entries {
		switch {
		case !strings.HasPrefix(e.Path, "sys/"):
		case e.Kind == sim.File:
			m.Files[e.Path] = string(e.Data)
		case e.Kind == sim.Symlink:
			m.Files[e.Path] = "-> " + e.Target
		case e.Kind == sim.Dir:
			m.Files[e.Path+"/"] = ""
		default:
			return Machine{}, fmt.Errorf("%s is %s: only files, directories and links can be served", e.Path, e.Kind)
		}
	}
	return m, nil
}

// Fault is something that goes wrong with writes.
type Fault struct {
	// Path ends the name of the attribute: "driver_override", "vfio-pci/bind". Data, where it is set, is what must be written.
	Path string `json:"path"`
	Data string `json:"data,omitempty"`
	// Errno is what the caller gets, such as "EIO". Where it is empty the write is done.
	Errno string `json:"errno,omitempty"`
	// Hold makes the driver take until the command "go".
	Hold bool `json:"hold,omitempty"`
	// Lock ends the name of an attribute that nobody can read as long as Hold takes: the kernel answers both under one lock.
	Lock string `json:"lock,omitempty"`
	// Times is how often it happens, once where it is 0.
	Times int `json:"times,omitempty"`
}

// Set is what another program, or the hardware, does with a function.
type Set struct {
	// Function is its PCI address.
	Function string `json:"function"`
	// Users is how many processes compute on an AMD GPU.
	Users *int `json:"users,omitempty"`
	// Override writes driver_override. Driver binds another driver, or none where it is empty.
	Override *string `json:"override,omitempty"`
	Driver   *string `json:"driver,omitempty"`
	// VFs makes virtual functions, after those that there are were removed.
	VFs *int `json:"vfs,omitempty"`
	// Gone takes the function out of the machine.
	Gone bool `json:"gone,omitempty"`
}

// Event is one write.
type Event struct {
	// Path is the attribute, relative to the root. Data is what was written, without the end of the line.
	Path string `json:"path"`
	Data string `json:"data"`
	// Errno is empty where it succeeded.
	Errno string `json:"errno,omitempty"`
}

func (e Event) String() string {
	text := fmt.Sprintf("%s %q", e.Path, e.Data)
	if e.Errno != "" {
		text += " " + e.Errno
	}
	return text
}

// Command is one line of input.
type Command struct {
	Fault *Fault `json:"fault,omitempty"`
	Set   *Set   `json:"set,omitempty"`
	// Go ends all that is held.
	Go bool `json:"go,omitempty"`
	// Trace asks for the trace, and for how many writes are held.
	Trace bool `json:"trace,omitempty"`
}

// Answer is one line of output. The first comes once the machine is there.
type Answer struct {
	Error string  `json:"error,omitempty"`
	Trace []Event `json:"trace,omitempty"`
	// Held is how many writes wait for the command "go".
	Held int `json:"held,omitempty"`
}
