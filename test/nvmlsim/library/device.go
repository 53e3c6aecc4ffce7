// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package library

import (
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// handle is a GPU in one of its lives.
type handle struct {
	simulated
	busID string
	life  int
}

// on does a call on the handle's card. A handle of an earlier life is invalid.
func (h handle) on(function, change string, do func(*nvmlsim.Card) nvmlsim.Return) gonvml.Return {
	return h.call("Device."+function, change, func(s *nvmlsim.State) nvmlsim.Return {
		c, ret := h.card(s)
		if ret != nvmlsim.Success {
			return ret
		}
		return do(c)
	})
}

func (h handle) card(s *nvmlsim.State) (*nvmlsim.Card, nvmlsim.Return) {
	c, ret := s.Card(h.busID)
	if ret == nvmlsim.Success && c.Life != h.life {
		return nil, nvmlsim.InvalidArgument
	}
	return c, ret
}

// tell makes a question of a property of the card.
func tell[T any](h handle, function string, of func(*nvmlsim.Card) T) func() (T, gonvml.Return) {
	return func() (out T, ret gonvml.Return) {
		ret = h.on(function, "", func(c *nvmlsim.Card) nvmlsim.Return {
			out = of(c)
			return nvmlsim.Success
		})
		return out, ret
	}
}

func newDevice(l simulated, c *nvmlsim.Card) gonvml.Device {
	h := handle{simulated: l, busID: c.BusID, life: c.Life}
	d := &mock.Device{
		GetUUIDFunc:         tell(h, "GetUUID", func(c *nvmlsim.Card) string { return c.UUID }),
		GetNameFunc:         tell(h, "GetName", func(c *nvmlsim.Card) string { return c.Kind().Name }),
		GetSerialFunc:       tell(h, "GetSerial", func(*nvmlsim.Card) string { return "" }),
		GetVbiosVersionFunc: tell(h, "GetVbiosVersion", func(*nvmlsim.Card) string { return "" }),
		GetMinorNumberFunc:  tell(h, "GetMinorNumber", func(c *nvmlsim.Card) int { return c.Minor }),
		GetBrandFunc:        tell(h, "GetBrand", func(*nvmlsim.Card) gonvml.BrandType { return gonvml.BRAND_NVIDIA }),
		GetNumGpuCoresFunc:  tell(h, "GetNumGpuCores", func(c *nvmlsim.Card) int { return c.Kind().Cores }),
		GetArchitectureFunc: tell(h, "GetArchitecture", func(c *nvmlsim.Card) gonvml.DeviceArchitecture {
			return gonvml.DeviceArchitecture(c.Kind().Architecture)
		}),
		GetMemoryInfoFunc: tell(h, "GetMemoryInfo", func(c *nvmlsim.Card) gonvml.Memory {
			return gonvml.Memory{Total: c.Kind().MemoryMiB << 20, Free: c.Kind().MemoryMiB << 20}
		}),
		GetPciInfoFunc: tell(h, "GetPciInfo", func(c *nvmlsim.Card) (info gonvml.PciInfo) {
			for i, b := range []byte(c.BusID) {
				info.BusId[i] = int8(b)
			}
			return info
		}),
	}
	d.GetCudaComputeCapabilityFunc = func() (major, minor int, ret gonvml.Return) {
		ret = h.on("GetCudaComputeCapability", "", func(c *nvmlsim.Card) nvmlsim.Return {
			major, minor = c.Kind().Major, c.Kind().Minor
			return nvmlsim.Success
		})
		return major, minor, ret
	}
	h.addSurroundings(d)
	h.addHealth(d)
	h.addMode(d)
	h.addComputeMode(d)
	h.addInstances(d)
	return filled(d)
}

// addSurroundings adds the functions of the machine's memory and of the NVLink fabric.
func (h handle) addSurroundings(d *mock.Device) {
	d.GetAddressingModeFunc = func() (mode gonvml.DeviceAddressingMode, ret gonvml.Return) {
		ret = h.on("GetAddressingMode", "", func(c *nvmlsim.Card) nvmlsim.Return {
			if c.Addressing == nil {
				return nvmlsim.NotSupported
			}
			mode.Value = *c.Addressing
			return nvmlsim.Success
		})
		return mode, ret
	}
	d.GetGpuFabricInfoFunc = func() (info gonvml.GpuFabricInfo, ret gonvml.Return) {
		ret = h.on("GetGpuFabricInfo", "", func(c *nvmlsim.Card) nvmlsim.Return {
			if c.Fabric == nil {
				return nvmlsim.NotSupported
			}
			info.ClusterUuid, info.CliqueId = c.Fabric.Cluster, c.Fabric.Clique
			info.Status, info.State = uint32(c.Fabric.Status), c.Fabric.State
			return nvmlsim.Success
		})
		return info, ret
	}
}

// addHealth adds the functions of events and counters, which say that nothing is wrong.
func (h handle) addHealth(d *mock.Device) {
	fine := func(function string) gonvml.Return {
		return h.on(function, "", func(*nvmlsim.Card) nvmlsim.Return { return nvmlsim.Success })
	}
	d.GetTotalEccErrorsFunc = func(gonvml.MemoryErrorType, gonvml.EccCounterType) (uint64, gonvml.Return) {
		return 0, fine("GetTotalEccErrors")
	}
	d.GetRemappedRowsFunc = func() (corrected, uncorrected int, pending, failure bool, ret gonvml.Return) {
		return 0, 0, false, false, fine("GetRemappedRows")
	}
	d.GetFieldValuesFunc = func([]gonvml.FieldValue) gonvml.Return { return fine("GetFieldValues") } // each is 0: no action is wanted
	d.GetSupportedEventTypesFunc = func() (uint64, gonvml.Return) {
		return gonvml.EventTypeXidCriticalError, fine("GetSupportedEventTypes")
	}
	d.RegisterEventsFunc = func(uint64, gonvml.EventSet) gonvml.Return { return fine("RegisterEvents") }
}

// addMode adds the functions of the MIG mode, and of how a GPU can be divided, which does not depend on it.
func (h handle) addMode(d *mock.Device) {
	d.GetMigModeFunc = func() (current, pending int, ret gonvml.Return) {
		ret = h.on("GetMigMode", "", func(c *nvmlsim.Card) nvmlsim.Return {
			if len(c.Kind().Profiles) == 0 {
				return nvmlsim.NotSupported
			}
			current, pending = number(c.MIG), number(c.Pending)
			return nvmlsim.Success
		})
		return current, pending, ret
	}
	d.SetMigModeFunc = func(mode int) (activation, ret gonvml.Return) {
		ret = h.on("SetMigMode", fmt.Sprint(mode), func(c *nvmlsim.Card) nvmlsim.Return {
			first, second := c.SetMIG(mode == gonvml.DEVICE_MIG_ENABLE)
			activation = gonvml.Return(first)
			return second
		})
		return activation, ret
	}
	d.GetGpuInstanceProfileInfoFunc = func(n int) (info gonvml.GpuInstanceProfileInfo, ret gonvml.Return) {
		ret = h.on("GetGpuInstanceProfileInfo", "", func(c *nvmlsim.Card) nvmlsim.Return {
			p, ret := c.ProfileByNumber(n)
			info = profileInfo(p)
			return ret
		})
		return info, ret
	}
	d.GetGpuInstancePossiblePlacementsFunc = func(info *gonvml.GpuInstanceProfileInfo) (out []gonvml.GpuInstancePlacement, ret gonvml.Return) {
		ret = h.on("GetGpuInstancePossiblePlacements", "", func(c *nvmlsim.Card) nvmlsim.Return {
			p, ret := c.ProfileByID(info.Id)
			for _, start := range p.Starts {
				out = append(out, gonvml.GpuInstancePlacement{Start: start, Size: p.Size})
			}
			return ret
		})
		return out, ret
	}
}

func (h handle) addComputeMode(d *mock.Device) {
	d.GetComputeModeFunc = func() (mode gonvml.ComputeMode, ret gonvml.Return) {
		ret = h.on("GetComputeMode", "", func(c *nvmlsim.Card) nvmlsim.Return {
			mode = gonvml.ComputeMode(c.ComputeMode)
			return nvmlsim.Success
		})
		return mode, ret
	}
	d.SetComputeModeFunc = func(mode gonvml.ComputeMode) gonvml.Return {
		return h.call("Device.SetComputeMode", fmt.Sprintf("%s %d", h.busID, mode), func(s *nvmlsim.State) nvmlsim.Return {
			c, ret := h.card(s)
			if ret == nvmlsim.Success {
				ret = s.Administrator()
			}
			if ret != nvmlsim.Success {
				return ret
			}
			return c.SetComputeMode(int(mode))
		})
	}
}

func number(on bool) int {
	if on {
		return gonvml.DEVICE_MIG_ENABLE
	}
	return gonvml.DEVICE_MIG_DISABLE
}

func profileInfo(p nvmlsim.Profile) gonvml.GpuInstanceProfileInfo {
	return gonvml.GpuInstanceProfileInfo{
		Id: p.ID, SliceCount: p.Slices, InstanceCount: p.Most, MultiprocessorCount: p.SMs, CopyEngineCount: p.Copy,
		DecoderCount: p.Decoders, JpegCount: p.JPEG, OfaCount: p.OFA, MemorySizeMB: p.MemoryMiB,
	}
}

// addInstances adds the functions that find and make instances.
func (h handle) addInstances(d *mock.Device) {
	d.GetGpuInstancesFunc = func(info *gonvml.GpuInstanceProfileInfo) (out []gonvml.GpuInstance, ret gonvml.Return) {
		ret = h.on("GetGpuInstances", "", func(c *nvmlsim.Card) nvmlsim.Return {
			if !c.MIG {
				return nvmlsim.NotSupported
			}
			for _, one := range c.Instances {
				if one.Profile == info.Id {
					out = append(out, newInstance(h, one))
				}
			}
			return nvmlsim.Success
		})
		return out, ret
	}
	d.GetGpuInstanceByIdFunc = func(id int) (out gonvml.GpuInstance, ret gonvml.Return) {
		ret = h.on("GetGpuInstanceById", "", func(c *nvmlsim.Card) nvmlsim.Return {
			one, ret := c.ByID(uint32(id))
			if ret == nvmlsim.Success {
				out = newInstance(h, one)
			}
			return ret
		})
		return out, ret
	}
	d.CreateGpuInstanceWithPlacementFunc = func(
		info *gonvml.GpuInstanceProfileInfo, at *gonvml.GpuInstancePlacement,
	) (out gonvml.GpuInstance, ret gonvml.Return) {
		change := fmt.Sprintf("%s profile %d at %d", h.busID, info.Id, at.Start)
		ret = h.on("CreateGpuInstanceWithPlacement", change, func(c *nvmlsim.Card) nvmlsim.Return {
			one, ret := c.Create(info.Id, at.Start, at.Size)
			if ret == nvmlsim.Success {
				out = newInstance(h, one)
			}
			return ret
		})
		return out, ret
	}
	h.addMIGDevices(d)
}

// addMIGDevices adds the list of the MIG devices, one for each compute instance. An instance without any is not in it.
func (h handle) addMIGDevices(d *mock.Device) {
	d.GetMaxMigDeviceCountFunc = func() (n int, ret gonvml.Return) {
		ret = h.on("GetMaxMigDeviceCount", "", func(c *nvmlsim.Card) nvmlsim.Return {
			for _, p := range c.Kind().Profiles {
				n = max(n, int(p.Most))
			}
			return nvmlsim.Success
		})
		return n, ret
	}
	d.GetMigDeviceHandleByIndexFunc = func(i int) (out gonvml.Device, ret gonvml.Return) {
		ret = h.on("GetMigDeviceHandleByIndex", "", func(c *nvmlsim.Card) nvmlsim.Return {
			if !c.MIG {
				return nvmlsim.NotSupported
			}
			for _, one := range c.Instances {
				for _, compute := range one.Compute {
					if i == 0 {
						out = migDevice(h, *one, *compute)
						return nvmlsim.Success
					}
					i--
				}
			}
			return nvmlsim.NotFound
		})
		return out, ret
	}
}

func migDevice(h handle, one nvmlsim.Instance, compute nvmlsim.Compute) gonvml.Device {
	return filled(&mock.Device{
		GetUUIDFunc:              tell(h, "MIG.GetUUID", func(*nvmlsim.Card) string { return compute.UUID }),
		GetGpuInstanceIdFunc:     tell(h, "MIG.GetGpuInstanceId", func(*nvmlsim.Card) int { return int(one.ID) }),
		GetComputeInstanceIdFunc: tell(h, "MIG.GetComputeInstanceId", func(*nvmlsim.Card) int { return int(compute.ID) }),
	})
}
