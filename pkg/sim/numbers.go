// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// minorFile is a text of the NVIDIA driver that tells a minor, after which a node is named.
type minorFile struct {
	pattern *regexp.Regexp // of the path
	field   *regexp.Regexp // of the line; its groups are what precedes the minor, and the minor
	drivers []string       // names in proc/devices, the newest first
	node    string
}

var minorFiles = []minorFile{
	{
		pattern: regexp.MustCompile(`^proc/driver/nvidia/gpus/[^/]+/information$`),
		field:   regexp.MustCompile(`(?m)^(Device Minor:\s*)([0-9]+)\s*$`),
		drivers: []string{"nvidia", "nvidia-frontend"},
		node:    "dev/nvidia",
	},
	{
		pattern: regexp.MustCompile(`^proc/driver/nvidia/capabilities/`),
		field:   regexp.MustCompile(`(?m)^(DeviceFileMinor:\s*)([0-9]+)\s*$`),
		drivers: []string{"nvidia-caps"},
		node:    "dev/nvidia-caps/nvidia-cap",
	},
}

// number is that of the device with this minor, if its driver is loaded.
func (r renumbering) number(f minorFile, minor string) (Number, bool) {
	m, err := strconv.ParseUint(minor, 10, 32)
	if err != nil || m > maxMinor {
		return Number{}, false
	}
	for _, d := range f.drivers {
		if major, ok := r.majors[d]; ok {
			return Number{Major: major, Minor: uint32(m)}, true
		}
	}
	return Number{}, false
}

const (
	procDevices  = "proc/devices"
	blockHeading = "\nBlock devices:"
)

// characterLine is a driver of /proc/devices: its major and name (fs/proc/devices.c).
var characterLine = regexp.MustCompile(`^\s*([0-9]+) (\S+)$`)

// procDevices replaces the majors of the character drivers whose devices were renumbered.
func (r renumbering) procDevices(data []byte) []byte {
	characters, rest, hasBlock := strings.Cut(string(data), blockHeading)
	lines := strings.Split(characters, "\n")
	for i, line := range lines {
		match := characterLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		if major, err := strconv.ParseUint(match[1], 10, 12); err == nil && r.major[uint32(major)] {
			lines[i] = fmt.Sprintf("%3d %s", terminalMajor, match[2])
		}
	}
	out := strings.Join(lines, "\n")
	if hasBlock {
		out += blockHeading + rest
	}
	return []byte(out)
}

// driverMajors reads the character half of /proc/devices.
func driverMajors(entries []Entry) map[string]uint32 {
	majors := map[string]uint32{}
	for _, e := range entries {
		if e.Path != procDevices {
			continue
		}
		characters, _, _ := strings.Cut(string(e.Data), blockHeading)
		for line := range strings.Lines(characters) {
			match := characterLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if match == nil {
				continue
			}
			if major, err := strconv.ParseUint(match[1], 10, 12); err == nil {
				majors[match[2]] = uint32(major)
			}
		}
	}
	return majors
}

// blockAttributes are the dev attributes whose device belongs to the block subsystem.
func blockAttributes(entries []Entry) map[string]bool {
	block := map[string]bool{}
	for _, e := range entries {
		if e.Kind == Symlink && path.Base(e.Path) == "subsystem" && path.Base(e.Target) == "block" {
			block[path.Join(path.Dir(e.Path), "dev")] = true
		}
	}
	return block
}
