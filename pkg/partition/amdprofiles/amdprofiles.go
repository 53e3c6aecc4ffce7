// SPDX-License-Identifier: Apache-2.0

// Package amdprofiles reads the configuration file of AMD's device config manager, which says in counts how the GPUs of a node are divided
// (github.com/ROCm/device-config-manager, proto/partition.proto and pkg/config_manager).
package amdprofiles

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// MaxSize is the longest document in bytes.
const MaxSize = 64 << 10

// maxExpanded is the longest document with what its aliases stand for.
const maxExpanded = 1 << 20

// maxGPUs is the largest number of GPUs of a node that a document may name.
const maxGPUs = 1 << 10

// Document is a file: named profiles of a node, of which one holds.
type Document struct {
	Profiles map[string]Profile
	// Services are the units of systemd that AMD's program stops while it changes GPUs.
	Services []string
}

// Profile is what becomes of a node's GPUs.
type Profile struct {
	// Memory is the mode of all GPUs of the node: it is one setting.
	Memory v1alpha1.AMDMemoryMode
	// Skipped are the numbers of GPUs that keep their compute mode, from 0 and in order.
	Skipped []int
	// Parts are the modes of the other GPUs, in the order of their numbers.
	Parts []Part
}

// Part is the mode of some GPUs that follow each other, skipped ones left out.
type Part struct {
	Compute v1alpha1.AMDComputeMode
	GPUs    []int
}

// Total returns how many GPUs a node with this profile has.
func (p *Profile) Total() int {
	total := len(p.Skipped)
	for _, part := range p.Parts {
		total += len(part.GPUs)
	}
	return total
}

// Parse reads a document in JSON or YAML. Unknown fields, keys that are set twice and values that AMD's program refuses are errors, all of
// them reported with their path.
func Parse(text []byte) (*Document, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(text), MaxSize)
	}
	if err := manifest.CheckAliases(text, maxExpanded); err != nil {
		return nil, err
	}
	raw, err := manifest.JSON(text)
	if err != nil {
		return nil, fmt.Errorf("want JSON with each key once: %w", err)
	}
	var read struct {
		Profiles map[string]profile `json:"gpu-config-profiles"`
		Services struct {
			Names []string `json:"names"`
		} `json:"gpuClientSystemdServices"`
	}
	faults, err := strictjson.UnmarshalStrict(raw, &read)
	if err != nil {
		return nil, fmt.Errorf("want a configuration of AMD's config manager: %w", manifest.WithoutTypes(err))
	}
	if len(read.Profiles) == 0 {
		faults = append(faults, errors.New("gpu-config-profiles: want at least one profile"))
	}
	doc := &Document{Profiles: map[string]Profile{}, Services: read.Services.Names}
	for _, name := range slices.Sorted(maps.Keys(read.Profiles)) {
		checked, err := read.Profiles[name].check()
		if err != nil {
			faults = append(faults, fmt.Errorf("gpu-config-profiles.%.64s.%w", name, err))
		}
		doc.Profiles[name] = checked
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return doc, nil
}

// Names returns the names of the profiles, sorted.
func (d *Document) Names() []string { return slices.Sorted(maps.Keys(d.Profiles)) }

// profile is a Profile as it is written.
type profile struct {
	Skipped struct {
		IDs []int `json:"ids"`
	} `json:"skippedGPUs"`
	Profiles []modes `json:"profiles"`
}

// modes are those of some GPUs as they are written.
type modes struct {
	Compute v1alpha1.AMDComputeMode `json:"computePartition"`
	Memory  v1alpha1.AMDMemoryMode  `json:"memoryPartition"`
	GPUs    int                     `json:"numGPUsAssigned"`
}

// check returns the first fault, which begins with the path. At most left GPUs may have the modes.
func (m modes) check(left int) error {
	switch {
	case !slices.Contains(computeModes(), m.Compute):
		return fmt.Errorf("computePartition %.32q: want %s", m.Compute, listed(computeModes()))
	case !slices.Contains(memoryModes(), m.Memory):
		return fmt.Errorf("memoryPartition %.32q: want %s", m.Memory, listed(memoryModes()))
	case m.GPUs < 1 || m.GPUs > left:
		return fmt.Errorf("numGPUsAssigned %d: want a number of GPUs, 1 to %d", m.GPUs, left)
	}
	return nil
}

// check returns the profile, or its first fault, which begins with the path.
func (p profile) check() (Profile, error) {
	skipped := slices.Sorted(slices.Values(p.Skipped.IDs))
	out := Profile{Skipped: slices.Compact(skipped)}
	if len(out.Skipped) < len(p.Skipped.IDs) || len(out.Skipped) > maxGPUs {
		return Profile{}, fmt.Errorf("skippedGPUs.ids: want each number once, and at most %d", maxGPUs)
	}
	if len(p.Profiles) == 0 {
		return Profile{}, errors.New("profiles: want at least one")
	}
	next := 0
	for i, one := range p.Profiles {
		if err := one.check(maxGPUs - out.Total()); err != nil {
			return Profile{}, fmt.Errorf("profiles[%d].%w", i, err)
		}
		if i > 0 && one.Memory != out.Memory {
			return Profile{}, fmt.Errorf("profiles[%d].memoryPartition %s: want %s as in profiles[0]: all GPUs of a node have one", i,
				one.Memory, out.Memory)
		}
		part := Part{Compute: one.Compute}
		for range one.GPUs {
			for slices.Contains(out.Skipped, next) {
				next++
			}
			part.GPUs = append(part.GPUs, next)
			next++
		}
		out.Memory = one.Memory
		out.Parts = append(out.Parts, part)
	}
	// AMD's program wants that the skipped GPUs and those of the parts are all that the node has.
	for _, id := range out.Skipped {
		if total := out.Total(); id < 0 || id >= total {
			return Profile{}, fmt.Errorf("skippedGPUs.ids: %d: want numbers of the %d GPUs that the profile is for, 0 to %d", id, total, total-1)
		}
	}
	return out, nil
}

// computeModes and memoryModes are those of a PartitionPolicy.
func computeModes() []v1alpha1.AMDComputeMode {
	return []v1alpha1.AMDComputeMode{"SPX", "DPX", "TPX", "QPX", "CPX"}
}

func memoryModes() []v1alpha1.AMDMemoryMode { return []v1alpha1.AMDMemoryMode{"NPS1", "NPS2", "NPS4"} }

// listed returns the modes for a person.
func listed[M ~string](modes []M) string {
	var names []string
	for _, mode := range modes {
		names = append(names, string(mode))
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
