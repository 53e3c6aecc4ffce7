// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Device is what counts of a GPU.
type Device struct {
	// Name is for messages.
	Name    string `json:"name"`
	Backend string `json:"backend"`
	// Arch is empty where it is not known.
	Arch     Arch `json:"arch,omitempty"`
	WarpSize int  `json:"warpSize,omitempty"`
	// Driver is the major of NVIDIA's driver, 0 where it is not known.
	Driver int `json:"driver,omitempty"`
	// MaxPTX is the newest PTX that the driver compiles, as 10 times the version. 0: not known.
	MaxPTX int `json:"maxPTX,omitempty"`
}

// String is for messages: "gpu-0000-1b-00-0 (cuda sm_90)".
func (d Device) String() string {
	words := strings.TrimSpace(d.Backend + " " + d.Arch.words(d.Backend))
	return fmt.Sprintf("%s (%s)", d.Name, words)
}

// OfDevice takes from a device's attributes what counts. A GPU whose attributes do not tell its architecture has none, which is for Fits to
// say.
func OfDevice(d device.Device) (Device, error) {
	if d.Kind != device.KindGPU {
		return Device{}, fmt.Errorf("device %s is no GPU but of kind %q: kernel caches are for GPUs", d.Name, d.Kind)
	}
	result := Device{Name: d.Name}
	vendor := text(d, device.AttributeVendor)
	switch vendor {
	case "nvidia":
		result.Backend = CUDA
		result.Arch = capability(version(d, device.AttributeComputeCapability))
		result.Driver = leading(version(d, device.AttributeDriverVersion))
		result.MaxPTX = newestPTX(result.Driver)
	case "amd":
		result.Backend = HIP
		if arch, _, err := ParseArch(HIP, text(d, device.AttributeArchitecture)); err == nil {
			result.Arch = arch
		}
	default:
		// Intel's compute runtime, and whatever comes: no cache that is known here is for it.
		result.Backend = vendor
	}
	result.WarpSize = result.Arch.warpSize(result.Backend)
	return result, nil
}

func text(d device.Device, name resourceapi.QualifiedName) string {
	if value := d.Attributes[name].StringValue; value != nil {
		return *value
	}
	return ""
}

func version(d device.Device, name resourceapi.QualifiedName) string {
	if value := d.Attributes[name].VersionValue; value != nil {
		return *value
	}
	return ""
}

// capability makes "90" of "9.0.0", and "120" of "12.0.0".
func capability(version string) Arch {
	parts := strings.Split(version, ".")
	if len(parts) < 2 {
		return ""
	}
	major, err := strconv.ParseUint(parts[0], 10, 8)
	minor, minorErr := strconv.ParseUint(parts[1], 10, 8)
	if err != nil || minorErr != nil || major == 0 || minor > 9 {
		return ""
	}
	return Arch(strconv.FormatUint(major*10+minor, 10))
}

// leading is the first number of a version.
func leading(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// ptxOfDriver says which PTX came with which major of the driver (PTX ISA, "Release Notes", and the driver that each CUDA release names).
func ptxOfDriver() [][2]int {
	return [][2]int{
		{450, 70},
		{455, 71},
		{460, 72},
		{465, 73},
		{470, 74},
		{495, 75},
		{510, 76},
		{515, 77},
		{520, 78},
		{525, 80},
		{530, 81},
		{535, 82},
		{545, 83},
		{550, 84},
		{555, 85},
		{560, 85},
		{565, 86},
		{570, 87},
		{575, 88},
		{580, 90},
		{590, 91},
	}
}

// newestPTX is what a driver compiles. One that is newer than the table may compile more than the table knows, so that is not known.
func newestPTX(major int) int {
	rows := ptxOfDriver()
	if major >= rows[len(rows)-1][0]+5 {
		return 0
	}
	newest := 0
	for _, row := range rows {
		if major >= row[0] {
			newest = row[1]
		}
	}
	return newest
}
