// SPDX-License-Identifier: Apache-2.0

package nvmlsim

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/pci"
)

// The driver numbers capabilities from 3, with 15 GPU instances of 8 compute instances each.
const (
	firstMinor  = 3
	perInstance = 9
	perGPU      = 15 * perInstance
)

// CapabilityMinor is the minor of a GPU instance's capability, as /proc/driver/nvidia-caps/mig-minors numbers it. That of compute instance
// c in it is greater by c+1.
func CapabilityMinor(gpu int, instance uint32) int {
	return firstMinor + gpu*perGPU + int(instance)*perInstance
}

// capabilities maps the directories of the access files to their minors.
func (s *State) capabilities() map[string]int {
	out := map[string]int{}
	for _, c := range s.Cards {
		if c.Absent {
			continue
		}
		for _, one := range c.Instances {
			dir := fmt.Sprintf("gpu%d/mig/gi%d", c.Minor, one.ID)
			minor := CapabilityMinor(c.Minor, one.ID)
			out[dir] = minor
			for _, compute := range one.Compute {
				out[fmt.Sprintf("%s/ci%d", dir, compute.ID)] = minor + 1 + int(compute.ID)
			}
		}
	}
	if len(s.Minors) > 0 {
		for dir := range out {
			out[dir] = s.Numbered[dir]
		}
	}
	return out
}

// number gives numbers of Minors to new capabilities, and takes those of old ones back. Where there are none left, numbers above them are
// given.
func (s *State) number() {
	if len(s.Minors) == 0 {
		return
	}
	have := s.capabilities()
	maps.DeleteFunc(s.Numbered, func(dir string, _ int) bool {
		_, there := have[dir]
		return !there
	})
	used := map[int]bool{}
	for _, minor := range s.Numbered {
		used[minor] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(have)) {
		if s.Numbered[dir] != 0 {
			continue
		}
		at := slices.IndexFunc(s.Minors, func(minor int) bool { return !used[minor] })
		minor := slices.Max(s.Minors) + 1
		for at < 0 && used[minor] {
			minor++
		}
		if at >= 0 {
			minor = s.Minors[at]
		}
		if s.Numbered == nil {
			s.Numbered = map[string]int{}
		}
		s.Numbered[dir], used[minor] = minor, true
	}
}

func (s *State) caps() string { return filepath.Join(s.root, "proc/driver/nvidia/capabilities") }

// writeTree makes the access files those of all instances there are. Before are those of which there are files. A file that stays is not
// touched, for others may be reading it.
func (s *State) writeTree(before map[string]int) error {
	if s.root == "" {
		return nil
	}
	now := s.capabilities()
	var err error
	for dir := range before {
		if _, stays := now[dir]; !stays {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.caps(), dir)))
		}
	}
	for dir, minor := range now {
		if have, there := before[dir]; !there || have != minor {
			err = errors.Join(err, s.writeAccess(filepath.Join(dir, "access"), minor))
		}
	}
	return err
}

func (s *State) writeAccess(name string, minor int) error {
	text := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 256\nDeviceFileModify: 1\n", minor)
	return write(filepath.Join(s.caps(), name), text)
}

// writeControls writes the access files of what is there without an instance, unless the tree has them.
func (s *State) writeControls() error {
	if s.root == "" {
		return nil
	}
	var errs []error
	for i, name := range []string{"mig/config", "mig/monitor"} {
		if _, err := os.Stat(filepath.Join(s.caps(), name)); errors.Is(err, os.ErrNotExist) {
			errs = append(errs, s.writeAccess(name, i+1))
		}
	}
	return errors.Join(errs...)
}

// writeMinors writes the table of all instances that could be, which never changes. With numbers of its own a machine has none.
func (s *State) writeMinors() error {
	if s.root == "" || len(s.Minors) > 0 {
		return nil
	}
	var minors strings.Builder
	minors.WriteString("config 1\nmonitor 2\n")
	for gpu := range 32 {
		for gi := range uint32(15) {
			fmt.Fprintf(&minors, "gpu%d/gi%d/access %d\n", gpu, gi, CapabilityMinor(gpu, gi))
			for ci := range 8 {
				fmt.Fprintf(&minors, "gpu%d/gi%d/ci%d/access %d\n", gpu, gi, ci, CapabilityMinor(gpu, gi)+1+ci)
			}
		}
	}
	return write(filepath.Join(s.root, "proc/driver/nvidia-caps/mig-minors"), minors.String())
}

func write(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(content), 0o644)
}

// sameBusID compares bus ids in the forms of NVIDIA and of the kernel.
func sameBusID(a, b string) bool {
	left, err := pci.ParseBusID(a)
	right, second := pci.ParseBusID(b)
	return err == nil && second == nil && left == right
}
