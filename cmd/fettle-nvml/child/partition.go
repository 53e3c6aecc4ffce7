// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// profile is one sort of GPU instance as the library knows it.
type profile struct {
	// number is what the library is asked for the profile by; info.Id is the profile's id.
	number int
	info   gonvml.GpuInstanceProfileInfo
}

// profilesOf asks for all profiles of a GPU. A number that the GPU, or an older library, does not know is passed over.
func profilesOf(gpu gonvml.Device) ([]profile, error) {
	var out []profile
	for number := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := gpu.GetGpuInstanceProfileInfo(number)
		switch {
		case ret == gonvml.SUCCESS:
			out = append(out, profile{number: number, info: info})
		case !absent("Device.GetGpuInstanceProfileInfo", ret):
			return nil, fmt.Errorf("read GPU instance profile %d: %w", number, said(ret))
		}
	}
	return out, nil
}

// describe tells the profile with its placements on an empty GPU. ok is false for one that NVIDIA's naming does not know.
func (p profile) describe(lib gonvml.Interface, gpu gonvml.Device, memory uint64) (out nvml.MIGProfile, ok bool, err error) {
	whole, known := wholeCompute(p.info.SliceCount)
	if !known {
		return nvml.MIGProfile{}, false, nil
	}
	name, err := device.New(lib).NewMigProfile(p.number, whole, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, p.info.MemorySizeMB, memory)
	if err != nil || memory == 0 {
		return nvml.MIGProfile{}, false, nil //nolint:nilerr // NVIDIA's package has no name for it yet
	}
	placements, err := p.placements(gpu)
	if err != nil {
		return nvml.MIGProfile{}, false, err
	}
	return nvml.MIGProfile{
		ID: p.info.Id, Name: name.String(), Placements: placements, Slices: p.info.SliceCount, MemoryMB: p.info.MemorySizeMB,
		Multiprocessors: p.info.MultiprocessorCount, CopyEngines: p.info.CopyEngineCount, Decoders: p.info.DecoderCount,
		Encoders: p.info.EncoderCount, JPEGEngines: p.info.JpegCount, OFAEngines: p.info.OfaCount, MaxInstances: p.info.InstanceCount,
	}, true, nil
}

// placements lists where an instance can be, by start.
func (p profile) placements(gpu gonvml.Device) ([]nvml.MIGPlacement, error) {
	list, ret := gpu.GetGpuInstancePossiblePlacements(&p.info)
	if ret != gonvml.SUCCESS {
		return nil, fmt.Errorf("read the placements of GPU instance profile %d: %w", p.info.Id, said(ret))
	}
	out := make([]nvml.MIGPlacement, 0, len(list))
	for _, at := range list {
		out = append(out, nvml.MIGPlacement{Start: at.Start, Size: at.Size})
	}
	slices.SortFunc(out, func(a, b nvml.MIGPlacement) int { return int(a.Start) - int(b.Start) })
	return out, nil
}

// wholeCompute is the number of the compute instance profile that takes a GPU instance of so many slices whole.
func wholeCompute(slices uint32) (int, bool) {
	number, ok := map[uint32]int{
		1: gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: gonvml.COMPUTE_INSTANCE_PROFILE_2_SLICE,
		3: gonvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 4: gonvml.COMPUTE_INSTANCE_PROFILE_4_SLICE,
		6: gonvml.COMPUTE_INSTANCE_PROFILE_6_SLICE, 7: gonvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
		8: gonvml.COMPUTE_INSTANCE_PROFILE_8_SLICE,
	}[slices]
	return number, ok
}

// instance is a GPU instance with its handle.
type instance struct {
	nvml.MIGInstance
	gi     gonvml.GpuInstance
	slices uint32
}

// instancesOf finds all GPU instances, whoever made them, with their compute instances.
func instancesOf(gpu gonvml.Device, profiles []profile) ([]instance, error) {
	out, err := bareInstances(gpu, profiles)
	if err == nil {
		err = addCompute(gpu, out)
	}
	return out, err
}

// bareInstances finds all GPU instances without their compute instances. It asks profile by profile, because the list of MIG devices hides
// a GPU instance without a compute instance.
func bareInstances(gpu gonvml.Device, profiles []profile) ([]instance, error) {
	var out []instance
	for _, p := range profiles {
		list, ret := gpu.GetGpuInstances(&p.info)
		if ret == gonvml.ERROR_NOT_SUPPORTED {
			return nil, fmt.Errorf("list GPU instances: %w: %w", nvml.ErrMIGOff, ret)
		}
		if ret != gonvml.SUCCESS {
			return nil, fmt.Errorf("list GPU instances of profile %d: %w", p.info.Id, said(ret))
		}
		for _, gi := range list {
			info, ret := gi.GetInfo()
			if absent("GpuInstance.GetInfo", ret) {
				continue
			}
			if ret != gonvml.SUCCESS {
				return nil, fmt.Errorf("read a GPU instance of profile %d: %w", p.info.Id, said(ret))
			}
			out = append(out, newInstance(gi, &info, p.info.SliceCount))
		}
	}
	slices.SortFunc(out, func(a, b instance) int { return int(a.ID) - int(b.ID) })
	return out, nil
}

func newInstance(gi gonvml.GpuInstance, info *gonvml.GpuInstanceInfo, slices uint32) instance {
	return instance{gi: gi, slices: slices, MIGInstance: nvml.MIGInstance{
		ID: info.Id, ProfileID: info.ProfileId, Placement: nvml.MIGPlacement{Start: info.Placement.Start, Size: info.Placement.Size},
	}}
}

// addCompute adds the compute instances of some GPU instances. Each is one MIG device, and its UUID comes from there: the device that a
// compute instance names (nvmlComputeInstanceInfo_t) is the whole GPU. Of the MIG devices of other GPU instances it asks no more than which
// one they are in.
func addCompute(gpu gonvml.Device, instances []instance) error {
	if len(instances) == 0 {
		return nil
	}
	most, ret := gpu.GetMaxMigDeviceCount()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("count MIG devices: %w", said(ret))
	}
	for i := range most {
		mig, ret := gpu.GetMigDeviceHandleByIndex(i)
		if absent("Device.GetMigDeviceHandleByIndex", ret) {
			continue
		}
		if ret != gonvml.SUCCESS {
			return fmt.Errorf("find MIG device %d: %w", i, said(ret))
		}
		id, ret := mig.GetGpuInstanceId()
		if ret != gonvml.SUCCESS {
			return fmt.Errorf("read the GPU instance of MIG device %d: %w", i, said(ret))
		}
		at := slices.IndexFunc(instances, func(one instance) bool { return one.ID == uint32(id) })
		if at < 0 {
			continue
		}
		compute, err := identify(mig)
		if err != nil {
			return fmt.Errorf("read MIG device %d: %w", i, err)
		}
		instances[at].Compute = append(instances[at].Compute, compute)
	}
	return nil
}

// identify tells which compute instance a MIG device is.
func identify(mig gonvml.Device) (nvml.MIGCompute, error) {
	compute, ret := mig.GetComputeInstanceId()
	if ret != gonvml.SUCCESS {
		return nvml.MIGCompute{}, said(ret)
	}
	uuid, ret := mig.GetUUID()
	if ret != gonvml.SUCCESS {
		return nvml.MIGCompute{}, said(ret)
	}
	return nvml.MIGCompute{ID: uint32(compute), UUID: uuid}, nil
}

// plain drops the handles.
func plain(instances []instance) []nvml.MIGInstance {
	var out []nvml.MIGInstance
	for _, one := range instances {
		out = append(out, one.MIGInstance)
	}
	return out
}
