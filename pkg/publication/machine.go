// SPDX-License-Identifier: Apache-2.0

package publication

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Machine is a machine on which no claim has anything yet, and the node that it is or would be.
type Machine struct {
	Tree *sysfs.Tree
	// File is the plugin's configuration.
	File *nodeconfig.File
	// NVML is what NVIDIA's library says. Nil: it is not asked.
	NVML func(context.Context) (nvml.Report, error)
	// Capacity measures a directory of the host, as in discover.Options.
	Capacity func(path string) (int64, error)
	// Usable fails for what no container runtime could give to a container.
	Usable func(container.Edits) error
	// Labels are the node's.
	Labels   map[string]string
	Policies []v1alpha1.PartitionPolicy
	// Counters and Kept say what the API server keeps of slices.
	Counters partition.Form
	Kept     partition.Kept
}

// Found is what was found of a machine.
type Found struct {
	Content

	// Problems say what is not published, or not as a policy wants it.
	Problems []discover.Problem
	// Accelerators says that the node has devices beside those of the configuration, published or not. Policies taint no other node.
	Accelerators bool
}

// Find returns what the machine's plugin would publish once it did what the policies want.
func (m *Machine) Find(ctx context.Context) Found {
	found := discover.Discover(ctx, m.Tree, discover.Options{
		HostDevices: m.File.HostDevices, FPGARegions: m.File.FPGARegions, PublishUnlinked: m.File.NVML.PublishUnlinked,
		NVML: m.NVML, Capacity: m.Capacity,
	})
	out := Found{Content: Content{Counters: m.Counters, BindLate: m.File.BindLate()}, Problems: found.Problems}
	withheld := map[string]bool{}
	for i := range found.Devices {
		if d := &found.Devices[i]; m.Usable != nil {
			if err := m.Usable(d.Edits); err != nil {
				withheld[d.Name] = true
				out.Problems = append(out.Problems, discover.Problem{Subject: d.Name, Reason: discover.ReasonInvalid, Message: err.Error()})
			}
		}
	}
	out.Devices = found.Devices
	owners := m.leave(ctx, &out, found)
	m.divide(ctx, &out, found.Physical, owners)
	out.Accelerators = slices.ContainsFunc(out.Devices, func(d device.Device) bool { return d.Kind != device.KindHost })
	out.Devices = slices.DeleteFunc(out.Devices, func(d device.Device) bool { return withheld[d.Name] })
	return out
}

// leave takes out the devices that the configuration leaves to other drivers, and returns these drivers by the devices' names.
func (m *Machine) leave(ctx context.Context, out *Found, found discover.Inventory) map[string]string {
	labels := m.Labels
	if labels == nil {
		labels = map[string]string{} // those of a node without any, not unknown ones
	}
	left := (&foreign.Finder{Entries: m.File.ForeignDevices}).Find(ctx, found, labels)
	owners := map[string]string{}
	for i := range left.Devices {
		d := &left.Devices[i]
		if d.Name != "" {
			owners[d.Name] = d.Owner
		}
		out.Devices = slices.DeleteFunc(out.Devices, func(of device.Device) bool {
			return d.Name != "" && of.Kind == d.Kind && (of.Name == d.Name || of.Parent == d.Name)
		})
		out.Problems = slices.DeleteFunc(out.Problems, func(p discover.Problem) bool { return p.Subject == d.Subject })
		out.Problems = append(out.Problems, d.Problem())
	}
	out.Problems = append(out.Problems, left.Problems...)
	return owners
}

// divide replaces the GPUs that policies divide by their parts.
func (m *Machine) divide(ctx context.Context, out *Found, gpus []discover.Physical, owners map[string]string) {
	gpus = slices.SortedFunc(slices.Values(gpus), func(a, b discover.Physical) int { return cmp.Compare(a.Device.Name, b.Device.Name) })
	node := policy.Node{Labels: m.Labels}
	for i := range gpus {
		p := &gpus[i]
		node.Devices = append(node.Devices, policy.Device{
			Device: p.Device, Model: migparted.Model{Device: p.Model, Subsystem: p.Subsystem}, Foreign: owners[p.Device.Name],
		})
	}
	byName := func(a, b v1alpha1.PartitionPolicy) int { return strings.Compare(a.Name, b.Name) }
	policies := slices.SortedFunc(slices.Values(m.Policies), byName)
	result := new(policy.Resolver).Resolve(ctx, node, policies)
	for i := range gpus {
		if settings, governed := result.Settings[gpus[i].Device.Name]; governed {
			m.divideOne(out, &gpus[i], settings)
		}
	}
	out.Problems = append(out.Problems, unmet(result.Policies)...)
}

// divideOne replaces a GPU by what it is published as.
func (m *Machine) divideOne(out *Found, gpu *discover.Physical, settings partition.Settings) {
	problem := func(reason, message string) {
		out.Problems = append(out.Problems, discover.Problem{
			Subject: gpu.Address.String(), Reason: reason, Message: fmt.Sprintf("GPU %s: %s", gpu.Device.Name, message),
		})
	}
	var forbidden []string
	if !m.File.Partitions.PCI {
		settings, forbidden = settings.WithoutPCI()
	}
	physical, errs := LookAt(m.Tree, gpu, settings)
	physical.Foreign = mig.ForeignPlaces(gpu.Address, device.StringOf(gpu.Device.Attributes[device.AttributeUUID]), gpu.MIG, nil)
	division := partition.DivideInto(m.Counters, physical, settings, m.Kept)
	division = partition.DivideInto(m.Counters, partition.Settled(physical, settings, division), settings, m.Kept)
	out.Devices = partition.Replace(out.Devices, gpu.Device, division.Devices)
	if division.Card != nil {
		out.Cards = append(out.Cards, *division.Card)
	}
	out.Problems = slices.DeleteFunc(out.Problems, func(p discover.Problem) bool {
		return p.Subject == gpu.Address.String() && p.Reason == discover.ReasonPartitioned
	})
	for _, err := range errs {
		problem(discover.ReasonAttributeUnreadable, err.Error())
	}
	if len(forbidden) > 0 {
		division.Reasons = append(division.Reasons, partition.Forbidden(forbidden))
	}
	for _, r := range division.Reasons {
		problem(r.Reason, r.Message)
	}
	if n := unforeseen(division.Devices); n > 0 {
		problem(ReasonNotForeseen, fmt.Sprintf("the UUID of an instance and the PCI address of a virtual function are known once the node made "+
			"it: they are missing on %d devices", n))
	}
}

// ReasonNotForeseen: the machine alone decides an attribute of what is made of a GPU.
const ReasonNotForeseen = "NotForeseen"

func unforeseen(devices []device.Device) (n int) {
	for i := range devices {
		if partition.Unforeseen(&devices[i]) {
			n++
		}
	}
	return n
}

// unmet says where policies have no effect.
func unmet(policies []policy.Outcome) (problems []discover.Problem) {
	for _, p := range policies {
		for _, r := range slices.Concat(p.Waits, p.Failed) {
			subject := cmp.Or(r.Device, "PartitionPolicy "+p.Policy)
			message := fmt.Sprintf("policy %s: %s", p.Policy, r.Message)
			problems = append(problems, discover.Problem{Subject: subject, Reason: r.Reason, Message: message})
		}
	}
	return problems
}
