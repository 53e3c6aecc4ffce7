// SPDX-License-Identifier: Apache-2.0

package xrt

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// version is a version of XRT.
type version struct{ major, minor int }

// oldest is the first release whose xbmgmt has the needed command lines.
var oldest = version{2, 11}

func (v version) before(w version) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

var versionLine = regexp.MustCompile(`^\s*Version\s*:\s*([0-9]{1,4})\.([0-9]{1,6})(\.[0-9]{1,6})?\s*$`)

// parseVersion reads the output of xbmgmt --version: a line for XRT's version, and others for its source and drivers.
func parseVersion(output string) (version, error) {
	for line := range strings.Lines(output) {
		match := versionLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if match == nil {
			continue
		}
		major, _ := strconv.Atoi(match[1]) // The pattern has only digits.
		minor, _ := strconv.Atoi(match[2])
		return version{major, minor}, nil
	}
	return version{}, fmt.Errorf("%w: no line %q in what it prints: %.60q", sysfs.ErrMalformed, "Version : 2.14.354", output)
}

var contextsLine = regexp.MustCompile(`(?m)^contexts:\s*([0-9]{1,9})\s*$`)

// parseContexts reads the number of open contexts from the attribute kdsstat.
func parseContexts(text string) (int, error) {
	match := contextsLine.FindStringSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("%w: no line of contexts in %.60q", sysfs.ErrMalformed, text)
	}
	return strconv.Atoi(match[1])
}
