// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"fmt"
	"strconv"
	"strings"
)

// CharMajors reads the section of character devices of /proc/devices: the major of each driver's name.
func (t *Tree) CharMajors() (map[string]int64, error) {
	text, err := t.ReadString(ProcDevices)
	if err != nil {
		return nil, err
	}
	majors := ParseCharMajors(text)
	if len(majors) == 0 {
		return nil, fmt.Errorf("read %s: %w: no character devices in it", HostPath(ProcDevices), ErrMalformed)
	}
	return majors, nil
}

// ParseCharMajors reads lines of a number and a name. Lines that are none are skipped: one driver with an odd name must not cost the
// others. The first of two equal names counts.
func ParseCharMajors(text string) map[string]int64 {
	const charSection = "Character devices:"
	majors := map[string]int64{}
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasSuffix(line, "devices:") {
			section = line
			continue
		}
		number, name, _ := strings.Cut(line, " ")
		major, err := strconv.ParseUint(number, 10, 12)
		if _, seen := majors[name]; section != charSection || err != nil || major == 0 || name == "" || seen {
			continue
		}
		majors[name] = int64(major)
	}
	return majors
}
