// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// maxCounters bounds the counters of one file; the kernel has about twenty.
const maxCounters = 128

// AER reads the error counters of a PCI Express function, by severity and kind of error: "fatal.DLP". A function without them has
// none (Documentation/ABI/testing/sysfs-bus-pci-devices-aer).
func AER(tree *sysfs.Tree, address string) ([]Reading, error) {
	var (
		readings []Reading
		faults   []error
	)
	for _, severity := range []string{"fatal", "nonfatal", "correctable"} {
		name := path.Join(sysfs.PCIDevice(address), "aer_dev_"+severity)
		more, err := counters(tree, name, func(text string) ([]Reading, error) { return parseAER(severity, text) })
		readings, faults = append(readings, more...), append(faults, err)
	}
	return readings, errors.Join(faults...)
}

// RAS reads the error counters of AMD's driver by block of the chip and kind of error: "umc.ue"
// (drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_ras_sysfs_read). Reading them asks the hardware.
func RAS(tree *sysfs.Tree, address string) ([]Reading, error) {
	const suffix = "_err_count"
	dir := path.Join(sysfs.PCIDevice(address), "ras")
	names, err := tree.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var (
		readings []Reading
		faults   = []error{err}
	)
	for _, name := range names {
		block, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		more, err := counters(tree, path.Join(dir, name), func(text string) ([]Reading, error) { return parseRAS(block, text) })
		readings, faults = append(readings, more...), append(faults, err)
	}
	return readings, errors.Join(faults...)
}

// counters reads a file of counters; one that is absent has none.
func counters(tree *sysfs.Tree, name string, parse func(string) ([]Reading, error)) ([]Reading, error) {
	text, err := tree.ReadString(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	readings, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", sysfs.HostPath(name), sysfs.ErrMalformed, err)
	}
	return readings, nil
}

// parseAER reads lines of a name, which may have spaces, and a number: "Data Link Protocol 0". The total counts messages and not
// errors, and is left out.
func parseAER(severity, text string) ([]Reading, error) {
	return parseLines(text, func(line string) (string, string) {
		i := strings.LastIndexAny(line, " \t")
		name := identifier(line[:max(i, 0)])
		if strings.HasPrefix(name, "TOTALERR") || name == "" {
			return "", line[i+1:]
		}
		return severity + "." + name, line[i+1:]
	})
}

// parseRAS reads lines of a word, a colon and a number: "ue: 0".
func parseRAS(block, text string) ([]Reading, error) {
	return parseLines(text, func(line string) (string, string) {
		word, number, _ := strings.Cut(line, ":")
		if identifier(word) == "" {
			return "", number
		}
		return identifier(block) + "." + identifier(word), strings.TrimSpace(number)
	})
}

// parseLines splits each line into a code and a number. A line without a code is left out, if its number is one.
func parseLines(text string, split func(string) (code, number string)) ([]Reading, error) {
	var readings []Reading
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		code, number := split(line)
		value, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%.40q, want a name and a number", line)
		}
		if code != "" {
			readings = append(readings, Reading{Code: code, Kind: Counter, Value: value})
		}
		if len(readings) > maxCounters {
			return nil, fmt.Errorf("more than %d counters", maxCounters)
		}
	}
	return readings, nil
}

// identifier keeps the letters and digits of a name, at most 40.
func identifier(name string) string {
	kept := strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			return -1
		}
		return r
	}, name)
	return kept[:min(len(kept), 40)]
}

// Instance tells one binding of a function to its driver from the next: the inode of the link driver, which the kernel makes anew
// each time. Empty for a function without a driver.
func Instance(tree *sysfs.Tree, address string) (string, error) {
	info, err := tree.Lstat(path.Join(sysfs.PCIDevice(address), "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", nil
	}
	return strconv.FormatUint(stat.Ino, 10), nil
}
