// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"fmt"
	"strings"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// MIGName is the name of the device for an instance of a profile that begins at a memory slice: nvidia-0000-41-00-0-mig-1g-10gb-s4.
func MIGName(parent, profile string, start uint32) string {
	return fmt.Sprintf("%s-mig-%s-s%d", parent, profileLabel(profile), start)
}

// profileLabel writes a profile's name as a part of a DNS label. NVIDIA's names have dots, commas, +FEATURE and -FEATURE: a feature that is
// taken away gets a "no", so that 1g.24gb+me and 1g.24gb-me stay different.
func profileLabel(profile string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, strings.ReplaceAll(profile, "-", "-no-"))
}

// AMDName is the name of the device for a partition of an AMD GPU: amd-0000-c1-00-0-cpx-nps4-p3.
func AMDName(parent, profile string, index int) string {
	return fmt.Sprintf("%s-%s-p%d", parent, profile, index)
}

// VFName is the name of the device for a virtual function, counted from 0 as the kernel's links virtfnN are.
func VFName(parent string, index int) string { return fmt.Sprintf("%s-vf%d", parent, index) }

// VFIOName is the name of the device for the whole in a virtual machine.
func VFIOName(parent string) string { return parent + "-vfio" }

// span writes the memory slices of a placement: "4-7", or "6".
func span(at nvml.MIGPlacement) string {
	if at.Size == 1 {
		return fmt.Sprint(at.Start)
	}
	return fmt.Sprintf("%d-%d", at.Start, at.Start+at.Size-1)
}

// Names lists the devices that could be made from a physical one, whatever the settings: of every placement, mode, virtual function, its
// form for virtual machines and itself.
func Names(p Physical) []string {
	whole := p.Device.Name
	names := []string{whole, VFIOName(whole)}
	if p.MIG != nil {
		for _, profile := range p.MIG.Profiles {
			for _, at := range profile.Placements {
				names = append(names, MIGName(whole, profile.Name, at.Start))
			}
		}
	}
	if p.AMD != nil {
		for _, mode := range partitionedModes() {
			for i := range p.AMD.partitions(mode.compute) {
				names = append(names, AMDName(whole, mode.String(), i))
			}
		}
	}
	if p.Functions != nil {
		for i := range p.Functions.Total {
			names = append(names, VFName(whole, i))
		}
	}
	return names
}

// Excludes reports whether two devices of a card cannot be used at once, because the card has too little of a counter for both.
func Excludes(card device.Card, a, b device.Device) bool {
	for name, total := range card.Counters {
		sum := a.Consumes[name].Value.DeepCopy()
		sum.Add(b.Consumes[name].Value)
		if sum.Cmp(total.Value) > 0 {
			return true
		}
	}
	return false
}
