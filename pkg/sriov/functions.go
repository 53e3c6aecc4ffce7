// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// VirtualFunctions returns the virtual functions of a physical one, in the order of their numbers, which begin at 0 (the links virtfnN).
func VirtualFunctions(tree *sysfs.Tree, function pci.Address) ([]pci.Address, error) {
	var found []pci.Address
	for i := 0; ; i++ {
		name := attribute(function, "virtfn"+strconv.Itoa(i))
		base, err := tree.LinkBase(name)
		if errors.Is(err, fs.ErrNotExist) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		vf, err := pci.Parse(base)
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", sysfs.HostPath(name), err)
		}
		found = append(found, vf)
	}
}

// Provisioning is what one function gets of a card's resources (Documentation/ABI/testing/sysfs-driver-intel-xe-sriov, Linux 6.19). What is
// nil or empty stays as it is.
type Provisioning struct {
	// VF is the number of the virtual function, from 1; 0 is the physical one. The first virtual function is the one of the link virtfn0.
	VF int `json:"vf"`
	// ExecQuantum is how long the function may run while others wait, in milliseconds; 0 is without limit.
	ExecQuantum *uint32 `json:"execQuantumMs,omitempty"`
	// PreemptTimeout is how long it may go on after that, in microseconds; 0 is without limit.
	PreemptTimeout *uint32 `json:"preemptTimeoutUs,omitempty"`
	// SchedPriority is "low", "normal" or "high". Drivers take "high" for the physical function only.
	SchedPriority string `json:"schedPriority,omitempty"`
	// VRAMQuota is the card's memory for a virtual function, in bytes (Linux 7.0). Anything but 0 ends the driver's own division of all
	// resources.
	VRAMQuota *uint64 `json:"vramQuota,omitempty"`
}

func (p Provisioning) settings() []Setting {
	owner := "pf"
	if p.VF > 0 {
		owner = "vf" + strconv.Itoa(p.VF)
	}
	var set []Setting
	add := func(name, value string) {
		set = append(set, Setting{Name: "sriov_admin/" + owner + "/profile/" + name, Value: value})
	}
	if p.ExecQuantum != nil {
		add("exec_quantum_ms", strconv.FormatUint(uint64(*p.ExecQuantum), 10))
	}
	if p.PreemptTimeout != nil {
		add("preempt_timeout_us", strconv.FormatUint(uint64(*p.PreemptTimeout), 10))
	}
	if p.SchedPriority != "" {
		add("sched_priority", p.SchedPriority)
	}
	if p.VRAMQuota != nil {
		add("vram_quota", strconv.FormatUint(*p.VRAMQuota, 10))
	}
	return set
}
