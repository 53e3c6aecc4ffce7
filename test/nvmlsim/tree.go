// SPDX-License-Identifier: Apache-2.0

package nvmlsim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// capabilities lists the access files, with their minors.
func (s *State) capabilities() []string {
	var out []string
	for _, c := range s.Cards {
		if c.Absent {
			continue
		}
		for _, one := range c.Instances {
			dir := fmt.Sprintf("gpu%d/mig/gi%d", c.Minor, one.ID)
			minor := CapabilityMinor(c.Minor, one.ID)
			out = append(out, fmt.Sprintf("%s/access %d", dir, minor))
			for _, compute := range one.Compute {
				out = append(out, fmt.Sprintf("%s/ci%d/access %d", dir, compute.ID, minor+1+int(compute.ID)))
			}
		}
	}
	return out
}

// writeTree writes the access files of all instances anew.
func (s *State) writeTree() error {
	if s.Tree == "" {
		return nil
	}
	caps := filepath.Join(s.Tree, "proc/driver/nvidia/capabilities")
	err := os.RemoveAll(caps)
	for _, line := range append(s.capabilities(), "mig/config 1", "mig/monitor 2") {
		name, minor, _ := strings.Cut(line, " ")
		text := fmt.Sprintf("DeviceFileMinor: %s\nDeviceFileMode: 256\nDeviceFileModify: 1\n", minor)
		err = errors.Join(err, write(filepath.Join(caps, name), text))
	}
	return err
}

// writeMinors writes the table of all instances that could be, which never changes.
func (s *State) writeMinors() error {
	if s.Tree == "" {
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
	return write(filepath.Join(s.Tree, "proc/driver/nvidia-caps/mig-minors"), minors.String())
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
