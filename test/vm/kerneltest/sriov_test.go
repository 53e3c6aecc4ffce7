// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"
	"path"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// functions makes n virtual functions of a device, which the kernel is not to bind to a driver, and returns their addresses. They are
// removed when the test ends.
func (m machine) functions(address string, n int) []string {
	m.Helper()
	dir := path.Join("devices", address)
	// Without a driver of the physical function there are no virtual ones. The kernel probes it in the background.
	m.await("the driver of "+address, func() bool { return m.driver(address) != "" })
	m.set(path.Join(dir, "sriov_drivers_autoprobe"), "0")
	m.set(path.Join(dir, "sriov_numvfs"), fmt.Sprint(n))
	m.Cleanup(func() {
		m.set(path.Join(dir, "sriov_numvfs"), "0")
		m.set(path.Join(dir, "sriov_drivers_autoprobe"), "1")
	})
	var addresses []string
	for i := range n {
		name, err := m.tree.LinkBase(path.Join(sysfs.PCI, dir, fmt.Sprintf("virtfn%d", i)))
		check.Must(m, err)
		addresses = append(addresses, name)
	}
	return addresses
}

// TestVirtualFunctions: functions come and go with the number that is written, each with a group of its own; the number can be changed
// only by way of 0, and not above the device's most.
func TestVirtualFunctions(t *testing.T) {
	m := onMachine(t)
	address := m.device(nvme)
	dir := path.Join(sysfs.PCI, "devices", address)
	total, err := m.tree.ReadInt(path.Join(dir, "sriov_totalvfs"))
	check.Must(t, err)
	if total != 4 {
		t.Fatalf("the device can have %d virtual functions, want 4", total)
	}
	if err := m.write.WriteAttr(path.Join(dir, "sriov_numvfs"), "5"); !errors.Is(err, syscall.ERANGE) {
		t.Errorf("one more than there can be: %v, want ERANGE", err)
	}
	var addresses []string
	t.Run("made", func(t *testing.T) {
		m := onMachine(t)
		addresses = m.functions(address, 2)
		groups := map[uint64]bool{m.group(address).Number: true}
		for _, vf := range addresses {
			physical, err := m.tree.LinkBase(path.Join(sysfs.PCIDevice(vf), "physfn"))
			check.Must(t, err)
			if physical != address {
				t.Errorf("%s belongs to %s, want %s", vf, physical, address)
			}
			group := m.group(vf)
			if groups[group.Number] || !group.Translates() {
				t.Errorf("%s is in group %d of type %s, want one of its own that is translated", vf, group.Number, group.Type)
			}
			groups[group.Number] = true
			if driver := m.driver(vf); driver != "" {
				t.Errorf("%s was bound to %s", vf, driver)
			}
		}
		if err := m.write.WriteAttr(path.Join(dir, "sriov_numvfs"), "3"); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("another number: %v, want EBUSY", err)
		}
		number, err := m.tree.ReadInt(path.Join(dir, "sriov_numvfs"))
		check.Must(t, err)
		if number != 2 {
			t.Errorf("there are %d virtual functions, want 2 as before", number)
		}
	})
	for _, vf := range addresses {
		if m.tree.Exists(sysfs.PCIDevice(vf)) {
			t.Errorf("%s is still there", vf)
		}
	}
}
