// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"fmt"
	"maps"
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// The counters of a card. Those of an NVIDIA GPU have the names that NVIDIA's own driver gives them; memory-slice-0 and so on follow.
const (
	counterMultiprocessors = "multiprocessors"
	counterCopyEngines     = "copy-engines"
	counterDecoders        = "decoders"
	counterEncoders        = "encoders"
	counterJPEGEngines     = "jpeg-engines"
	counterOFAEngines      = "ofa-engines"
	counterMemory          = "memory"
	counterMemorySlice     = "memory-slice-"
	// counterPartitions are the partitions of an AMD GPU in its configured mode.
	counterPartitions = "partitions"
	// counterFunctions are virtual functions.
	counterFunctions = "virtual-functions"
	// counterDevice is the device itself, where it has no parts.
	counterDevice = "device"
)

// amounts are counters by name. Those that are zero are left out.
type amounts map[string]int64

// take adds to a counter. What NVML says beyond 63 bits stays at the most that a counter can be.
func (a amounts) take(name string, n uint64) {
	if n > 0 {
		a[name] = int64(min(n, math.MaxInt64))
	}
}

func (a amounts) counters() map[string]resourceapi.Counter {
	counters := make(map[string]resourceapi.Counter, len(a))
	for name, n := range a {
		format := resource.DecimalSI
		if name == counterMemory {
			format = resource.BinarySI
		}
		counters[name] = resourceapi.Counter{Value: *resource.NewQuantity(n, format)}
	}
	return counters
}

// raise has every counter be at least as high as the other's.
func (a amounts) raise(other amounts) {
	for name, n := range other {
		a[name] = max(a[name], n)
	}
}

// add adds to every counter.
func (a amounts) add(other amounts) {
	for name, n := range other {
		a.take(name, uint64(a[name])+uint64(n))
	}
}

// within says which counter is higher than the total.
func (a amounts) within(total amounts) error {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if a[name] > total[name] {
			return fmt.Errorf("the instances need %s %d together, the GPU has %d", name, a[name], total[name])
		}
	}
	return nil
}

// times multiplies every counter. One that would not fit into 63 bits stays at the most that it can be.
func (a amounts) times(n uint32) amounts {
	product := amounts{}
	for name, each := range a {
		if n > 0 && each > math.MaxInt64/int64(n) {
			product[name] = math.MaxInt64
			continue
		}
		product.take(name, uint64(each)*uint64(n))
	}
	return product
}

// profileAmounts are what an instance of a profile has, wherever it is.
func profileAmounts(p *nvml.MIGProfile) amounts {
	a := amounts{}
	a.take(counterMultiprocessors, uint64(p.Multiprocessors))
	a.take(counterCopyEngines, uint64(p.CopyEngines))
	a.take(counterDecoders, uint64(p.Decoders))
	a.take(counterEncoders, uint64(p.Encoders))
	a.take(counterJPEGEngines, uint64(p.JPEGEngines))
	a.take(counterOFAEngines, uint64(p.OFAEngines))
	a.take(counterMemory, min(p.MemoryMB, math.MaxInt64>>20)<<20)
	return a
}

// placedAmounts are what an instance has at a placement.
func placedAmounts(p *nvml.MIGProfile, at nvml.MIGPlacement) amounts {
	a := profileAmounts(p)
	for i := at.Start; i < at.Start+at.Size; i++ {
		a.take(fmt.Sprint(counterMemorySlice, i), 1)
	}
	return a
}

// cardAmounts are all that a GPU has: what the whole GPU publishes, and at least what as many instances of each profile have as NVML says
// there can be.
func cardAmounts(whole device.Device, m *nvml.MIG) amounts {
	total := amounts{}
	for counter, capacity := range map[string]resourceapi.QualifiedName{
		counterMemory: device.CapacityMemory, counterMultiprocessors: device.CapacityMultiprocessors,
	} {
		if c, ok := whole.Capacity[capacity]; ok {
			total.take(counter, uint64(max(c.Value.Value(), 0)))
		}
	}
	for i := range m.Profiles {
		p := &m.Profiles[i]
		total.raise(profileAmounts(p).times(max(p.MaxInstances, 1)))
		for _, at := range p.Placements {
			total.raise(placedAmounts(p, at))
		}
	}
	return total
}

// check says whether the API takes the counters as one set.
func (a amounts) check() error {
	if len(a) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
		return fmt.Errorf("the GPU has %d counters: the API takes at most %d of a card", len(a),
			resourceapi.ResourceSliceMaxCountersPerCounterSet)
	}
	return nil
}
