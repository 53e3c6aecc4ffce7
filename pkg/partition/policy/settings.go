// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
)

// The labels of nodes by which other programs divide devices.
const (
	// LabelMIGManager is the configuration that NVIDIA's mig-manager applies.
	LabelMIGManager = "nvidia.com/mig.config"
	// prefixAMDManager begins the labels of AMD's device config manager.
	prefixAMDManager = "dcm.amd.com/"
)

// otherManager returns the label that says that another program divides the devices of a policy.
func otherManager(p *v1alpha1.PartitionDevices, labels map[string]string) string {
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		if p.NVIDIA != nil && label == LabelMIGManager || p.AMD != nil && strings.HasPrefix(label, prefixAMDManager) {
			return label
		}
	}
	return ""
}

// settings are what a policy wants of a device that it holds for, or why the device stays as it is.
func (r *Resolver) settings(c *candidate, d *Device, index int) (partition.Settings, *Reason) {
	if c.fault != "" {
		return partition.Settings{}, &Reason{Device: d.Name, Reason: ReasonInvalid, Message: c.fault}
	}
	if label := otherManager(&c.spec.Devices, c.labels); label != "" {
		return partition.Settings{}, &Reason{
			Device: d.Name, Reason: ReasonOtherManager,
			Message: fmt.Sprintf("the node has the label %s: the program that set it divides the devices; remove the program and its label, or "+
				"exclude the node with nodeSelector", label),
		}
	}
	want := &c.spec.Devices
	out := partition.Settings{Passthrough: want.Passthrough != nil && *want.Passthrough}
	if want.Sharing != nil {
		out.Sharing, out.Interval = sharing(want.Sharing), string(want.Sharing.Interval)
		for _, strategy := range want.Sharing.Strategies {
			out.Strategies = append(out.Strategies, string(strategy))
		}
	}
	switch {
	case want.NVIDIA != nil:
		mig, err := r.mig(&want.NVIDIA.MIG, migparted.GPU{Index: index, Model: d.Model})
		if err != nil {
			reason := ReasonInvalid
			if errors.Is(err, errNoEntry) {
				reason = ReasonNoEntry
			}
			return partition.Settings{}, &Reason{Device: d.Name, Reason: reason, Message: err.Error()}
		}
		out.MIG = mig
	case want.AMD != nil:
		out.AMD = &partition.AMD{Compute: string(want.AMD.Compute), Memory: string(want.AMD.Memory)}
	case want.SRIOV != nil:
		out.SRIOV = &partition.SRIOV{VirtualFunctions: int(want.SRIOV.VirtualFunctions), Xe: xe(want.SRIOV.Xe)}
	}
	return out, nil
}

func (r *Resolver) mig(m *v1alpha1.MIGPartition, gpu migparted.GPU) (*partition.MIG, error) {
	switch m.Mode {
	case v1alpha1.MIGDynamic:
		return &partition.MIG{Mode: partition.MIGDynamic, Profiles: m.Profiles}, nil
	case v1alpha1.MIGDisabled:
		return &partition.MIG{Mode: partition.MIGDisabled}, nil
	case v1alpha1.MIGParted:
		return r.migParted(m.MigParted, gpu)
	case v1alpha1.MIGStatic:
	}
	out := &partition.MIG{Mode: partition.MIGStatic}
	for _, i := range m.Layout {
		instances := partition.Instances{Profile: i.Profile, Count: int(i.Count)}
		for _, start := range i.Starts {
			instances.Starts = append(instances.Starts, uint32(start))
		}
		out.Layout = append(out.Layout, instances)
	}
	return out, nil
}

func (r *Resolver) migParted(m *v1alpha1.MigPartedConfig, gpu migparted.GPU) (*partition.MIG, error) {
	document, err := r.parse(m.Document)
	if err != nil {
		return nil, err
	}
	entry, err := document.For(m.Config, gpu)
	switch {
	case err != nil:
		return nil, err
	case entry == nil:
		return nil, fmt.Errorf("configuration %s %w", m.Config, errNoEntry)
	case !entry.Enabled:
		return &partition.MIG{Mode: partition.MIGDisabled}, nil
	}
	out := &partition.MIG{Mode: partition.MIGStatic}
	for _, profile := range slices.Sorted(maps.Keys(entry.Profiles)) {
		out.Layout = append(out.Layout, partition.Instances{Profile: profile, Count: entry.Profiles[profile]})
	}
	return out, nil
}

// sharing reads the amounts of a policy that is valid. Nil: one claim at a time has the device.
func sharing(s *v1alpha1.DeviceSharing) *partition.Sharing {
	if s.MaxClaims == 0 {
		return nil
	}
	out := &partition.Sharing{MaxClaims: int(s.MaxClaims)}
	if s.Memory == nil {
		return out
	}
	out.Memory = &partition.SharedMemory{Default: amount(s.Memory.Default)}
	for _, v := range s.Memory.Values {
		out.Memory.Values = append(out.Memory.Values, amount(v))
	}
	if r := s.Memory.Range; r != nil {
		out.Memory.Min, out.Memory.Max, out.Memory.Step = amount(r.Min), amount(r.Max), amount(r.Step)
	}
	return out
}

// amount is 0 for an amount that is not given.
func amount(text string) int64 {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0
	}
	return quantity.Value()
}

func xe(x *v1alpha1.XeProvisioning) *partition.Xe {
	if x == nil {
		return nil
	}
	out := &partition.Xe{ExecQuantumMS: x.ExecQuantumMS, PreemptTimeoutUS: x.PreemptTimeoutUS, SchedPriority: string(x.SchedPriority)}
	if quota, err := resource.ParseQuantity(x.VRAMQuota); err == nil {
		out.VRAMQuota = quota.Value()
	}
	return out
}
