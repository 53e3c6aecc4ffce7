// SPDX-License-Identifier: Apache-2.0

package nvmlsim

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/confine"
)

// Return is what a function of the library answers: nvmlReturn_t.
type Return int32

// The answers that the simulator gives, with the numbers of nvml.h.
const (
	Success               Return = 0
	InvalidArgument       Return = 2
	NotSupported          Return = 3
	NoPermission          Return = 4
	NotFound              Return = 6
	DriverNotLoaded       Return = 9
	GPUIsLost             Return = 15
	ResetRequired         Return = 16
	LibRMVersionMismatch  Return = 18
	InUse                 Return = 19
	InsufficientResources Return = 23
	Unknown               Return = 999
)

// String is the text of nvmlErrorString.
func (r Return) String() string {
	text, ok := map[Return]string{
		Success: "Success", InvalidArgument: "Invalid Argument", NotSupported: "Not Supported", NoPermission: "Insufficient Permissions",
		NotFound: "Not Found", DriverNotLoaded: "Driver Not Loaded",
		LibRMVersionMismatch: "Driver/library version mismatch",
		GPUIsLost:            "GPU is lost", ResetRequired: "GPU requires reset", InUse: "In use by another client",
		InsufficientResources: "Insufficient Resources",
	}[r]
	if !ok {
		return "Unknown Error"
	}
	return text
}

// Card is one GPU.
type Card struct {
	Model string
	BusID string
	UUID  string
	Minor int
	// MIG is the mode now, Pending that after a reset.
	MIG, Pending bool
	// Clients is how many processes have the GPU open as a whole.
	Clients int
	// ComputeMode is nvmlComputeMode_t, TimeSlice what nvidia-smi compute-policy set: 0 is the default.
	ComputeMode, TimeSlice int
	// Addressing is nvmlDeviceAddressingModeType_t. Nil: the card does not tell.
	Addressing *uint32
	// Fabric is nvmlGpuFabricInfo_t. Nil: the card has no fabric.
	Fabric *Fabric
	// Passthrough: the GPU was given to a virtual machine, which cannot reset it.
	Passthrough bool
	// Absent: the driver does not have the GPU, as while vfio-pci has it. Lost: it fell off the bus.
	Absent, Lost bool
	// Life changes with each reset. Handles of an earlier life are invalid.
	Life      int
	Instances []*Instance
	// Made counts what was ever made, for UUIDs and handles that are never used again.
	Made int
}

// Fabric is what a card says of the NVLink fabric. State is NVML_GPU_FABRIC_STATE_*.
type Fabric struct {
	Cluster [16]byte
	Clique  uint32
	Status  Return
	State   uint8
}

// Instance is a GPU instance. Its ID is used again, its Serial is not.
type Instance struct {
	ID, Profile, Start, Size uint32
	Serial                   int
	Compute                  []*Compute
}

// Compute is a compute instance.
type Compute struct {
	ID, Slices uint32
	UUID       string
	Serial     int
	// Processes is how many have it open.
	Processes int
}

// Kind is the model of the card.
func (c *Card) Kind() Model { return models()[c.Model] }

// ProfileByNumber finds a profile by NVML_GPU_INSTANCE_PROFILE_*.
func (c *Card) ProfileByNumber(number int) (Profile, Return) {
	return c.profile(func(p Profile) bool { return p.Number == number })
}

// ProfileByID finds a profile by its id.
func (c *Card) ProfileByID(id uint32) (Profile, Return) {
	return c.profile(func(p Profile) bool { return p.ID == id })
}

func (c *Card) profile(is func(Profile) bool) (Profile, Return) {
	at := slices.IndexFunc(c.Kind().Profiles, is)
	if at < 0 {
		return Profile{}, NotSupported
	}
	return c.Kind().Profiles[at], Success
}

// SetMIG is nvmlDeviceSetMigMode: its two results.
func (c *Card) SetMIG(on bool) (activation, result Return) {
	if len(c.Kind().Profiles) == 0 {
		return Success, NotSupported
	}
	c.Pending = on
	switch {
	case c.MIG == on:
		return Success, Success
	case c.Clients > 0 || len(c.Instances) > 0:
		return InUse, Success
	case c.Kind().NeedsReset || c.Passthrough:
		return ResetRequired, Success
	}
	c.MIG = on
	c.Life++
	return Success, Success
}

// The compute modes that keep processes out.
const (
	computeDefault          = 0
	computeProhibited       = 2
	computeExclusiveProcess = 3
	computeModes            = 4
)

