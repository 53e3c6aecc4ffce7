// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"time"
)

// Machine is what is simulated.
type Machine struct {
	Cards []Card `json:"cards"`
	// Files are further files by name below the root, such as attributes of the PCI functions. Content that begins with "-> " is a link.
	Files map[string]string `json:"files,omitempty"`
}

// Card is one FME, dfl-fme.N for the Nth card, with its ports.
type Card struct {
	Ports []Port `json:"ports"`
}

// Port is one port and its region. Ports are numbered over all cards as dfl-port.N, and from 0 on each card as the attribute id.
type Port struct {
	// Interface is compat_id of the region. Where it is empty, reading it says that there is none.
	Interface string `json:"interface"`
	// AFU is the accelerator id at the start.
	AFU string `json:"afu"`
}

// Place is where a port lies below the root, all names relative to it.
type Place struct {
	Name, Node, FMENode, Attributes, Region, Manager string
	ID                                               uint32
}

// Place says where a port lies.
func (m Machine) Place(card, port int) Place {
	number := port
	for _, c := range m.Cards[:card] {
		number += len(c.Ports)
	}
	base := fmt.Sprintf("sys/class/fpga_region/region%d", m.region(card))
	fme := fmt.Sprintf("%s/dfl-fme.%d", base, card)
	return Place{
		Name:       fmt.Sprintf("dfl-port.%d", number),
		Node:       fmt.Sprintf("dev/dfl-port.%d", number),
		FMENode:    fmt.Sprintf("dev/dfl-fme.%d", card),
		Attributes: fmt.Sprintf("%s/dfl-port.%d", base, number),
		Region:     fmt.Sprintf("%s/dfl-fme-region.%d/fpga_region/region%d", fme, number, m.region(card)+port+1),
		Manager:    fmt.Sprintf("%s/dfl-fme-mgr.%d/fpga_manager/fpga%d", fme, card, card),
		ID:         uint32(port),
	}
}

// region is the number of a card's base region; those of its ports come after it.
func (m Machine) region(card int) int {
	number := 0
	for _, c := range m.Cards[:card] {
		number += len(c.Ports) + 1
	}
	return number
}

// imageMagic begins what the simulated card can load: after it, the interface id and the accelerator id as 16 bytes each. What follows
// is anything.
const imageMagic = "FETTLSIM"

// imageHeader is the length of the header.
const imageHeader = len(imageMagic) + 16 + 16

// Image makes an image of size bytes for a region; size is at least 40.
func Image(interfaceID, afu string, size int) []byte {
	image := make([]byte, max(size, imageHeader))
	copy(image, imageMagic)
	for i, id := range []string{interfaceID, afu} {
		raw, err := hex.DecodeString(id)
		if err != nil || len(raw) != 16 {
			panic(fmt.Sprintf("fpgasim.Image: id %q, want 32 hexadecimal digits", id))
		}
		copy(image[len(imageMagic)+16*i:], raw)
	}
	for i := imageHeader; i < len(image); i++ {
		image[i] = byte(i * 7)
	}
	return image
}

// ids reads the header.
func ids(image []byte) (interfaceID, afu string, ok bool) {
	if len(image) < imageHeader || !bytes.HasPrefix(image, []byte(imageMagic)) {
		return "", "", false
	}
	id := image[len(imageMagic):imageHeader]
	return hex.EncodeToString(id[:16]), hex.EncodeToString(id[16:]), true
}

// Fault is something that goes wrong once, on one port.
type Fault struct {
	Card int `json:"card"`
	Port int `json:"port"`
	// On is what it happens to: OnPR or one of the others.
	On string `json:"on"`
	// Errno is what the caller gets, such as "EIO". In a programming EIO and ETIMEDOUT come from the hardware, after the port was
	// disabled; all others come before anything was touched.
	Errno string `json:"errno,omitempty"`
	// Status is the fpga_manager's status afterwards, such as "reconfig CRC error".
	Status string `json:"status,omitempty"`
	// Hang is how long the hardware takes. Hold makes it take until the command "go".
	Hang time.Duration `json:"hang,omitempty"`
	Hold bool          `json:"hold,omitempty"`
	// Busy is how many reads of afu_id say EBUSY although the port is enabled, after a programming.
	Busy int `json:"busy,omitempty"`
	// AFU is what the port holds after a programming, whatever was in the image.
	AFU string `json:"afu,omitempty"`
	// Times is how often it happens, once where it is 0.
	Times int `json:"times,omitempty"`
}

// What a fault can happen to.
const (
	OnPR      = "pr"
	OnOpen    = "open"
	OnReset   = "reset"
	OnInfo    = "info"
	OnRelease = "release"
	OnAssign  = "assign"
	OnClear   = "clear" // of the port's errors
	OnAFU     = "afu_id"
)

// Set changes a port as its world does. What is nil stays.
type Set struct {
	Card int `json:"card"`
	Port int `json:"port"`
	// User opens the port as another user, or closes it.
	User *bool `json:"user,omitempty"`
	// Power is power_state; 6 after a thermal stop.
	Power *int `json:"power,omitempty"`
	// Errors is the port's error register.
	Errors *uint64 `json:"errors,omitempty"`
	// AFU is the accelerator id, all f for crashed firmware.
	AFU *string `json:"afu,omitempty"`
	// Interface is compat_id.
	Interface *string `json:"interface,omitempty"`
	// Rebind binds the device anew: the port is enabled, and nobody has it open.
	Rebind bool `json:"rebind,omitempty"`
}

// Event is one thing that was asked of the machine, in order.
type Event struct {
	// Op is open, close, ioctl, read, write, or done where an ioctl took time.
	Op string `json:"op"`
	// Path is the node or attribute, relative to the root.
	Path string `json:"path"`
	PID  int    `json:"pid,omitempty"`
	// Exclusive is an open with O_EXCL.
	Exclusive bool `json:"exclusive,omitempty"`
	// Request is the ioctl's name, Port the port id that it names.
	Request string `json:"request,omitempty"`
	Port    int    `json:"port,omitempty"`
	// Size and SHA256 are those of the payload of a programming.
	Size   int    `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	// Data is what was read or written.
	Data string `json:"data,omitempty"`
	// Errno is empty where it succeeded, and where an ioctl takes time and its end is another event.
	Errno string `json:"errno,omitempty"`
}

func (e Event) String() string {
	text := e.Op + " " + e.Path
	if e.Exclusive {
		text += " exclusive"
	}
	if e.Request != "" {
		text += fmt.Sprintf(" %s %d", e.Request, e.Port)
	}
	if e.Data != "" {
		text += fmt.Sprintf(" %q", e.Data)
	}
	if e.Errno != "" {
		text += " " + e.Errno
	}
	return text
}
