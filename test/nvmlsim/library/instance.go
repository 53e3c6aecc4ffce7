// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package library

import (
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// within is a GPU instance, which is not the one that has its id later.
type within struct {
	handle
	serial int
}

// on does a call on the instance. A handle of an instance that is gone is invalid.
func (w within) on(function, change string, do func(*nvmlsim.Card, *nvmlsim.Instance) nvmlsim.Return) gonvml.Return {
	return w.call("GpuInstance."+function, change, func(s *nvmlsim.State) nvmlsim.Return {
		c, one, ret := w.instance(s)
		if ret != nvmlsim.Success {
			return ret
		}
		return do(c, one)
	})
}

func (w within) instance(s *nvmlsim.State) (*nvmlsim.Card, *nvmlsim.Instance, nvmlsim.Return) {
	c, ret := w.card(s)
	if ret != nvmlsim.Success {
		return nil, nil, ret
	}
	for _, one := range c.Instances {
		if one.Serial == w.serial {
			return c, one, nvmlsim.Success
		}
	}
	return nil, nil, nvmlsim.InvalidArgument
}

func newInstance(h handle, one *nvmlsim.Instance) gonvml.GpuInstance {
	w := within{handle: h, serial: one.Serial}
	gi := &mock.GpuInstance{
		GetInfoFunc: func() (info gonvml.GpuInstanceInfo, ret gonvml.Return) {
			ret = w.on("GetInfo", "", func(c *nvmlsim.Card, one *nvmlsim.Instance) nvmlsim.Return {
				info = gonvml.GpuInstanceInfo{Device: newDevice(w.simulated, c), Id: one.ID, ProfileId: one.Profile}
				info.Placement = gonvml.GpuInstancePlacement{Start: one.Start, Size: one.Size}
				return nvmlsim.Success
			})
			return info, ret
		},
		DestroyFunc: func() gonvml.Return {
			return w.on("Destroy", fmt.Sprint(one.ID), func(c *nvmlsim.Card, one *nvmlsim.Instance) nvmlsim.Return { return c.Destroy(one) })
		},
	}
	w.addCompute(gi)
	return filled(gi)
}

// computeSlices are the slices of NVML_COMPUTE_INSTANCE_PROFILE_*.
func computeSlices() map[int]uint32 { return map[int]uint32{0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6} }

func (w within) addCompute(gi *mock.GpuInstance) {
	gi.GetComputeInstanceProfileInfoFunc = func(number, _ int) (info gonvml.ComputeInstanceProfileInfo, ret gonvml.Return) {
		ret = w.on("GetComputeInstanceProfileInfo", "", func(c *nvmlsim.Card, one *nvmlsim.Instance) nvmlsim.Return {
			p, ret := c.ProfileByID(one.Profile)
			n, known := computeSlices()[number]
			if ret != nvmlsim.Success || !known || n > p.Slices {
				return nvmlsim.NotSupported
			}
			info = gonvml.ComputeInstanceProfileInfo{Id: uint32(number), SliceCount: n, InstanceCount: p.Slices / n}
			return nvmlsim.Success
		})
		return info, ret
	}
	gi.CreateComputeInstanceFunc = func(info *gonvml.ComputeInstanceProfileInfo) (out gonvml.ComputeInstance, ret gonvml.Return) {
		ret = w.on("CreateComputeInstance", fmt.Sprint(info.Id), func(c *nvmlsim.Card, one *nvmlsim.Instance) nvmlsim.Return {
			compute, ret := c.CreateCompute(one, computeSlices()[int(info.Id)])
			if ret == nvmlsim.Success {
				out = newCompute(w, compute)
			}
			return ret
		})
		return out, ret
	}
	gi.GetComputeInstanceByIdFunc = func(id int) (out gonvml.ComputeInstance, ret gonvml.Return) {
		ret = w.on("GetComputeInstanceById", "", func(_ *nvmlsim.Card, one *nvmlsim.Instance) nvmlsim.Return {
			for _, compute := range one.Compute {
				if compute.ID == uint32(id) {
					out = newCompute(w, compute)
					return nvmlsim.Success
				}
			}
			return nvmlsim.NotFound
		})
		return out, ret
	}
}

// newCompute is a compute instance. The device that it names is the whole GPU, as nvml.h says.
func newCompute(w within, compute *nvmlsim.Compute) gonvml.ComputeInstance {
	serial := compute.Serial
	on := func(function, change string, do func(*nvmlsim.Card, *nvmlsim.Instance, *nvmlsim.Compute) nvmlsim.Return) gonvml.Return {
		return w.call("ComputeInstance."+function, change, func(s *nvmlsim.State) nvmlsim.Return {
			c, one, ret := w.instance(s)
			if ret != nvmlsim.Success {
				return ret
			}
			for _, compute := range one.Compute {
				if compute.Serial == serial {
					return do(c, one, compute)
				}
			}
			return nvmlsim.InvalidArgument
		})
	}
	return filled(&mock.ComputeInstance{
		GetInfoFunc: func() (info gonvml.ComputeInstanceInfo, ret gonvml.Return) {
			ret = on("GetInfo", "", func(c *nvmlsim.Card, one *nvmlsim.Instance, compute *nvmlsim.Compute) nvmlsim.Return {
				info = gonvml.ComputeInstanceInfo{Device: newDevice(w.simulated, c), GpuInstance: newInstance(w.handle, one), Id: compute.ID}
				return nvmlsim.Success
			})
			return info, ret
		},
		DestroyFunc: func() gonvml.Return {
			return on("Destroy", fmt.Sprint(compute.ID), func(c *nvmlsim.Card, one *nvmlsim.Instance, compute *nvmlsim.Compute) nvmlsim.Return {
				return c.DestroyCompute(one, compute)
			})
		},
	})
}
