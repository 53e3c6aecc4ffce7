// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Machine is what is simulated.
type Machine struct {
	Cards []Card `json:"cards"`
	// Files are further files by name below the root, such as attributes of the PCI functions. Content that begins with "-> " is a link.
	Files map[string]string `json:"files,omitempty"`
	// Nodes is the directory of the device nodes, which are plain files; empty means dev. A machine that has character devices in dev,
	// which discovery wants and pods can open, has these elsewhere.
	Nodes string `json:"nodes,omitempty"`
	// Base is the directory of the host tree that is served at the root of the mount, such as sys; empty means all of it.
	Base string `json:"base,omitempty"`
	// Dev is a directory of real character devices, such as the dev beside a sys that is served. They come and go with ports. Empty
	// means none.
	Dev string `json:"dev,omitempty"`
	// Shared says that other mount namespaces see the tree, too. Those keep the mount; for them it ends with the process.
	Shared bool `json:"shared,omitempty"`
	// NoDigests leaves SHA256 out of the trace: to compute it takes longer than to copy the image, and no card does.
	NoDigests bool `json:"noDigests,omitempty"`
}

// Card is one FME, dfl-fme.N for the Nth card, with its ports.
type Card struct {
	Ports []Port `json:"ports"`
	// Directory is the FME's and Manager its fpga_manager's. Where they are empty, both are numbered by the card.
	Directory string `json:"directory,omitempty"`
	Manager   string `json:"manager,omitempty"`
	// Dev is the FME's device number; 244:N where it is empty. What opens is Nodes, never that.
	Dev string `json:"dev,omitempty"`
	// Function is the directory of the card's PCI function; empty means that it cannot have virtual ones.
	Function string `json:"function,omitempty"`
}

// Port is one port and its region. Ports are numbered over all cards as dfl-port.N, and from 0 on each card as the attribute id.
type Port struct {
	// Interface is compat_id of the region. Where it is empty, reading it says that there is none.
	Interface string `json:"interface"`
	// AFU is the accelerator id at the start.
	AFU string `json:"afu"`
	// Directory is the port's and Region that of its region's compat_id. Where they are empty, both are numbered.
	Directory string `json:"directory,omitempty"`
	Region    string `json:"region,omitempty"`
	// Dev is the port's device number; 245:N where it is empty.
	Dev string `json:"dev,omitempty"`
	// Virtual says that Directory is one of a virtual function, which the port was released to.
	Virtual bool `json:"virtual,omitempty"`
	// Revision is the port header's. Above 0 there are no attributes of the user clock.
	Revision int `json:"revision,omitempty"`
	// ClockKHz is the high user clock at the start; 312500 where it is 0. PLL is the type of its PLL, 6 where it is 0, and ClockVersion
	// the version that its counter tells, 3 where it is 0.
	ClockKHz     int64  `json:"clockKHz,omitempty"`
	PLL          byte   `json:"pll,omitempty"`
	ClockVersion uint64 `json:"clockVersion,omitempty"`
	// LTR is the attribute ltr.
	LTR bool `json:"ltr,omitempty"`
	// Debug is the attribute debug, which is absent where it is nil.
	Debug *int32 `json:"debug,omitempty"`
}

// Place is where a port lies below the root, all names relative to it.
type Place struct {
	Name, Node, FMENode, Attributes, Region, Manager string
	ID                                               uint32
}

// Place says where a port lies at the start.
func (m Machine) Place(card, port int) Place {
	c, p := m.Cards[card], m.Cards[card].Ports[port]
	number := m.number(card, port)
	base := fmt.Sprintf("sys/class/fpga_region/region%d", m.region(card))
	fme := either(c.Directory, fmt.Sprintf("%s/dfl-fme.%d", base, card))
	at := either(p.Directory, fmt.Sprintf("%s/dfl-port.%d", base, number))
	return Place{
		Name:       path.Base(at),
		Node:       path.Join(m.nodes(), path.Base(at)),
		FMENode:    path.Join(m.nodes(), path.Base(fme)),
		Attributes: at,
		Region:     either(p.Region, fmt.Sprintf("%s/dfl-fme-region.%d/fpga_region/region%d", fme, number, m.region(card)+port+1)),
		Manager:    either(c.Manager, fmt.Sprintf("%s/dfl-fme-mgr.%d/fpga_manager/fpga%d", fme, card, card)),
		ID:         uint32(port),
	}
}

