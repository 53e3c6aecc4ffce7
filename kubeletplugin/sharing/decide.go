// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/pci"
)

// gpu is a GPU, or an instance of one, for which a claim chose a strategy.
type gpu struct {
	result *claim.Result
	dev    device.Device
}

func (g *gpu) uuid() string { return device.StringOf(g.dev.Attributes[device.AttributeUUID]) }

func (g *gpu) isInstance() bool { return g.kind() == device.TypeMIG }

func (g *gpu) kind() string { return device.StringOf(g.dev.Attributes[device.AttributeType]) }

func (g *gpu) address() (pci.Address, error) {
	return pci.Parse(device.StringOf(g.dev.Attributes[device.AttributePCIAddress]))
}

// computeMajor is the first number of the compute capability, 0 if it is not known.
func (g *gpu) computeMajor() int {
	version := g.dev.Attributes[device.AttributeComputeCapability].VersionValue
	if version == nil {
		return 0
	}
	major, _, _ := strings.Cut(*version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return n
}

// decision is what a claim's strategies are to do.
type decision struct {
	// sliced are whole GPUs.
	sliced []gpu
	// served are the clients' GPUs, or one instance.
	served []gpu
	// daemon serves them. Nil: there are none.
	daemon *mps.Daemon
}

// decide finds out what a claim's strategies are to do. It refuses what the GPU cannot have, and what nobody allowed, with a
// *claim.RefusedError.
func (f *Feature) decide(r *prepare.Request) (decision, error) {
	var d decision
	for i := range r.Allocation.Results {
		g := gpu{result: &r.Allocation.Results[i]}
		config := g.result.Config.GPU
		if config == nil || g.result.AdminAccess {
			continue
		}
		var there bool
		if g.dev, there = r.Find(g.result); !there {
			continue // Prepare says so
		}
		if why := f.whyNotShared(&g); why != "" {
			return d, g.result.RefuseStrategy(r.Claim, why)
		}
		if config.Strategy == v1alpha1.SharingExclusive {
			continue
		}
		if why := f.why(&g); why != "" {
			return d, g.result.RefuseStrategy(r.Claim, why)
		}
		if config.Strategy == v1alpha1.SharingTimeSlicing {
			d.sliced = append(d.sliced, g)
			continue
		}
		if why := d.serve(g); why != "" {
			return d, g.result.RefuseStrategy(r.Claim, why)
		}
	}
	if len(d.served) > 0 {
		d.daemon = daemon(r.Claim, d.served)
	}
	return d, nil
}

// why says why a GPU cannot have the strategy that was chosen for it, empty if it can.
func (f *Feature) why(g *gpu) string {
	strategy := g.result.Config.GPU.Strategy
	allowed, _ := f.Allowed(g.dev.Name)
	switch vendor := device.StringOf(g.dev.Attributes[device.AttributeVendor]); {
	case vendor != "nvidia":
		return "only NVIDIA's GPUs have strategies: choose Exclusive, or leave it out"
	case !f.Enabled:
		return "strategies are not enabled on the node: an administrator sets partitions.strategies in the chart's values"
	case g.uuid() == "":
		return "its UUID is not known: set nvidia.enabled in the chart's values, and see that nvidia-smi works on the node"
	case !slices.Contains(allowed, string(strategy)):
		return fmt.Sprintf("no PartitionPolicy allows %s on it: an administrator lists it in spec.devices.sharing.strategies of the GPU's policy",
			strategy)
	case strategy == v1alpha1.SharingTimeSlicing:
		if g.kind() != "gpu" {
			return "time slices are set for a whole GPU, and this is a part: choose Exclusive, or ask for a whole GPU"
		}
		return ""
	}
	return f.whyNotMPS(g)
}

// shareSetting returns what all shares of a GPU have. It is the policy's alone: with the choice of one claim, claims of other namespaces
// could not be prepared.
func (f *Feature) shareSetting(d device.Device) (v1alpha1.SharingStrategy, v1alpha1.TimeSliceInterval) {
	isWholeGPU := device.StringOf(d.Attributes[device.AttributeVendor]) == "nvidia" &&
		device.StringOf(d.Attributes[device.AttributeType]) == "gpu"
	strategies, interval := f.Allowed(d.Name)
	if !f.Enabled || !isWholeGPU || !slices.Contains(strategies, string(v1alpha1.SharingTimeSlicing)) {
		return v1alpha1.SharingExclusive, ""
	}
	return v1alpha1.SharingTimeSlicing, cmp.Or(v1alpha1.TimeSliceInterval(interval), v1alpha1.IntervalDefault)
}

// Settle gives a share the setting of its GPU where neither claim nor class chose one. Plan refuses a share with another choice.
func (f *Feature) Settle(r *claim.Result, d device.Device) {
	if r.ShareID == nil || r.AdminAccess || r.Config.GPU == nil {
		return
	}
	strategy, interval := f.shareSetting(d)
	config := *r.Config.GPU
	if r.Config.Sources[claim.FieldStrategy].Origin == claim.OriginBuiltIn {
		config.Strategy, config.Interval = strategy, interval
	}
	if _, chosen := r.Config.Sources[claim.FieldTimeSlicing]; !chosen && config.Strategy == strategy {
		config.Interval = interval
	}
	r.Config.GPU = &config
}

// whyNotShared says why a share cannot have the setting that its claim or class chose, empty if it can.
func (f *Feature) whyNotShared(g *gpu) string {
	if g.result.ShareID == nil || g.result.Config.GPU.Strategy == v1alpha1.SharingTimeSlicing && f.why(g) != "" {
		return "" // why says more
	}
	strategy, interval := f.shareSetting(g.dev)
	if config := g.result.Config.GPU; config.Strategy == strategy && config.Interval == interval {
		return ""
	}
	want := string(strategy)
	if interval != "" {
		want += " with interval " + string(interval)
	}
	return fmt.Sprintf("every share of it has %s, as its PartitionPolicy says: choose that, or leave sharing out of claim and class; "+
		"an administrator sets another in spec.devices.sharing of the policy", want)
}

// minimumMajor is Volta's compute capability. The clients of older GPUs need the daemon's /dev/shm, and a container keeps its own.
const minimumMajor = 7

func (f *Feature) whyNotMPS(g *gpu) string {
	memory, known := g.dev.Capacity[device.CapacityMemory]
	limit := g.result.Config.GPU.MPS.PinnedMemoryLimit
	switch major := g.computeMajor(); {
	case f.Supervisor == "":
		return "MPS is not enabled on the node: an administrator sets mps.enabled in the chart's values"
	case g.kind() != "gpu" && !g.isInstance():
		return "MPS is for whole GPUs and for MIG instances of a static layout: choose Exclusive"
	case major < minimumMajor:
		return fmt.Sprintf("MPS needs compute capability 7.0 or later, and the GPU has %s: choose TimeSlicing, or another GPU",
			versionText(g.dev.Attributes[device.AttributeComputeCapability]))
	case limit > 0 && known && limit > memory.Value.Value():
		return fmt.Sprintf("mps.pinnedMemoryLimit is %d bytes and the device has %d: lower it", limit, memory.Value.Value())
	}
	return ""
}

func versionText(a resourceapi.DeviceAttribute) string {
	if a.VersionValue == nil {
		return "an unknown one"
	}
	return *a.VersionValue
}

// serve adds a GPU to those of the claim's daemon. It says why it cannot.
func (d *decision) serve(g gpu) string {
	for i := range d.served {
		other := &d.served[i]
		a, b := g.result.Config.GPU.MPS, other.result.Config.GPU.MPS
		switch {
		case g.isInstance() || other.isInstance():
			return fmt.Sprintf("request %s has MPS too, and a program is a client of one daemon, which serves one MIG instance: ask for one "+
				"instance in a claim", other.result.Request)
		case a.ActiveThreadPercentage != b.ActiveThreadPercentage || a.MultiUser != b.MultiUser:
			return fmt.Sprintf("request %s has another activeThreadPercentage or multiUser, and one daemon serves all GPUs of a claim: give both "+
				"the same", other.result.Request)
		}
	}
	d.served = append(d.served, g)
	return ""
}

// daemon describes the daemon of a claim. Its id is the claim's UID, so that it is found again.
func daemon(c *resourceapi.ResourceClaim, served []gpu) *mps.Daemon {
	config := served[0].result.Config.GPU.MPS
	out := &mps.Daemon{ID: string(c.UID), ActiveThreadPercentage: int(config.ActiveThreadPercentage), MultiUser: config.MultiUser}
	for i := range served {
		g := &served[i]
		out.Devices = append(out.Devices, g.uuid())
		if limit := g.result.Config.GPU.MPS.PinnedMemoryLimit; limit > 0 {
			if out.PinnedMemoryMiB == nil {
				out.PinnedMemoryMiB = map[string]int64{}
			}
			out.PinnedMemoryMiB[g.uuid()] = max(1, limit>>20)
		}
	}
	slices.Sort(out.Devices)
	return out
}
