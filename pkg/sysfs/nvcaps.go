// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// MIGCapability reads the minor of the node by which a container may use an instance of an NVIDIA GPU: of GPU instance gi of the GPU with
// that minor, and of its compute instance ci, if that is not negative. The instance's own access file counts. Where there is none, the
// driver's table of all instances that there could be tells it (MIG user guide, device nodes and capabilities). Absent is fs.ErrNotExist.
func (t *Tree) MIGCapability(gpu int, gi uint32, ci int) (int64, error) {
	inDir, inTable := fmt.Sprintf("gpu%d/mig/gi%d", gpu, gi), fmt.Sprintf("gpu%d/gi%d", gpu, gi)
	if ci >= 0 {
		inDir, inTable = fmt.Sprintf("%s/ci%d", inDir, ci), fmt.Sprintf("%s/ci%d", inTable, ci)
	}
	name := path.Join(ProcNVIDIACapabilities, inDir, "access")
	text, err := t.ReadString(name)
	if errors.Is(err, fs.ErrNotExist) {
		return t.migMinor(inTable + "/access")
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
			return parseMinor(name, strings.TrimSpace(value))
		}
	}
	return 0, malformed(name, text, "a line with DeviceFileMinor")
}

// MIGInstances lists the ids of the GPU instances that the driver shows of the GPU with a minor, sorted. Where it shows none, or is not
// there, the list is empty.
func (t *Tree) MIGInstances(gpu int) ([]uint32, error) {
	names, err := t.ReadDir(path.Join(ProcNVIDIACapabilities, fmt.Sprintf("gpu%d/mig", gpu)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, name := range names {
		if text, ok := strings.CutPrefix(name, "gi"); ok {
			id, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				return nil, malformed(path.Join(ProcNVIDIACapabilities, fmt.Sprintf("gpu%d/mig", gpu)), name, "gi and a number")
			}
			ids = append(ids, uint32(id))
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// migMinor finds the line of one instance in the driver's table. With 32 GPUs that has 110 KiB.
func (t *Tree) migMinor(instance string) (int64, error) {
	f, err := t.root.file(ProcNVIDIAMIGMinors)
	if err != nil {
		return 0, failed("read", ProcNVIDIAMIGMinors, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), instance+" "); ok {
			return parseMinor(ProcNVIDIAMIGMinors, value)
		}
	}
	if err := lines.Err(); err != nil {
		return 0, failed("read", ProcNVIDIAMIGMinors, err)
	}
	return 0, fmt.Errorf("read %s: no line for %s: %w", HostPath(ProcNVIDIAMIGMinors), instance, fs.ErrNotExist)
}

func parseMinor(name, value string) (int64, error) {
	minor, err := strconv.ParseUint(value, 10, 20)
	if err != nil {
		return 0, malformed(name, value, "the minor of a device node")
	}
	return int64(minor), nil
}
