// SPDX-License-Identifier: Apache-2.0

package nvmlsim

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
)

// Adopt makes a machine of the GPUs that the driver's files in a host tree name, all of one model, with a tool of that driver's version.
// Capabilities get the given minors, or are numbered as the driver does if there are none.
func Adopt(file, tree, model string, minors ...int) (Machine, error) {
	m := Machine{File: file}
	if _, ok := models()[model]; !ok {
		return m, fmt.Errorf("no model %q", model)
	}
	files, err := filepath.Glob(filepath.Join(tree, "proc/driver/nvidia/gpus/*/information"))
	if err != nil {
		return m, err
	}
	if len(files) == 0 {
		return m, fmt.Errorf("%s has no GPU of NVIDIA's driver", tree)
	}
	relative, err := filepath.Rel(filepath.Dir(file), tree)
	if err != nil {
		return m, err
	}
	s := &State{Tree: relative, Minors: minors, Calls: map[string]int{}}
	if version, err := os.ReadFile(filepath.Join(tree, "proc/driver/nvidia/version")); err == nil {
		s.ToolVersion = nvml.KernelVersion(string(version))
	}
	for _, name := range files {
		c, err := adopted(name)
		if err != nil {
			return m, fmt.Errorf("%s: %w", name, err)
		}
		c.Model = model
		s.Cards = append(s.Cards, c)
	}
	return m, m.begin(s)
}

// adopted reads what the driver says of a GPU.
func adopted(name string) (*Card, error) {
	address, err := pci.Parse(filepath.Base(filepath.Dir(name)))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	said := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		said[key] = strings.TrimSpace(value)
	}
	minor, err := strconv.Atoi(said["Device Minor"])
	if err != nil || said["GPU UUID"] == "" {
		return nil, fmt.Errorf("device minor %q and UUID %q: want both", said["Device Minor"], said["GPU UUID"])
	}
	return &Card{BusID: "0000" + strings.ToUpper(address.String()), UUID: said["GPU UUID"], Minor: minor}, nil
}

// followDrivers takes the cards away that NVIDIA's driver does not have, and brings those back that it has again. What was made of them is
// gone then, and so is MIG mode, which on most cards lasts as long as the driver has it. It counts only where the sys of the tree reacts
// (see package pcisim): a process without that mount knows nothing of drivers.
func (s *State) followDrivers() {
	var stat unix.Statfs_t
	if s.root == "" || unix.Statfs(filepath.Join(s.root, "sys"), &stat) != nil || stat.Type != unix.FUSE_SUPER_MAGIC {
		return
	}
	for _, c := range s.Cards {
		absent := s.boundElsewhere(c)
		if absent && !c.Absent {
			c.Pending = c.Pending && c.Kind().NeedsReset
			c.reset()
		}
		c.Absent = absent
	}
}

// boundElsewhere says whether the card has another driver than NVIDIA's, or none.
func (s *State) boundElsewhere(c *Card) bool {
	address, err := pci.ParseBusID(c.BusID)
	if err != nil {
		return false
	}
	driver, err := os.Readlink(filepath.Join(s.root, "sys/bus/pci/devices", address.String(), "driver"))
	return err != nil || path.Base(driver) != "nvidia"
}
