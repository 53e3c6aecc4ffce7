// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
)

// MIG is how a GPU that can be divided into instances (Multi-Instance GPU) is divided now, and how it could be.
type MIG struct {
	// Current says that the GPU is in MIG mode now, Pending that it will be after its next reset (nvmlDeviceGetMigMode).
	Current bool `json:"current"`
	Pending bool `json:"pending"`
	// Profiles are the sorts of GPU instances, in the library's order.
	Profiles []MIGProfile `json:"profiles,omitempty"`
	// Instances are the GPU instances that exist, whoever made them. There are none outside of MIG mode.
	Instances []MIGInstance `json:"instances,omitempty"`
}

// MIGProfile is one sort of GPU instance and what an instance of it has (nvmlGpuInstanceProfileInfo_t).
type MIGProfile struct {
	// ID is the id of the profile on this GPU, which is not the number by which the library is asked for it.
	ID uint32 `json:"id"`
	// Name is NVIDIA's: "1g.10gb", "1g.10gb+me".
	Name string `json:"name"`
	// Placements are all places of an instance on an empty GPU, in units of memory slices, by start.
	Placements []MIGPlacement `json:"placements"`
	// Slices are compute slices; MemoryMB is in MiB.
	Slices          uint32 `json:"slices"`
	MemoryMB        uint64 `json:"memoryMB"`
	Multiprocessors uint32 `json:"multiprocessors"`
	CopyEngines     uint32 `json:"copyEngines,omitempty"`
	Decoders        uint32 `json:"decoders,omitempty"`
	Encoders        uint32 `json:"encoders,omitempty"`
	JPEGEngines     uint32 `json:"jpegEngines,omitempty"`
	OFAEngines      uint32 `json:"ofaEngines,omitempty"`
	// MaxInstances is how many instances of the profile fit on the GPU together.
	MaxInstances uint32 `json:"maxInstances"`
}

// MIGPlacement is a run of memory slices: Size of them from Start on.
type MIGPlacement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

// Overlaps reports whether two placements have a slice in common.
func (p MIGPlacement) Overlaps(q MIGPlacement) bool {
	return p.Start < q.Start+q.Size && q.Start < p.Start+p.Size
}

// MIGInstance is a GPU instance. Its id is reused after the instance is destroyed.
type MIGInstance struct {
	ID        uint32       `json:"id"`
	ProfileID uint32       `json:"profileID"`
	Placement MIGPlacement `json:"placement"`
	// Compute are the compute instances in it. An instance whose creation was cut off has none.
	Compute []MIGCompute `json:"compute,omitempty"`
}

// MIGCompute is a compute instance, which programs use. Its UUID ("MIG-…") is a new one each time.
type MIGCompute struct {
	ID   uint32 `json:"id"`
	UUID string `json:"uuid,omitempty"`
}

// maxMIGSlices is more than the memory slices of any GPU (8 up to Blackwell).
const maxMIGSlices = 64

// validate checks what a reader computes with: names, and placements that end.
func (m *MIG) validate() error {
	if m == nil {
		return nil
	}
	var faults []error
	for i, p := range m.Profiles {
		if p.Name == "" || len(p.Name) > 64 || len(p.Placements) > maxMIGSlices {
			faults = append(faults, fmt.Errorf("mig.profiles[%d]: name %.80q with %d placements, want a name and at most %d",
				i, p.Name, len(p.Placements), maxMIGSlices))
		}
		for j, placement := range p.Placements {
			if !placement.valid() {
				faults = append(faults, fmt.Errorf("mig.profiles[%d].placements[%d]: %+v, want at most %d slices", i, j, placement, maxMIGSlices))
			}
		}
	}
	for i, instance := range m.Instances {
		if !instance.Placement.valid() {
			faults = append(faults, fmt.Errorf("mig.instances[%d].placement: %+v, want at most %d slices", i, instance.Placement, maxMIGSlices))
		}
	}
	return errors.Join(faults...)
}

func (p MIGPlacement) valid() bool {
	return p.Size > 0 && p.Size <= maxMIGSlices && p.Start <= maxMIGSlices-p.Size
}
