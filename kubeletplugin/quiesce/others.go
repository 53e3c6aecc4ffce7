// SPDX-License-Identifier: Apache-2.0

package quiesce

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/deviceuse"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// maxOthers is how many programs a report names, and maxName how long a name of one is, as the kernel cuts it.
const maxOthers, maxName = 5, 15

// others says which programs of the node still have devices of the vendors open, which keeps their driver from being unloaded. A report of
// nothing is not made: text says why where the plugin cannot look.
func (s *State) others(v *inventory.Snapshot, of []string) (found bool, text string) {
	if !s.config.SeesProcesses {
		return false, "which other programs use them is not known, since the plugin may not look (partitions.pci)"
	}
	users, err := s.find(functions(v, of))
	if err != nil {
		return false, "which other programs use them is not known: " + err.Error()
	}
	if len(users) == 0 {
		return false, "no other program does"
	}
	return true, "other programs keep them from being unloaded: " + list(users)
}

// find returns the users of functions in the host tree.
func (s *State) find(functions []deviceuse.Function) (users []deviceuse.User, err error) {
	tree, err := sysfs.Open(s.config.HostRoot)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	return deviceuse.Find(tree, functions)
}

// functions are the PCI functions of the vendors' devices, with the nodes by which programs use them. A GPU of which only parts are
// published is among them.
func functions(v *inventory.Snapshot, of []string) []deviceuse.Function {
	devices := slices.Clone(v.Devices)
	for i := range v.Physical {
		devices = append(devices, v.Physical[i].Device)
	}
	var out []deviceuse.Function
	for i := range devices {
		d := &devices[i]
		address, err := pci.Parse(device.StringOf(d.Attributes[device.AttributePCIAddress]))
		if err != nil || !slices.Contains(of, device.StringOf(d.Attributes[device.AttributeVendor])) {
			continue
		}
		one := deviceuse.Function{Address: address}
		for _, n := range d.Edits.Nodes {
			one.Nodes = append(one.Nodes, sysfs.Number{Major: n.Major, Minor: n.Minor})
		}
		out = append(out, one)
	}
	return out
}

// list names the users, each process once, whatever nodes it has open.
func list(users []deviceuse.User) string {
	var texts []string
	for _, u := range users {
		text := u.String()
		if u.PID != 0 {
			text = fmt.Sprintf("process %d (%s)", u.PID, message.Line(u.Name, maxName))
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if more := len(texts) - maxOthers; more > 0 {
		texts = append(texts[:maxOthers], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}
