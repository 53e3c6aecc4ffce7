// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// moduleVersion is the version of a loaded kernel module. Modules that come with the kernel have none of their own: then it is
// the kernel's, without the distribution's suffix, which would make it a pre-release. Empty, without an error, if neither is
// there.
func moduleVersion(tree *sysfs.Tree, module string) (string, error) {
	version, err := tree.ReadString(path.Join(sysfs.Module(module), "version"))
	if err == nil && version != "" {
		return version, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	release, err := tree.ReadString(sysfs.ProcOSRelease)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if end := strings.IndexAny(release, "-+_"); end >= 0 {
		release = release[:end]
	}
	return release, nil
}

// charMajors reads the section of character devices of /proc/devices: the major of each driver's name.
func charMajors(tree *sysfs.Tree) (map[string]int64, error) {
	text, err := tree.ReadString(sysfs.ProcDevices)
	if err != nil {
		return nil, err
	}
	majors := parseMajors(text)
	if len(majors) == 0 {
		return nil, fmt.Errorf("read %s: %w: no character devices in it", sysfs.HostPath(sysfs.ProcDevices), sysfs.ErrMalformed)
	}
	return majors, nil
}

// parseMajors reads lines of a number and a name. Lines that are none are skipped: one driver with an odd name must not cost the
// others. The first of two equal names counts.
func parseMajors(text string) map[string]int64 {
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
