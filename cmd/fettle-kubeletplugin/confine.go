// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

// become leaves this process what its configuration needs. The first time it does not return: the program starts again.
func become(file *nodeconfig.File) error {
	needs, err := confine.NeedsOf(features(file)...)
	if err != nil {
		return err
	}
	return confine.Become(needs, os.Getenv(confine.Marker))
}

// features lists what is switched on of that which needs rights.
func features(file *nodeconfig.File) []confine.Feature {
	var out []confine.Feature
	for _, f := range []struct {
		feature confine.Feature
		on      bool
	}{
		{confine.HostDirectories, slices.ContainsFunc(file.HostDevices, func(d discover.HostDevice) bool { return len(d.Directories) > 0 })},
		{confine.PresetMounts, file.Presets.Scratch || len(file.Presets.AllowedHostPaths) > 0},
		{confine.KernelCaches, file.KernelCaches.Enabled},
		{confine.NVIDIA, !file.NVML.Disabled},
		{confine.PCI, file.Partitions.PCI},
		{confine.Sharing, file.Partitions.Strategies && !file.NVML.Disabled},
		{confine.MPSMemory, file.Partitions.MPSSupervisor != ""},
		{confine.XRT, file.FPGA.Programming && slices.Contains(file.FPGA.Backends, fpga.BackendXRT)},
	} {
		if f.on {
			out = append(out, f.feature)
		}
	}
	return out
}