// Virtual says where a port lies once it is that of a virtual function: the port's number and that of its base region are new.
func (m Machine) Virtual(card, port int) Place {
	place, c := m.Place(card, port), m.Cards[card]
	if c.Ports[port].Virtual {
		return place
	}
	at := fmt.Sprintf("%s/fpga_region/region%d/dfl-port.%d", virtualFunction(c.Function, port),
		m.next("region")+m.number(card, port), m.next("dfl-port.")+m.number(card, port))
	place.Name, place.Node, place.Attributes = path.Base(at), path.Join(m.nodes(), path.Base(at)), at
	return place
}

// home is where a port lies while it is the card's own.
func (m Machine) home(card, port int) Place {
	place := m.Place(card, port)
	if m.Cards[card].Ports[port].Virtual {
		place.Attributes = path.Join(path.Dir(m.Cards[card].Directory), place.Name)
	}
	return place
}

// virtualFunction is the directory of the virtual function of a card's nth port.
func virtualFunction(function string, port int) string {
	address := path.Base(function)
	return path.Join(path.Dir(function), fmt.Sprintf("%s.%d", address[:strings.LastIndexByte(address, '.')], port+1))
}

// next is the first number that nothing with such a name has.
func (m Machine) next(prefix string) int {
	free := 0
	count := func(name string) {
		for element := range strings.SplitSeq(name, "/") {
			if n, err := strconv.Atoi(strings.TrimPrefix(element, prefix)); err == nil && strings.HasPrefix(element, prefix) {
				free = max(free, n+1)
			}
		}
	}
	for name := range m.Files {
		count(name)
	}
	for i, c := range m.Cards {
		for j := range c.Ports {
			count(m.Place(i, j).Attributes)
			count(m.Place(i, j).Region)
		}
	}
	return free
}

func (m Machine) nodes() string { return either(m.Nodes, "dev") }

// number is a port's over all cards.
func (m Machine) number(card, port int) int {
	for _, c := range m.Cards[:card] {
		port += len(c.Ports)
	}
	return port
}

func either(text, other string) string {
	if text != "" {
		return text
	}
	return other
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
	// Hold makes the hardware take until the command "go".
	Hold bool `json:"hold,omitempty"`
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
	// Writes of attributes: the two commands of the user clock and the driver's parameters.
	OnClock   = "userclk_freqcmd"
	OnCounter = "userclk_freqcntrcmd"
	OnLTR     = "ltr"
	OnDebug   = "debug"
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
	// Stuck is what of the user clock does not work, StuckBusy or one of the others; empty for nothing. DriftKHz is by how much its
	// outputs differ from what they should be.
	Stuck    *string `json:"stuck,omitempty"`
	DriftKHz *int64  `json:"driftKHz,omitempty"`
	// Rebind binds the device anew: the port is enabled, and nobody has it open.
	Rebind bool `json:"rebind,omitempty"`
	// Detached takes the card's physical function away, with its engine. The virtual ones, which all its ports must be released to, stay:
	// so it looks in a virtual machine that was given only those.
	Detached bool `json:"detached,omitempty"`
}

// Event is one thing that was asked of the machine, in order.
type Event struct {
	// Op is open, close, ioctl, read, write, done where an ioctl took time, or clock where the user clocks became others, which Data
	// tells in kHz, high and low.
	Op string `json:"op"`
	// Path is the node or attribute, relative to the root.
	Path string `json:"path"`
	PID  int    `json:"pid,omitempty"`
	// Exclusive is an open with O_EXCL.
	Exclusive bool `json:"exclusive,omitempty"`
	// Request is the ioctl's name, Port the port id that it names.
	Request string `json:"request,omitempty"`
	Port    int    `json:"port,omitempty"`
	// Size and SHA256 are those of the payload of a programming. A machine with NoDigests has no SHA256.
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
