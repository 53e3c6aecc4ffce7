// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"fmt"
	"strconv"
	"strings"
)

// Device has the properties of a GPU that decide whether a cache fits.
type Device struct {
	// Name is used in messages.
	Name    string `json:"name"`
	Backend string `json:"backend"`
	// Arch is empty if it is unknown.
	Arch     Arch `json:"arch,omitempty"`
	WarpSize int  `json:"warpSize,omitempty"`
	// Driver is the major version of NVIDIA's driver. 0: unknown.
	Driver int `json:"driver,omitempty"`
	// MaxPTX is the newest PTX version that the driver compiles, times 10. 0: unknown.
	MaxPTX int `json:"maxPTX,omitempty"`
}

// String returns a text for messages: "gpu-0000-1b-00-0 (cuda sm_90)".
func (d Device) String() string {
	words := strings.TrimSpace(d.Backend + " " + d.Arch.words(d.Backend))
	return fmt.Sprintf("%s (%s)", d.Name, words)
}

// NVIDIADevice is a GPU with a compute capability, "9.0.0", and a version of its driver. Either may be empty: not known.
func NVIDIADevice(name, computeCapability, driverVersion string) Device {
	d := Device{Name: name, Backend: CUDA, Arch: capability(computeCapability), Driver: leading(driverVersion)}
	d.MaxPTX = newestPTX(d.Driver)
	d.WarpSize = d.Arch.warpSize(d.Backend)
	return d
}

// AMDDevice is a GPU with an architecture, "gfx942". It is empty where it is not known.
func AMDDevice(name, architecture string) Device {
	d := Device{Name: name, Backend: HIP}
	if arch, _, err := ParseArch(HIP, architecture); err == nil {
		d.Arch = arch
	}
	d.WarpSize = d.Arch.warpSize(d.Backend)
	return d
}

// capability returns "90" for "9.0.0", and "120" for "12.0.0".
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

// leading returns the first number of a version.
func leading(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// ptxOfDriver returns the PTX version that came with each major version of the driver (PTX ISA, "Release Notes", and the driver that each
// CUDA release names).
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

// newestPTX returns the newest PTX that a driver compiles, or 0 if the driver is newer than the table.
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
