// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/vm/internal/guest"
)

// The devices of the machine, by PCI vendor and device (docs/specs/pci-ids.rst of QEMU).
var (
	edu  = [2]uint64{0x1234, 0x11e8}
	nvme = [2]uint64{0x1b36, 0x0010}
)

// machine is the virtual machine that a test runs on.
type machine struct {
	*testing.T
	tree  *sysfs.Tree
	write *sysfs.Writer
}

// onMachine skips the test unless it runs in the virtual machine, whose kernel is told so by its command line.
func onMachine(t *testing.T) machine {
	t.Helper()
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil || !slices.Contains(strings.Fields(string(line)), guest.Marker) {
		t.Skip("this is not the virtual machine: run make test-vm")
	}
	tree, err := sysfs.Open("/")
	check.Must(t, err)
	writer, err := sysfs.OpenWriter("/")
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, errors.Join(tree.Close(), writer.Close())) })
	return machine{T: t, tree: tree, write: writer}
}

// device returns the PCI address of a device that the machine has once.
func (m machine) device(id [2]uint64) string {
	m.Helper()
	all, err := m.tree.ReadDir(sysfs.PCIDevices)
	check.Must(m, err)
	var found []string
	for _, address := range all {
		vendor, err := m.tree.ReadHex(path.Join(sysfs.PCIDevice(address), "vendor"))
		check.Must(m, err)
		device, err := m.tree.ReadHex(path.Join(sysfs.PCIDevice(address), "device"))
		check.Must(m, err)
		if id == [2]uint64{vendor, device} {
			found = append(found, address)
		}
	}
	if len(found) != 1 {
		m.Fatalf("the machine has the devices %q of %04x:%04x, want one", found, id[0], id[1])
	}
	return found[0]
}

// driver is the name of a function's driver, "" without one.
func (m machine) driver(address string) string {
	m.Helper()
	name, err := m.tree.LinkBase(path.Join(sysfs.PCIDevice(address), "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	check.Must(m, err)
	return name
}

// override is what driver_override holds, as the kernel prints it.
func (m machine) override(address string) string {
	m.Helper()
	text, err := m.tree.ReadString(path.Join(sysfs.PCIDevice(address), "driver_override"))
	check.Must(m, err)
	return text
}

// group is the IOMMU group of a function.
func (m machine) group(address string) sysfs.IOMMUGroup {
	m.Helper()
	group, err := m.tree.ReadIOMMUGroup(sysfs.PCIDevice(address))
	check.Must(m, err)
	return group
}

// set writes an attribute below /sys/bus/pci.
func (m machine) set(name, value string) {
	m.Helper()
	check.Must(m, m.write.WriteAttr(path.Join(sysfs.PCI, name), value))
}

// node is the device node that VFIO has for a group.
func node(group sysfs.IOMMUGroup) string { return fmt.Sprintf("/dev/vfio/%d", group.Number) }

// toVFIO binds a function to vfio-pci, and back to the driver and the override of before when the test ends.
func (m machine) toVFIO(address string) {
	m.Helper()
	const driver = "vfio-pci"
	if out, err := exec.Command("modprobe", driver).CombinedOutput(); err != nil {
		m.Fatalf("modprobe %s: %v: %s", driver, err, out)
	}
	before, override := m.driver(address), m.override(address)
	attribute := path.Join("devices", address, "driver_override")
	m.set(attribute, driver)
	if before != "" {
		m.set(path.Join("drivers", before, "unbind"), address)
	}
	m.set(path.Join("drivers", driver, "bind"), address)
	m.Cleanup(func() {
		m.set(path.Join("drivers", driver, "unbind"), address)
		m.set(attribute, strings.TrimSuffix(override, "(null)")+"\n")
		if before != "" {
			m.set(path.Join("drivers", before, "bind"), address)
		}
		if got := m.driver(address); got != before {
			m.Errorf("%s has the driver %q again, want %q", address, got, before)
		}
	})
}

// await looks until ok.
func (m machine) await(what string, ok func() bool) {
	m.Helper()
	check.Eventually(m, what, ok)
}

// exists says whether there is a file.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