// Administrator is what the driver says to this process where only an administrator may set something.
func (s *State) Administrator() Return {
	if !s.AsksAdmin {
		return Success
	}
	rights, err := confine.ReadState()
	if err != nil || !rights.Effective.Has(confine.Set(unix.CAP_SYS_ADMIN)) {
		return NoPermission
	}
	return Success
}

// SetComputeMode is nvmlDeviceSetComputeMode. Processes that have the card open keep it.
func (c *Card) SetComputeMode(mode int) Return {
	switch {
	case c.MIG:
		return NotSupported
	case mode < 0 || mode >= computeModes:
		return InvalidArgument
	}
	c.ComputeMode = mode
	return Success
}

// SetTimeSlice is nvidia-smi compute-policy --set-timeslice, 0 to 3.
func (c *Card) SetTimeSlice(interval int) Return {
	switch {
	case c.Lost:
		return GPUIsLost
	case c.MIG:
		return NotSupported
	}
	c.TimeSlice = interval
	return Success
}

// use starts processes on the whole card, or ends some. What the compute mode keeps out is an error: CUDA says then that all devices are
// busy or unavailable.
func (c *Card) use(processes int) error {
	most := map[int]int{computeProhibited: 0, computeExclusiveProcess: 1}
	if limit, limited := most[c.ComputeMode]; limited && processes > 0 && c.Clients+processes > limit {
		return fmt.Errorf("%s: the compute mode %d lets at most %d processes have the GPU, and %d have it",
			c.BusID, c.ComputeMode, limit, c.Clients)
	}
	c.Clients += processes
	return nil
}

// Create is nvmlDeviceCreateGpuInstanceWithPlacement.
func (c *Card) Create(profileID, start, size uint32) (*Instance, Return) {
	if !c.MIG {
		return nil, NotSupported
	}
	p, ret := c.ProfileByID(profileID)
	if ret != Success || size != p.Size || !slices.Contains(p.Starts, start) {
		return nil, InvalidArgument
	}
	same := 0
	used := map[uint32]bool{}
	for _, one := range c.Instances {
		if start < one.Start+one.Size && one.Start < start+size {
			return nil, InsufficientResources
		}
		if one.Profile == profileID {
			same++
		}
		used[one.ID] = true
	}
	if same >= int(p.Most) {
		return nil, InsufficientResources
	}
	c.Made++
	made := &Instance{ID: 1, Profile: profileID, Start: start, Size: size, Serial: c.Made}
	for used[made.ID] {
		made.ID++
	}
	c.Instances = append(c.Instances, made)
	return made, Success
}

// ByID finds an instance: nvmlDeviceGetGpuInstanceById.
func (c *Card) ByID(id uint32) (*Instance, Return) {
	if !c.MIG {
		return nil, NotSupported
	}
	for _, one := range c.Instances {
		if one.ID == id {
			return one, Success
		}
	}
	return nil, NotFound
}

// Destroy is nvmlGpuInstanceDestroy.
func (c *Card) Destroy(one *Instance) Return {
	if len(one.Compute) > 0 {
		return InUse
	}
	c.Instances = slices.DeleteFunc(c.Instances, func(other *Instance) bool { return other == one })
	return Success
}

// CreateCompute is nvmlGpuInstanceCreateComputeInstance for some slices of an instance.
func (c *Card) CreateCompute(one *Instance, number uint32) (*Compute, Return) {
	p, ret := c.ProfileByID(one.Profile)
	if ret != Success {
		return nil, ret
	}
	free := p.Slices
	used := map[uint32]bool{}
	for _, compute := range one.Compute {
		free -= compute.Slices
		used[compute.ID] = true
	}
	if number == 0 || number > free {
		return nil, InsufficientResources
	}
	c.Made++
	made := &Compute{Slices: number, Serial: c.Made, UUID: fmt.Sprintf("MIG-%08x-%04x-5000-8000-%012x", c.Made, c.Life, c.Minor)}
	for used[made.ID] {
		made.ID++
	}
	one.Compute = append(one.Compute, made)
	return made, Success
}

// DestroyCompute is nvmlComputeInstanceDestroy.
func (c *Card) DestroyCompute(one *Instance, compute *Compute) Return {
	if compute.Processes > 0 {
		return InUse
	}
	one.Compute = slices.DeleteFunc(one.Compute, func(other *Compute) bool { return other == compute })
	return Success
}

// reset is a reset of the GPU: instances are gone, and the pending mode holds.
func (c *Card) reset() {
	c.Instances, c.MIG, c.Lost = nil, c.Pending, false
	c.ComputeMode, c.TimeSlice = computeDefault, 0
	c.Life++
}
